"""The course of a run: rounds accounted, decisions made ahead, events told, until it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from powertrip import __version__
from powertrip.config import Config
from powertrip.coordination.accounts import RoundAccount, round_event
from powertrip.coordination.deciding import Decider, Generation
from powertrip.coordination.messages import Begin, Report
from powertrip.coordination.observer import Observer
from powertrip.coordination.timekeeping import Timekeeper
from powertrip.telemetry import events
from powertrip.telemetry.events import Event, Outcome
from powertrip.telemetry.telemetry import Telemetry
from powertrip.world.world import World

BUDGET_EXIT_CODE = 3
"""Exit code of a run that ends with its budget, short of its target."""


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
        self._last = event
        self._observer.learn_round(
            account.trains_s,
            reports,
            account.exchange_s,
            event.validation_loss,
            time_s=event.time_s,
        )
        self.rebuilt = current.rebuild and event.round == current.begin.first_round
        if self.rebuilt and event.round > 1:
            # The first group of all is built while nothing else is done.
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

    def ahead(self) -> Begin | None:
        """Decide on the round after next, where that is due, and go on to the next.

        Returns
        -------
        Begin or None
            The generation that begins with the round after next; None where none does.
        """
        assert self._following is not None
        self._current = self._following
        after_next = self._decider.ahead(self.round + 2, self._following)
        if after_next is None:
            return None
        self._following = after_next
        self._untold.append(after_next.event)
        return after_next.begin

    def record(self) -> None:
        """Tell of all that has happened since this was last called."""
        untold, self._untold = self._untold, []
        for event in untold:
            self._telemetry.emit(event)

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
