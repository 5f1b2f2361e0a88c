"""Training sites as one batch of models: as each of them would train by itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from powertrip.config import Config, load_config
from powertrip.simulation.errors import NotStackable
from powertrip.simulation.in_process import InProcess
from powertrip.simulation.stacked import BLOCK_BYTES, Stacked
from powertrip.training.digits import Digits
from powertrip.training.errors import TaskError, TrainingDiverged
from powertrip.training.task import Classification, Task

SHARES = [np.arange(site * 40, site * 40 + 40 + site) for site in range(5)]
WORK = [(3, 2), (1, 5), (4, 1), (0, 5), (2, 2)]
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}
"""What one round in float32 may differ by; updates are of the order of 0.01."""


def config_with(*overrides: str) -> Config:
    return load_config(None, ["training.batch_size=8", "training.device=cpu", *overrides])


def digits_with(build_model: Callable[[], nn.Module]) -> Task:
    task = cast(Any, Digits())
    task.build_model = build_model
    return cast(Task, task)


def images_and(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(Floats(), *layers)


class Floats(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1).float() / 16


class Branching(nn.Module):
    """Goes one way or the other by what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        outputs = cast(Tensor, self.linear(images.flatten(1).float() / 16))
        return outputs if outputs.sum() > 0 else 2 * outputs


class Counting(nn.Module):
    """Its outputs depend on how often it was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.count: Tensor
        self.register_buffer("count", torch.tensor(0))

    def forward(self, images: Tensor) -> Tensor:
        self.count += 1
        return cast(Tensor, self.linear(images.flatten(1).float() / 16)) * self.count


class Replacing(nn.Module):
    """Puts another tensor in the place of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, images: Tensor) -> Tensor:
        outputs = cast(Tensor, self.linear(images.flatten(1).float() / 16))
        self.mean = outputs.detach().mean(dim=0)
        return outputs


def compare(task: Task, config: Config, *, block: int | None = None) -> None:
    """Three rounds, the second one twice and tried beforehand: as one site after the other."""
    stacked, plain = Stacked(task, SHARES, config), InProcess(task, SHARES, config)
    if block is not None:
        stacked.block = block
    assert (stacked.size, stacked.parameters_size) == (plain.size, plain.parameters_size)
    assert stacked.samples == plain.samples
    vector = plain.initial()
    assert torch.equal(stacked.initial(), vector)
    turns = [(1, WORK, True), (2, WORK, False), (2, WORK, True), (2, WORK[::-1], True)]
    for round_, work, keep in [*turns, (3, WORK[:3], True), (4, WORK, True)]:
        mean = torch.zeros_like(vector)
        expected = plain.train(vector, round_, work, keep=keep)
        for ours, theirs in zip(
            stacked.train(vector, round_, work, keep=keep), expected, strict=True
        ):
            assert (ours.site, ours.steps, ours.samples) == (
                theirs.site,
                theirs.steps,
                theirs.samples,
            )
            assert float(theirs.update.abs().max()) > 1e-3
            torch.testing.assert_close(ours.update, theirs.update, **TOLERANCE)
            assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
            assert ours.loss_rms == pytest.approx(theirs.loss_rms, rel=1e-4)
            mean += theirs.update / len(work)
        vector = vector - mean


@pytest.mark.parametrize(
    "inner",
    [
        ["training.lr=0.1", "training.weight_decay=0.01"],
        ["training.lr=0.1", "training.momentum=0.9"],
        ["training.lr=0.1", "training.momentum=0.9", "training.keep_inner_state=false"],
        ["training.lr=0.01", "training.optimizer=adamw", "training.weight_decay=0.1"],
    ],
)
def test_each_site_trains_as_it_would_alone(inner: list[str]) -> None:
    compare(Digits(), config_with(*inner))


def test_blocks_change_nothing() -> None:
    compare(Digits(), config_with("training.lr=0.1", "training.momentum=0.9"), block=2)


def test_a_batch_norm_has_running_means_of_its_own_at_each_site() -> None:
    layers = images_and(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    compare(digits_with(layers), config_with("training.lr=0.1"))


def test_counters_start_every_round_as_built() -> None:
    compare(digits_with(Counting), config_with("training.lr=0.01"))


def test_a_dataset_without_losses_and_with_a_frozen_layer() -> None:
    digits = Digits()

    def build_model() -> nn.Module:
        model = nn.Sequential(Floats(), nn.Linear(64, 16), nn.Linear(16, 10))
        model[1].requires_grad_(False)
        return model

    class Pairs(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.held = TensorDataset(*cast("tuple[Tensor, Tensor]", digits.train))

        def __len__(self) -> int:
            return len(self.held)

        def __getitem__(self, index: int) -> Any:
            return self.held[index]

    task = SimpleNamespace(train=Pairs(), build_model=build_model, loss=Classification().loss)
    compare(cast(Task, task), config_with("training.lr=0.1"))


def test_random_numbers_differ_between_members_and_repeat_with_the_seed() -> None:
    task = digits_with(images_and(nn.Dropout(0.5), nn.Linear(64, 10)))
    same = [np.arange(40)] * 2
    learner = Stacked(task, same, config_with("training.batch_size=40"))
    vector = learner.initial()
    one, two = (
        [t.update.clone() for t in learner.train(vector, 1, [(0, 1), (1, 1)])] for _ in "ab"
    )
    assert torch.equal(torch.stack(one), torch.stack(two))
    assert not torch.allclose(one[0], one[1])


def test_the_block_is_bounded_by_what_a_member_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear model of 650 numbers: four vectors and at least its batch of 8 x 64 floats."""
    monkeypatch.setitem(BLOCK_BYTES, "cpu", 100_000)
    task = digits_with(images_and(nn.Linear(64, 10)))
    learner = Stacked(task, SHARES, config_with())
    assert 4 <= learner.block <= 100_000 // (4 * 4 * 650 + 4 * 8 * 64)


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (digits_with(Branching), NotStackable, "simulation.training: processes"),
        (digits_with(Replacing), TaskError, "the model has replaced its mean"),
    ],
)
def test_what_cannot_be_stacked_is_refused_at_once(
    task: Task, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Stacked(task, SHARES, config_with())


def test_losses_that_are_not_one_a_sample_are_refused() -> None:
    task = cast(Any, Digits())
    task.losses = lambda outputs, targets: outputs
    with pytest.raises(TaskError, match=r"shape \(8, 10\) for 8 samples"):
        Stacked(task, SHARES, config_with())


def test_a_site_that_diverges_is_named() -> None:
    learner = Stacked(Digits(), SHARES, config_with("training.lr=1e30"))
    with pytest.raises(TrainingDiverged, match=r"at site 2 .* step [12] of round 7"):
        list(learner.train(learner.initial(), 7, [(1, 1), (2, 4)]))
