"""The course of a run: rounds accounted, decisions made ahead, events told, until it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import torch

from powertrip import __version__
from powertrip.config import Config
from powertrip.coordination import snapshots
from powertrip.coordination.accounts import RoundAccount, round_event
from powertrip.coordination.deciding import Decider, Generation
from powertrip.coordination.membership import plan_transfers
from powertrip.coordination.messages import Begin, Report
from powertrip.coordination.observer import Observer
from powertrip.coordination.timekeeping import Timekeeper
from powertrip.telemetry import events
from powertrip.telemetry.events import Event, Outcome
from powertrip.telemetry.telemetry import Telemetry
from powertrip.world.world import World

BUDGET_EXIT_CODE = 3
"""Exit code of a run that ends with its budget, short of its target."""


SNAPSHOT_VERSION: Final = 1
"""Version of what `Course.snapshot` returns."""

_HELD = (
    "version", "sites", "clock", "observer", "decider", "current", "following", "last", "rebuilt",
    "decided", "early", "tried", "untold",
)  # fmt: skip


class Course:
    """Takes a run from round to round, whether its sites are processes or simulated.

    For each round, in this order: `account` its reports; ask for its `end`; decide on the round
    after next (`ahead`); `record` what has happened, once nobody waits for it any more.

    Parameters
    ----------
    config, world
        Settings and facts.
    observer
        Learns from the rounds, and says what the policy sees.
    clock
        The time of the run.
    telemetry
        Is handed every event; owned by the caller.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        observer: Observer,
        clock: Timekeeper,
        telemetry: Telemetry,
    ) -> None:
        self._config, self._world = config, world
        self._observer, self._clock, self._telemetry = observer, clock, telemetry
        self._decider = Decider(config, world, observer, clock)
        self._untold: list[Event] = []
        self._current: Generation | None = None
        self._following: Generation | None = None
        self._last: events.Round | None = None
        self.decided = True
        """Whether `ahead` has been asked since the last round."""
        self._early: str | None = None
        self._tried = False
        self.rebuilt = False
        """Whether the last round was the first one of a process group."""

    @property
    def round(self) -> int:
        """Number of the last round that was accounted; 0 before the first."""
        return 0 if self._last is None else self._last.round

    @property
    def generation(self) -> int:
        """Number of the present generation; 0 before the first."""
        return 0 if self._current is None else self._current.begin.generation

    @property
    def digest(self) -> str:
        """Digest of the model after the last round that was accounted."""
        assert self._last is not None
        return self._last.digest

    @property
    def announced(self) -> int:
        """Number of the newest generation there is; 0 before the first."""
        return 0 if self._following is None else self._following.begin.generation

    @property
    def begin(self) -> Begin:
        """The generation of the round to come."""
        assert self._current is not None
        return self._current.begin

    def announce(self, *, backend: str, pacing: str, links: str) -> None:
        """Tell of the start of the run.

        Parameters
        ----------
        backend
            Transport of the exchange.
        pacing
            How power is made real.
        links
            What the links are, in one line.
        """
        config = self._config
        self._telemetry.emit(
            events.RunStarted(
                time_s=0.0,
                run_id=self._telemetry.run_dir.name,
                run_dir=str(self._telemetry.run_dir),
                name=config.name,
                sites=self._world.names,
                policy=config.selection.policy,
                seed=config.seed,
                target=config.goal.target,
                powertrip_version=__version__,
                torch_version=torch.__version__,
                backend=backend,
                pacing=pacing,
                clock=config.selection.clock,
                links=links,
                bandwidth_scale=config.network.bandwidth_scale,
                metrics_url=self._telemetry.metrics_url,
            )
        )
        for text in self._world.warnings:
            self._telemetry.emit(events.Warned(time_s=0.0, text=text))

    def start(self, holders: Collection[int]) -> Begin:
        """Decide on the first round.

        Parameters
        ----------
        holders
            The sites that hold the initial model.
        """
        self._current = self._following = self._decider.first(holders)
        self._untold.append(self._current.event)
        return self._current.begin

    def account(self, reports: Sequence[Report]) -> RoundAccount:
        """Take in a round that all members have done.

        Parameters
        ----------
        reports
            One per member, in the members' order.

        Raises
        ------
        DigestMismatch
            The members do not hold the same parameters.
        SitesStalled
            By the model the round never ends.
        """
        assert self._current is not None
        current = self._current
        account = self._clock.account(current.begin, reports)
        event = round_event(
            reports,
            self._world,
            account=account,
            predicted_round_s=current.decision.predicted_round_s,
        )
        self._last, self.decided = event, False
        self._tried = bool(current.begin.half) and event.round == current.begin.first_round
        self._observer.learn_round(
            account.trains_s,
            reports,
            account.exchange_s,
            event.validation_loss,
            time_s=event.time_s,
        )
        self.rebuilt = current.rebuild and event.round == current.begin.first_round
        if self.rebuilt and event.round > 1 and not current.begin.redo:
            # The first group of all is built while nothing else is done, and those that go on
            # without a member build none.
            self._observer.learn_rebuild(account.times.rebuild_s, time_s=account.end_s)
        if self.rebuilt or any(report.joined_bytes for report in reports):
            self._untold.append(self._rebuild_event(current.begin, reports, account))
        self._untold.append(event)
        return account

    def end(self) -> tuple[Outcome, int] | None:
        """Outcome and exit code, where the run has reached its target or spent its budget."""
        goal, last = self._config.goal, self._last
        assert last is not None
        if goal.target.met(last.value(goal.target.metric)):
            return "reached", 0
        if goal.is_spent(last.round, last.time_s):
            return "budget", BUDGET_EXIT_CODE
        return None

    def ahead(self, *, replans: bool = True) -> Begin | None:
        """Decide on the round after next, where that is due, and go on to the next.

        Parameters
        ----------
        replans
            Whether a decision may come before the interval has ended.

        Returns
        -------
        Begin or None
            The generation that begins with the round after next; None where none does.
        """
        assert self._following is not None
        self._current, self.decided = self._following, True
        after_next = self._decider.ahead(
            self.round + 2, self._following, early=self._early, replans=replans
        )
        if replans or after_next is not None:
            self._early = None
        if after_next is None:
            return None
        self._following = after_next
        self._untold.append(after_next.event)
        return after_next.begin

    def redo(
        self,
        members: Sequence[int],
        holders: Collection[int],
        *,
        reason: str,
        standby: int | None = None,
    ) -> Begin:
        """Have the round to come done again by those of its members that are left.

        What was decided on the round after it is dropped, and will be decided anew.

        Parameters
        ----------
        members
            Who is left, in the members' order; others are chosen where none is.
        holders
            Sites that hold the model of the last round that was accounted.
        reason
            Why, in words.
        standby
            The generation whose standby group they go on with; None where they build one.

        Raises
        ------
        ValueError
            Nobody holds the model.
        """
        assert self._current is not None
        standing, round_ = self._current, self.round + 1
        self._current = self._following = (
            self._decider.redo(
                standing, tuple(members), holders, round_=round_, reason=reason, standby=standby
            )
            if members
            else self._decider.anew(standing, holders, round_=round_, reason=reason)
        )
        self._early = reason
        self._untold.append(self._current.event)
        return self._current.begin

    def resume(self, holders: Collection[int]) -> Begin:
        """The present generation once more, for sites that have been started anew.

        To be called after `restore`, in place of `start`.

        Parameters
        ----------
        holders
            Sites that hold the model of the last round that was accounted.
        """
        assert self._current is not None
        assert self._following is not None
        if not self.decided:
            self.ahead()
        begin, first = self._current.begin, self.round + 1
        following = None if self._following is self._current else self._following.begin
        changed: dict[str, Any] = {
            "transfers": plan_transfers(begin.members, holders),
            "following": following,
            "redo": True,
            "standby": None,
        }
        if begin.first_round < first:
            changed |= {"first_round": first, "half": (), "clock_s": self._clock.now_s()}
        return begin.model_copy(update=changed)

    def reconsider(self, reason: str) -> None:
        """Have the next decision made as soon as possible.

        Parameters
        ----------
        reason
            Why, in words.
        """
        self._early = reason

    @property
    def predicted_round_s(self) -> float:
        """Predicted length of a round of the present generation."""
        assert self._current is not None
        return self._current.decision.predicted_round_s

    def record(self) -> None:
        """Tell of all that has happened since this was last called."""
        untold, self._untold = self._untold, []
        for event in untold:
            self._telemetry.emit(event)

    @property
    def tries(self) -> bool:
        """Whether the next round brings the outcome of a trial of the last one's updates.

        The trial is in the memory of the members alone: who goes on from a checkpoint after that
        round does without it.
        """
        last, coming = self._last, self._current
        if last is None or coming is None:
            return False
        names = self._world.names
        return self._tried and {names[site] for site in coming.begin.members} == set(last.members)

    def snapshot(self) -> dict[str, Any]:
        """All that the course, its observer and its clock go on from, as strict JSON.

        Events that have not been told yet are in it: who goes on from it tells them.
        """
        same = self._following is self._current
        return {
            "version": SNAPSHOT_VERSION,
            "sites": list(self._world.names),
            "clock": self._clock.snapshot(),
            "observer": self._observer.snapshot(),
            "decider": self._decider.snapshot(),
            "current": None if self._current is None else self._current.snapshot(),
            "following": (None if same or self._following is None else self._following.snapshot()),
            "last": None if self._last is None else snapshots.of_model(self._last),
            "rebuilt": self.rebuilt,
            "decided": self.decided,
            "early": self._early,
            "tried": self._tried,
            "untold": [snapshots.of_model(event) for event in self._untold],
        }

    def restore(self, state: object, *, passed_s: float = 0.0) -> None:
        """Go on from a snapshot, in place of `start`.

        Where `decided` is false then, the snapshot is of a run that was about to end: ask for what
        comes `ahead` before the next round.

        Parameters
        ----------
        state
            What `snapshot` gave, in this process or in another one.
        passed_s
            Seconds since then that count on the training clock where that is measured.

        Raises
        ------
        SnapshotUnreadable
            It is malformed, of another version, or of a run with other sites. The course is of no
            more use then.
        """
        seen = snapshots.versioned(state, SNAPSHOT_VERSION, _HELD)
        names = self._world.names
        if seen["sites"] != list(names):
            raise snapshots.SnapshotUnreadable(f"its sites are not {', '.join(names)}")
        self._observer.restore(seen["observer"])
        self._clock.restore(seen["clock"], passed_s=passed_s)
        self._decider.restore(seen["decider"])
        current = following = None
        if seen["current"] is not None:
            current = following = Generation.restored("current", seen["current"])
        if seen["following"] is not None:
            following = Generation.restored("following", seen["following"])
        self._current, self._following = current, following
        self._last = None
        if seen["last"] is not None:
            self._last = snapshots.to_model(events.Round, "last", seen["last"])
        self.rebuilt = snapshots.flag("rebuilt", seen["rebuilt"])
        self.decided = snapshots.flag("decided", seen["decided"])
        self._tried = snapshots.flag("tried", seen["tried"])
        early = seen["early"]
        self._early = None if early is None else snapshots.text("early", early)
        self._untold = [
            snapshots.to_event("untold", event)
            for event in snapshots.listed("untold", seen["untold"])
        ]

    def _rebuild_event(
        self, begin: Begin, reports: Sequence[Report], account: RoundAccount
    ) -> events.Rebuild:
        names = self._world.names
        return events.Rebuild(
            time_s=account.trains_s,
            generation=begin.generation,
            members=tuple(names[site] for site in begin.members),
            newcomers=tuple(names[r.site] for r in reports if r.joined_bytes),
            seconds=account.times.rebuild_s,
            join_bytes=sum(report.joined_bytes for report in reports),
        )
