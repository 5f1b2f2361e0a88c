"""The coordinator: it decides who trains, commits rounds, and ends the run."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from powertrip.coordination.attempt import Attempt
from powertrip.coordination.course import Course
from powertrip.coordination.membership import HUB
from powertrip.coordination.messages import (
    Back,
    Begin,
    Broken,
    Failure,
    Finished,
    Gone,
    Hurry,
    LinksGone,
    Mail,
    Probe,
    Probed,
    Ready,
    Recall,
    Report,
    Save,
    Saved,
    Stop,
    StopRequest,
)
from powertrip.coordination.observer import Observer
from powertrip.coordination.roster import Roster
from powertrip.coordination.rounds import Rounds, Verdict
from powertrip.coordination.setup import Setup
from powertrip.coordination.timekeeping import ModelledTime, Timekeeper
from powertrip.errors import PowerTripError
from powertrip.runtime.checkpoints import Checkpoints, Made
from powertrip.runtime.clock import MeasuredTime
from powertrip.runtime.control import ControlPlane, Inbox
from powertrip.runtime.errors import (
    ControlPlaneError,
    ExchangeKeepsFailing,
    LinksLost,
    ModelLost,
    SiteFailed,
    SitesSilent,
)
from powertrip.runtime.manifest import Found, read_coordinator
from powertrip.runtime.memory import Memory
from powertrip.runtime.publishing import Publisher
from powertrip.runtime.surveys import Surveys
from powertrip.runtime.tidings import Tidings
from powertrip.telemetry.events import Outcome
from powertrip.telemetry.report import Summary
from powertrip.telemetry.telemetry import Telemetry
from powertrip.world.world import World

_PROBE_SLACK_S = 10.0  # for the sites' answers, beyond the limit of the measurement itself
_SETTLE_S = 0.5  # within which all members of a failed exchange have given up, too
_ACCUSED_S = 0.1  # the same, once one has named the site whose addend it misses
_HOLDER_LIMITS = 5.0  # shortest limits that the only holders of the model are waited for
_RECALL_S = 2.0  # for the answers to a recall, beyond the silence of a site that is gone
_GONE = {
    "closed": "its process has ended",
    "silent": "it is not heard any more: frozen, or cut off",
}


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
    plane
        The control plane.
    telemetry
        Is handed every event; owned by the caller.
    begin_schedule
        Called when the training begins, where links are emulated.
    resume
        The checkpoint that the run goes on from; None for one that begins.
    come_back
        What another process of the coordinator has left in the store; None where there was none.
    term
        How many processes the coordinator has had before.
    """

    def __init__(
        self,
        setup: Setup,
        world: World,
        plane: ControlPlane,
        telemetry: Telemetry,
        *,
        begin_schedule: Callable[[], None] | None = None,
        resume: Found | None = None,
        come_back: Memory | None = None,
        term: int = 0,
    ) -> None:
        self._begin_schedule, self._resume = begin_schedule, resume
        self._return, self._term = come_back, term
        self._backlog: deque[Mail] = deque()
        self._replans = True
        self._setup, self._config, self._world = setup, setup.config, world
        store = plane.connect()
        self._pen = Publisher(store, plane.seal, self._config, str(telemetry.run_dir))
        self._inbox = Inbox(store, seal=plane.seal, sites=len(world.names), warn=self.warn)
        self._telemetry, self._tidings = telemetry, Tidings(telemetry, world.names)

        self._course: Course | None = None
        self._roster = Roster()
        self._rounds = Rounds(self._roster, HUB)
        self._checkpoints = Checkpoints(
            telemetry.run_dir,
            self._config.checkpoint,
            sites=world.names,
            base_dir=setup.base_dir,
            warn=self.warn,
        )
        self._set_silence_s: Callable[[float], None] | None = None
        self._hurried = False
        self._saved_round = 0
        self._stop: Stop | None = None
        self._signal: int | None = None
        self._finished: set[int] = set()
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
            self._publish_stop()
            raise

    def _run(self) -> Summary:
        try:
            course = self._begin() if self._return is None else self._come_back(self._return)
            outcome, exit_code = (
                self._train(course) if self._signal is None else self._interrupted()
            )
        except PowerTripError as error:
            self._tidings.ends(error)
            outcome, exit_code = "failed", error.exit_code
        try:
            self._publish_stop()
            self._await_finished()
        except ControlPlaneError as error:
            self.warn(f"how the sites have ended is not known: {error}")
        return self._telemetry.end(outcome, exit_code, time_s=self._tidings.now_s)

    def _begin(self) -> Course:
        """Wait for the sites, and publish the first generation, or the one of a checkpoint."""
        ready = self._await_sites()
        course = self._make_course(ready)
        if self._resume is None:
            course.announce(
                backend=ready[HUB].backend,
                pacing=self._config.runtime.pacing,
                links=self._setup.links.reason,
            )
        digest = ready[HUB].digest if self._resume is None else self._resume.manifest.digest
        self._rounds.hold((r.site for r in ready if r.digest == digest), digest)
        self._measure_links(ready)
        if self._begin_schedule is not None:
            self._begin_schedule()
        if self._signal is None:
            self._pen.begin(self._first_generation(course))
            course.record()
        self._listen_closely()
        return course

    def _make_course(self, ready: Sequence[Ready]) -> Course:
        self._observer = observer = Observer(self._world, self._config, ready)
        modelled = self._config.selection.clock == "modelled"
        self._time: Timekeeper = ModelledTime(observer) if modelled else MeasuredTime()
        self._surveys = Surveys(self._world, sum(r.probe is not None for r in ready))
        self._course = course = Course(
            self._config, self._world, observer, self._time, self._telemetry
        )
        self._tidings.follow(course, self._time)
        self._pen.follow(course, observer, self._time, self._rounds, ready)
        return course

    def _listen_closely(self) -> None:
        if self._set_silence_s is not None:
            self._set_silence_s(self._config.runtime.shortest_limit_s)

    def _come_back(self, memory: Memory) -> Course:
        """Go on where another process of the coordinator has ended; the sites have gone on."""
        course = self._make_course(memory.ready)
        course.restore(memory.course, passed_s=max(0.0, time.time() - memory.wall_time))
        self._checkpoints.start(course.round)
        self._replans = False
        self._pen.go_on(memory)
        self._tidings.resumed(
            course.round,
            term=self._term,
            reason="the coordinator's process had ended",
            checkpoint=None,
        )
        self._pen.say(Recall(term=self._term))
        course.record()
        # A process that has replaced one of these meanwhile holds nothing.
        for site, incarnation in enumerate(memory.incarnations):
            self._roster.arrive(site, incarnation)
        self._roster.restore(memory.records)
        self._rounds.hold(memory.holders, course.digest if course.round else None)
        missing = set(range(len(self._world.names)))
        deadline_s = time.monotonic() + self._config.runtime.shortest_limit_s + _RECALL_S
        backlog: list[Mail] = []
        while missing and time.monotonic() < deadline_s:
            mail = self._receive_any(deadline_s)
            if mail is not None:
                backlog.append(mail)
            if isinstance(mail, Ready):
                missing.discard(mail.site)
                self._rounds.arrive(mail.site, mail.incarnation, course.announced)
        for site in missing:
            self._roster.lose(site, self._roster.incarnation(site), course.announced)
            self._tidings.gone(site, "it has not answered the new process of the coordinator")
        self._tell_observer(course.round + 2)
        self._backlog.extend(backlog)
        self._listen_closely()
        return course

    def watch(self, set_silence_s: Callable[[float], None]) -> None:
        """The sites' presence is watched; say how long a site may be silent while it trains."""
        self._set_silence_s = set_silence_s

    def log_position(self) -> int:
        """Entry of the log that a process which comes late begins with; from any thread."""
        # One that comes after the end is to read of it.
        return self._pen.length - (1 if self._stop is not None else 0)

    def warn(self, text: str) -> None:
        """Tell of something that is not as it should be; from any thread."""
        self._tidings.warn(text)

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
            mail = self._receive(deadline_s)
            if isinstance(mail, Ready):
                ready[mail.site] = mail
            self._check_silence(deadline_s, missing, "starting", limit_s, "runtime.start_limit_s")
            if self._signal is not None:
                self._finished.update(missing)  # nobody waits for the end of who has not come
                raise Interrupted(self._signal)
        return [ready[site] for site in sites]

    def _measure_links(self, ready: Sequence[Ready]) -> None:
        """Let the sites measure their links, and wait for the first picture of all of them."""
        measuring = [r.site for r in ready if r.probe is not None]
        if len(measuring) < 2:
            return
        self._pen.say(Probe(endpoints=tuple(r.probe for r in ready)))
        limit_s = self._config.exchange.probe.limit_s + _PROBE_SLACK_S
        deadline_s = time.monotonic() + limit_s
        while not self._links_measured and self._signal is None:
            self._receive(deadline_s)
            self._check_silence(
                deadline_s, measuring, "measuring the links", limit_s, "exchange.probe.limit_s"
            )

    def _check_silence(
        self, deadline_s: float, missing: Sequence[int], doing: str, limit_s: float, setting: str
    ) -> None:
        if time.monotonic() >= deadline_s:
            names = [self._world.names[site] for site in missing]
            raise SitesSilent(names, doing, limit_s, setting)

    def _train(self, course: Course) -> tuple[Outcome, int]:
        """Round after round; decisions are made a round ahead, so that no site waits for one."""
        while True:
            attempt = self._attempt(course)
            if attempt is None:
                return self._interrupted()
            if not attempt.complete and not attempt.lost:
                self._find_culprits(attempt)
            if not attempt.complete:
                self._redo(course, attempt)
                course.record()
                continue
            end = self._commit(course, attempt)
            course.record()
            if course.rebuilt:
                self._pen.tidy(attempt.begin.generation)
            self._tidings.lag(attempt.reports)
            if end is not None:
                return end

    def _first_generation(self, course: Course) -> Begin:
        if self._resume is None:
            self._time.start()
            return course.start(self._rounds.holders(1))
        course.restore(read_coordinator(self._resume.folder))
        round_ = course.round
        holders = self._rounds.holders(round_ + 1)
        if not holders:
            raise ModelLost(round_)
        self._checkpoints.start(round_)
        self._saved_round = round_
        self._tidings.resumed(
            round_,
            term=0,
            reason="; ".join(self._resume.skipped) or "from the last checkpoint",
            checkpoint=str(self._resume.folder),
        )
        return course.resume(holders)

    def _attempt(self, course: Course) -> Attempt | None:
        """Wait for the members to do a round, or to fail in it; None if the run stops without it.

        When a member is gone the others are not waited for. When an exchange has failed though all
        are there, the others say within moments what they have waited for, too.
        """
        rounds = self._rounds
        attempt = rounds.begin(course.begin, course.round + 1)
        deadline_s = time.monotonic() + self._pen.attempt_limit_s()
        settled_s = math.inf
        while (verdict := rounds.verdict()) in ("wait", "settle"):
            if attempt.failed:
                settled_s = min(settled_s, time.monotonic() + self._patience_s(verdict, attempt))
            until_s = min(deadline_s, settled_s)
            mail = self._receive(until_s)
            if mail is None and time.monotonic() >= until_s:
                break
            if isinstance(mail, StopRequest) and not self._hurried:
                # Members may be in this round's exchange already, so it is finished, and shortened.
                self._hurried = True
                self._pen.say(Hurry())
                deadline_s = time.monotonic() + self._config.runtime.stop_grace_s
            elif isinstance(mail, Report):
                rounds.report(mail)
            elif isinstance(mail, Broken):
                rounds.fail(mail)
        return None if self._hurried and verdict != "done" else attempt

    def _patience_s(self, verdict: Verdict, attempt: Attempt) -> float:
        """How much longer to listen before a round that has failed is done again."""
        if verdict == "wait":  # for one who holds the model, whose process may only be frozen
            return _HOLDER_LIMITS * self._config.runtime.shortest_limit_s
        return _ACCUSED_S if attempt.accuses else _SETTLE_S

    def _redo(self, course: Course, attempt: Attempt) -> None:
        """Have the members that are left do a round again."""
        again = self._rounds.again()
        if again is None:
            raise ModelLost(attempt.round - 1)
        reason = self._tidings.again(attempt, again.lost)
        self._tell_observer(attempt.round)
        self._pen.begin(
            course.redo(again.members, again.holders, reason=reason, standby=again.standby)
        )

    def _find_culprits(self, attempt: Attempt) -> None:
        """All members are there, and yet an exchange has failed, or some have said nothing."""
        culprits = self._rounds.accuse()
        if culprits is None:
            raise ExchangeKeepsFailing(
                attempt.begin.generation, attempt.round, attempt.text or "nobody has reported"
            )
        for site in culprits:
            attempt.lose(site)
            self._tidings.gone(site, "it was waited for in vain, and is left out for some rounds")

    def _commit(self, course: Course, attempt: Attempt) -> tuple[Outcome, int] | None:
        """A round is done by all that are left of its members; the outcome if the run ends."""
        begin, round_, reports = attempt.begin, attempt.round, attempt.reports
        predicted_s = course.predicted_round_s
        course.account(reports)
        self._rounds.commit()
        for report in reports:
            self._judge(report)
        self._pen.learn(predicted_s, reports, disturbed=course.rebuilt or begin.redo)
        end = self._end_after(course)
        if end is not None:
            self._publish_stop()
            return end
        self._tell_observer(round_ + 2)
        # Members that are ahead of the coordinator know of no decision before their interval ends.
        after_next = course.ahead(replans=self._replans and not self._rounds.behind)
        self._replans = self._replans or after_next is not None
        save = self._begin_checkpoint(course) if self._is_due(course) else None
        self._pen.commit(begin, round_, after_next, save)
        return None

    def _judge(self, report: Report) -> None:
        """A site whose updates are rejected again and again takes no part any more."""
        if report.rejected is None:
            return
        self._tidings.rejected(report, for_good=self._roster.reject(report.site))

    def _tell_observer(self, round_: int) -> None:
        away = np.zeros(len(self._world.names), dtype=np.bool_)
        away[list(self._roster.away(round_))] = True
        self._observer.miss(away)

    def _receive(self, deadline_s: float) -> Mail | None:
        """The next message, or None; what does not belong to a round is dealt with here."""
        mail = self._receive_any(deadline_s)
        names = self._world.names
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
            self._finished.add(mail.site)
            if mail.ends_run or self._round == 0:
                raise SiteFailed(names[mail.site], mail.error, mail.text, mail.exit_code)
            self._lose(mail.site, mail.incarnation, f"{mail.error}: {mail.text}")
        elif isinstance(mail, Gone):
            self._lose(mail.site, mail.incarnation, _GONE[mail.reason])
        elif isinstance(mail, Ready | Back):
            self._welcome(mail.site, mail.incarnation)
        elif isinstance(mail, Saved):
            self._tell_made(self._checkpoints.take(mail))
        return mail

    def _receive_any(self, deadline_s: float) -> Mail | None:
        if self._backlog:
            return self._backlog.popleft()
        mail = self._inbox.receive(deadline_s - time.monotonic())
        if isinstance(mail, Finished):  # it may come while others still do the last round
            self._finished.add(mail.site)
        return mail

    def _lose(self, site: int, incarnation: int, text: str) -> None:
        announced = 0 if self._course is None else self._course.announced
        self._tell_made(self._checkpoints.lose(site))
        if self._rounds.lose(site, incarnation, announced):
            self._tidings.gone(site, text)

    def _welcome(self, site: int, incarnation: int) -> None:
        self._finished.discard(site)
        announced = 0 if self._course is None else self._course.announced
        if self._rounds.arrive(site, incarnation, announced) and self._course is not None:
            self._tidings.returned(site, incarnation)
            self._course.reconsider(f"{self._world.names[site]} is back")

    def _end_after(self, course: Course) -> tuple[Outcome, int] | None:
        end = course.end()
        if self._signal is not None and (end is None or end[0] != "reached"):
            return self._interrupted()
        return end

    def _interrupted(self) -> tuple[Outcome, int]:
        assert self._signal is not None
        return "interrupted", 128 + self._signal

    def _publish_stop(self) -> None:
        if self._stop is not None:
            return
        save, course = None, self._course
        if course is not None and course.round > self._saved_round:
            save = self._begin_checkpoint(course)
        self._stop = Stop(after_round=self._round, save=save)
        self._pen.say(self._stop)

    def _is_due(self, course: Course) -> bool:
        # The members alone know of a trial that is under way.
        return self._checkpoints.due(course.round) and not course.tries

    def _begin_checkpoint(self, course: Course) -> Save | None:
        away = self._roster.missing(course.round, course.generation) | self._finished
        holders = self._rounds.holders(course.round) - self._finished
        return self._checkpoints.begin(
            course.round,
            course.digest,
            course.snapshot(),
            holders=holders,
            present=set(range(len(self._world.names))) - away,
        )

    def _tell_made(self, made: Made | None) -> None:
        if made is not None:
            self._saved_round = made.round
            self._tidings.saved(made)

    def _await_finished(self) -> None:
        """Give the sites time to save the model, and to end."""
        sites = set(range(len(self._world.names)))
        deadline_s = time.monotonic() + self._config.runtime.stop_grace_s
        while True:
            left = sites - self._finished - self._roster.away(self._round)
            # What a site's two threads send may come in another order.
            if not left and not self._checkpoints.open:
                return
            mail = self._receive_any(deadline_s)
            if mail is None and time.monotonic() >= deadline_s:
                names = ", ".join(self._world.names[site] for site in sorted(left))
                self.warn(f"did not end in time: {names or 'the last checkpoint'}")
                return
            if isinstance(mail, Failure | Gone):
                self._finished.add(mail.site)
                self._tell_made(self._checkpoints.lose(mail.site))
            elif isinstance(mail, Saved):
                self._tell_made(self._checkpoints.take(mail))
