"""The training clock: seconds of training, communication, rebuilds and joins, not of evaluation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from powertrip.coordination import snapshots
from powertrip.coordination.accounts import RoundAccount, measured_times
from powertrip.coordination.messages import Begin, Report


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


class MeasuredTime:
    """The clock on the wall, without evaluations."""

    def __init__(self) -> None:
        self._clock = TrainingClock()
        self._started = False
        self._last_end_s = 0.0

    def start(self) -> None:
        """Let the clock run."""
        self._clock.set(0.0)
        self._started = True

    def now_s(self) -> float:
        """Seconds on the training clock."""
        return self._clock.now_s() if self._started else 0.0

    def announce(
        self, generation: int, *, rebuild: bool, meanwhile: Begin | None, round_: int
    ) -> float:
        """The clock as it is: whatever comes before the generation will show on it by itself."""
        return self._clock.now_s()

    def account(self, begin: Begin, reports: Sequence[Report]) -> RoundAccount:
        """Read the clock, and take the evaluation out of it."""
        times = measured_times(reports, {transfer.newcomer for transfer in begin.transfers})
        self._clock.set_apart(times.evaluation_s)
        start_s, self._last_end_s = self._last_end_s, self._clock.now_s()
        return RoundAccount(
            start_s, self._last_end_s, times, tuple(report.local_s for report in reports)
        )

    def snapshot(self) -> dict[str, Any]:
        """The reading, and that at the end of the last round."""
        return {"measured_s": self.now_s(), "last_end_s": self._last_end_s}

    def restore(self, state: object, *, passed_s: float) -> None:
        """Go on from the reading of a snapshot and the seconds since; the clock runs at once.

        Raises
        ------
        SnapshotUnreadable
            It is malformed, or of a modelled clock.
        """
        seen = snapshots.fields("clock", state, "measured_s", "last_end_s")
        reading_s = snapshots.number("clock.measured_s", seen["measured_s"], 0.0)
        self._last_end_s = snapshots.number("clock.last_end_s", seen["last_end_s"], 0.0)
        self._clock.set(reading_s + passed_s)
        self._started = True
