"""Tries the mean of half of a round's updates beside that of all: what kappa is estimated from."""

from __future__ import annotations

from collections.abc import Callable

import torch

from powertrip.coordination.messages import Tally, Trial
from powertrip.exchange.collective import WeightedMean
from powertrip.exchange.group import Group

_CHANNEL = 1  # beside the sum of the updates themselves


class HalfTrial:
    """One trial, from the round whose updates are tried to the evaluation in the next one.

    The weighted sum over one half of the members takes a second exchange of an update. It travels
    while the members train the next round, when the links are idle, so that it costs no time:
    addends are sent after the exchange (`begin`), part sums with the next one (`forward`). The
    other half's sum is that of all less the first's.

    Parameters
    ----------
    group
        The members of both rounds.
    half
        The sites of one half.
    site
        This member.
    mean
        Holds this member's update, not yet averaged.
    weight
        This member's weight.
    before
        The model before the round; copied.
    """

    def __init__(
        self,
        group: Group,
        half: tuple[int, ...],
        *,
        site: int,
        mean: WeightedMean,
        weight: float,
        before: torch.Tensor,
    ) -> None:
        self._size = group.size
        self._before = before.clone()
        self._half = torch.zeros(before.numel() + 1, dtype=before.dtype, device=before.device)
        if site in half:
            torch.mul(mean.update, weight, out=self._half[:-1])
            self._half[-1] = weight
        self._sum = group.sum(self._half, channel=_CHANNEL)
        self._sum.expect()
        self._all: torch.Tensor | None = None
        self._total = 0.0

    def begin(self, mean: WeightedMean, total: float) -> None:
        """Send this member's addend.

        Parameters
        ----------
        mean
            Holds the mean update of all; copied.
        total
            The members' total weight.
        """
        self._all, self._total = mean.update.clone(), total
        self._sum.begin()

    def forward(self) -> None:
        """Send on this member's part of the sum, before the next exchange."""
        self._sum.forward()

    def finish(self) -> None:
        """Wait for the sum over the half, after the next exchange."""
        self._sum.finish()

    def evaluate(self, tally: Callable[[torch.Tensor], Tally]) -> Trial | None:
        """Evaluate what the means would have made of the model; None where a half had no weight.

        Parameters
        ----------
        tally
            Evaluates a model, given as a vector, on this member's share of the validation samples.
        """
        assert self._all is not None
        weight = float(self._half[-1])
        if not 0 < weight < self._total:
            return None
        half_sum = self._half[:-1]
        other_sum = self._all * self._total - half_sum
        return Trial(
            part=self._size / 2,
            before=tally(self._before),
            all=tally(self._before - self._all),
            half_a=tally(self._before - half_sum / weight),
            half_b=tally(self._before - other_sum / (self._total - weight)),
        )
