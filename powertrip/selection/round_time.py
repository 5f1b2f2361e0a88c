"""How long a round takes: delays in the star of links, and the rules that share out the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from powertrip.selection.checks import BoolArray, FloatArray, IntArray
from powertrip.selection.errors import NoUsableSite
from powertrip.selection.types import Observation, Work

LONGEST_ROUND_S = 1e9
"""A site that needs longer than this (30 years) for one round counts as having no power or link."""


def star_delays_s(
    rtt_s: FloatArray,
    up: FloatArray,
    down: FloatArray,
    *,
    update_bytes: int,
    min_delay_s: float,
    correction: float = 1.0,
) -> FloatArray:
    """Time of one exchange between each site and the hub.

    ``T_i = correction * (rtt + D/up + D/down)``, at least `min_delay_s`, so that the hub's own
    site, whose link is free, is not worth any weakness.

    Parameters
    ----------
    rtt_s, up, down
        Round-trip time to the hub, bytes/s to and from it; shapes [n].
    update_bytes
        The size D of an update.
    min_delay_s
        Lower bound of every delay.
    correction
        Measured exchange time divided by the modelled one.

    Returns
    -------
    Seconds, shape [n]; infinite where no bytes pass.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        delay_s = correction * (rtt_s + update_bytes / up + update_bytes / down)
    return np.maximum(delay_s, min_delay_s)


@dataclass(frozen=True)
class RoundTerms:
    """What a round is made of at each site; shapes [n].

    Parameters
    ----------
    step_s
        Seconds for one local step; infinite without power.
    full_power_step_s
        The same at full power.
    delay_s
        Seconds for one exchange with the hub; infinite without a link.
    own_s
        Seconds for the base work and one exchange: the round of a site on its own.
    power_w
        Watts available now.
    usable
        Whether the site can take part at all.
    base_steps
        Local steps of each site as a member, before a work rule changes them.
    """

    step_s: FloatArray
    full_power_step_s: FloatArray
    delay_s: FloatArray
    own_s: FloatArray
    power_w: FloatArray
    usable: BoolArray
    base_steps: IntArray


def round_terms(observation: Observation, min_delay_s: float) -> RoundTerms:
    """Compute the terms of a round from an observation.

    Raises
    ------
    NoUsableSite
        If no site has both power and a link.
    """
    o = observation
    with np.errstate(divide="ignore", over="ignore"):
        step_s = o.batch_size / o.throughput
        full_power_step_s = o.batch_size / o.full_speed
        delay_s = star_delays_s(
            o.rtt_s,
            o.up,
            o.down,
            update_bytes=o.update_bytes,
            min_delay_s=min_delay_s,
            correction=o.communication_correction,
        )
        delay_s = np.where(o.reachable, delay_s, np.inf)
        own_s = o.base_steps * step_s + delay_s
    usable = o.reachable & (o.power_w > 0) & (own_s <= LONGEST_ROUND_S)
    if not usable.any():
        raise NoUsableSite(
            f"none of {o.sites} sites can take part at {o.time_s:g} s: "
            f"{int((o.power_w > 0).sum())} have power, {int(o.reachable.sum())} have a link"
        )
    return RoundTerms(step_s, full_power_step_s, delay_s, own_s, o.power_w, usable, o.base_steps)


@dataclass(frozen=True)
class RoundTimes:
    """Predicted round of the first k sites of an order, at index k - 1; seconds."""

    compute_s: FloatArray
    communication_s: FloatArray

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
        own_s = terms.own_s[order]
        slower = np.append(True, own_s[1:] > np.maximum.accumulate(own_s)[:-1])
        slowest = np.maximum.accumulate(np.where(slower, np.arange(order.size), 0))
        site = order[slowest]
        return RoundTimes(terms.base_steps[site] * terms.step_s[site], terms.delay_s[site])

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
        delay_s = np.maximum.accumulate(terms.delay_s[order])
        return RoundTimes(np.maximum(shared_s, one_step_s), delay_s)

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


WORK_RULES: dict[str, WorkRule] = {"straggler": Straggler(), "pooled": Pooled()}


def predicted_round_s(terms: RoundTerms, members: IntArray, work: Work) -> float:
    """Return the length of the round in which `members` (k sites) do exactly `work`, in seconds."""
    if work.steps is not None:
        local_s = np.asarray(work.steps) * terms.step_s[members]
    else:
        local_s = np.asarray(work.deadline_s)
    return float(np.max(local_s + terms.delay_s[members]))
