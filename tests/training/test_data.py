"""Fetching batches from tensors and from Datasets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from powertrip.training.data import DatasetSource, TensorSource, source
from powertrip.training.errors import TaskError

CPU = torch.device("cpu")


class Squares(Dataset[tuple[dict[str, torch.Tensor], int]]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], int]:
        return {"x": torch.tensor([float(index)])}, index**2


def test_tensors_and_their_dataset_give_the_same_rows() -> None:
    inputs, targets = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    pair = source((inputs, targets))
    wrapped = source(TensorDataset(inputs, targets))
    assert isinstance(wrapped, TensorSource)
    for fetched in (pair.fetch(np.array([4, 1]), CPU), wrapped.fetch(np.array([4, 1]), CPU)):
        assert fetched[0].tolist() == [[8.0, 9.0], [2.0, 3.0]]
        assert fetched[1].tolist() == [4, 1]


def test_a_dataset_is_collated_with_its_structure() -> None:
    samples = source(Squares())
    assert isinstance(samples, DatasetSource)
    assert len(samples) == 5
    inputs, targets = samples.fetch(np.array([3, 0]), CPU)
    assert inputs["x"].tolist() == [[3.0], [0.0]]
    assert targets.tolist() == [9, 0]


class Pair(NamedTuple):
    left: float
    right: list[float]


def test_named_tuples_keep_their_names() -> None:
    inputs, _ = source([(Pair(1.0, [2.0]), 0), (Pair(3.0, [4.0]), 1)]).fetch(np.arange(2), CPU)
    assert inputs.left.tolist() == [1.0, 3.0]
    assert inputs.right[0].tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ((torch.zeros(3, 2), torch.zeros(4)), "both need one row a sample"),
        ((torch.zeros(0, 2), torch.zeros(0)), "holds no sample"),
        ({0: 1}, "Dataset with __len__"),
        ((np.zeros(3), np.zeros(3)), "Dataset with __len__"),
        (None, "Dataset with __len__"),
    ],
)
def test_a_split_that_is_none_is_named(split: Any, said: str) -> None:
    with pytest.raises(TaskError, match=f"^my split .*{said}"):
        source(split, "my split")
