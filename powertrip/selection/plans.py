"""The search for a round's length and its members, taken together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from powertrip.selection.checks import BoolArray, FloatArray, IntArray
from powertrip.selection.deadlines import (
    lengths_s,
    prefix_sums,
    shortest_round_s,
    trimmed_s,
    whole_steps,
)
from powertrip.selection.objective import Objective
from powertrip.selection.ranking import ranked
from powertrip.selection.round_time import RoundTerms
from powertrip.selection.types import Observation

_COARSE, _FINE = 1.2, 1.05
"""Factors between the lengths of a round that are weighed: in all, and near the best."""

_FIRST = 1e-30
"""Factor of the cost of sites that are due, so that they come first, in their own order."""


@dataclass(frozen=True)
class Plan:
    """Members, and the length of their round.

    Parameters
    ----------
    members
        Best ranked first.
    round_s
        Length tau of the round.
    progress
        ``k/(k+kappa) * mean_i[H_i/(1+H_i/h0)]``.
    switch_s
        What changing to these members costs once.
    efficiency
        Progress over the price of a round: over its length, where only time counts.
    """

    members: IntArray
    round_s: float
    progress: float
    switch_s: float
    efficiency: float


@dataclass(frozen=True)
class Planner:
    """Weighs all lengths of a round on a grid, and for each the first k of its ranking, for all k.

    In a round of length tau the sites are ranked by the steps that they do in it (by what these
    are worth for their price, where more than time counts). Where the exchange depends on the whole
    set, the ranking is that by the site's own round.

    Parameters
    ----------
    observation, terms, objective
        What is seen, what rounds are made of, and what is to be small.
    pool
        The sites that may be members, shape [n].
    due
        Those of them that must be, shape [n].
    min_members
        Smallest number of members, as far as there are so many.
    seat_margin
        How much less a current member may be worth before a newcomer takes its seat.
    """

    observation: Observation
    terms: RoundTerms
    objective: Objective
    pool: BoolArray
    due: BoolArray
    min_members: int
    seat_margin: float
    _weighed: dict[float, FloatArray] = field(default_factory=dict, init=False, repr=False)

    @property
    def fewest(self) -> int:
        """Smallest number of members."""
        return max(min(self.min_members, int(self.pool.sum())), int(self.due.sum()), 1)

    def best(self) -> Plan:
        """Return the best of all plans."""
        lengths = self._lengths_s()
        peaks = np.zeros(lengths.size)
        for i, round_s in enumerate(lengths.tolist()):
            peaks[i] = self._efficiencies(round_s).max(initial=0.0)
            # No work is worth more than h0: from some length on, nothing better can come.
            if self.objective.only_time and self.terms.h0 < peaks.max() * round_s:
                break
        top = int(np.argmax(peaks))
        low_s, high_s = lengths[max(top - 1, 0)], lengths[min(top + 1, lengths.size - 1)]
        near = [float(lengths[top]), *lengths_s(low_s, high_s, _FINE).tolist()]
        # With seats kept, the members may be others, who may need longer for a step.
        plans = [self.at(near[0], seats=False), *map(self.at, near)]
        return max((plan for plan in plans if plan is not None), key=lambda plan: plan.efficiency)

    def at(self, round_s: float, k: int | None = None, *, seats: bool = True) -> Plan | None:
        """Return the best plan of one length, or that of k members; None if there is none."""
        order, efficiency = self.weigh(round_s, seats=seats)
        if k is None:
            k = int(np.argmax(efficiency)) + 1 if efficiency.size else 1
        if efficiency.size < k or efficiency[k - 1] <= 0:
            return None
        members = order[:k]
        return self.plan(members, trimmed_s(self.terms, members, round_s))

    def weigh(self, round_s: float, *, seats: bool = False) -> tuple[IntArray, FloatArray]:
        """Rank the sites for a round, and weigh the first k of them for every k.

        Returns
        -------
        The ranking, and the efficiency at index k - 1; 0 where k sites are no plan.
        """
        order = self._order(round_s, seats)
        sums = prefix_sums(self.terms, order, round_s, self.objective.per_s)
        k = np.arange(1, order.size + 1)
        progress = sums.worth / (k + self.observation.kappa)
        efficiency = self._efficiency(round_s, progress, sums.drawn, self.observation.rebuild_s)
        efficiency[: self.fewest - 1] = 0.0
        return order, efficiency

    def plan(self, members: IntArray, round_s: float) -> Plan | None:
        """Weigh one set in one length of the round; None if a member cannot do a step in it."""
        o = self.observation
        sums = prefix_sums(self.terms, members, round_s, self.objective.per_s)
        if sums.worth[-1] <= 0:
            return None
        same = np.array_equal(np.sort(members), np.sort(o.member_sites))
        switch_s = 0.0 if same else o.rebuild_s
        progress = sums.worth[-1:] / (members.size + o.kappa)
        efficiency = self._efficiency(round_s, progress, sums.drawn[:, -1:], switch_s)
        return Plan(members, round_s, float(progress[0]), switch_s, float(efficiency[0]))

    def staying(self) -> Plan | None:
        """Return the best plan of the current members; None if they cannot stay as they are."""
        members = self.observation.member_sites
        kept = np.zeros_like(self.pool)
        kept[members] = True
        if members.size < self.fewest or (kept & ~self.pool).any() or (self.due & ~kept).any():
            return None
        low_s = shortest_round_s(self.terms, members)

        def best_of(lengths: FloatArray) -> Plan:
            trimmed = (trimmed_s(self.terms, members, round_s) for round_s in lengths.tolist())
            plans = [plan for plan in (self.plan(members, s) for s in trimmed) if plan is not None]
            return max(plans, key=lambda plan: plan.efficiency)

        rough = best_of(lengths_s(low_s, low_s * (1 + self.terms.h0), _COARSE))
        near = lengths_s(max(low_s, rough.round_s / _COARSE), rough.round_s * _COARSE, _FINE)
        return max(rough, best_of(near), key=lambda plan: plan.efficiency)

    def table(self, chosen: Plan) -> list[Plan]:
        """Return the best plans of some numbers of members around the chosen one."""
        most = int(self.pool.sum())
        k = chosen.members.size
        steps = {1, k // 4, k // 2, k - 2, k - 1, k + 1, k + 2, k + k // 2, 2 * k, 4 * k, most}
        counts = sorted(c for c in steps | {k} if self.fewest <= c <= most or c == k)
        lengths = self._lengths_s().tolist()
        best = dict.fromkeys(counts, (0.0, 0.0))
        for round_s in lengths:
            efficiency = self._efficiencies(round_s)
            for c in counts:
                if c <= efficiency.size:
                    best[c] = max(best[c], (float(efficiency[c - 1]), round_s))
        lines = (chosen if c == k else self.at(best[c][1], c) for c in counts)
        return [line for line in lines if line is not None]

    def _efficiencies(self, round_s: float) -> FloatArray:
        if round_s not in self._weighed:
            self._weighed[round_s] = self.weigh(round_s)[1]
        return self._weighed[round_s]

    def _efficiency(
        self, round_s: float, progress: FloatArray, drawn: FloatArray, switch_s: float
    ) -> FloatArray:
        rounds = self.observation.interval_rounds
        length_s = np.full(progress.size, rounds * round_s + switch_s)
        return np.asarray(rounds * progress / self.objective.price(length_s, rounds * drawn))

    def _order(self, round_s: float, seats: bool) -> IntArray:
        terms = self.terms
        if terms.pairs is not None:
            cost, able = terms.own_s.copy(), self.pool
        else:
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                local_s = np.where(self.pool, np.maximum(round_s - terms.delay_s, 0.0), 0.0)
                able = self.pool & (whole_steps(local_s, terms.step_s) >= 1)
                cost = terms.step_s / local_s
                if not self.objective.only_time:
                    # The inverse of what the steps are worth, at their price.
                    cost = (cost + 1 / terms.h0) * self.objective.site_price(local_s)
        if (self.due & ~able).any():
            return np.empty(0, dtype=np.int64)
        cost[self.due] *= _FIRST
        seated = self.observation.member_sites if seats else None
        order = ranked(cost, able, seated, self.seat_margin)
        return order if terms.pairs is None else terms.pairs.connected(order)

    def _lengths_s(self) -> FloatArray:
        """Lengths between which the best plan lies."""
        terms, fewest = self.terms, self.fewest
        needed_s = terms.step_s + terms.delay_s
        cost = needed_s if terms.pairs is None else terms.own_s
        first = ranked(cost * np.where(self.due, _FIRST, 1.0), self.pool)[:fewest]
        low_s = shortest_round_s(terms, first)
        # One step each of the first is worth 1/(1+1/h0); no work is worth more than h0.
        span = (1 + terms.h0) * (fewest + self.observation.kappa) / fewest
        switch_s = self.observation.rebuild_s / self.observation.interval_rounds
        high_s = (low_s + switch_s) * span
        if not self.objective.only_time:
            high_s = max(high_s, float(needed_s[self.pool].max()) * (1 + terms.h0))
        return lengths_s(low_s, high_s, _COARSE)
