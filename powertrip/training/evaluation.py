"""Accuracy and loss on a split, or on this member's part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from powertrip.training.data import IntArray, source
from powertrip.training.flat import FlatModel
from powertrip.training.task import Task

BATCH = 512


@dataclass(frozen=True)
class Counts:
    """Sums over evaluated samples; those of several members are added.

    Attributes
    ----------
    correct
        Samples that are right.
    loss_sum
        Sum of the samples' losses.
    count
        Samples evaluated.
    """

    correct: float
    loss_sum: float
    count: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.correct + other.correct, self.loss_sum + other.loss_sum, self.count + other.count
        )

    @property
    def accuracy(self) -> float:
        """Share of the samples that are right; nan when none was evaluated."""
        return self.correct / self.count if self.count else float("nan")

    @property
    def loss(self) -> float:
        """Mean loss; nan when no sample was evaluated."""
        return self.loss_sum / self.count if self.count else float("nan")


def evaluate(
    task: Task,
    model: FlatModel,
    split: Literal["validation", "test"],
    shard: int = 0,
    shards: int = 1,
) -> Counts:
    """Evaluate one of `shards` equal, contiguous parts of a split.

    Parameters
    ----------
    task, model
        What is evaluated; the model is in training mode again afterwards.
    split
        Name of the split.
    shard, shards
        Which part, from 0, and of how many. The parts of all shards make up the split.
    """
    if not 0 <= shard < shards:
        raise ValueError(f"shard {shard} of {shards} does not exist")
    count = len(source(getattr(task, split), split))
    first, last = (count * bound // shards for bound in (shard, shard + 1))
    return evaluate_at(task, model, split, np.arange(first, last))


def evaluate_at(
    task: Task, model: FlatModel, split: Literal["validation", "test"], indices: IntArray
) -> Counts:
    """Evaluate the samples of a split at `indices`, `BATCH` of them at a time.

    Parameters
    ----------
    task, model
        What is evaluated; the model is in training mode again afterwards.
    split
        Name of the split.
    indices
        Places in the split.
    """
    samples = source(getattr(task, split), split)
    correct = loss_sum = 0.0
    model.module.eval()
    with torch.no_grad():
        for start in range(0, len(indices), BATCH):
            chosen = indices[start : start + BATCH]
            inputs, targets = samples.fetch(chosen, model.device)
            outputs = model.module(inputs)
            correct += float(task.correct(outputs, targets))
            loss_sum += float(task.loss(outputs, targets)) * len(chosen)
    model.module.train()
    return Counts(correct, loss_sum, len(indices))


def sample_blocks(
    task: Task, split: Literal["validation", "test"], limit: int | None = None
) -> list[IntArray]:
    """Cut a split into blocks of `BATCH` samples, the last one perhaps shorter.

    The sum of the blocks' counts, in their order, is what `evaluate` gives.

    Parameters
    ----------
    task
        Whose split.
    split
        Its name.
    limit
        Take only so many samples, evenly spread over the split; None takes all.
    """
    count = len(source(getattr(task, split), split))
    taken = count if limit is None else min(limit, count)
    indices = np.arange(taken) * count // max(taken, 1)
    return [indices[start : start + BATCH] for start in range(0, taken, BATCH)]
