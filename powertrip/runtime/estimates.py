"""How far the models are from what is measured, learned while the run goes on."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

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
