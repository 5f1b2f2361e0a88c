"""What a round is made of at each site, and how long the round of a set of them takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from powertrip.selection.checks import BoolArray, FloatArray, IntArray
from powertrip.selection.errors import NoUsableSite
from powertrip.selection.exchange_time import Exchange, PairExchange
from powertrip.selection.round_parts import added_s, local_in, round_of
from powertrip.selection.types import Observation, Work

__all__ = [
    "LONGEST_ROUND_S",
    "RoundTerms",
    "predicted_round_s",
    "round_terms",
]

LONGEST_ROUND_S = 1e9
"""A site that needs longer than this (30 years) for one round counts as having no power or link."""


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
        Seconds for one exchange with the hub; infinite without a link. Sites are ranked by it under
        every model of the exchange.
    own_s
        Seconds for the base work and one exchange, beside it with overlap: the round of a site on
        its own.
    power_w
        Watts available now.
    usable
        Whether the site can take part at all.
    base_steps
        Local steps of each site as a member, before a work rule changes them.
    h0
        Local steps after which another step is worth half.
    pairs
        The exchange, where it goes around a ring or through a mesh; None in the star.
    overlap
        Whether an exchange goes on beside the training of the next round.
    """

    step_s: FloatArray
    full_power_step_s: FloatArray
    delay_s: FloatArray
    own_s: FloatArray
    power_w: FloatArray
    usable: BoolArray
    base_steps: IntArray
    h0: float = 10.0
    pairs: PairExchange | None = None
    overlap: bool = False

    def round_of(self, local_s: ArrayLike, delay_s: ArrayLike) -> FloatArray:
        """See `round_parts.round_of`."""
        return round_of(local_s, delay_s, overlap=self.overlap)

    def local_in(self, round_s: ArrayLike, delay_s: ArrayLike) -> FloatArray:
        """See `round_parts.local_in`."""
        return local_in(round_s, delay_s, overlap=self.overlap)

    def added_s(self, local_s: ArrayLike, delay_s: ArrayLike) -> FloatArray:
        """See `round_parts.added_s`."""
        return added_s(local_s, delay_s, overlap=self.overlap)

    def exchange_s(self, order: IntArray) -> FloatArray:
        """Longest exchange among the first k sites of `order`, at index k - 1; seconds."""
        if self.pairs is None:
            return np.asarray(np.maximum.accumulate(self.delay_s[order]))
        return self.pairs.prefixes_s(order)

    def delays_s(self, members: IntArray) -> FloatArray:
        """Exchange of each of `members`, once it has trained; seconds, shape [k]."""
        return Exchange(self.delay_s, self.pairs).delays_s(members)


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
        exchange = Exchange.of(
            o.exchange_model,
            (o.rtt_s, o.up, o.down),
            _between(o),
            update_bytes=o.update_bytes,
            min_delay_s=min_delay_s,
            correction=o.communication_correction,
        )
        delay_s = np.where(o.reachable, exchange.delay_s, np.inf)
        own_s = round_of(o.base_steps * step_s, delay_s, overlap=o.overlap)
    usable = o.reachable & (o.power_w > 0) & (own_s <= LONGEST_ROUND_S)
    if not usable.any():
        raise NoUsableSite(
            f"none of {o.sites} sites can take part at {o.time_s:g} s: "
            f"{int((o.power_w > 0).sum())} have power, {int(o.reachable.sum())} have a link"
        )
    return RoundTerms(
        step_s=step_s,
        full_power_step_s=full_power_step_s,
        delay_s=delay_s,
        own_s=own_s,
        power_w=o.power_w,
        usable=usable,
        base_steps=o.base_steps,
        h0=o.h0,
        pairs=exchange.pairs,
        overlap=o.overlap,
    )


def _between(o: Observation) -> tuple[FloatArray, FloatArray] | None:
    if o.pair_rtt_s is None or o.pair_bandwidth is None:
        return None
    return o.pair_rtt_s, o.pair_bandwidth


def predicted_round_s(terms: RoundTerms, members: IntArray, work: Work) -> float:
    """Return the length of the round in which `members` (k sites) do exactly `work`, in seconds."""
    if work.steps is not None:
        local_s = np.asarray(work.steps) * terms.step_s[members]
    else:
        local_s = np.asarray(work.deadline_s)
    return float(np.max(terms.round_of(local_s, terms.delays_s(members))))
