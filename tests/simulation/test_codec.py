from __future__ import annotations

import numpy as np
import pytest
import torch

from powertrip.simulation.codec import Int8


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 5000])
def test_each_block_is_rounded_to_whole_parts_of_its_largest(size):
    rng = np.random.default_rng(size)
    numbers = (rng.normal(size=size) * np.exp(rng.normal(0, 5, size))).astype(np.float32)
    arrived = Int8(torch.empty(size)).through(torch.from_numpy(numbers)).numpy()
    expected = []
    for start in range(0, size, 1024):
        block = numbers[start : start + 1024].astype(np.float64)
        scale = np.abs(block).max() / 127
        # Where a number lies in the middle of two, float32 may see it nearer to the other one.
        np.testing.assert_array_less(np.abs(arrived[start : start + 1024] - block), scale * 0.5001)
        levels = arrived[start : start + 1024] / scale
        np.testing.assert_allclose(levels, np.round(levels), atol=1e-4)
        expected.append(len(np.unique(np.round(levels))))
    assert max(expected) <= 255


def test_the_largest_arrives_and_nothing_stays_nothing():
    vector = torch.tensor([0.0, -2.54, 1.0, 0.009])
    codec = Int8(vector)
    # parts of 0.02
    assert codec.through(vector).tolist() == pytest.approx([0, -2.54, 1.0, 0.0], abs=1e-6)
    assert codec.through(torch.zeros(4)).tolist() == [0, 0, 0, 0]
    assert vector.tolist() == pytest.approx([0.0, -2.54, 1.0, 0.009])


def test_what_is_no_number_is_not_hidden():
    arrived = Int8(torch.empty(3)).through(torch.tensor([1.0, torch.nan, 2.0]))
    assert arrived.isnan().any()
    assert not Int8(torch.empty(3)).through(torch.tensor([1.0, torch.inf, 2.0])).isfinite().all()
