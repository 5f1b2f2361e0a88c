"""What the coordinator tells of a run besides its course: who is gone, what failed or is saved."""

from __future__ import annotations

from collections.abc import Sequence

from powertrip.coordination.attempt import Attempt
from powertrip.coordination.course import Course
from powertrip.coordination.messages import Report
from powertrip.coordination.roster import MOST_REJECTIONS
from powertrip.coordination.timekeeping import Timekeeper
from powertrip.errors import PowerTripError
from powertrip.runtime.checkpoints import Made
from powertrip.runtime.errors import SiteFailed
from powertrip.telemetry import events
from powertrip.telemetry.telemetry import Telemetry

_LAG_SHARE = 0.2  # of local training, beyond which the emulated pace is not the modelled one


class Tidings:
    """Events that are told as soon as they happen, with the generation and the round.

    Parameters
    ----------
    telemetry
        Is handed every event.
    names
        Of the sites.
    """

    def __init__(self, telemetry: Telemetry, names: Sequence[str]) -> None:
        self._telemetry, self._names = telemetry, names
        self._course: Course | None = None
        self._time: Timekeeper | None = None
        self._lag_warned = False

    def follow(self, course: Course, clock: Timekeeper) -> None:
        """Take generation, round and time from these from now on."""
        self._course, self._time = course, clock

    @property
    def now_s(self) -> float:
        """The run's clock; 0 before it runs."""
        return 0.0 if self._time is None else self._time.now_s()

    def warn(self, text: str, site: str | None = None) -> None:
        """Something is not as it should be; from any thread."""
        self._telemetry.emit(events.Warned(time_s=self.now_s, site=site, text=text))

    def fail(self, kind: str, text: str, site: str | None = None) -> None:
        """Something broke in the round that is being done."""
        course = self._course
        self._telemetry.emit(
            events.Failure(
                time_s=self.now_s,
                kind=kind,
                site=site,
                text=text,
                generation=0 if course is None else course.generation,
                round=1 if course is None else course.round + 1,
            )
        )

    def ends(self, error: PowerTripError) -> None:
        """An error ends the run."""
        if isinstance(error, SiteFailed):
            self.fail(error.kind, str(error), error.site)
        else:
            self.fail(type(error).__name__, str(error))

    def gone(self, site: int, text: str) -> None:
        """A site takes no part any more, for now."""
        self.fail("SiteGone", text, self._names[site])

    def returned(self, site: int, incarnation: int) -> None:
        """A site that was gone is there again."""
        self._telemetry.emit(
            events.SiteReturned(time_s=self.now_s, site=self._names[site], incarnation=incarnation)
        )

    def again(self, attempt: Attempt, lost: Sequence[int]) -> str:
        """A round is done again, without these; returns why, in words."""
        names = ", ".join(self._names[site] for site in lost)
        who = f"{names} left out: the others do" if lost else "all do"
        reason = f"{who} round {attempt.round} again"
        self.fail("ExchangeFailed", f"{reason} ({attempt.text})" if attempt.text else reason)
        return reason

    def rejected(self, report: Report, *, for_good: bool) -> None:
        """A member's update had no weight; for good where that ends its part."""
        self._telemetry.emit(
            events.Failure(
                time_s=self.now_s,
                kind="UpdateRejected",
                site=self._names[report.site],
                text=f"its update of round {report.round} has no weight: {report.rejected}"
                + (f"; {MOST_REJECTIONS} of them, it is left out from here on" if for_good else ""),
                generation=report.generation,
                round=report.round,
            )
        )

    def resumed(self, round_: int, *, term: int, reason: str, checkpoint: str | None) -> None:
        """The run goes on from what was saved."""
        kept = self._telemetry.kept
        lost = 0 if checkpoint is None or kept is None else kept.lost_rounds
        self._telemetry.emit(
            events.Resumed(
                time_s=self.now_s,
                round=round_,
                lost_rounds=lost,
                checkpoint=checkpoint,
                term=term,
                reason=reason,
            )
        )

    def saved(self, made: Made) -> None:
        """A checkpoint is whole."""
        self._telemetry.emit(
            events.Checkpoint(
                time_s=self.now_s,
                path=made.folder,
                bytes=made.nbytes,
                seconds=made.seconds,
                round=made.round,
            )
        )

    def lag(self, reports: Sequence[Report]) -> None:
        """Say once if the machine cannot keep the modelled pace."""
        slow = max(reports, key=lambda report: report.lag_s)
        if self._lag_warned or slow.lag_s <= _LAG_SHARE * slow.local_s:
            return
        self._lag_warned = True
        self.warn(
            f"this machine is too slow for the modelled pace: local training took "
            f"{slow.local_s:.2f} s, {slow.lag_s:.2f} s more than the site's power allows for; "
            "lower samples_per_s of the sites (said once)",
            self._names[slow.site],
        )
