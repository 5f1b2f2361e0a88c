"""Evaluation: its parts sum to the whole, and it leaves the model as it was."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

from powertrip.training import evaluation
from powertrip.training.digits import Digits
from powertrip.training.evaluation import Counts, evaluate
from powertrip.training.flat import FlatModel, initial_model
from powertrip.training.task import Classification, Task


@pytest.mark.parametrize("shards", [2, 3, 7, 400])
def test_shards_sum_to_the_whole(shards: int) -> None:
    task = Digits()
    model = initial_model(task, seed=0)
    whole = evaluate(task, model, "test")
    parts = [evaluate(task, model, "test", shard, shards) for shard in range(shards)]
    total = sum(parts, start=Counts(0.0, 0.0, 0))
    assert whole.count == 359
    assert (total.correct, total.count) == (whole.correct, whole.count)
    assert total.loss_sum == pytest.approx(whole.loss_sum, rel=1e-5)
    assert max(p.count for p in parts) - min(p.count for p in parts) <= 1


def test_known_counts_over_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "BATCH", 4)
    targets = torch.tensor([0, 1, 1, 0, 1, 1, 0])
    logits = torch.tensor([[1.0, 0.0]]).repeat(7, 1)
    base = Classification()
    task = cast(
        Task,
        SimpleNamespace(validation=(logits, targets), loss=base.loss, correct=base.correct),
    )
    model = FlatModel(nn.Sequential(nn.BatchNorm1d(2, affine=False, eps=0), Identity()))
    counts = evaluate(task, model, "validation")
    right, wrong = math.log(1 + math.exp(-1)), math.log(1 + math.exp(1))
    assert (counts.correct, counts.count) == (3.0, 7)
    assert counts.loss_sum == pytest.approx(3 * right + 4 * wrong)
    assert counts.accuracy == pytest.approx(3 / 7)
    assert model.module.training
    assert model.vector.tolist() == [1.0, 0.0, 0.0, 1.0, 1.0]


class Identity(nn.Module):
    """Has the one parameter that a model must have, and no effect."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_nothing_evaluated_has_no_accuracy() -> None:
    empty = Counts(0.0, 0.0, 0)
    assert math.isnan(empty.accuracy)
    assert math.isnan(empty.loss)


def test_a_shard_that_does_not_exist() -> None:
    task = Digits()
    with pytest.raises(ValueError, match="shard 2 of 2"):
        evaluate(task, initial_model(task, seed=0), "test", 2, 2)
