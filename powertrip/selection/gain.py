"""Projected progress of a round for other numbers of members than the current one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from powertrip.selection.checks import FloatArray, IntArray
from powertrip.selection.errors import MissingGains
from powertrip.selection.types import Observation

_LEAST_GAIN = 1e-12

_MOST_ROUNDS = 64
"""Rounds that a trend looks back on, at most."""


class GainProjector(Protocol):
    """Projects what a round with other numbers of members would bring."""

    def project(self, observation: Observation, current: int, counts: IntArray) -> FloatArray:
        """Return the projected progress per round.

        Parameters
        ----------
        observation
            Holds the measured gains.
        current
            Number of members with which the recent gains were measured, at least 1.
        counts
            Numbers of members to project for, at least 1, shape [c].

        Returns
        -------
        Decrease of the loss per round, positive and finite, shape [c].
        """
        ...


@dataclass(frozen=True)
class Trend:
    """Progress per round over some rounds, and its uncertainty.

    Parameters
    ----------
    per_round
        Decrease of the loss per round.
    uncertainty
        By how much that may be off, about two times in three; infinite where two losses are all
        that is known.
    """

    per_round: float
    uncertainty: float


def trend(gains: FloatArray) -> Trend:
    """Fit a line to the losses that follow from the gains of some rounds, at least one.

    The slope is the median of the slopes between all pairs of rounds (Theil 1950, Sen 1968): an
    evaluation that is far off touches few of them, while it shows in full, and with both signs, in
    the gains on either side of it. The uncertainty is half of Sen's interval between those ranks of
    the sorted slopes that enclose the true one in 68 % of cases.
    """
    done = np.append(0.0, np.cumsum(gains))
    first, later = np.triu_indices(done.size, 1)
    slopes = np.sort((done[later] - done[first]) / (later - first))
    if slopes.size == 1:
        return Trend(float(slopes[0]), math.inf)
    n = done.size
    spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)  # standard deviation of Kendall's S
    high = min(math.ceil((slopes.size + spread) / 2), slopes.size - 1)
    return Trend(float(np.median(slopes)), float(slopes[high] - slopes[-1 - high]) / 2)


def recent_gain(observation: Observation) -> float:
    """Progress per round of the last adjustment interval, or of more rounds; at least 1e-12.

    The `trend` of the last interval counts if it exceeds its uncertainty, else that of twice as
    many rounds, and so on; the longest counts in any case. Where that is not positive, the mean of
    all rounds stands in, and 1 where that is not positive either: candidates are compared with each
    other, so a common factor must not turn their order round.
    """
    gains = observation.gains
    if not gains.size:
        return 1.0
    rounds = min(observation.interval_rounds, _MOST_ROUNDS)
    recent = trend(gains[-rounds:])
    while recent.per_round <= recent.uncertainty and rounds < min(gains.size, _MOST_ROUNDS):
        rounds = min(2 * rounds, _MOST_ROUNDS)
        recent = trend(gains[-rounds:])
    for gain in (recent.per_round, float(gains.mean())):
        if gain > 0:
            return max(gain, _LEAST_GAIN)
    return 1.0


class LogProjector:
    """Diminishing returns by the logarithm: ``g (k/q) ln(1+q) / ln(1+k)``.

    The publication names its ingredients in words: recent trend g, k over the current count q,
    logarithmically diminishing returns. g is common to all candidates.
    """

    def project(self, observation: Observation, current: int, counts: IntArray) -> FloatArray:
        """See `GainProjector.project`."""
        scale = (counts / current) * (np.log1p(current) / np.log1p(counts))
        return np.asarray(recent_gain(observation) * scale, dtype=np.float64)


class SaturatingProjector:
    """Saturation: ``g (k / (k + kappa)) / (q / (q + kappa))``.

    The number of rounds to a target falls as ``1 + kappa/k``: averaging k updates removes noise,
    and the more of it is gone, the less there is to gain.
    """

    def project(self, observation: Observation, current: int, counts: IntArray) -> FloatArray:
        """See `GainProjector.project`."""
        scale = saturation(counts, observation.kappa) / saturation(current, observation.kappa)
        return np.asarray(recent_gain(observation) * scale, dtype=np.float64)


class OracleProjector:
    """The gains that a simulation has measured by running each candidate from one snapshot."""

    def project(self, observation: Observation, current: int, counts: IntArray) -> FloatArray:
        """See `GainProjector.project`.

        Raises
        ------
        MissingGains
            If `Observation.measured_gains` lacks one of `counts`.
        """
        measured = observation.measured_gains
        missing = [k for k in counts.tolist() if k not in measured]
        if missing:
            raise MissingGains(
                f"selection.projector oracle: no gain was measured for {missing[0]} members "
                f"(known: {sorted(measured) or 'none'}); it works in simulations only, write "
                "saturating or log"
            )
        return np.array([max(measured[k], _LEAST_GAIN) for k in counts.tolist()])


def saturation(count: ArrayLike, kappa: float) -> FloatArray:
    """Share of the largest possible gain that a round of k members brings: ``k / (k + kappa)``."""
    k = np.asarray(count, dtype=np.float64)
    return np.asarray(k / (k + kappa))


PROJECTORS: dict[str, GainProjector] = {
    "saturating": SaturatingProjector(),
    "log": LogProjector(),
    "oracle": OracleProjector(),
}
