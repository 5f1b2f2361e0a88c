"""The inner optimizers do what torch's own do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from powertrip.training.errors import OtherOptimizer
from powertrip.training.inner import build_inner
from powertrip.training.settings import TrainingSettings

KINDS = [
    {"optimizer": "sgd", "lr": 0.1},
    {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
    {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
]


def reference(parameter: nn.Parameter, kind: dict[str, Any]) -> torch.optim.Optimizer:
    rest = {key: value for key, value in kind.items() if key != "optimizer"}
    if kind["optimizer"] == "sgd":
        return torch.optim.SGD([parameter], **rest)
    return torch.optim.AdamW([parameter], **rest)


@pytest.mark.parametrize("kind", KINDS)
def test_it_follows_torch_for_many_steps(kind: dict[str, Any]) -> None:
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(40))
    theirs, ours = reference(parameter, kind), build_inner(TrainingSettings(**kind))
    parameters = parameter.detach().clone()
    for _ in range(30):
        gradient = torch.randn(40)
        parameter.grad = gradient.clone()
        theirs.step()
        ours.step(parameters, gradient)
    assert torch.allclose(parameters, parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_a_copy_that_goes_on_exactly(kind: dict[str, Any]) -> None:
    torch.manual_seed(0)
    first, second = (build_inner(TrainingSettings(**kind)) for _ in range(2))
    assert first.state() == {}
    parameters = torch.randn(5)
    first.step(parameters, torch.randn(5))
    state, gradient = first.state(), torch.randn(5)
    onward, restored, forgetful = (parameters.clone() for _ in range(3))
    first.step(onward, gradient.clone())
    second.load(state)
    second.step(restored, gradient.clone())
    assert torch.equal(onward, restored)
    second.load({})
    second.step(forgetful, gradient.clone())
    assert torch.equal(onward, forgetful) == (kind == KINDS[0])


def test_adamw_moves_by_the_rate_at_first() -> None:
    ours = build_inner(TrainingSettings(optimizer="adamw", lr=0.25))
    parameters = torch.tensor([1.0, 1.0])
    ours.step(parameters, torch.tensor([100.0, -0.5]))
    assert parameters.tolist() == pytest.approx([0.75, 1.25])


def test_the_state_of_another_optimizer_is_refused() -> None:
    sgd, adamw = (build_inner(TrainingSettings(**kind)) for kind in KINDS[1:])
    for ours in (sgd, adamw):
        ours.step(torch.ones(2), torch.ones(2))
    for ours, other in ((sgd, adamw), (adamw, sgd)):
        before = ours.state()
        with pytest.raises(OtherOptimizer, match="the optimizer that the run began with"):
            ours.load(other.state())
        assert ours.state().keys() == before.keys()
