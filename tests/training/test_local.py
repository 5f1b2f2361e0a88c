"""Local training: its loop, its pace, and the inner optimizer's memory."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from powertrip.training.errors import TaskError, TrainingDiverged
from powertrip.training.flat import FlatModel, initial_model
from powertrip.training.local import LocalTrainer, Steps
from powertrip.training.settings import TrainingSettings
from powertrip.training.task import Task


def line_task(dropout: float = 0.0) -> Task:
    """Fit y = 3 x - 1 by least squares."""
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    return cast(
        Task,
        SimpleNamespace(
            train=(x, 3 * x - 1),
            build_model=lambda: nn.Sequential(nn.Linear(1, 1), nn.Dropout(dropout)),
            loss=nn.functional.mse_loss,
        ),
    )


def trainer_for(task: Task, site: int = 0, **settings: Any) -> LocalTrainer:
    model = initial_model(task, seed=0)
    chosen = TrainingSettings(batch_size=8, **settings)
    return LocalTrainer(task, np.arange(64), chosen, seed=0, site=site, model=model)


def vector_after(trainer: LocalTrainer, *rounds: int) -> torch.Tensor:
    for round_index in rounds:
        trainer.train(round_index, Steps(3))
    return trainer.model.vector.clone()


class Recording:
    """A pace that stops after some steps, sleeps in each, and writes down its calls."""

    def __init__(self, stop: int, sleep_s: float = 0.0) -> None:
        self.stop = stop
        self.sleep_s = sleep_s
        self.calls: list[tuple[str, int]] = []

    def allows(self, step: int) -> bool:
        self.calls.append(("allows", step))
        return step < self.stop

    def step_done(self, samples: int) -> None:
        self.calls.append(("done", samples))
        time.sleep(self.sleep_s)


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.01)])
def test_sgd_steps_are_those_of_a_plain_loop(momentum: float, weight_decay: float) -> None:
    task = line_task()
    trainer = trainer_for(task, lr=0.1, momentum=momentum, weight_decay=weight_decay)
    twin = initial_model(task, seed=0).module
    optimizer = torch.optim.SGD(
        twin.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay
    )
    losses = []
    x, y = cast("tuple[torch.Tensor, torch.Tensor]", task.train)
    for step in range(6):
        rows = torch.from_numpy(trainer.batches.batch(4, step))
        loss = nn.functional.mse_loss(twin(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    result = trainer.train(4, Steps(6))
    expected = torch.cat([p.detach().reshape(-1) for p in twin.parameters()])
    assert torch.allclose(trainer.model.vector, expected, rtol=0, atol=1e-6)
    assert result.loss == pytest.approx(np.mean(losses))
    assert (result.steps, result.samples) == (6, 48)


def test_squared_losses_are_those_of_the_samples_in_their_steps() -> None:
    def line_and_losses() -> Task:
        task = line_task()
        task.losses = lambda outputs, targets: (outputs - targets).square().mean(dim=1)  # type: ignore[attr-defined]
        return task

    trainer = trainer_for(line_and_losses(), lr=0.1)
    twin = initial_model(line_task(), seed=0).module
    x, y = cast("tuple[torch.Tensor, torch.Tensor]", line_task().train)
    squares, batch_squares = [], []
    for step in range(3):
        rows = torch.from_numpy(trainer.batches.batch(0, step))
        each = (twin(x[rows]) - y[rows]).square()
        squares += each.detach().square().flatten().tolist()
        batch_squares.append(each.mean().item() ** 2)
        twin.zero_grad()
        each.mean().backward()
        for parameter in twin.parameters():
            parameter.data -= 0.1 * parameter.grad
    known = trainer.train(0, Steps(3))
    assert known.loss_rms == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-4)
    # Without them the mean loss of a batch stands for each of its samples, and training is equal.
    plain = trainer_for(line_task(), lr=0.1)
    assert plain.train(0, Steps(3)).loss_rms == pytest.approx(
        np.sqrt(np.mean(batch_squares)), rel=1e-4
    )
    assert torch.equal(plain.model.vector, trainer.model.vector)


def test_losses_that_are_not_one_a_sample_are_refused() -> None:
    task = line_task()
    task.losses = lambda outputs, targets: (outputs - targets).square()  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match=r"shape \(8, 1\) for 8 samples; return one loss a sample"):
        trainer_for(task).train(0, Steps(1))


def test_the_pace_is_asked_before_and_told_after_every_step() -> None:
    pace = Recording(stop=2)
    result = trainer_for(line_task()).train(0, pace)
    assert pace.calls == [("allows", 0), ("done", 8), ("allows", 1), ("done", 8), ("allows", 2)]
    assert result.steps == 2


def test_waiting_is_not_computing() -> None:
    result = trainer_for(line_task()).train(0, Recording(stop=3, sleep_s=0.1))
    assert 0 < result.compute_s < 0.3


def test_a_pace_that_allows_nothing_changes_nothing() -> None:
    trainer = trainer_for(line_task(), optimizer="adamw", weight_decay=0.1)
    before = trainer.model.vector.clone()
    result = trainer.train(0, Steps(0))
    assert (result.steps, result.samples, result.loss, result.loss_rms) == (0, 0, None, None)
    assert torch.equal(trainer.model.vector, before)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_round_can_be_trained_again(optimizer: str) -> None:
    trainer = trainer_for(line_task(0.5), optimizer=optimizer, momentum=0.9, lr=0.05)
    start = vector_after(trainer, 0)
    first = vector_after(trainer, 1)
    for _ in range(2):
        trainer.model.vector.copy_(start)
        assert torch.equal(vector_after(trainer, 1), first)
    trainer.model.vector.copy_(start)
    assert not torch.equal(vector_after(trainer, 2), first)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_trial_leaves_the_inner_state_as_it_was(optimizer: str) -> None:
    tried, plain = (
        trainer_for(line_task(0.5), optimizer=optimizer, momentum=0.9, lr=0.05) for _ in range(2)
    )
    for round_index in (0, 1):
        start = tried.model.vector.clone()
        # Of the round to come, of another one, and of the round that was just trained.
        for trial in (round_index, 7, max(round_index - 1, 0)):
            tried.train(trial, Steps(2), keep=False)
            tried.model.vector.copy_(start)
        assert torch.equal(vector_after(tried, round_index), vector_after(plain, round_index))
    for trainer in (tried, plain):
        trainer.model.vector.copy_(start)
    tried.train(1, Steps(2), keep=False)
    tried.model.vector.copy_(start)
    assert torch.equal(vector_after(tried, 1), vector_after(plain, 1))


def test_inner_state_is_kept_or_dropped_as_set() -> None:
    kept, dropped = (
        trainer_for(line_task(), lr=0.05, momentum=0.9, keep_inner_state=keep)
        for keep in (True, False)
    )
    assert torch.equal(vector_after(kept, 0), vector_after(dropped, 0))
    assert not torch.equal(vector_after(kept, 1), vector_after(dropped, 1))
    fresh = trainer_for(line_task(), lr=0.05, momentum=0.9)
    fresh.model.vector.copy_(vector_after(trainer_for(line_task(), lr=0.05, momentum=0.9), 0))
    assert torch.equal(vector_after(fresh, 1), dropped.model.vector)


def test_inner_state_survives_a_checkpoint() -> None:
    trainer = trainer_for(line_task(), optimizer="adamw", lr=0.05)
    start, state = vector_after(trainer, 0, 1), trainer.inner_state()
    onward = vector_after(trainer, 2)
    restored = trainer_for(line_task(), optimizer="adamw", lr=0.05)
    restored.model.vector.copy_(start)
    restored.load_inner_state(state)
    assert torch.equal(vector_after(restored, 2), onward)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_what_belongs_to_a_commit_is_known_while_the_next_round_is_trained(optimizer) -> None:
    def make():
        return trainer_for(line_task(), optimizer=optimizer, momentum=0.9, lr=0.05)

    trainer = make()
    assert trainer.inner_state_before(0) == {}
    start, state = vector_after(trainer, 0), trainer.inner_state()
    assert_equal(trainer.inner_state_before(1), state)  # it is not a member, or waits
    onward = vector_after(trainer, 1)
    assert_equal(trainer.inner_state_before(1), state)
    saved = trainer.inner_state_before(1)
    vector_after(trainer, 2)
    assert_equal(saved, state)  # nobody has changed it
    restored = make()
    restored.model.vector.copy_(start)
    restored.load_inner_state(saved)
    assert_equal(restored.inner_state_before(1), state)
    assert torch.equal(vector_after(restored, 1), onward)
    forgets = trainer_for(line_task(), momentum=0.9, lr=0.05, keep_inner_state=False)
    vector_after(forgets, 0)
    assert forgets.inner_state_before(1) == {}


def assert_equal(found, expected) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_sites_differ_and_equal_sites_agree() -> None:
    first, again, other = (trainer_for(line_task(0.5), site=site) for site in (0, 0, 1))
    reference = vector_after(first, 0)
    torch.manual_seed(99)
    assert torch.equal(vector_after(again, 0), reference)
    assert not torch.equal(vector_after(other, 0), reference)


def test_training_does_not_import_the_compiler() -> None:
    """It would cost every site's process seconds and 70 MB."""
    code = """
import sys, numpy as np
from powertrip.training.digits import Digits
from powertrip.training.evaluation import evaluate
from powertrip.training.flat import initial_model
from powertrip.training.local import LocalTrainer, Steps
from powertrip.training.settings import TrainingSettings
task = Digits()
model = initial_model(task, seed=0)
for optimizer in ("sgd", "adamw"):
    settings = TrainingSettings(optimizer=optimizer, momentum=0.9)
    LocalTrainer(task, np.arange(50), settings, seed=0, site=0, model=model).train(0, Steps(1))
evaluate(task, model, "validation")
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_frozen_parameters_stay() -> None:
    task = line_task()
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    for parameter in module[0].parameters():
        parameter.requires_grad_(False)
    model = FlatModel(module)
    assert model.parameters_size == 2
    before = model.vector.clone()
    LocalTrainer(
        task, np.arange(64), TrainingSettings(weight_decay=0.1), seed=0, site=0, model=model
    ).train(0, Steps(2))
    assert torch.equal(model.vector[2:], before[2:])
    assert not torch.equal(model.vector[:2], before[:2])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_parameters_that_the_loss_does_not_depend_on_stay(momentum: float) -> None:
    task = line_task()
    module = nn.Sequential(nn.Linear(1, 1))
    module.unused = nn.Linear(1, 1)
    module.forward = module[0].forward  # type: ignore[method-assign]
    model = FlatModel(module)
    before = model.vector.clone()
    settings = TrainingSettings(momentum=momentum)
    LocalTrainer(task, np.arange(64), settings, seed=0, site=0, model=model).train(0, Steps(2))
    assert torch.equal(model.vector[2:], before[2:])
    assert not torch.equal(model.vector[:2], before[:2])


def test_a_diverging_loss_names_the_site_and_the_setting() -> None:
    with pytest.raises(TrainingDiverged, match=r"site 0 is (inf|nan) at step .* lower training.lr"):
        trainer_for(line_task(), lr=1e20).train(0, Steps(50))
