"""How far the models are from what is measured, learned while the run goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from powertrip.world.network import Star
from powertrip.world.world import World

_WEIGHT = 0.3  # of a new measurement; the rest keeps the estimate
_LARGEST_SURPRISE = math.log(4.0)  # a ratio further off than this counts as that far off
_RANGE = math.log(1e6)


class Correction:
    """Measured over modelled, smoothed on a log scale, one factor per entry.

    A single outlier moves a factor by at most ``4 ** 0.3 = 1.5``; the first measurement of an
    entry is taken as it is.

    Parameters
    ----------
    size
        Number of factors.
    """

    def __init__(self, size: int = 1) -> None:
        self._log = np.zeros(size)
        self._known = np.zeros(size, dtype=bool)

    @property
    def factors(self) -> NDArray[np.float64]:
        """The factors, 1 where nothing was measured yet; ``[size]``."""
        return np.exp(self._log)

    def learn(self, entry: int, measured: float, modelled: float) -> None:
        """Take in one measurement; those that are no positive numbers say nothing."""
        if not (0 < measured < math.inf and 0 < modelled < math.inf):
            return
        ratio = min(max(math.log(measured) - math.log(modelled), -_RANGE), _RANGE)
        if not self._known[entry]:
            self._known[entry] = True
            self._log[entry] = ratio
            return
        surprise = ratio - self._log[entry]
        surprise = min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        self._log[entry] += _WEIGHT * surprise


class LinkEstimates:
    """The links as they are measured; the world's network is what they are until then.

    Parameters
    ----------
    world
        The prior.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._sites = len(world.names)
        self._rtt = Correction(self._sites**2)
        self._bandwidth = Correction(self._sites**2)

    def learn(
        self, src: int, rtt_s: Sequence[float | None], bandwidth: Sequence[float | None]
    ) -> None:
        """Take in what a site has measured towards all others; None says nothing.

        Parameters
        ----------
        src
            The site's number.
        rtt_s, bandwidth
            [n] seconds, and bytes per second from `src`, in the order of the sites.
        """
        for dst, measured in enumerate(rtt_s):
            if measured is not None:
                self._rtt.learn(self._entry(src, dst), measured, self._world.rtt_s[src, dst])
        for dst, measured in enumerate(bandwidth):
            if measured is not None:
                modelled = self._world.bandwidth[src, dst]
                self._bandwidth.learn(self._entry(src, dst), measured, modelled)

    def star(self, hub: int) -> Star:
        """The links to and from a hub, corrected by what was measured."""
        prior = self._world.star(hub)
        rtt = self._rtt.factors.reshape(self._sites, -1)
        bandwidth = self._bandwidth.factors.reshape(self._sites, -1)
        return Star(
            rtt_s=prior.rtt_s * rtt[:, hub],
            up=prior.up * bandwidth[:, hub],
            down=prior.down * bandwidth[hub],
            reachable=prior.reachable,
        )

    def _entry(self, src: int, dst: int) -> int:
        return src * self._sites + dst
