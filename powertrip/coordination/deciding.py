"""When decisions are made, from what, and what the sites and the records are told of them."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Self

from powertrip.config import Config
from powertrip.coordination import snapshots
from powertrip.coordination.membership import plan_transfers
from powertrip.coordination.messages import Begin, Transfer
from powertrip.coordination.observer import Observer
from powertrip.coordination.timekeeping import Timekeeper
from powertrip.selection.policy import build_policy
from powertrip.selection.replan import reason_to_replan
from powertrip.selection.types import Decision, Observation, Work
from powertrip.telemetry import events
from powertrip.world.world import World

_MOST_RECORDED = 1000  # sites with which observations are recorded unasked


@dataclass(frozen=True)
class Generation:
    """A decision, ready to be published.

    Attributes
    ----------
    begin
        What the sites are told.
    decision, made_from
        What was decided, and what was seen then.
    rebuild
        Whether it needs another process group than the one before.
    event
        Its record.
    """

    begin: Begin
    decision: Decision
    made_from: Observation
    rebuild: bool
    event: events.Decision

    def snapshot(self) -> dict[str, Any]:
        """As strict JSON; what the event holds of the observation is not written twice."""
        event = snapshots.of_model(self.event)
        recorded = bool(event.pop("observation"))
        return {
            "begin": snapshots.of_model(self.begin),
            "decision": self.decision.to_json(),
            "made_from": self.made_from.to_json(),
            "rebuild": self.rebuild,
            "event": event,
            "recorded": recorded,
        }

    @classmethod
    def restored(cls, name: str, state: object) -> Self:
        """Undo `snapshot`; `name` is what an error calls it.

        Raises
        ------
        SnapshotUnreadable
            It is malformed.
        """
        seen = snapshots.fields(
            name, state, "begin", "decision", "made_from", "rebuild", "event", "recorded"
        )
        made_from = snapshots.checked(lambda: Observation.from_json(seen["made_from"]))
        event = snapshots.to_model(events.Decision, f"{name}.event", seen["event"])
        if snapshots.flag(f"{name}.recorded", seen["recorded"]):
            event = event.model_copy(update={"observation": made_from.to_json()})
        return cls(
            begin=snapshots.to_model(Begin, f"{name}.begin", seen["begin"]),
            decision=snapshots.checked(lambda: Decision.from_json(seen["decision"])),
            made_from=made_from,
            rebuild=snapshots.flag(f"{name}.rebuild", seen["rebuild"]),
            event=event,
        )


class Decider:
    """Makes decisions when they are due, a round ahead of what they govern.

    Parameters
    ----------
    config, world
        Settings and facts.
    observer
        Says what the policy sees.
    clock
        The time of the run.
    """

    def __init__(self, config: Config, world: World, observer: Observer, clock: Timekeeper) -> None:
        self._config, self._world = config, world
        self._observer, self._time = observer, clock
        self._policy = build_policy(config.selection)
        self._generation = 0
        wanted = config.telemetry.observations
        self._few = len(world.names) <= _MOST_RECORDED
        self._records = wanted == "always" or (wanted == "auto" and self._few)

    def first(self, holders: Collection[int]) -> Generation:
        """Decide on the first round.

        Parameters
        ----------
        holders
            The sites that hold the initial model.
        """
        observation = self._observe(1, None)
        return self._decide(observation, None, holders, early=None)

    def ahead(
        self,
        first_round: int,
        standing: Generation,
        *,
        early: str | None = None,
        replans: bool = True,
    ) -> Generation | None:
        """Decide on a round to come, where that is due; None where it is not.

        Parameters
        ----------
        first_round
            The round that the decision would govern first.
        standing
            What governs the round before it.
        early
            Why it is due whatever the interval says; None where nothing makes it so.
        replans
            Whether a decision may come before the interval has ended.
        """
        if first_round > self._config.goal.max_rounds:
            return None
        now = self._observe(first_round, standing)
        if first_round - standing.begin.first_round < standing.decision.rounds:
            if not replans:
                return None
            if early is None:
                early = reason_to_replan(standing.made_from, now, self._config.selection)
            if early is None:
                return None
        else:
            early = None
        return self._decide(now, standing, standing.begin.members, early=early)

    def snapshot(self) -> dict[str, Any]:
        """How many decisions there were, as strict JSON."""
        return {"generation": self._generation}

    def restore(self, state: object) -> None:
        """Count on from a snapshot; raises `SnapshotUnreadable`."""
        seen = snapshots.fields("decider", state, "generation")
        self._generation = snapshots.count("decider.generation", seen["generation"])

    def redo(
        self,
        standing: Generation,
        members: tuple[int, ...],
        holders: Collection[int],
        *,
        round_: int,
        reason: str,
        standby: int | None,
    ) -> Generation:
        """The same decision for those of its members that are left, from a round that failed on.

        Parameters
        ----------
        standing
            What governed the round.
        members
            Who is left of its members, in their order.
        holders
            Sites that hold the model of the round before.
        round_
            The round that is done again.
        reason
            Why, in words.
        standby
            The generation whose standby group they go on with; None where they build one.
        """
        made, begin = standing.decision, standing.begin
        places = [begin.members.index(site) for site in members]
        steps, deadline_s = made.work.steps, made.work.deadline_s
        decision = replace(
            made,
            generation=self._generation + 1,
            members=members,
            work=Work(
                steps=None if steps is None else tuple(steps[i] for i in places),
                deadline_s=None if deadline_s is None else tuple(deadline_s[i] for i in places),
            ),
            rounds=max(1, made.rounds - (round_ - begin.first_round)),
            reason=reason,
        )
        self._generation += 1
        again = begin.model_copy(
            update={
                "generation": self._generation,
                "members": members,
                "steps": decision.work.steps,
                "deadline_s": decision.work.deadline_s,
                "half": (),
                "first_round": round_,
                "rounds": decision.rounds,
                "transfers": self._transfers(members, holders),
                "redo": True,
                "standby": standby,
                "clock_s": self._time.announce(
                    self._generation, rebuild=True, meanwhile=None, round_=round_ - 1
                ),
            }
        )
        event = self._event(again, decision, standing.made_from, 0.0, None)
        event = event.model_copy(update={"time_s": self._time.now_s()})
        return Generation(again, decision, standing.made_from, True, event)

    def anew(
        self, standing: Generation, holders: Collection[int], *, round_: int, reason: str
    ) -> Generation:
        """Another decision on a round whose members are all gone.

        Parameters
        ----------
        standing, holders, round_, reason
            As of `redo`.

        Raises
        ------
        NoUsableSite
            Nobody can be chosen.
        """
        decided = self._decide(self._observe(round_, standing), None, holders, early=reason)
        begin = decided.begin.model_copy(update={"redo": True})
        return replace(decided, begin=begin, rebuild=True)

    def _observe(self, first_round: int, standing: Generation | None) -> Observation:
        return self._observer.observe(
            time_s=self._time.now_s(),
            next_round=first_round,
            generation=self._generation + 1,
            members=() if standing is None else standing.begin.members,
            previous=None if standing is None else standing.decision,
        )

    def _decide(
        self,
        observation: Observation,
        standing: Generation | None,
        holders: Collection[int],
        *,
        early: str | None,
    ) -> Generation:
        observation = self._observer.measured(observation)
        started_s = time.perf_counter()
        decision = self._policy.decide(observation)
        decide_s = time.perf_counter() - started_s
        self._generation += 1
        rebuild = set(decision.members) != set(observation.members)
        begin = Begin(
            generation=self._generation,
            members=decision.members,
            steps=decision.work.steps,
            deadline_s=decision.work.deadline_s,
            half=self._half(decision.members),
            first_round=observation.round,
            rounds=decision.rounds,
            transfers=self._transfers(decision.members, holders),
            clock_s=self._time.announce(
                self._generation,
                rebuild=rebuild,
                meanwhile=None if standing is None else standing.begin,
                round_=observation.round - 1,
            ),
        )
        event = self._event(begin, decision, observation, decide_s, early)
        return Generation(begin, decision, observation, rebuild, event)

    def _transfers(
        self, members: tuple[int, ...], holders: Collection[int]
    ) -> tuple[Transfer, ...]:
        # In a star the model comes by the hub, whoever gives it.
        near = self._observer.round_model.exchange_model != "star"
        seconds = self._observer.transfer_s(self._time.now_s()) if near else None
        return plan_transfers(members, holders, seconds)

    def _half(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Half of the members, drawn afresh, whose mean update is to be tried."""
        if not self._config.selection.tries_halves or len(members) < 2:
            return ()
        draw = random.Random(f"{self._config.seed}/{self._generation}")
        return tuple(sorted(draw.sample(members, len(members) // 2)))

    def _event(
        self,
        begin: Begin,
        decision: Decision,
        observation: Observation,
        decide_s: float,
        early: str | None,
    ) -> events.Decision:
        names = self._world.names
        # Of thousands of sites the log would hold little else.
        told = range(len(names)) if self._few else decision.members
        exchange_off, speeds_off = self._observer.spreads(observation.time_s)
        return events.Decision(
            time_s=observation.time_s,
            generation=begin.generation,
            round=begin.first_round,
            members=tuple(names[site] for site in decision.members),
            policy=decision.policy,
            reason=decision.reason,
            early=early,
            predicted_round_s=decision.predicted_round_s,
            rounds=decision.rounds,
            steps=begin.steps,
            deadline_s=begin.deadline_s,
            candidates=tuple(
                events.Candidate(**candidate.to_json()) for candidate in decision.candidates
            ),
            decide_s=decide_s,
            power_w={names[site]: float(observation.power_w[site]) for site in told},
            throughput={names[site]: float(observation.throughput[site]) for site in told},
            throughput_spread={names[site]: float(speeds_off[site]) for site in told},
            communication_correction=observation.communication_correction,
            communication_spread=exchange_off,
            observation=observation.to_json() if self._records else {},
        )
