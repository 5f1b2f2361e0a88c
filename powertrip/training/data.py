"""Batches by index out of a split, whether it is a pair of tensors or a Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from powertrip.training.errors import TaskError

Split: TypeAlias = "tuple[Tensor, Tensor] | Dataset[Any]"
IntArray: TypeAlias = npt.NDArray[np.int64]


class Source(Protocol):
    """Samples that can be fetched by index, a batch at a time."""

    def __len__(self) -> int: ...

    def fetch(self, indices: IntArray, device: torch.device) -> tuple[Any, Any]:
        """Inputs and targets of the samples at `indices`, collated, on `device`."""
        ...


class TensorSource:
    """A split held as two tensors with one row a sample."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.inputs)

    def fetch(self, indices: IntArray, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows at `indices`, on `device`."""
        rows = torch.from_numpy(indices)
        inputs, targets = self.inputs.index_select(0, rows), self.targets.index_select(0, rows)
        return inputs.to(device), targets.to(device)


class DatasetSource:
    """A split held as a map-style `torch.utils.data.Dataset` of (input, target) pairs."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(cast(Sized, self.dataset))

    def fetch(self, indices: IntArray, device: torch.device) -> tuple[Any, Any]:
        """Items at `indices`, collated by torch's default rules, on `device`."""
        inputs, targets = default_collate([self.dataset[int(i)] for i in indices])
        return _move(inputs, device), _move(targets, device)


def source(split: Split, name: str = "the split") -> Source:
    """Wrap a split so that batches can be fetched from it.

    Parameters
    ----------
    split
        (inputs, targets) tensors with one row a sample, or a map-style Dataset.
    name
        What to call the split in an error.

    Raises
    ------
    TaskError
        If it is neither, holds no sample, or has unequal numbers of inputs and targets.
    """
    if isinstance(split, TensorDataset) and len(split.tensors) == 2:
        split = (split.tensors[0], split.tensors[1])
    result: Source
    if isinstance(split, tuple) and len(split) == 2 and all(isinstance(t, Tensor) for t in split):
        inputs, targets = split
        if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) != len(targets):
            raise TaskError(
                f"{name} pairs inputs of shape {tuple(inputs.shape)} with targets of shape "
                f"{tuple(targets.shape)}; both need one row a sample"
            )
        result = TensorSource(inputs, targets)
    elif hasattr(split, "__getitem__") and hasattr(split, "__len__") and not _is_sequence(split):
        result = DatasetSource(cast("Dataset[Any]", split))
    else:
        raise TaskError(
            f"{name} is a {type(split).__name__}; give a tuple of two tensors (inputs, targets) "
            "or a torch Dataset with __len__ and __getitem__"
        )
    if len(result) == 0:
        raise TaskError(f"{name} holds no sample")
    return result


def _is_sequence(split: object) -> bool:
    return isinstance(split, tuple | str | bytes | Mapping | Tensor | np.ndarray)


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _move(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_move(item, device) for item in value)
    if isinstance(value, list | tuple):
        return type(value)(_move(item, device) for item in value)
    return value
