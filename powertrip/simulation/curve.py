"""Learning without a model: progress by a formula, for simulations of thousands of sites."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal, Self

import torch
from torch import Tensor

from powertrip.simulation.learner import Trained
from powertrip.training.evaluation import Counts
from powertrip.training.settings import CurveSettings

_COUNT = 10_000  # samples that an evaluation claims


class CurveLearner:
    """A learner whose vector is one number, the progress; a `Learner`.

    The gain of a round, ``k/(k+kappa) * mean(H/(1+H/h0))``, is what selection projects (see
    `powertrip.selection.gain` and `powertrip.selection.deadlines`); here it is the truth.

    Parameters
    ----------
    settings
        The curve.
    sites
        Number of sites.
    batch_size
        Samples of a local step.
    """

    size = 1
    parameters_size = 1

    def __init__(self, settings: CurveSettings, *, sites: int, batch_size: int) -> None:
        self._settings, self._batch_size = settings, batch_size
        self.samples = (settings.samples,) * sites

    @property
    def update_bytes(self) -> int:
        """Bytes of an update of the model that is stood for, with the weight behind it."""
        return 4 * (self._settings.parameters + 1)

    def initial(self) -> Tensor:
        """No progress."""
        return torch.zeros(1, dtype=torch.float64)

    def train(
        self, vector: Tensor, round_: int, work: Sequence[tuple[int, int]], *, keep: bool = True
    ) -> Iterator[Trained]:
        """Every member's update is the round's gain, so that their mean is, whatever the weights.

        See `powertrip.simulation.learner.Learner.train`.
        """
        s, k = self._settings, len(work)
        worth = sum(steps / (1 + steps / s.h0) for _, steps in work) / k
        update = torch.full_like(vector, -k / (k + s.kappa) * worth)
        loss = self._loss(float(vector[0]))
        for site, steps in work:
            yield Trained(site, steps, steps * self._batch_size, loss, loss, update)

    def evaluate(
        self, vector: Tensor, split: Literal["validation", "test"], limit: int | None = None
    ) -> Counts:
        """The curve at this progress, the same for both splits."""
        s, progress = self._settings, float(vector[0])
        left = math.exp(-progress / s.scale)
        accuracy = s.best - (s.best - 1 / s.classes) * left
        return Counts(accuracy * _COUNT, self._loss(progress) * _COUNT, _COUNT)

    def norms(self, vector: Tensor) -> list[float]:
        """The only entry."""
        return [abs(float(vector[0]))]

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _loss(self, progress: float) -> float:
        return math.log(self._settings.classes) * math.exp(-progress / self._settings.scale)
