"""A model and its vector are one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from powertrip.training.errors import TaskError
from powertrip.training.flat import FlatModel, initial_model
from powertrip.training.task import Task


def test_parameters_then_floating_buffers() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    weight = net[0].weight.detach().clone()
    model = FlatModel(net)
    assert model.parameters_size == 6 + 3 + 3 + 3
    assert len(model.vector) == 15 + 3 + 3
    assert torch.equal(model.vector[:6], weight.reshape(-1))
    assert model.vector[15:].tolist() == [0.0] * 3 + [1.0] * 3


def test_writing_the_vector_changes_the_model() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model = FlatModel(net)
    model.vector.copy_(torch.arange(21.0))
    assert net[0].weight.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert net[1].running_mean.tolist() == [15.0, 16.0, 17.0]
    assert net[1].running_var.tolist() == [18.0, 19.0, 20.0]


def test_views_of_several_vectors_have_a_row_for_each() -> None:
    model = FlatModel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    rows = torch.stack([torch.arange(21.0), torch.arange(21.0) + 100])
    views = model.views(rows)
    assert views["0.weight"].tolist()[1] == [[100.0, 101.0], [102.0, 103.0], [104.0, 105.0]]
    assert views["1.running_var"].tolist() == [[18.0, 19.0, 20.0], [118.0, 119.0, 120.0]]
    views["0.bias"].zero_()
    assert rows[:, 6:9].tolist() == [[0.0] * 3] * 2
    assert list(model.views(rows[:, :15])) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_the_order_of_dimensions_in_memory_stays() -> None:
    """Fast convolutions depend on it; here the kernels' three channels lie together."""
    net = nn.Conv2d(3, 2, 4, bias=False)
    values = torch.arange(96.0).view(2, 3, 4, 4)
    net.weight.data.copy_(values)
    model = FlatModel(net.to(memory_format=torch.channels_last))
    assert model.vector[:4].tolist() == [0.0, 16.0, 32.0, 1.0]
    assert torch.equal(net.weight, values)
    for tensor in (net.weight, net.weight.grad, model.views(model.vector)["weight"]):
        assert tensor is not None
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    rows = torch.stack([model.vector, model.vector + 100])
    assert torch.equal(model.views(rows)["weight"], torch.stack([values, values + 100]))
    (net.weight * values).sum().backward()
    assert torch.equal(model.gradient, model.vector)
    model.check_views()


def test_training_the_model_changes_the_vector() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model = FlatModel(net)
    before = model.vector.clone()
    torch.manual_seed(0)
    net(torch.randn(8, 2)).pow(3).sum().backward()
    assert torch.equal(model.gradient[:6].reshape(3, 2), net[0].weight.grad)
    model.parameters.sub_(model.gradient, alpha=0.1)
    assert not torch.equal(before[:15], model.vector[:15])
    assert not torch.equal(before[15:18], model.vector[15:18])
    assert torch.equal(model.vector[15:18], net[1].running_mean)
    model.check_views()


def test_tied_weights_are_held_once_and_other_types_become_float32() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)).double()
    net[1].weight = net[0].weight
    model = FlatModel(net)
    assert len(model.vector) == 9
    assert net(torch.ones(1, 3)).dtype == torch.float32
    model.vector.fill_(2.0)
    assert net(torch.ones(1, 3)).tolist() == [[36.0] * 3]


def test_a_buffer_that_is_replaced_is_noticed() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen + 1
            return x * self.weight

    model = FlatModel(Counting())
    model.check_views()
    model.module(torch.ones(1))
    with pytest.raises(TaskError, match=r"replaced its seen; .* seen\.copy_"):
        model.check_views()


def test_a_gradient_that_is_replaced_is_noticed() -> None:
    model = FlatModel(nn.Linear(1, 1))
    model.check_views()
    model.module.zero_grad()
    with pytest.raises(TaskError, match="the gradient of weight was replaced"):
        model.check_views()


def test_frozen_parameters_come_after_those_that_are_trained() -> None:
    net = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1), nn.BatchNorm1d(1, affine=False))
    net[0].requires_grad_(False)
    model = FlatModel(net)
    model.vector.copy_(torch.arange(9.0))
    assert model.parameters_size == 3
    assert net[1].weight.tolist() == [[0.0, 1.0]]
    assert net[0].weight.tolist() == [[3.0], [4.0]]
    assert net[2].running_mean.tolist() == [7.0]


def test_models_that_cannot_be_averaged() -> None:
    with pytest.raises(TaskError, match="no parameters"):
        FlatModel(nn.ReLU())
    net = nn.Module()
    net.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(TaskError, match=r"weight has type torch\.complex64"):
        FlatModel(net)


def test_the_initial_model_is_the_seeds_and_leaves_the_generator_alone() -> None:
    task = cast(Task, SimpleNamespace(build_model=lambda: nn.Linear(4, 4)))
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first, again, other = (initial_model(task, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first.vector, again.vector)
    assert not torch.equal(first.vector, other.vector)
    with pytest.raises(TaskError, match="returned a int"):
        initial_model(cast(Task, SimpleNamespace(build_model=lambda: 3)), seed=0)
