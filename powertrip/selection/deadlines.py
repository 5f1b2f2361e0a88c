"""Rounds in which every member trains until its own deadline: what is done, and what it is worth.

A round of length tau leaves site i ``tau - T_i`` for training, and so
``H_i = floor((tau - T_i) / step_i)`` whole steps, worth ``H_i / (1 + H_i/h0)``; with overlap all of
the round, ``H_i = floor(tau / step_i)``, if ``T_i <= tau``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from powertrip.selection.checks import FloatArray, IntArray
from powertrip.selection.round_parts import added_s, local_in, round_of
from powertrip.selection.round_time import RoundTerms
from powertrip.selection.types import Decision, Observation, Work

_RATIO = 1.1
"""Lengths of a round that are weighed lie this factor apart."""

_ALMOST = 1 + 1e-9
"""A step that ends with the deadline fits in, whatever was rounded on the way."""


def worth(steps: FloatArray, h0: float) -> FloatArray:
    """What local steps are worth, in steps: ``H / (1 + H/h0)``."""
    return np.asarray(steps * h0 / (steps + h0))


def whole_steps(local_s: FloatArray, step_s: FloatArray) -> FloatArray:
    """Return how many whole steps fit into `local_s`, none where it is negative."""
    return np.asarray(np.floor(np.maximum(local_s, 0.0) * (_ALMOST / step_s)))


@dataclass(frozen=True)
class Crew:
    """Members of a round, as their deadlines see them; shapes [k].

    Parameters
    ----------
    step_s
        Seconds for one local step.
    delay_s
        Seconds for the exchange of each, once it has trained.
    h0
        Local steps after which another step is worth half.
    overlap
        Whether an exchange goes on beside the training of the next round.
    """

    step_s: FloatArray
    delay_s: FloatArray
    h0: float
    overlap: bool = False

    @classmethod
    def of(cls, terms: RoundTerms, members: IntArray) -> Crew:
        """Return the crew of these sites."""
        return cls(terms.step_s[members], terms.delays_s(members), terms.h0, terms.overlap)

    @property
    def shortest_s(self) -> float:
        """Length of the round in which everyone can do a step."""
        return float(np.max(self._round_of(self.step_s)))

    def local_s(self, round_s: ArrayLike) -> FloatArray:
        """Return the seconds for training of each, shape [c, k] for c lengths of the round."""
        lengths_s = np.asarray(round_s)[..., None]
        return local_in(lengths_s, self.delay_s, overlap=self.overlap)

    def added_s(self, round_s: float) -> FloatArray:
        """Return what the exchange of each adds to its training in a round, seconds, shape [k]."""
        return added_s(self.local_s(round_s), self.delay_s, overlap=self.overlap)

    def steps(self, round_s: ArrayLike) -> FloatArray:
        """Return the whole steps that each does, shape [c, k] for c lengths of the round."""
        steps = whole_steps(self.local_s(round_s), self.step_s)
        # What is left of a long exchange may be rounded to less than the step that has its place.
        enough = np.asarray(round_s)[..., None] >= self.shortest_s
        return np.where(enough, np.maximum(steps, 1.0), steps)

    def worth(self, round_s: ArrayLike) -> FloatArray:
        """Return what the work of all is worth, in steps; 0 if someone cannot do a step."""
        steps = self.steps(round_s)
        done = worth(steps, self.h0).sum(axis=-1)
        return np.where(steps.min(axis=-1) >= 1, done, 0.0)

    def trimmed_s(self, round_s: ArrayLike) -> FloatArray:
        """Return the shortest rounds in which all do the same steps as in those of `round_s`."""
        return np.asarray(self._round_of(self.steps(round_s) * self.step_s).max(axis=-1))

    def best_round_s(self) -> float:
        """Return the length of the round in which they do the most worth per second."""

        def best_of(lengths: FloatArray) -> float:
            trimmed_s = self.trimmed_s(lengths)
            return float(trimmed_s[np.argmax(self.worth(trimmed_s) / trimmed_s)])

        low_s = self.shortest_s
        # One step each is worth 1/(1+1/h0), and no work more than h0: no longer round is better.
        rough_s = best_of(lengths_s(low_s, low_s * (1 + self.h0)))
        near = lengths_s(max(low_s, rough_s / _RATIO), rough_s * _RATIO, ratio=1.01)
        return best_of(np.append(rough_s, near))

    def work(self, round_s: float) -> Work:
        """Return until when each trains in a round of length `round_s`."""
        return Work(deadline_s=tuple(np.maximum(self.local_s(round_s), 0.0).tolist()))

    def _round_of(self, local_s: ArrayLike) -> FloatArray:
        return round_of(local_s, self.delay_s, overlap=self.overlap)


@dataclass(frozen=True)
class PrefixSums:
    """Rounds of the first k sites of an order, at index k - 1, and what they sum up to.

    Parameters
    ----------
    round_s
        Length of the round.
    worth
        Of the local work; 0 where one of them cannot do a step.
    drawn
        Seconds of training weighted by each row of weights (watts: joules), shape [m, k].
    """

    round_s: FloatArray
    worth: FloatArray
    drawn: FloatArray


def prefix_sums(
    terms: RoundTerms, order: IntArray, length_s: float, weights: FloatArray
) -> PrefixSums:
    """Sum up rounds of one length over every prefix of `order`, in O(N).

    Parameters
    ----------
    length_s
        Length of the round; of the training alone, which is then the same for all members, where
        the exchange depends on the whole set. With overlap a prefix whose exchange is longer then
        trains no more than that, and waits.
    weights
        What a second of training counts at each site, shape [m, n]; m may be 0.
    """
    if terms.pairs is None:
        round_s = np.full(order.size, length_s)
        local_s = terms.local_in(round_s, terms.delay_s[order])
    else:
        round_s = terms.round_of(length_s, terms.pairs.prefixes_s(order))
        local_s = np.full(order.size, length_s)
    steps = whole_steps(local_s, terms.step_s[order])
    able = np.minimum.accumulate(steps) >= 1
    total = np.where(able, np.cumsum(worth(steps, terms.h0)), 0.0)
    return PrefixSums(round_s, total, np.cumsum(local_s * weights[:, order], axis=1))


def lengths_s(low_s: float, high_s: float, ratio: float = _RATIO) -> FloatArray:
    """Return lengths of a round from `low_s` to `high_s` that lie at most a factor apart."""
    count = max(2, 1 + int(np.ceil(np.log(high_s / low_s) / np.log(ratio))))
    return np.asarray(low_s * (high_s / low_s) ** np.linspace(0, 1, count))


@dataclass(frozen=True)
class PrefixRounds:
    """Best rounds of the first k sites of an order, at index k - 1.

    Parameters
    ----------
    round_s
        Length, within the grid of lengths that are weighed.
    added_s
        Mean of what the exchange of a member adds to its training.
    worth
        Mean worth of a member's work.
    """

    round_s: FloatArray
    added_s: FloatArray
    worth: FloatArray


def prefix_rounds(terms: RoundTerms, order: IntArray) -> PrefixRounds:
    """Find the best round of every prefix of `order`, in O(N) for each length of it."""
    k = np.arange(1, order.size + 1)
    if terms.pairs is None:
        delay_s = np.cumsum(terms.delay_s[order]) / k
        each_s = terms.round_of(terms.step_s[order], terms.delay_s[order])
        shortest_s = np.maximum.accumulate(each_s)
        low_s = float(shortest_s.min())
    else:
        delay_s = terms.pairs.prefixes_s(order)
        shortest_s = terms.round_of(np.maximum.accumulate(terms.step_s[order]), delay_s)
        low_s = float(terms.step_s[order[0]])
    # At the shortest round everyone can do a step, which makes it a candidate of every prefix.
    round_s, mean_worth = shortest_s, np.full(k.size, worth(np.ones(1), terms.h0)[0])
    none = np.empty((0, terms.step_s.size))
    for length_s in lengths_s(low_s, float(shortest_s.max()) * (1 + terms.h0)).tolist():
        sums = prefix_sums(terms, order, length_s, none)
        mean = sums.worth / k
        better = mean * round_s > mean_worth * sums.round_s
        round_s = np.where(better, sums.round_s, round_s)
        mean_worth = np.where(better, mean, mean_worth)
    # With overlap the exchange of each fits into its round, all of which it trains for.
    return PrefixRounds(round_s, np.zeros(k.size) if terms.overlap else delay_s, mean_worth)


def expected_steps(observation: Observation, decision: Decision) -> IntArray:
    """Return the local steps that each member is expected to do, in the order of the members.

    Where the work is deadlines, these follow from the speeds in `observation`; a member does one
    step at least.
    """
    if decision.work.steps is not None:
        return np.array(decision.work.steps, dtype=np.int64)
    step_s = observation.batch_size / observation.throughput[list(decision.members)]
    local_s = np.array(decision.work.deadline_s)
    return np.maximum(whole_steps(local_s, step_s), 1.0).astype(np.int64)
