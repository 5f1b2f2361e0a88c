"""Memory that the processes of a simulation share: the model, updates, signs of life."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_FLOATS_A_LINE = 16
"""Rows start at multiples of 64 bytes, as torch's own memory does: there are kernels whose last
bits depend on that."""


class SharedMemory:
    """One mapping of a file without a name.

    /dev/shm, which torch's own shared tensors take, is small in many containers; a memory file
    counts only as memory. Pages that are never written take none.

    Parameters
    ----------
    size
        Length of the model's vector.
    workers, slots
        Processes that share it with their owner, and updates that each can leave here.
    descriptor
        Of an `unnamed_file`; it may be closed afterwards.

    Attributes
    ----------
    vector : Tensor
        The model that the jobs are about, [size], float32.
    updates : Tensor
        [workers, slots, size], float32.
    beats : Tensor
        Int64, one a worker: it counts what it has done, to show that it goes on.
    """

    def __init__(self, size: int, workers: int, slots: int, descriptor: int) -> None:
        row = -(-size // _FLOATS_A_LINE) * _FLOATS_A_LINE
        rows = 1 + workers * slots
        length = 4 * row * rows + 8 * workers
        if os.fstat(descriptor).st_size < length:
            os.ftruncate(descriptor, length)
        memory = mmap.mmap(descriptor, length)
        table = torch.frombuffer(memory, dtype=torch.float32, count=row * rows).view(rows, row)
        self.vector = table[0, :size]
        self.updates = table[1:].view(workers, slots, row)[:, :, :size]
        self.beats = torch.frombuffer(memory, dtype=torch.int64, offset=4 * row * rows)


@contextmanager
def unnamed_file(content: bytes = b"") -> Iterator[int]:
    """The descriptor of a file without a name, in memory where the system has that."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("powertrip-simulation")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield descriptor
    finally:
        os.close(descriptor)
