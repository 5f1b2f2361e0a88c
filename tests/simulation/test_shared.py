"""The memory that processes share."""

from __future__ import annotations

import os

import pytest
import torch

from powertrip.simulation.shared import SharedMemory, unnamed_file


def test_two_mappings_of_one_file_hold_the_same() -> None:
    with unnamed_file() as descriptor:
        ours, theirs = (SharedMemory(5, 2, 3, descriptor) for _ in range(2))
    ours.vector.copy_(torch.arange(5.0))
    for worker in range(2):
        for slot in range(3):
            theirs.updates[worker, slot].fill_(10 * worker + slot)
    theirs.beats[1] += 7
    assert theirs.vector.tolist() == [0, 1, 2, 3, 4]
    assert ours.updates[:, :, 4].tolist() == [[0, 1, 2], [10, 11, 12]]
    assert ours.beats.tolist() == [0, 7]


def test_every_row_begins_at_a_line_of_memory() -> None:
    with unnamed_file() as descriptor:
        memory = SharedMemory(5, 2, 3, descriptor)
    rows = [memory.vector, *memory.updates.flatten(0, 1)]
    assert all(row.data_ptr() % 64 == 0 for row in rows)


def test_an_unnamed_file_is_closed() -> None:
    with unnamed_file(b"setup") as descriptor:
        assert os.pread(descriptor, 100, 0) == b"setup"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
