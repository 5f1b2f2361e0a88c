"""The policy of the PowerTrip publication: a greedy search for how many of the best sites."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from powertrip.selection.checks import IntArray
from powertrip.selection.outlook import Outlook, look
from powertrip.selection.types import Candidate, Decision, Observation

if TYPE_CHECKING:
    from powertrip.selection.settings import SelectionSettings


@dataclass(frozen=True)
class PowerTrip:
    """Every R rounds: rank the sites, weigh counts near the current one, move if it pays.

    What the publication leaves open (margin, patience, seats, bounds, the start) and how it is
    settled here stands in docs/selection.md.
    """

    settings: SelectionSettings
    name: ClassVar[str] = "powertrip"

    def decide(self, observation: Observation) -> Decision:
        """Choose the members until the next decision.

        Raises
        ------
        NoUsableSite
            If no site has both power and a link.
        """
        outlook = look(observation, self.settings, keep_seats=True)
        members = observation.member_sites
        lost: list[int] = members[~outlook.terms.usable[members]].tolist()
        if len(lost) == len(observation.members):
            return self._start(outlook, lost)

        q = self._current(outlook)
        table = outlook.table(self.counts(outlook), current=q)
        stay = next(line for line in table if line.k == q)
        best = max(table, key=lambda line: line.efficiency)

        streak = self._streak(observation, stay, best)
        # Once a member is lost the group is rebuilt anyway: nothing is left to be patient for.
        needed = 1 if lost else self.settings.patience
        moves = abs(streak) >= needed
        k = best.k if moves else q
        reason = self._reason(stay, best, streak, moves) + _replaced(outlook, k, lost)
        return outlook.decision(self.name, k, table, reason, 0 if moves else streak)

    def _start(self, outlook: Outlook, lost: list[int]) -> Decision:
        k = self._current(outlook)
        table = outlook.table(self.counts(outlook), current=k)
        reason = f"start with {k} of {outlook.order.size} usable sites"
        if lost:
            reason = (
                f"all members lost power or link ({outlook.observation.listed(lost)}): {reason}"
            )
        return outlook.decision(self.name, k, table, reason)

    def _bounded(self, count: int, outlook: Outlook) -> int:
        usable = outlook.order.size
        return min(max(count, self.settings.min_members), usable)

    def _current(self, outlook: Outlook) -> int:
        """The number of members at present, or where none is left, that to start with."""
        members = outlook.observation.member_sites
        if outlook.terms.usable[members].any():
            return self._bounded(members.size, outlook)
        wanted = self.settings.initial_count
        if wanted is None:
            wanted = max(2, math.ceil(outlook.order.size / 4))
        return self._bounded(wanted, outlook)

    def counts(self, outlook: Outlook) -> IntArray:
        """Return the numbers of members that a decision weighs, ascending, shape [c]."""
        q = self._current(outlook)
        low, high = self._bounded(1, outlook), outlook.order.size
        window = self.settings.window
        fewer = _changes(max(q // 2, 2) if window is None else min(window, high))
        more = _changes(max(q, 2) if window is None else min(window, high))
        return np.unique(np.clip(np.concatenate((q - fewer, [q], q + more)), low, high))

    def _streak(self, observation: Observation, stay: Candidate, best: Candidate) -> int:
        if best.efficiency <= stay.efficiency * (1 + self.settings.margin):
            return 0
        direction = 1 if best.k > stay.k else -1
        previous = observation.previous
        if previous is None or previous.policy != self.name or previous.streak * direction < 0:
            return direction
        return previous.streak + direction

    def _reason(self, stay: Candidate, best: Candidate, streak: int, moves: bool) -> str:
        advantage = f"{100 * (best.efficiency / stay.efficiency - 1):+.1f} %"
        margin = f"margin {100 * self.settings.margin:g} %"
        if moves:
            verb = "grow" if best.k > stay.k else "shrink"
            change = f"{verb} {stay.k} -> {best.k}"
            return f"{change}: {advantage} efficiency over staying ({margin})"
        if streak:
            seen = f"seen in {abs(streak)} of {self.settings.patience} decisions"
            return f"stay at {stay.k}: {best.k} is {advantage} more efficient, {seen}"
        if best.k == stay.k:
            return f"stay at {stay.k}: the most efficient count near it"
        return f"stay at {stay.k}: {best.k} is only {advantage} more efficient ({margin})"


def _changes(most: int) -> IntArray:
    """By how much a decision may change the number of members: all up to ten, then 10 % apart."""
    apart = np.floor(1.1 ** np.arange(int(math.log(most) / math.log(1.1)) + 1))
    return np.append(apart.astype(np.int64), most)


def _replaced(outlook: Outlook, k: int, lost: list[int]) -> str:
    """Say in words which members left for other reasons than a change of their number."""
    is_member, was_member, is_lost = np.zeros((3, outlook.observation.sites), dtype=np.bool_)
    is_member[outlook.order[:k]] = True
    was_member[outlook.observation.member_sites] = True
    is_lost[lost] = True
    newcomers = np.flatnonzero(is_member & ~was_member).tolist()
    outranked = np.flatnonzero(was_member & ~is_member & ~is_lost).tolist()
    listed = outlook.observation.listed
    text = f"; {listed(lost)} lost power or link" if lost else ""
    if outranked and newcomers:
        text += f"; {listed(newcomers)} in for {listed(outranked)}"
    return text
