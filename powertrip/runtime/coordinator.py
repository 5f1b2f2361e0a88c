"""The coordinator: it decides who trains, commits rounds, and ends the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from powertrip.coordination.course import Course
from powertrip.coordination.membership import HUB
from powertrip.coordination.messages import (
    Begin,
    Commit,
    Failure,
    Finished,
    LinksGone,
    Mail,
    Probe,
    Probed,
    Ready,
    Report,
    Stop,
    StopRequest,
)
from powertrip.coordination.observer import Observer
from powertrip.coordination.setup import Setup
from powertrip.coordination.timekeeping import ModelledTime, Timekeeper
from powertrip.errors import PowerTripError
from powertrip.exchange.group import store_prefix
from powertrip.runtime.clock import MeasuredTime
from powertrip.runtime.control import Inbox, Log, StoreFactory, delete_prefix
from powertrip.runtime.errors import ControlPlaneError, LinksLost, SiteFailed, SitesSilent
from powertrip.runtime.surveys import Surveys
from powertrip.telemetry import events
from powertrip.telemetry.events import Outcome
from powertrip.telemetry.report import Summary
from powertrip.telemetry.telemetry import Telemetry
from powertrip.world.world import World

_PROBE_SLACK_S = 10.0  # for the sites' answers, beyond the limit of the measurement itself
_LAG_SHARE = 0.2  # of local training, beyond which the emulated pace is not the modelled one


class Interrupted(PowerTripError):
    """The run was asked to stop before its first round."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__("interrupted before the first round")


class Coordinator:
    """Runs the job from rank 0's node; it trains nothing itself.

    Parameters
    ----------
    setup
        The resolved scenario.
    world
        Its facts.
    connect
        Makes a store client.
    telemetry
        Is handed every event; owned by the caller.
    begin_schedule
        Called when the training begins, where links are emulated.
    """

    def __init__(
        self,
        setup: Setup,
        world: World,
        connect: StoreFactory,
        telemetry: Telemetry,
        *,
        begin_schedule: Callable[[], None] | None = None,
    ) -> None:
        self._begin_schedule = begin_schedule
        self._setup, self._config, self._world = setup, setup.config, world
        self._store = connect()
        self._log, self._inbox = Log(self._store), Inbox(self._store)
        self._telemetry = telemetry

        self._course: Course | None = None
        self._holders: set[int] = set()
        self._stop: Stop | None = None
        self._signal: int | None = None
        self._finished: set[int] = set()
        self._farewells: list[Finished] = []
        self._lag_warned = False
        self._links_measured = False

    def run(self) -> Summary:
        """Run the job to its end.

        Returns
        -------
        Summary
            With the exit code in it.

        Raises
        ------
        PowerTripError
            The run failed before it had begun; the sites have been told to end.
        """
        try:
            return self._run()
        except Exception:  # whatever it is, nobody shall wait for a coordinator that is gone
            self._publish_stop(after_round=self._round)
            raise

    def _run(self) -> Summary:
        ready = self._await_sites()
        observer = Observer(self._world, self._config, ready)
        self._observer = observer
        modelled = self._config.selection.clock == "modelled"
        self._time: Timekeeper = ModelledTime(observer) if modelled else MeasuredTime()
        self._course = course = Course(
            self._config, self._world, observer, self._time, self._telemetry
        )
        self._surveys = Surveys(self._world, sum(r.probe is not None for r in ready))
        course.announce(
            backend=ready[HUB].backend,
            pacing=self._config.runtime.pacing,
            links=self._setup.links.reason,
        )
        first = ready[HUB].digest
        self._holders = {r.site for r in ready if r.digest == first}
        try:
            self._measure_links(ready)
            if self._begin_schedule is not None:
                self._begin_schedule()
            self._time.start()
            outcome, exit_code = (
                self._train(course) if self._signal is None else self._interrupted()
            )
        except PowerTripError as error:
            outcome, exit_code = self._fail(error)
        try:
            self._publish_stop(
                after_round=self._round, holders=sorted(self._holders - self._finished)
            )
            self._await_finished()
        except ControlPlaneError as error:
            text = f"how the sites have ended is not known: {error}"
            self._telemetry.emit(events.Warned(time_s=self._time.now_s(), text=text))
        return self._telemetry.end(outcome, exit_code, time_s=self._time.now_s())

    @property
    def _round(self) -> int:
        """Number of the last round that all members have done."""
        return 0 if self._course is None else self._course.round

    def _await_sites(self) -> list[Ready]:
        sites = range(len(self._world.names))
        ready: dict[int, Ready] = {}
        limit_s = self._config.runtime.start_limit_s
        deadline_s = time.monotonic() + limit_s
        while missing := [site for site in sites if site not in ready]:
            mail = self._receive(deadline_s, missing, "starting", limit_s, "runtime.start_limit_s")
            if isinstance(mail, Ready):
                ready[mail.site] = mail
            if self._signal is not None:
                raise Interrupted(self._signal)
        return [ready[site] for site in sites]

    def _measure_links(self, ready: Sequence[Ready]) -> None:
        """Let the sites measure their links, and wait for the first picture of all of them."""
        measuring = [r.site for r in ready if r.probe is not None]
        if len(measuring) < 2:
            return
        self._log.append(Probe(endpoints=tuple(r.probe for r in ready)))
        limit_s = self._config.exchange.probe.limit_s + _PROBE_SLACK_S
        deadline_s = time.monotonic() + limit_s
        while not self._links_measured and self._signal is None:
            self._receive(
                deadline_s, measuring, "measuring the links", limit_s, "exchange.probe.limit_s"
            )

    def _train(self, course: Course) -> tuple[Outcome, int]:
        """Round after round; decisions are made a round ahead, so that no site waits for one."""
        self._log.append(course.start(self._holders))
        course.record()
        while True:
            begin, round_ = course.begin, course.round + 1
            reports = self._collect(begin, round_)
            if reports is None:
                return self._interrupted()
            course.account(reports)
            self._holders = set(begin.members)
            end = self._end_after(course)
            if end is not None:
                self._publish_stop(after_round=round_, holders=begin.members)
            else:
                after_next = course.ahead()
                self._log.append(
                    Commit(generation=begin.generation, round=round_, begin=after_next)
                )
            course.record()
            if course.rebuilt:
                # Every member is connected: nobody reads the group's keys again.
                delete_prefix(self._store, store_prefix(begin.generation))
            self._warn_of_lag(reports)
            if end is not None:
                return end

    def _collect(self, begin: Begin, round_: int) -> list[Report] | None:
        """All members' reports of a round; None if the run stops and they do not come in time."""
        reports: dict[int, Report] = {}
        limit_s = self._config.runtime.silence_limit_s
        deadline_s = time.monotonic() + limit_s
        while missing := [site for site in begin.members if site not in reports]:
            try:
                mail = self._receive(
                    deadline_s,
                    missing,
                    f"in round {round_} of generation {begin.generation}",
                    limit_s,
                    "runtime.silence_limit_s",
                )
            except SitesSilent:
                if self._stop is None:
                    raise
                return None
            if isinstance(mail, StopRequest) and self._stop is None:
                # Members may be in this round's exchange already, so it is finished, and shortened.
                self._publish_stop(after_round=round_, holders=begin.members)
                deadline_s = time.monotonic() + self._config.runtime.stop_grace_s
            if (
                isinstance(mail, Report)
                and (mail.generation, mail.round) == (begin.generation, round_)
                and mail.site in begin.members
            ):
                reports[mail.site] = mail
        return [reports[site] for site in begin.members]

    def _receive(
        self, deadline_s: float, missing: Sequence[int], doing: str, limit_s: float, setting: str
    ) -> Mail:
        """The next message; a failure that a site reports is raised here."""
        mail = self._inbox.receive(deadline_s - time.monotonic())
        names = self._world.names
        if mail is None:
            raise SitesSilent([names[site] for site in missing], doing, limit_s, setting)
        if isinstance(mail, StopRequest):
            self._signal = self._signal or mail.signal
        elif isinstance(mail, Probed):
            self._observer.learn_links(mail, time_s=self._time.now_s())
            measured = self._surveys.take(mail, self._time.now_s())
            if measured is not None:
                self._links_measured = True
                self._telemetry.emit(measured)
        elif isinstance(mail, LinksGone):
            self._finished.update(range(len(names)))  # their supervisors end them
            raise LinksLost(mail.text)
        elif isinstance(mail, Failure):
            if not mail.survives:
                self._finished.add(mail.site)
            raise SiteFailed(names[mail.site], mail.error, mail.text, mail.exit_code)
        elif isinstance(mail, Finished):  # a stop is out, and others still do the last round
            self._farewells.append(mail)
        return mail

    def _end_after(self, course: Course) -> tuple[Outcome, int] | None:
        end = course.end()
        if self._signal is not None and (end is None or end[0] != "reached"):
            return self._interrupted()
        return end

    def _interrupted(self) -> tuple[Outcome, int]:
        assert self._signal is not None
        return "interrupted", 128 + self._signal

    def _warn_of_lag(self, reports: Sequence[Report]) -> None:
        slow = max(reports, key=lambda report: report.lag_s)
        if self._lag_warned or slow.lag_s <= _LAG_SHARE * slow.local_s:
            return
        self._lag_warned = True
        self._telemetry.emit(
            events.Warned(
                time_s=self._time.now_s(),
                site=self._world.names[slow.site],
                text=(
                    f"this machine is too slow for the modelled pace: local training took "
                    f"{slow.local_s:.2f} s, {slow.lag_s:.2f} s more than the site's power allows "
                    "for; lower samples_per_s of the sites (said once)"
                ),
            )
        )

    def _publish_stop(self, *, after_round: int, holders: Collection[int] = ()) -> None:
        if self._stop is not None:
            return
        # On the hub's machine the file is at hand.
        keeper = None if not holders else HUB if HUB in holders else next(iter(holders))
        self._stop = Stop(
            after_round=after_round,
            keeper=keeper,
            checkpoint=str(Path(self._telemetry.run_dir).resolve() / "checkpoint.pt"),
        )
        self._log.append(self._stop)

    def _fail(self, error: PowerTripError) -> tuple[Outcome, int]:
        self._telemetry.emit(
            events.Failure(
                time_s=self._time.now_s(),
                kind=error.kind if isinstance(error, SiteFailed) else type(error).__name__,
                site=error.site if isinstance(error, SiteFailed) else None,
                text=str(error),
                generation=0 if self._course is None else self._course.generation,
                round=self._round + 1,
            )
        )
        return "failed", error.exit_code

    def _await_finished(self) -> None:
        """Give the sites time to end, and learn where the model was saved."""
        sites = set(range(len(self._world.names)))
        deadline_s = time.monotonic() + self._config.runtime.stop_grace_s
        for farewell in self._farewells:
            self._record_end(farewell)
        while sites - self._finished:
            mail = self._inbox.receive(deadline_s - time.monotonic())
            if mail is None:
                missing = [self._world.names[s] for s in sorted(sites - self._finished)]
                text = f"did not end in time: {', '.join(missing)}"
                self._telemetry.emit(events.Warned(time_s=self._time.now_s(), text=text))
                return
            if isinstance(mail, Finished):
                self._record_end(mail)
            elif isinstance(mail, Failure) and not mail.survives:
                self._finished.add(mail.site)

    def _record_end(self, mail: Finished) -> None:
        self._finished.add(mail.site)
        now_s = self._time.now_s()
        site = self._world.names[mail.site]
        if mail.checkpoint_error is not None:
            self._telemetry.emit(
                events.Warned(
                    time_s=now_s, site=site, text=f"no checkpoint: {mail.checkpoint_error}"
                )
            )
        elif mail.checkpoint is not None:
            self._telemetry.emit(
                events.Checkpoint(
                    time_s=now_s,
                    path=mail.checkpoint,
                    bytes=mail.checkpoint_bytes,
                    seconds=mail.checkpoint_s,
                    round=mail.checkpoint_round,
                )
            )
