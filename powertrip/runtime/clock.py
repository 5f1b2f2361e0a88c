"""The training clock: seconds of training, communication, rebuilds and joins, not of evaluation."""

from __future__ import annotations

import time


class TrainingClock:
    """Seconds since the start of training, less the time set apart.

    The coordinator's clock times the run; a site's follows it, to know where in its power trace it
    is.
    """

    def __init__(self) -> None:
        self._origin_s = time.monotonic()
        self.apart_s = 0.0

    def now_s(self) -> float:
        """Seconds on the training clock."""
        return time.monotonic() - self._origin_s - self.apart_s

    def set_apart(self, seconds: float) -> None:
        """Take seconds that have just passed (an evaluation) out of the clock."""
        self.apart_s += seconds

    def set(self, now_s: float) -> None:
        """Follow another clock."""
        self._origin_s = time.monotonic() - self.apart_s - now_s
