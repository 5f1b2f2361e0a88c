"""Which learner a scenario gets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from powertrip.config import load_config
from powertrip.coordination.setup import Setup
from powertrip.simulation.curve import CurveLearner
from powertrip.simulation.errors import NotStackable
from powertrip.simulation.in_process import InProcess
from powertrip.simulation.learner import build_learner
from powertrip.simulation.processes import Processes
from powertrip.simulation.stacked import Stacked
from powertrip.training.digits import Digits


def setup_with(*overrides: str) -> Setup:
    return Setup(load_config(None, overrides), Path())


@pytest.mark.parametrize(
    ("settings", "cores", "kind", "workers"),
    [
        (["simulation.workers=0"], 8, InProcess, 0),
        (["simulation.workers=30", "sites.count=3"], 8, Processes, 3),
        ([], 1, InProcess, 0),
        (["training.threads=2"], 2, InProcess, 0),
        (["training.threads=2"], 4, Processes, 2),
        (["simulation.training=stacked"], 8, Stacked, 0),
        (["task=curve"], 8, CurveLearner, 0),
    ],
)
def test_the_scenario_and_the_machine_choose(
    settings: list[str], cores: int, kind: Any, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    threads = torch.get_num_threads()
    try:
        with build_learner(setup_with("training.device=cpu", *settings)) as learner:
            assert type(learner) is kind
            assert len(getattr(learner, "pids", ())) == workers
    finally:
        torch.set_num_threads(threads)


def test_what_cannot_be_stacked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reading(nn.Linear):
        """Looks at its weights while it works, which a batch of models cannot."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images.flatten(1).float() * self.weight.sum().item())

    monkeypatch.setattr(Digits, "build_model", lambda self: Reading(64, 10))
    with pytest.raises(NotStackable):
        build_learner(setup_with("simulation.training=stacked", "training.device=cpu"))
