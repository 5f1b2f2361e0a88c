"""The step that all members take, in place, with the mean of their updates."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from powertrip.training.settings import OuterSettings


class OuterOptimizer(Protocol):
    """Turns the committed vector and the mean update into the next committed vector.

    An update is the old vector minus the new one, so that it points like a gradient. The optimizer
    acts on the parameters; buffers, such as the running means of a batch norm, become the plain
    mean of the members' buffers.
    """

    @property
    def state(self) -> Tensor:
        """Flat float32 tensor that a newcomer needs; it may be empty, and may be written into."""
        ...

    @state.setter
    def state(self, value: Tensor) -> None: ...

    def step(self, vector: Tensor, mean_update: Tensor) -> None:
        """Change `vector` in place; `mean_update` has its length and is left as it is."""
        ...


class FedAvg:
    """The mean of the members' models, or a step of another length towards it.

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, AISTATS 2017.

    Parameters
    ----------
    lr
        1 takes the mean itself.
    parameters_size
        Length of the parameters' part of the vector.
    device
        Where the vectors are.
    """

    def __init__(self, lr: float, parameters_size: int, device: torch.device | str) -> None:
        self.lr = lr
        self.parameters_size = parameters_size
        self._state = torch.zeros(0, device=device)

    @property
    def state(self) -> Tensor:
        """Empty."""
        return self._state

    @state.setter
    def state(self, value: Tensor) -> None:
        _copy_state(self._state, value)

    def step(self, vector: Tensor, mean_update: Tensor) -> None:
        """x <- x - lr u."""
        p = self.parameters_size
        vector[:p].sub_(mean_update[:p], alpha=self.lr)
        vector[p:].sub_(mean_update[p:])


class Nesterov:
    """DiLoCo's outer step: SGD with Nesterov momentum, the mean update as its gradient.

    m <- mu m + u;  x <- x - lr (u + mu m), as `torch.optim.SGD(nesterov=True)` has it.

    Source: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    2023, arXiv:2311.08105 (lr 0.7, mu 0.9).

    Parameters
    ----------
    lr, momentum
        Of the outer step.
    parameters_size
        Length of the parameters' part of the vector, and of the state.
    device
        Where the vectors are.
    """

    def __init__(
        self, lr: float, momentum: float, parameters_size: int, device: torch.device | str
    ) -> None:
        self.lr = lr
        self.momentum = momentum
        self.parameters_size = parameters_size
        self._momentum = torch.zeros(parameters_size, device=device)

    @property
    def state(self) -> Tensor:
        """The momentum, one number per parameter."""
        return self._momentum

    @state.setter
    def state(self, value: Tensor) -> None:
        _copy_state(self._momentum, value)

    def step(self, vector: Tensor, mean_update: Tensor) -> None:
        """Change `vector` in place."""
        p = self.parameters_size
        update = mean_update[:p]
        self._momentum.mul_(self.momentum).add_(update)
        vector[:p].sub_(update, alpha=self.lr).sub_(self._momentum, alpha=self.lr * self.momentum)
        vector[p:].sub_(mean_update[p:])


def build_outer(
    settings: OuterSettings,
    size: int,
    parameters_size: int,
    device: torch.device | str = "cpu",
) -> OuterOptimizer:
    """Make the outer optimizer that the settings name.

    Parameters
    ----------
    settings
        Kind, learning rate and momentum.
    size, parameters_size
        Length of the vector, and of its part that holds parameters.
    device
        Where the vectors are.
    """
    if not 0 < parameters_size <= size:
        raise ValueError(f"{parameters_size} parameters do not fit a vector of length {size}")
    if settings.kind == "fedavg":
        return FedAvg(settings.learning_rate, parameters_size, device)
    return Nesterov(settings.learning_rate, settings.momentum, parameters_size, device)


def _copy_state(state: Tensor, value: Tensor) -> None:
    if value.shape != state.shape:
        raise ValueError(
            f"the outer state has shape {tuple(state.shape)}, not {tuple(value.shape)}"
        )
    state.copy_(value)
