"""The outer step against hand-computed numbers and torch's own SGD."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from powertrip.training.outer import build_outer
from powertrip.training.settings import OuterSettings


def test_fedavg_takes_the_mean() -> None:
    outer = build_outer(OuterSettings(kind="fedavg"), 4, 3)
    vector = torch.tensor([1.0, 2.0, 3.0, 4.0])
    outer.step(vector, torch.tensor([0.5, -1.0, 0.0, 2.0]))
    assert vector.tolist() == [0.5, 3.0, 3.0, 2.0]
    assert outer.state.numel() == 0


def test_buffers_take_the_plain_mean_whatever_the_rate() -> None:
    for settings in (OuterSettings(kind="fedavg", lr=0.5), OuterSettings(kind="nesterov", lr=0.5)):
        outer = build_outer(settings, 3, 1)
        vector = torch.tensor([1.0, 2.0, 3.0])
        for _ in range(2):
            outer.step(vector, torch.tensor([1.0, 0.25, -0.5]))
        assert vector[1:].tolist() == [1.5, 4.0]


def test_nesterov_by_hand() -> None:
    outer = build_outer(OuterSettings(kind="nesterov"), 1, 1)
    vector = torch.tensor([1.0])
    outer.step(vector, torch.tensor([0.5]))
    # m = 0.5; x = 1 - 0.7 (0.5 + 0.9 * 0.5)
    assert vector.item() == pytest.approx(0.335)
    outer.step(vector, torch.tensor([-0.1]))
    # m = 0.9 * 0.5 - 0.1 = 0.35; x = 0.335 - 0.7 (-0.1 + 0.9 * 0.35)
    assert vector.item() == pytest.approx(0.1845)
    assert outer.state.item() == pytest.approx(0.35)


def test_nesterov_is_torch_sgd_with_the_update_as_gradient() -> None:
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(50))
    reference = torch.optim.SGD([parameter], lr=0.4, momentum=0.8, nesterov=True)
    outer = build_outer(OuterSettings(kind="nesterov", lr=0.4, momentum=0.8), 50, 50)
    vector = parameter.detach().clone()
    for _ in range(20):
        update = torch.randn(50)
        untouched = update.clone()
        parameter.grad = update.clone()
        reference.step()
        outer.step(vector, update)
        assert torch.equal(update, untouched)
    assert torch.allclose(vector, parameter.detach(), atol=1e-5)


def test_the_state_carries_the_momentum_to_a_newcomer() -> None:
    settings = OuterSettings(kind="nesterov")
    old, newcomer = build_outer(settings, 3, 2), build_outer(settings, 3, 2)
    vector = torch.zeros(3)
    old.step(vector, torch.ones(3))
    newcomer.state = old.state
    copied = vector.clone()
    old.step(vector, torch.ones(3))
    newcomer.step(copied, torch.ones(3))
    assert torch.equal(vector, copied)
    with pytest.raises(ValueError, match=r"has shape \(2,\), not \(3,\)"):
        newcomer.state = torch.zeros(3)


def test_sizes_must_fit() -> None:
    with pytest.raises(ValueError, match="5 parameters do not fit"):
        build_outer(OuterSettings(), 4, 5)
