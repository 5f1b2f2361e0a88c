"""Training all sites in this process: as each of them would train by itself."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from powertrip.config import Config, load_config
from powertrip.simulation.in_process import InProcess
from powertrip.training.digits import Digits
from powertrip.training.evaluation import evaluate
from powertrip.training.flat import initial_model
from powertrip.training.local import LocalTrainer, Steps
from powertrip.training.task import Classification, Task

SHARES = [np.arange(site * 40, site * 40 + 40 + site) for site in range(5)]


def config_with(*overrides: str) -> Config:
    return load_config(None, ["training.batch_size=8", "training.device=cpu", *overrides])


def updates(
    learner: InProcess, vector: Tensor, round_: int, sites: Sequence[int], keep: bool = True
) -> list[Tensor]:
    work = [(site, 3) for site in sites]
    return [t.update.clone() for t in learner.train(vector, round_, work, keep=keep)]


@pytest.mark.parametrize(
    "inner", [[], ["training.momentum=0.9"], ["training.optimizer=adamw", "training.lr=0.01"]]
)
def test_each_site_trains_as_it_would_alone(inner: list[str]) -> None:
    task, config = Digits(), config_with(*inner)
    learner = InProcess(task, SHARES, config)
    assert learner.samples == (40, 41, 42, 43, 44)
    alone = {}
    for site in (3, 1):
        model = initial_model(task, seed=config.seed)
        alone[site] = LocalTrainer(task, SHARES[site], config.training, config.seed, site, model)
    vector = learner.initial()
    assert torch.equal(vector, alone[3].model.vector)
    assert (learner.size, learner.parameters_size) == (6186, 6186)
    for round_ in (1, 2):
        expected = vector.clone()
        for trained, (site, steps) in zip(
            learner.train(vector, round_, [(3, 2), (1, 4)]), [(3, 2), (1, 4)], strict=True
        ):
            alone[site].model.vector.copy_(vector)
            result = alone[site].train(round_, Steps(steps))
            assert torch.equal(trained.update, vector - alone[site].model.vector)
            assert (trained.site, trained.steps, trained.samples) == (site, steps, 8 * steps)
            assert (trained.loss, trained.loss_rms) == (result.loss, result.loss_rms)
            expected -= trained.update / 2
        vector = expected


@pytest.mark.parametrize("inner", ["training.momentum=0.9", "training.optimizer=adamw"])
def test_a_trial_leaves_no_trace(inner: str) -> None:
    with_trials, without = (InProcess(Digits(), SHARES, config_with(inner)) for _ in range(2))
    vector = with_trials.initial()
    for round_ in (1, 2, 3):
        tried = updates(with_trials, vector, round_, (0, 1, 2), keep=False)
        again = updates(with_trials, vector, round_, (0, 1, 2), keep=False)
        kept = updates(with_trials, vector, round_, (0, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(tried, again, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(tried, kept, strict=True))
        expected = updates(without, vector, round_, (0, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(kept, expected, strict=True))


def test_state_that_is_not_kept_is_not_held() -> None:
    config = config_with("training.momentum=0.9", "training.keep_inner_state=false")
    learner = InProcess(Digits(), SHARES, config)
    vector = learner.initial()
    first = updates(learner, vector, 1, [0])
    updates(learner, vector, 2, [0])
    assert torch.equal(updates(learner, vector, 1, [0])[0], first[0])
    assert learner._trainers[0].inner_state() == {}


class Counting(nn.Module):
    """Its outputs depend on how often it was trained, as a batch norm's running means may."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.count: Tensor
        self.register_buffer("count", torch.tensor(0))

    def forward(self, images: Tensor) -> Tensor:
        self.count += 1
        return cast(Tensor, self.linear(images.flatten(1).float() / 16)) * self.count


def test_counters_do_not_pass_from_site_to_site() -> None:
    task = cast(Any, Digits())
    task.build_model = Counting
    learner = InProcess(task, SHARES, config_with())
    vector = learner.initial()
    after_others = updates(learner, vector, 1, (0, 1, 2))[2]
    assert torch.equal(updates(learner, vector, 1, (2,))[0], after_others)


def test_evaluation_is_that_of_the_real_run() -> None:
    task = Digits()
    learner = InProcess(task, SHARES, config_with())
    vector = learner.initial() * 1.5
    model = initial_model(task, seed=0)
    model.vector.copy_(vector)
    assert learner.evaluate(vector, "test") == evaluate(task, model, "test")
    assert learner.evaluate(vector, "test", limit=359) == evaluate(task, model, "test")
    assert learner.norms(vector) == model.norms(vector)


def test_a_limit_takes_evenly_spread_samples() -> None:
    """Of 1,000 samples a tenth is right, those from 0 to 99; a limit must find a tenth as well."""
    targets = torch.ones(1000, dtype=torch.int64)
    targets[:100] = 0
    base = Classification()
    task = cast(
        Task,
        SimpleNamespace(
            train=(torch.zeros(8, 1), torch.zeros(8, dtype=torch.int64)),
            validation=(torch.zeros(1000, 1), targets),
            build_model=lambda: nn.Linear(1, 2),
            loss=base.loss,
            correct=base.correct,
        ),
    )
    learner = InProcess(task, [np.arange(8)], config_with())
    vector = torch.tensor([0.0, 0.0, 1.0, 0.0])  # always the class 0
    whole, part = (learner.evaluate(vector, "validation", limit) for limit in (None, 50))
    assert (whole.correct, whole.count) == (100, 1000)
    assert (part.correct, part.count) == (5, 50)
    assert learner.evaluate(vector, "validation", 50) == part
