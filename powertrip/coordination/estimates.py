"""How far the models are from what is measured, learned while the run goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from powertrip.coordination import snapshots
from powertrip.selection.checks import to_json_list
from powertrip.world.network import Star
from powertrip.world.world import World

_WINDOW = 5  # measurements; three of them make a lasting change
_RANGE = math.log(1e6)
_NOISE = math.log(1.25)  # of one measurement, as far as one alone can tell
_MAD_TO_DEVIATION = 1.4826  # median absolute deviation to standard deviation of a normal one
_FORGOTTEN = 3.0  # times the fading time: what is left then is 5 %, and says nothing

FADES_S = 3600.0
"""A site's speed, its exchanges and rebuilds: they change with what else its machines do."""

LINK_FADES_S = 600.0
"""A link: loss, delay and throughput of internet paths are steady over minutes, and more is not to
be counted on (Zhang et al., "On the constancy of Internet path properties", 2001)."""


class Correction:
    """Measured over modelled, one factor per entry: the median of the last five on a log scale.

    The first measurement of an entry is taken as it is. From the second on, one outlier moves the
    factor to a neighbour among those measured before, at most; with an even number of them the
    middle one nearer to the factor before counts. A lasting change is taken in with its third
    measurement.

    What is not measured again fades to 1, the model itself, as ``exp(-age/fades_s)``: the deviation
    of a process that tends back to its model. After three times that time it is forgotten.

    Times are seconds of the training clock.

    Parameters
    ----------
    size
        Number of factors.
    model_off
        By what factor the model itself may be off, two times in three.
    fades_s
        Age at which a measurement's deviation from the model counts 1/e.
    fresh_s
        Age up to which it counts in full, because no other was due.
    """

    def __init__(
        self, size: int = 1, *, model_off: float, fades_s: float = FADES_S, fresh_s: float = 0.0
    ) -> None:
        self._model_off = math.log(model_off)
        self._fades_s, self._fresh_s = fades_s, fresh_s
        self._ratios = np.full((size, _WINDOW), np.nan)
        self._count = np.zeros(size, dtype=np.int64)
        self._log = np.zeros(size)
        self._off = np.zeros(size)
        self._last_s = np.full(size, -np.inf)

    def learn(
        self, entries: ArrayLike, measured: ArrayLike, modelled: ArrayLike, time_s: float
    ) -> None:
        """Take in measurements; those that are no positive numbers say nothing.

        Parameters
        ----------
        entries
            Which factors, [m] or one of them; none twice.
        measured, modelled
            [m] or one number each, in the same unit.
        time_s
            When.
        """
        entry, got, expected = np.broadcast_arrays(
            np.atleast_1d(entries).astype(np.int64),
            np.atleast_1d(measured).astype(np.float64),
            np.atleast_1d(modelled).astype(np.float64),
        )
        told = (got > 0) & (got < np.inf) & (expected > 0) & (expected < np.inf)
        entry = entry[told]
        if not entry.size:
            return
        ratio = np.clip(np.log(got[told]) - np.log(expected[told]), -_RANGE, _RANGE)
        stale = entry[self._age_s(time_s)[entry] > _FORGOTTEN * self._fades_s]
        self._ratios[stale], self._count[stale] = np.nan, 0
        self._ratios[entry, self._count[entry] % _WINDOW] = ratio
        self._count[entry] += 1
        self._last_s[entry] = time_s

        known = np.minimum(self._count[entry], _WINDOW)
        row = np.arange(entry.size)
        ordered = np.sort(self._ratios[entry], axis=1)  # not a number comes last
        lower, upper = ordered[row, (known - 1) // 2], ordered[row, known // 2]
        before = self._log[entry]
        nearer = np.where(np.abs(upper - before) < np.abs(lower - before), upper, lower)
        self._log[entry] = nearer
        self._off[entry] = _deviation_of_median(ordered - nearer[:, None], known)

    def factors(self, time_s: float) -> NDArray[np.float64]:
        """The factors, 1 where nothing is known; ``[size]``."""
        return np.exp(self._log * self._kept(time_s))

    def spread(self, time_s: float) -> NDArray[np.float64]:
        """By what factor each may be off, two times in three; at least 1, ``[size]``."""
        kept = self._kept(time_s) ** 2
        return np.exp(np.sqrt(kept * self._off**2 + (1 - kept) * self._model_off**2))

    def snapshot(self) -> dict[str, Any]:
        """All that was learned, as strict JSON."""
        return {
            "ratios": to_json_list(self._ratios),
            "count": to_json_list(self._count),
            "log": to_json_list(self._log),
            "off": to_json_list(self._off),
            "last_s": to_json_list(self._last_s),
        }

    def restore(self, name: str, state: object) -> None:
        """Go on from a snapshot, which an error names; raises `SnapshotUnreadable`."""
        seen = snapshots.fields(name, state, "ratios", "count", "log", "off", "last_s")
        size = self._log.size
        ratios = snapshots.floats(f"{name}.ratios", seen["ratios"], size, _WINDOW)
        log = snapshots.finite(f"{name}.log", seen["log"], size)
        off = snapshots.finite(f"{name}.off", seen["off"], size)
        last_s = snapshots.floats(f"{name}.last_s", seen["last_s"], size)
        self._count = snapshots.whole_numbers(f"{name}.count", seen["count"], size)
        self._ratios, self._log, self._off, self._last_s = ratios, log, off, last_s

    def _age_s(self, time_s: float) -> NDArray[np.float64]:
        return np.maximum(time_s - self._last_s - self._fresh_s, 0.0)

    def _kept(self, time_s: float) -> NDArray[np.float64]:
        return np.exp(-self._age_s(time_s) / self._fades_s)


def _deviation_of_median(
    residues: NDArray[np.float64], known: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Standard deviation of the median of each row's `known` measurements; ``[m]``.

    That of one measurement is what their median absolute deviation says, and, as one measurement,
    what is assumed of any; the median's variance is that over n, times pi/2.
    """
    one = _MAD_TO_DEVIATION * np.nanmedian(np.abs(residues), axis=1)
    variance = (_NOISE**2 + (known - 1) * one**2) / known
    return np.sqrt(variance * np.minimum(np.pi / 2 / known, 1.0))


class LinkEstimates:
    """The links as they are measured; the world's network is what they are until then.

    Parameters
    ----------
    world
        The prior.
    interval_s
        Seconds between two measurements: what is measured that often is not stale.
    """

    def __init__(self, world: World, *, interval_s: float) -> None:
        self._world = world
        self._sites = len(world.names)
        self._interval_s = interval_s
        # Made with the first measurement: of thousands of sites, whose links are many millions,
        # none is measured.
        self._corrections: tuple[Correction, Correction] | None = None

    def learn(
        self,
        src: int,
        rtt_s: Sequence[float | None],
        bandwidth: Sequence[float | None],
        time_s: float,
    ) -> None:
        """Take in what a site has measured towards all others; None says nothing.

        Parameters
        ----------
        src
            The site's number.
        rtt_s, bandwidth
            [n] seconds, and bytes per second from `src`, in the order of the sites.
        time_s
            When.
        """
        entries = src * self._sites + np.arange(self._sites)
        if self._corrections is None:
            self._corrections = self._nothing_learned()
        for correction, measured, modelled in zip(
            self._corrections,
            (rtt_s, bandwidth),
            (self._world.rtt_s, self._world.bandwidth),
            strict=True,
        ):
            known = np.array(measured, dtype=np.float64)  # None becomes not a number
            correction.learn(entries, known, modelled[src], time_s)

    def _nothing_learned(self) -> tuple[Correction, Correction]:
        size, fresh_s = self._sites**2, 2 * self._interval_s
        return (
            Correction(size, model_off=1.3, fades_s=LINK_FADES_S, fresh_s=fresh_s),
            Correction(size, model_off=2.0, fades_s=LINK_FADES_S, fresh_s=fresh_s),
        )

    def snapshot(self) -> list[dict[str, Any]] | None:
        """All that was learned, as strict JSON; None where nothing was."""
        if self._corrections is None:
            return None
        return [correction.snapshot() for correction in self._corrections]

    def restore(self, name: str, state: object) -> None:
        """Go on from a snapshot, which an error names; raises `SnapshotUnreadable`."""
        if state is None:
            self._corrections = None
            return
        corrections = self._nothing_learned()
        parts = snapshots.listed(name, state, len(corrections))
        for correction, part, kind in zip(corrections, parts, ("rtt", "bandwidth"), strict=True):
            correction.restore(f"{name}.{kind}", part)
        self._corrections = corrections

    def star(self, hub: int, time_s: float) -> Star:
        """The links to and from a hub, corrected by what was measured."""
        prior = self._world.star(hub)
        factors = self._factors(time_s)
        if factors is None:
            return prior
        rtt, bandwidth = factors
        return Star(
            rtt_s=prior.rtt_s * rtt[:, hub],
            up=prior.up * bandwidth[:, hub],
            down=prior.down * bandwidth[hub],
            reachable=prior.reachable,
        )

    def pairs(self, time_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Round-trip times in seconds and bandwidths in bytes per second from i to j, corrected.

        Shapes [n, n]; infinite and 0 where there is no link, 0 and infinite on the diagonal.
        """
        factors = self._factors(time_s)
        if factors is None:
            return self._world.rtt_s, self._world.bandwidth
        rtt, bandwidth = factors
        return self._world.rtt_s * rtt, self._world.bandwidth * bandwidth

    def _factors(self, time_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        if self._corrections is None:
            return None
        shape = (self._sites, self._sites)
        rtt, bandwidth = (each.factors(time_s).reshape(shape) for each in self._corrections)
        return rtt, bandwidth
