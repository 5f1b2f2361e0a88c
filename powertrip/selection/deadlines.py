"""Rounds in which every member trains until its own deadline: what is done, and what it is worth.

A round of length tau leaves site i ``tau - T_i`` for training, and so
``H_i = floor((tau - T_i) / step_i)`` whole steps, worth ``H_i / (1 + H_i/h0)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from powertrip.selection.checks import FloatArray, IntArray
from powertrip.selection.round_time import RoundTerms
from powertrip.selection.types import Decision, Observation, Work

_RATIO = 1.1
"""Lengths of a round that are weighed lie this factor apart."""

_ALMOST = 1 + 1e-9
"""A step that ends with the deadline fits in, whatever was rounded on the way."""


def worth(steps: FloatArray, h0: float) -> FloatArray:
    """What local steps are worth, in steps: ``H / (1 + H/h0)``."""
    return np.asarray(steps / (1 + steps / h0))


def whole_steps(local_s: FloatArray, step_s: FloatArray) -> FloatArray:
    """Return how many whole steps fit into `local_s`, none where it is negative."""
    return np.asarray(np.floor(np.maximum(local_s, 0.0) / step_s * _ALMOST))


@dataclass(frozen=True)
class PrefixSums:
    """Sums over the first k sites of an order in a round of a given length, at index k - 1.

    Parameters
    ----------
    worth
        Of the local work; 0 from the first site on that cannot do a step.
    drawn
        Seconds of training weighted by each row of weights (watts: joules), shape [m, k].
    """

    worth: FloatArray
    drawn: FloatArray


def prefix_sums(
    terms: RoundTerms, order: IntArray, round_s: float, weights: FloatArray
) -> PrefixSums:
    """Sum up a round of length `round_s` over every prefix of `order`.

    Parameters
    ----------
    weights
        What a second of training counts at each site, shape [m, n]; m may be 0.
    """
    step_s, per_s = terms.step_s[order], weights[:, order]
    if terms.pairs is None:
        local_s = round_s - terms.delay_s[order]
        steps = whole_steps(local_s, step_s)
        able = np.minimum.accumulate(steps) >= 1
        total = np.where(able, np.cumsum(worth(steps, terms.h0)), 0.0)
        return PrefixSums(total, np.cumsum(local_s * per_s, axis=1))
    # The exchange, and with it everybody's deadline, depends on the whole set.
    left_s = round_s - terms.pairs.prefixes_s(order)
    inside = np.tri(order.size, dtype=np.bool_)
    table = whole_steps(left_s[:, None], step_s[None, :])
    able = np.where(inside, table, 1.0).min(axis=1) >= 1
    total = np.where(inside, worth(table, terms.h0), 0.0).sum(axis=1)
    return PrefixSums(np.where(able, total, 0.0), left_s * np.cumsum(per_s, axis=1))


def shortest_round_s(terms: RoundTerms, members: IntArray) -> float:
    """Length of the round in which every one of `members` can do a step."""
    return float(np.max(terms.step_s[members] + terms.delays_s(members)))


def lengths_s(low_s: float, high_s: float, ratio: float = _RATIO) -> FloatArray:
    """Return lengths of a round from `low_s` to `high_s` that lie at most a factor apart."""
    count = max(2, 1 + int(np.ceil(np.log(high_s / low_s) / np.log(ratio))))
    return np.asarray(low_s * (high_s / low_s) ** np.linspace(0, 1, count))


def trimmed_s(terms: RoundTerms, members: IntArray, round_s: float) -> float:
    """Return the shortest round in which `members` do the same steps as in one of `round_s`."""
    delay_s = terms.delays_s(members)
    steps = whole_steps(round_s - delay_s, terms.step_s[members])
    return float(np.max(delay_s + steps * terms.step_s[members]))


def best_round_s(terms: RoundTerms, members: IntArray) -> float:
    """Return the length of the round in which `members` do the most worth per second."""
    low_s = shortest_round_s(terms, members)
    # One step each is worth 1 / (1 + 1/h0), and no work more than h0: no longer round is better.
    high_s = low_s * (1 + terms.h0)
    delay_s, step_s = terms.delays_s(members), terms.step_s[members]

    def per_second(round_s: float) -> float:
        return float(worth(whole_steps(round_s - delay_s, step_s), terms.h0).sum()) / round_s

    coarse = [trimmed_s(terms, members, s) for s in lengths_s(low_s, high_s).tolist()]
    best_s = max(coarse, key=per_second)
    near = lengths_s(max(low_s, best_s / _RATIO), best_s * _RATIO, ratio=1.01).tolist()
    return max([best_s, *(trimmed_s(terms, members, s) for s in near)], key=per_second)


@dataclass(frozen=True)
class PrefixRounds:
    """Best rounds of the first k sites of an order, at index k - 1.

    Parameters
    ----------
    round_s
        Length, within the grid of lengths that are weighed.
    delay_s
        Mean exchange of a member.
    worth
        Mean worth of a member's work.
    """

    round_s: FloatArray
    delay_s: FloatArray
    worth: FloatArray


def prefix_rounds(terms: RoundTerms, order: IntArray) -> PrefixRounds:
    """Find the best round of every prefix of `order`, in O(N) for each length of it."""
    k = np.arange(1, order.size + 1)
    if terms.pairs is None:
        delay_s = np.cumsum(terms.delay_s[order]) / k
        shortest_s = np.maximum.accumulate(terms.step_s[order] + terms.delay_s[order])
    else:
        delay_s = terms.pairs.prefixes_s(order)
        shortest_s = np.maximum.accumulate(terms.step_s[order]) + delay_s
    # At the shortest round everyone can do a step, which makes it a candidate of every prefix.
    round_s, mean_worth = shortest_s.copy(), np.full(k.size, worth(np.ones(1), terms.h0)[0])
    none = np.empty((0, terms.step_s.size))
    for length_s in lengths_s(float(shortest_s.min()), float(shortest_s.max()) * (1 + terms.h0)):
        mean = prefix_sums(terms, order, float(length_s), none).worth / k
        better = mean * round_s > mean_worth * length_s
        round_s, mean_worth = (
            np.where(better, length_s, round_s),
            np.where(better, mean, mean_worth),
        )
    return PrefixRounds(round_s, delay_s, mean_worth)


def deadlines(terms: RoundTerms, members: IntArray, round_s: float) -> Work:
    """Return until when each of `members` trains in a round of length `round_s`."""
    return Work(deadline_s=tuple(np.maximum(round_s - terms.delays_s(members), 0.0).tolist()))


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
