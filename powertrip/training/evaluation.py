"""Accuracy and loss on a split, or on this member's part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from powertrip.training.data import source
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
    samples = source(getattr(task, split), split)
    first, last = (len(samples) * bound // shards for bound in (shard, shard + 1))
    correct = loss_sum = 0.0
    model.module.eval()
    with torch.no_grad():
        for start in range(first, last, BATCH):
            indices = np.arange(start, min(start + BATCH, last))
            inputs, targets = samples.fetch(indices, model.device)
            outputs = model.module(inputs)
            correct += float(task.correct(outputs, targets))
            loss_sum += float(task.loss(outputs, targets)) * len(indices)
    model.module.train()
    return Counts(correct, loss_sum, last - first)
