"""Chance in a simulated run: noise in the times, stragglers, and failures of sites.

All of it follows from the seed alone, never from what a policy does, so that policies are compared
under the same fate.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt

from powertrip.simulation.settings import DropoutSettings, NoiseSettings

Floats = npt.NDArray[np.float64]

_SPEED, _EXCHANGE, _STRAGGLE, _OUTAGE = range(4)  # what keeps the draws apart


class Noise:
    """Chance in the times of each round.

    Parameters
    ----------
    settings
        How much.
    seed
        Of the run.
    sites
        Number of sites, n.
    """

    def __init__(self, settings: NoiseSettings, *, seed: int, sites: int) -> None:
        self._settings, self._seed, self._sites = settings, seed, sites

    def slowdown(self, round_: int) -> Floats:
        """How many times longer each site trains in a round ([n])."""
        s = self._settings
        factor = np.ones(self._sites)
        if s.speed:
            factor *= np.exp(s.speed * self._rng(_SPEED, round_).standard_normal(self._sites))
        if s.straggler_share:
            late = self._rng(_STRAGGLE, round_).random(self._sites) < s.straggler_share
            factor[late] *= s.straggler_slowdown
        return factor

    def exchange(self, round_: int) -> float:
        """How many times longer the exchange of a round takes."""
        if not self._settings.exchange:
            return 1.0
        normal = self._rng(_EXCHANGE, round_).standard_normal()
        return float(np.exp(self._settings.exchange * normal))

    def _rng(self, kind: int, round_: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, kind, round_))


class Outages:
    """When sites are gone: times up and down in turn, both exponentially distributed.

    Parameters
    ----------
    settings
        How often, and for how long.
    seed
        Of the run.
    sites
        Number of sites, n.
    """

    def __init__(self, settings: DropoutSettings, *, seed: int, sites: int) -> None:
        self._settings, self._sites = settings, sites
        self._rngs = [np.random.default_rng((seed, _OUTAGE, site)) for site in range(sites)]
        if settings.every_s is None:
            self._starts = [[np.inf] for _ in range(sites)]
            self._ends = [[np.inf] for _ in range(sites)]
        else:
            self._starts = [[float(rng.exponential(settings.every_s))] for rng in self._rngs]
            self._ends = [
                [start[0] + float(rng.exponential(settings.lasts_s))]
                for start, rng in zip(self._starts, self._rngs, strict=True)
            ]

    def gone(self, time_s: float) -> npt.NDArray[np.bool_]:
        """Whether each site is gone at a time ([n])."""
        if self._settings.every_s is None:
            return np.zeros(self._sites, dtype=np.bool_)
        return np.array([self._covering(site, time_s) is not None for site in range(self._sites)])

    def fails_s(self, site: int, start_s: float, end_s: float) -> float:
        """When a site is gone first from `start_s` to `end_s`; infinite if it never is."""
        if self._covering(site, start_s) is not None:
            return start_s
        starts = self._until(site, end_s)
        first = starts[bisect_left(starts, start_s)]
        return first if first <= end_s else math.inf

    def back_s(self, time_s: float) -> float:
        """When the first of the sites that are gone at a time is back; `time_s` if none is gone."""
        ends = [self._covering(site, time_s) for site in range(self._sites)]
        return min((end for end in ends if end is not None), default=time_s)

    def _covering(self, site: int, time_s: float) -> float | None:
        """The end of the outage that a time lies in."""
        self._until(site, time_s)
        starts, ends = self._starts[site], self._ends[site]
        place = bisect_right(starts, time_s) - 1
        return ends[place] if place >= 0 and time_s < ends[place] else None

    def _until(self, site: int, time_s: float) -> list[float]:
        """The starts of a site's outages, drawn up to a time at least."""
        starts, ends = self._starts[site], self._ends[site]
        every_s = self._settings.every_s
        while every_s is not None and starts[-1] <= time_s:
            starts.append(ends[-1] + float(self._rngs[site].exponential(every_s)))
            ends.append(starts[-1] + float(self._rngs[site].exponential(self._settings.lasts_s)))
        return starts
