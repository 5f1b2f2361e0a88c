"""The inner optimizers, on one flat vector of parameters.

`torch.optim` would do the same, but making its first optimizer imports torch's compiler: several
seconds and 70 MB in every site's process, at the start and after each restart.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from powertrip.training.errors import OtherOptimizer
from powertrip.training.settings import TrainingSettings


class InnerOptimizer(Protocol):
    """Changes the parameters in place by their gradient.

    Attributes
    ----------
    plain_lr
        The learning rate, where a step is x <- x - lr g and nothing else; otherwise None.
    """

    plain_lr: float | None

    def step(self, parameters: Tensor, gradient: Tensor) -> None:
        """Do one step; both tensors are flat and of equal length, `gradient` may be changed."""
        ...

    def state(self) -> dict[str, Tensor]:
        """A copy of what the optimizer remembers between steps."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up a state of the same kind of optimizer; raises `OtherOptimizer`."""
        ...


class SGD:
    """m <- mu m + (g + wd x);  x <- x - lr m, as `torch.optim.SGD` has it."""

    def __init__(self, lr: float, momentum: float, weight_decay: float) -> None:
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.plain_lr = None if momentum or weight_decay else lr
        self._momentum: Tensor | None = None

    def step(self, parameters: Tensor, gradient: Tensor) -> None:
        """Do one step."""
        if self.weight_decay:
            gradient.add_(parameters, alpha=self.weight_decay)
        if self.momentum:
            if self._momentum is None:
                self._momentum = torch.zeros_like(gradient)
            gradient = self._momentum.mul_(self.momentum).add_(gradient)
        parameters.sub_(gradient, alpha=self.lr)

    def state(self) -> dict[str, Tensor]:
        """The momentum, where there is one."""
        return {} if self._momentum is None else {"momentum": self._momentum.clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up a momentum, or none."""
        _check(state, {"momentum"})
        self._momentum = state["momentum"].clone() if "momentum" in state else None


class AdamW:
    """Adam with decoupled weight decay, as `torch.optim.AdamW` has it.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019,
    algorithm 2 (betas 0.9 and 0.999, epsilon 1e-8).
    """

    BETAS = (0.9, 0.999)
    EPSILON = 1e-8
    plain_lr: float | None = None

    def __init__(self, lr: float, weight_decay: float) -> None:
        self.lr = lr
        self.weight_decay = weight_decay
        self._steps = 0
        self._mean: Tensor | None = None
        self._square: Tensor | None = None

    def step(self, parameters: Tensor, gradient: Tensor) -> None:
        """Do one step."""
        if self._mean is None or self._square is None:
            self._mean, self._square = torch.zeros_like(gradient), torch.zeros_like(gradient)
        beta1, beta2 = self.BETAS
        self._steps += 1
        parameters.mul_(1 - self.lr * self.weight_decay)
        self._mean.lerp_(gradient, 1 - beta1)
        self._square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        torch.sqrt(self._square, out=gradient)
        gradient.div_(math.sqrt(1 - beta2**self._steps)).add_(self.EPSILON)
        parameters.addcdiv_(self._mean, gradient, value=-self.lr / (1 - beta1**self._steps))

    def state(self) -> dict[str, Tensor]:
        """The running means of the gradient and its square, and the number of steps."""
        if self._mean is None or self._square is None:
            return {}
        return {
            "mean": self._mean.clone(),
            "square": self._square.clone(),
            "steps": torch.tensor(self._steps),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up running means, or start afresh from an empty state."""
        _check(state, {"mean", "square", "steps"})
        self._steps = int(state["steps"]) if state else 0
        self._mean = state["mean"].clone() if state else None
        self._square = state["square"].clone() if state else None


def _check(state: dict[str, Tensor], known: set[str]) -> None:
    if state and state.keys() != known:
        raise OtherOptimizer(state.keys(), known)


def build_inner(settings: TrainingSettings) -> InnerOptimizer:
    """Make the inner optimizer that the settings name, without any memory."""
    if settings.optimizer == "sgd":
        return SGD(settings.lr, settings.momentum, settings.weight_decay)
    return AdamW(settings.lr, settings.weight_decay)
