"""The search for a round's length and its members, taken together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from powertrip.selection.checks import BoolArray, FloatArray, IntArray
from powertrip.selection.deadlines import Crew, lengths_s, prefix_sums, whole_steps
from powertrip.selection.objective import Objective
from powertrip.selection.ranking import ranked
from powertrip.selection.round_time import RoundTerms
from powertrip.selection.types import Observation

_COARSE, _FINE = 1.2, 1.05
"""Factors between the lengths of a round that are weighed: in all, and near the best."""

_FIRST = 1e-30
"""Factor of the cost of sites that are due, so that they come first, in their own order."""

_EVEN = 1 + 1e-9
"""Plans whose efficiencies are within this factor differ by rounding alone."""


@dataclass(frozen=True)
class Plan:
    """Members, and the length of their round.

    Parameters
    ----------
    members
        Best ranked first.
    crew
        The same, as their deadlines see them.
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
    crew: Crew
    round_s: float
    progress: float
    switch_s: float
    efficiency: float

    def beats(self, other: Plan, margin: float = 0.0) -> bool:
        """Tell whether this plan is better than another by more than a margin."""
        return self.efficiency > other.efficiency * (1 + margin) * _EVEN


def _best_of(plans: Iterable[Plan | None]) -> Plan:
    """Return the best plan, and the first of those that differ by rounding alone."""
    best: Plan | None = None
    for plan in plans:
        if plan is not None and (best is None or plan.beats(best)):
            best = plan
    assert best is not None
    return best


@dataclass(frozen=True)
class Planner:
    """Weighs all lengths of a round on a grid, and for each the first k of its ranking, for all k.

    In a round of length tau the sites are ranked by the steps that they do in it (by what these
    are worth for their price, where more than time counts). Where the exchange depends on the whole
    set, all members train for equally long: the lengths on the grid are those of the training, and
    the ranking is that by the site's own round.

    Parameters
    ----------
    observation, terms, objective
        What is seen, what rounds are made of, and what is to be small.
    pool
        The sites that may be members, each with a link to every other, shape [n].
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
    _weighed: dict[float, tuple[IntArray, FloatArray]] = field(
        default_factory=dict, init=False, repr=False
    )
    _orders: dict[bool, IntArray] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def fewest(self) -> int:
        """Smallest number of members."""
        return max(min(self.min_members, int(self.pool.sum())), int(self.due.sum()), 1)

    def best(self) -> Plan:
        """Return the best of all plans."""
        lengths = self._lengths_s()
        peaks = np.zeros(lengths.size)
        for i, length_s in enumerate(lengths.tolist()):
            peaks[i] = self.weigh(length_s)[1].max(initial=0.0)
            # No work is worth more than h0: from some length on, nothing better can come.
            if self.objective.only_time and self.terms.h0 < peaks.max() * length_s:
                break
        top = int(np.argmax(peaks))
        low_s, high_s = lengths[max(top - 1, 0)], lengths[min(top + 1, lengths.size - 1)]
        near = [float(lengths[top]), *lengths_s(low_s, high_s, _FINE).tolist()]
        # With seats kept, the members may be others, who may need longer for a step.
        return _best_of([self.at(near[0]), *(self.at(length_s, seats=True) for length_s in near)])

    def at(self, length_s: float, k: int | None = None, *, seats: bool = False) -> Plan | None:
        """Return the best plan of one length, or that of k members; None if there is none.

        Parameters
        ----------
        seats
            Whether current members keep their seats.
        """
        order, efficiency = self._weigh(length_s, True) if seats else self.weigh(length_s)
        if k is None:
            k = int(np.argmax(efficiency)) + 1 if efficiency.size else 1
        if efficiency.size < k or efficiency[k - 1] <= 0:
            return None
        return self._first(order, k, length_s)

    def weigh(self, length_s: float) -> tuple[IntArray, FloatArray]:
        """Rank the sites for a length, and weigh the first k of them for every k.

        Returns
        -------
        The ranking, and the efficiency at index k - 1; 0 where k sites are no plan.
        """
        if length_s not in self._weighed:
            self._weighed[length_s] = self._weigh(length_s, False)
        return self._weighed[length_s]

    def plan(self, members: IntArray, crew: Crew, rounds_s: ArrayLike) -> Plan | None:
        """Weigh one set in rounds of some lengths, cut to the end of the last whole step.

        Returns
        -------
        The best, and the first of those that differ by rounding alone; None if a member cannot do
        a step in any.
        """
        o = self.observation
        round_s = crew.trimmed_s(np.atleast_1d(rounds_s))
        progress = crew.worth(round_s) / (members.size + o.kappa)
        same = np.array_equal(np.sort(members), np.sort(o.member_sites))
        switch_s = 0.0 if same else o.rebuild_s
        drawn = self.objective.per_s[:, members] @ self.terms.local_in(
            round_s, crew.delay_s[:, None]
        )
        efficiency = self._efficiency(round_s, progress, drawn, switch_s)
        best = int(np.argmax(efficiency * _EVEN >= efficiency.max()))
        if efficiency[best] <= 0:
            return None
        return Plan(
            members=members,
            crew=crew,
            round_s=float(round_s[best]),
            progress=float(progress[best]),
            switch_s=switch_s,
            efficiency=float(efficiency[best]),
        )

    def staying(self) -> Plan | None:
        """Return the best plan of the current members; None if they cannot stay as they are."""
        members = self.observation.member_sites
        kept = np.zeros_like(self.pool)
        kept[members] = True
        if members.size < self.fewest or (kept & ~self.pool).any() or (self.due & ~kept).any():
            return None
        crew = Crew.of(self.terms, members)
        low_s = crew.shortest_s
        rough = self.plan(members, crew, lengths_s(low_s, low_s * (1 + self.terms.h0), _COARSE))
        if rough is None:
            return None
        near = lengths_s(max(low_s, rough.round_s / _COARSE), rough.round_s * _COARSE, _FINE)
        return self.plan(members, crew, np.append(rough.round_s, near))

    def table(self, chosen: Plan) -> list[Plan]:
        """Return plans of some numbers of members around the chosen one.

        They are the best of the lengths that were weighed to find the chosen plan; for a number
        that is no plan in any of these, the best length for the first of the ranking.
        """
        most = int(self.pool.sum())
        k = chosen.members.size
        steps = {1, k // 4, k // 2, k - 2, k - 1, k + 1, k + 2, k + k // 2, 2 * k, 4 * k, most}
        counts = sorted(c for c in steps | {k} if self.fewest <= c <= most or c == k)
        weighed = [(s, efficiency) for s, (_, efficiency) in self._weighed.items()]
        lengths = self._lengths_s()
        last = self.weigh(float(lengths[-1]))[0]
        lines: list[Plan | None] = []
        for c in counts:
            best, length_s = max(
                ((float(e[c - 1]), s) for s, e in weighed if e.size >= c), default=(0.0, 0.0)
            )
            if c == k:
                lines.append(chosen)
            elif best > 0:
                lines.append(self.at(length_s, c))
            elif last.size >= c:
                lines.append(self._first(last, c, lengths))
        return [line for line in lines if line is not None]

    def _weigh(self, length_s: float, seats: bool) -> tuple[IntArray, FloatArray]:
        order = self._order(length_s, seats)
        sums = prefix_sums(self.terms, order, length_s, self.objective.per_s)
        k = np.arange(1, order.size + 1)
        progress = sums.worth / (k + self.observation.kappa)
        switch_s = self.observation.rebuild_s
        efficiency = self._efficiency(sums.round_s, progress, sums.drawn, switch_s)
        efficiency[: self.fewest - 1] = 0.0
        return order, efficiency

    def _first(self, order: IntArray, k: int, lengths: ArrayLike) -> Plan | None:
        """Return the best plan of the first k in some lengths, as they are on the grid."""
        terms, members = self.terms, order[:k]
        if terms.pairs is None:
            return self.plan(members, Crew.of(terms, members), lengths)
        exchange_s = terms.pairs.prefixes_s(order)[k - 1]
        crew = Crew(terms.step_s[members], np.full(k, exchange_s), terms.h0, terms.overlap)
        return self.plan(members, crew, terms.round_of(lengths, exchange_s))

    def _efficiency(
        self, round_s: FloatArray, progress: FloatArray, drawn: FloatArray, switch_s: float
    ) -> FloatArray:
        rounds = self.observation.interval_rounds
        price = self.objective.price(rounds * round_s + switch_s, rounds * drawn)
        return np.asarray(rounds * progress / price)

    def _order(self, length_s: float, seats: bool) -> IntArray:
        terms = self.terms
        seated = self.observation.member_sites if seats else None
        if terms.pairs is not None:
            if seats not in self._orders:
                cost = self._due_first(terms.own_s)
                self._orders[seats] = ranked(cost, self.pool, seated, self.seat_margin)
            return self._orders[seats]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            local_s = np.where(
                self.pool, np.maximum(terms.local_in(length_s, terms.delay_s), 0.0), 0.0
            )
            able = self.pool & (whole_steps(local_s, terms.step_s) >= 1)
            cost = terms.step_s / local_s
            if not self.objective.only_time:
                # The inverse of what the steps are worth, at their price.
                cost = (cost + 1 / terms.h0) * self.objective.site_price(local_s)
        if (self.due & ~able).any():
            return np.empty(0, dtype=np.int64)
        return ranked(self._due_first(cost), able, seated, self.seat_margin)

    def _due_first(self, cost: FloatArray) -> FloatArray:
        return np.where(self.due, cost * _FIRST, cost)

    def _lengths_s(self) -> FloatArray:
        """Return the grid, between whose ends the best plan lies."""
        terms, fewest = self.terms, self.fewest
        needed_s = terms.round_of(terms.step_s, terms.delay_s)
        cost = needed_s if terms.pairs is None else terms.own_s
        first = ranked(self._due_first(cost), self.pool)[:fewest]
        shortest_s = Crew.of(terms, first).shortest_s
        # One step each of the first is worth 1/(1+1/h0); no work is worth more than h0.
        span = (1 + terms.h0) * (fewest + self.observation.kappa) / fewest
        switch_s = self.observation.rebuild_s / self.observation.interval_rounds
        high_s = (shortest_s + switch_s) * span
        if not self.objective.only_time:
            high_s = max(high_s, float(needed_s[self.pool].max()) * (1 + terms.h0))
        low_s = shortest_s if terms.pairs is None else float(terms.step_s[first].max())
        return lengths_s(low_s, high_s, _COARSE)
