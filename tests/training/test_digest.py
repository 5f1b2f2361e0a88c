"""The digest sees every bit and nothing else."""

from __future__ import annotations

import hashlib

import torch

from powertrip.training.digest import digest


def test_it_is_blake2b_over_the_bytes() -> None:
    first, second = torch.tensor([1.0, -2.5]), torch.tensor([3], dtype=torch.int64)
    expected = hashlib.blake2b(
        first.numpy().tobytes() + second.numpy().tobytes(), digest_size=16
    ).hexdigest()
    assert digest(first, second) == expected
    assert len(expected) == 32


def test_one_bit_changes_it() -> None:
    vector = torch.zeros(1000)
    flipped = vector.clone()
    flipped[-1] = -0.0
    assert torch.equal(vector, flipped)
    assert digest(vector) != digest(flipped)


def test_views_scalars_and_parameters() -> None:
    matrix = torch.arange(6.0).reshape(2, 3)
    assert digest(matrix.t()) == digest(torch.tensor([0.0, 3.0, 1.0, 4.0, 2.0, 5.0]))
    assert digest(torch.tensor(2.0, requires_grad=True)) == digest(torch.tensor([2.0]))
    assert digest(torch.ones(2, dtype=torch.bfloat16)) == digest(
        torch.ones(2, dtype=torch.bfloat16)
    )
    assert digest(torch.zeros(0)) == digest()
