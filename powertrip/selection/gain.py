"""Projected progress of a round for other numbers of members than the current one."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from powertrip.selection.checks import FloatArray, IntArray
from powertrip.selection.errors import MissingGains
from powertrip.selection.types import Observation

_LEAST_GAIN = 1e-12


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


def recent_gain(observation: Observation) -> float:
    """Mean measured gain of the last adjustment interval, at least 1e-12.

    Where that is not positive (noise, or no round yet) the mean of all rounds stands in, and 1
    where that is not positive either: candidates are compared with each other, so a common factor
    must not turn their order round.
    """
    for gains in (observation.gains[-observation.interval_rounds :], observation.gains):
        if gains.size:
            mean = float(gains.mean())
            if mean > 0:
                return max(mean, _LEAST_GAIN)
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
