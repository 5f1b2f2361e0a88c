"""How the local work of a round is shared out among its members, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from powertrip.selection.checks import FloatArray, IntArray
from powertrip.selection.deadlines import Crew, prefix_rounds
from powertrip.selection.round_time import RoundTerms
from powertrip.selection.types import Work


@dataclass(frozen=True)
class RoundTimes:
    """Predicted round of the first k sites of an order, at index k - 1; seconds."""

    compute_s: FloatArray
    communication_s: FloatArray
    """What the exchange adds to the training."""
    worth: FloatArray | None = None
    """Mean worth of a member's local work, where it differs between prefixes."""

    @property
    def round_s(self) -> FloatArray:
        """Length of the whole round."""
        return self.compute_s + self.communication_s


class WorkRule(Protocol):
    """How the local work of a round is shared out among its members."""

    def prefix_times(self, terms: RoundTerms, order: IntArray) -> RoundTimes:
        """Predict the round of every prefix of `order` (usable sites) at once, in O(N)."""
        ...

    def work(self, terms: RoundTerms, members: IntArray) -> Work:
        """Return the work that `members` really do, in their order."""
        ...


class Straggler:
    """Everyone does the base steps, and the slowest site sets the pace.

    ``tau = max_i (steps * batch / throughput_i + T_i)``
    """

    def prefix_times(self, terms: RoundTerms, order: IntArray) -> RoundTimes:
        """Return the two parts of the slowest site's round, for every prefix."""
        if terms.pairs is not None:
            local_s = terms.base_steps[order] * terms.step_s[order]
            return _one_after_all(terms, order, np.maximum.accumulate(local_s))
        own_s = terms.own_s[order]
        slower = np.append(True, own_s[1:] > np.maximum.accumulate(own_s)[:-1])
        slowest = np.maximum.accumulate(np.where(slower, np.arange(order.size), 0))
        site = order[slowest]
        local_s = terms.base_steps[site] * terms.step_s[site]
        return RoundTimes(local_s, terms.added_s(local_s, terms.delay_s[site]))

    def work(self, terms: RoundTerms, members: IntArray) -> Work:
        """Return the base steps for every member."""
        return Work(steps=tuple(terms.base_steps[members].tolist()))


class Pooled:
    """A fixed total of steps is split in proportion to speed, so that all end together.

    ``tau = total / sum_i(throughput_i) + max_i T_i``, where the total is the base steps of
    all sites together, whatever k is; no member does less than one step, which a site of little
    power may need longer for.
    """

    def prefix_times(self, terms: RoundTerms, order: IntArray) -> RoundTimes:
        """Return the shared computing time and the longest delay, for every prefix."""
        step_s = terms.step_s[order]
        shared_s = self._total_steps(terms) / np.cumsum(1 / step_s)
        one_step_s = np.maximum.accumulate(step_s)
        return _one_after_all(terms, order, np.maximum(shared_s, one_step_s))

    def work(self, terms: RoundTerms, members: IntArray) -> Work:
        """Return whole steps that add up to the total, unless the minimum of 1 exceeds it."""
        step_s = terms.step_s[members]
        share = self._total_steps(terms) / step_s / np.sum(1 / step_s)
        steps = np.maximum(np.floor(share).astype(np.int64), 1)
        left = min(max(self._total_steps(terms) - int(steps.sum()), 0), members.size)
        done_first = np.argsort((steps + 1) * step_s, kind="stable")[:left]
        steps[done_first] += 1
        return Work(steps=tuple(steps.tolist()))

    @staticmethod
    def _total_steps(terms: RoundTerms) -> int:
        return int(terms.base_steps.sum())


class PooledPaper(Pooled):
    """The publication's Eq. 7, for reproduction: time as if the work were split, which it is not.

    The round is as long as under `Pooled`, but every member does its base steps: the work grows
    with k at no cost in time. A real round takes as long as under `Straggler`.
    """

    def prefix_times(self, terms: RoundTerms, order: IntArray) -> RoundTimes:
        """Return the time of the split work and the longest delay, for every prefix."""
        shared_s = self._total_steps(terms) / np.cumsum(1 / terms.step_s[order])
        return _one_after_all(terms, order, shared_s)

    def work(self, terms: RoundTerms, members: IntArray) -> Work:
        """Return the base steps for every member."""
        return Work(steps=tuple(terms.base_steps[members].tolist()))


class Mean(Straggler):
    """Algorithm 1, line 13, of the publication, for reproduction: the mean site sets the pace.

    ``tau = T_base / mean(f_i) + max_i T_i``, with f_i the fraction of its full speed that a site's
    power allows, and T_base the members' mean time for the base work at full power. Every member
    does its base steps, so that a real round takes as long as under `Straggler`.
    """

    def prefix_times(self, terms: RoundTerms, order: IntArray) -> RoundTimes:
        """Return the mean member's computing time and the longest delay, for every prefix."""
        k = np.arange(1, order.size + 1)
        full_s = terms.full_power_step_s[order]
        base_s = np.cumsum(terms.base_steps[order] * full_s) / k
        fraction = np.cumsum(full_s / terms.step_s[order]) / k
        return _one_after_all(terms, order, base_s / fraction)


class Together:
    """Everyone trains until its own deadline, so that all end together and nobody waits.

    ``H_i = floor((tau - T_i) / step_i)``; the length tau of the round is the one that brings the
    most per second, ``mean_i(H_i / (1 + H_i/h0)) / tau``, with at least one step for everyone.
    """

    def prefix_times(self, terms: RoundTerms, order: IntArray) -> RoundTimes:
        """Return the mean member's two parts of the best round, for every prefix."""
        rounds = prefix_rounds(terms, order)
        return RoundTimes(rounds.round_s - rounds.added_s, rounds.added_s, rounds.worth)

    def work(self, terms: RoundTerms, members: IntArray) -> Work:
        """Return the deadlines of the best round of `members`."""
        crew = Crew.of(terms, members)
        return crew.work(crew.best_round_s())


def _one_after_all(terms: RoundTerms, order: IntArray, compute_s: FloatArray) -> RoundTimes:
    """Return the rounds in which the longest exchange comes after so much computing."""
    return RoundTimes(compute_s, terms.added_s(compute_s, terms.exchange_s(order)))


WORK_RULES: dict[str, WorkRule] = {
    "straggler": Straggler(),
    "pooled": Pooled(),
    "together": Together(),
    "mean": Mean(),
    "pooled-paper": PooledPaper(),
}
