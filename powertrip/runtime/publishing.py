"""Entries of the log, with their time limits, and what is left in the store before each."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch.distributed as dist

from powertrip.config import Config
from powertrip.coordination.course import Course
from powertrip.coordination.limits import TimeLimits
from powertrip.coordination.messages import Begin, Commit, Entry, Ready, Report, Save
from powertrip.coordination.observer import Observer
from powertrip.coordination.rounds import Rounds
from powertrip.coordination.timekeeping import Timekeeper
from powertrip.exchange.group import store_prefix
from powertrip.runtime.control import Log, delete_prefix
from powertrip.runtime.memory import Memory, remember
from powertrip.runtime.seal import Seal

_SLACK_S = 2.0  # of a report on its way, beyond the limit of the exchange itself
_EVALUATIONS = 3.0  # times the last evaluation that the next may take


class Publisher:
    """The coordinator's pen.

    Parameters
    ----------
    store
        A client of the coordinator's own.
    seal
        What entries are sealed with.
    config
        The floor and the ceiling of the limits.
    run_dir
        The run's folder.
    """

    def __init__(self, store: dist.Store, seal: Seal, config: Config, run_dir: str) -> None:
        self._store, self._seal, self._run_dir = store, seal, run_dir
        self._log = Log(store, seal=seal)
        runtime, exchange = config.runtime, config.exchange
        self._limits = TimeLimits(
            runtime.shortest_limit_s, exchange.timeout_s, paced=runtime.pacing == "modelled"
        )
        self._slack_s = _SLACK_S
        self._built: list[int] = []

    def follow(
        self,
        course: Course,
        observer: Observer,
        clock: Timekeeper,
        rounds: Rounds,
        ready: Sequence[Ready],
    ) -> None:
        """Write of this course from now on."""
        self._course, self._observer, self._time = course, observer, clock
        self._rounds, self._ready = rounds, tuple(ready)

    @property
    def length(self) -> int:
        """How many entries the log has."""
        return self._log.length

    def go_on(self, memory: Memory) -> None:
        """Go on with the log of another process of the coordinator."""
        self._log.go_on(memory.entry, memory.position)

    def say(self, entry: Entry) -> None:
        """Publish an entry that changes nothing that another process would have to know."""
        self._log.append(entry)

    def begin(self, begin: Begin) -> None:
        """Publish a generation."""
        self._append(self._limited(begin))

    def commit(
        self, begin: Begin, round_: int, after_next: Begin | None, save: Save | None
    ) -> None:
        """Publish that a round is committed.

        Parameters
        ----------
        begin, round_
            The generation that has done it, and its number.
        after_next
            The generation that begins with the round after next; None where none does.
        save
            The checkpoint that is to be made of it; None for none.
        """
        self._append(
            Commit(
                generation=begin.generation,
                round=round_,
                begin=None if after_next is None else self._limited(after_next),
                limit_s=self._limits.round_s(self._course.predicted_round_s),
                save=save,
            )
        )

    def learn(self, predicted_s: float, reports: Sequence[Report], *, disturbed: bool) -> None:
        """Take in how long a round has taken."""
        if not disturbed:
            self._limits.learn(predicted_s, max(r.local_s + r.exchange_s for r in reports))
        self._slack_s = _SLACK_S + _EVALUATIONS * max(r.evaluation_s for r in reports)

    def attempt_limit_s(self) -> float:
        """How long it may take to hear of the next round from all its members."""
        course = self._course
        limit_s = self._limits.round_s(course.predicted_round_s) + self._slack_s
        first = course.round + 1 == course.begin.first_round
        return limit_s + (self._join_limit_s(course.begin) if first else 0.0)

    def tidy(self, generation: int) -> None:
        """Delete the keys of groups that all have left; those of the standing ones are in use."""
        for older in self._built:
            delete_prefix(self._store, store_prefix(older))
        self._built = [generation]

    def _append(self, entry: Begin | Commit) -> None:
        """Publish an entry that changes the run's state, which the store holds before that."""
        roster, sites = self._rounds.roster, range(len(self._ready))
        remember(
            self._store,
            Memory(
                entry=entry,
                position=self._log.length,
                ready=self._ready,
                course=self._course.snapshot(),
                holders=tuple(self._rounds.holders(self._course.round + 1)),
                incarnations=tuple(roster.incarnation(site) for site in sites),
                records=roster.records,
                wall_time=time.time(),
                run_dir=self._run_dir,
            ),
            self._seal,
        )
        self._log.append(entry)

    def _limited(self, begin: Begin) -> Begin:
        """A generation with its time limits."""
        round_s = self._limits.round_s(self._course.predicted_round_s)
        return begin.model_copy(
            update={"limit_s": round_s, "join_limit_s": self._join_limit_s(begin) + round_s}
        )

    def _join_limit_s(self, begin: Begin) -> float:
        return self._limits.join_s(*self._observer.join_s(begin, self._time.now_s()))
