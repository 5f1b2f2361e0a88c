"""The project's own policy: who takes part and how long a round lasts, decided together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from powertrip.selection.checks import BoolArray
from powertrip.selection.coverage import due_sites
from powertrip.selection.gain import recent_gain
from powertrip.selection.objective import Objective
from powertrip.selection.plans import Plan, Planner
from powertrip.selection.ranking import ranked
from powertrip.selection.round_time import RoundTerms, round_terms
from powertrip.selection.types import Candidate, Decision, Observation

if TYPE_CHECKING:
    from powertrip.selection.settings import SelectionSettings


@dataclass(frozen=True)
class Together:
    """Maximise over the length tau and the first k of the sites that do most steps in it:

    ``eta = k/(k+kappa) * mean_i[H_i/(1+H_i/h0)] / tau``, where ``H_i = floor((tau-T_i)/step_i)``.

    Every member trains until its own deadline ``tau - T_i``: nobody waits for a slow site. Members
    change if that is better by a margin; the length follows at every decision.
    """

    settings: SelectionSettings
    name: ClassVar[str] = "together"

    def decide(self, observation: Observation) -> Decision:
        """Choose the members and the length of their rounds until the next decision.

        Raises
        ------
        NoUsableSite
            If no site has both power and a link.
        """
        terms = round_terms(observation, self.settings.min_delay_s)
        pool = _connected(terms)
        due = due_sites(observation, pool, terms.own_s, self.settings.coverage)
        planner = self._planner(observation, terms, pool, due)
        best, stay = planner.best(), planner.staying()
        plan = best if stay is None or best.beats(stay, self.settings.margin) else stay
        reason = self._reason(observation, terms, plan, best, stay)
        if due.any():
            free = self._planner(observation, terms, pool, np.zeros_like(due)).best()
            reason += _price(observation, due, best, free)
        # The gains so far are those of the current members, if there are any.
        unit = recent_gain(observation) / (stay or plan).progress
        return Decision(
            generation=observation.generation,
            policy=self.name,
            members=tuple(plan.members.tolist()),
            work=plan.crew.work(plan.round_s),
            rounds=observation.interval_rounds,
            predicted_round_s=plan.round_s,
            candidates=tuple(_line(p, unit, p is plan) for p in planner.table(plan)),
            reason=reason,
        )

    def _planner(
        self, observation: Observation, terms: RoundTerms, pool: BoolArray, due: BoolArray
    ) -> Planner:
        return Planner(
            observation=observation,
            terms=terms,
            objective=Objective.of(self.settings.objective, observation),
            pool=pool,
            due=due,
            min_members=self.settings.min_members,
            seat_margin=self.settings.seat_margin,
        )

    def _reason(
        self, o: Observation, terms: RoundTerms, plan: Plan, best: Plan, stay: Plan | None
    ) -> str:
        steps = plan.crew.steps(plan.round_s)
        k = plan.members.size
        round_ = f"{plan.round_s:.3g} s a round, {steps.min():.0f} to {steps.max():.0f} steps"
        was, now = set(o.members), set(plan.members.tolist())
        if not was:
            return f"start with {k} of {int(terms.usable.sum())} usable sites, {round_}"
        if plan is stay:
            margin = f"margin {100 * self.settings.margin:g} %"
            return (
                f"stay with these {k}, {round_}: the best other plan {_over(best, stay)} ({margin})"
            )
        changes = [
            f"{o.listed(sorted(sites))} {verb}"
            for sites, verb in ((now - was, "in"), (was - now, "out"))
            if sites
        ]
        text = f"{len(was)} -> {k} sites ({', '.join(changes)}), {round_}"
        if stay is not None:
            return f"{text}: {_over(best, stay)} over staying"
        lost = [site for site in o.members if not terms.usable[site]]
        return f"{text}; {o.listed(lost)} lost power or link" if lost else text


def _connected(terms: RoundTerms) -> BoolArray:
    """Return the usable sites, without those that lack a link to a better one of them."""
    if terms.pairs is None:
        return terms.usable
    pool = np.zeros_like(terms.usable)
    pool[terms.pairs.connected(ranked(terms.own_s, terms.usable))] = True
    return pool


def _over(best: Plan, stay: Plan) -> str:
    return f"{100 * (best.efficiency / stay.efficiency - 1):+.1f} % efficiency"


def _price(o: Observation, due: BoolArray, best: Plan, free: Plan) -> str:
    price = max(0.0, 1 - best.efficiency / free.efficiency)
    brought = sorted(set(np.flatnonzero(due).tolist()) - set(free.members.tolist()))
    who = o.listed(brought) if brought else "nobody who would not come anyway"
    return f"; coverage takes in {who}, for {100 * price:.1f} % of the efficiency"


def _line(plan: Plan, unit: float, chosen: bool) -> Candidate:
    communication_s = float(plan.crew.added_s(plan.round_s).mean())
    return Candidate(
        k=plan.members.size,
        gain=unit * plan.progress,
        compute_s=plan.round_s - communication_s,
        communication_s=communication_s,
        round_s=plan.round_s,
        switch_s=plan.switch_s,
        efficiency=unit * plan.efficiency,
        chosen=chosen,
    )
