"""Learners that learn nothing real, for which every number can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor

from powertrip.simulation.learner import Trained
from powertrip.training.evaluation import Counts

BATCH = 10


class FakeLearner:
    """What those below share: who is asked for what, and whether they were closed."""

    def __init__(self, samples: Sequence[int], size: int) -> None:
        self.samples, self.size, self.parameters_size = tuple(samples), size, size
        self.update_bytes = 4 * (size + 1)
        self.limits: dict[str, list[int | None]] = {"validation": [], "test": []}
        self.trained: list[tuple[int, tuple[tuple[int, int], ...], bool]] = []
        self.closed = 0

    def train(
        self, vector: Tensor, round_: int, work: Sequence[tuple[int, int]], *, keep: bool = True
    ) -> Iterator[Trained]:
        self.trained.append((round_, tuple(work), keep))
        update = torch.empty_like(vector)  # one for all of them, as the interface allows
        for site, steps in work:
            update.copy_(self.update(vector, site, steps))
            yield Trained(site, steps, BATCH * steps, 1.0 + site, 2.0 + site, update)

    def evaluate(
        self, vector: Tensor, split: Literal["validation", "test"], limit: int | None = None
    ) -> Counts:
        self.limits[split].append(limit)
        count = 1000 if limit is None else limit
        return Counts(self.accuracy(vector) * count, self.loss(vector) * count, count)

    def update(self, vector: Tensor, site: int, steps: int) -> Tensor:
        raise NotImplementedError

    def loss(self, vector: Tensor) -> float:
        raise NotImplementedError

    def accuracy(self, vector: Tensor) -> float:
        return max(0.0, 1 - self.loss(vector))

    def norms(self, vector: Tensor) -> list[float]:
        return [float(vector[:1].norm()), float(vector[1:].norm())]

    def close(self) -> None:
        self.closed += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: Any) -> None:
        self.close()


class Quadratic(FakeLearner):
    """Site i walks from x half of the way to its own optimum in each step, one unit along axis i.

    The loss is half the squared distance to their mean.
    """

    def __init__(self, samples: Sequence[int] = (10, 20, 30)) -> None:
        super().__init__(samples, len(samples))
        self.start = torch.arange(1.0, self.size + 1)

    def initial(self) -> Tensor:
        return self.start.clone()

    def update(self, vector: Tensor, site: int, steps: int) -> Tensor:
        optimum = torch.eye(self.size)[site]
        return (vector - optimum) * (1 - 0.5**steps)

    def loss(self, vector: Tensor) -> float:
        return float((vector - 1 / self.size).square().sum()) / 2


class Saturating(FakeLearner):
    """The mean of m members' updates brings m/(m+kappa), exactly; for equal work and FedAvg.

    The vector holds the progress before the last round, and each site's share in the last mean:
    whoever trains adds up the first and leaves a share for itself alone.
    """

    def __init__(self, samples: Sequence[int], kappa: float) -> None:
        super().__init__(samples, len(samples) + 1)
        self.kappa = kappa

    def initial(self) -> Tensor:
        return torch.zeros(self.size)

    def progress(self, vector: Tensor) -> float:
        squares = float(vector[1:].square().sum())
        members = 1 / squares if squares else 0.0
        return float(vector[0]) + members / (members + self.kappa)

    def update(self, vector: Tensor, site: int, steps: int) -> Tensor:
        after = torch.zeros(self.size)
        after[0] = self.progress(vector)
        after[1 + site] = 1
        return vector - after

    def loss(self, vector: Tensor) -> float:
        return 100 - self.progress(vector)

    def accuracy(self, vector: Tensor) -> float:
        return self.progress(vector) / 100
