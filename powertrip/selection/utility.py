"""What a site's data is worth, and what its round costs: the parts of utility-based policies."""

from __future__ import annotations

from typing import Literal

import numpy as np

from powertrip.selection.checks import BoolArray, FloatArray, IntArray
from powertrip.selection.outlook import Outlook
from powertrip.selection.round_time import RoundTerms
from powertrip.selection.types import Decision, Observation

Cost = Literal["carbon", "energy", "money", "time"]

_LEAST_COST = 1e-3
"""Smallest cost, as a fraction of the median of those above 0: nothing is infinitely good value."""


def trained(observation: Observation) -> BoolArray:
    """Return which sites have taken part and told their loss, shape [n]."""
    return (observation.last_seen > 0) & ~np.isnan(observation.loss_rms)


def statistical_utility(
    samples: IntArray, loss_rms: FloatArray, among: BoolArray, clip: float
) -> FloatArray:
    """Return ``|B_i| sqrt(mean loss^2)``, clipped and relative to the clip.

    Parameters
    ----------
    samples, loss_rms
        Training samples held, and root of the mean squared loss on them, shapes [n].
    among
        The sites to compare, shape [n].
    clip
        Quantile of their utilities above which all count the same, so that one outlier (a site
        with corrupted data) is not taken again and again.

    Returns
    -------
    From 0 to 1, shape [n]; 0 outside `among`, 1 for all where none has any.
    """
    utility = np.zeros(samples.size)
    raw = samples[among] * loss_rms[among]
    if raw.size:
        # The value below the quantile: among few sites, one between two would still hold most of
        # the outlier.
        top = float(np.quantile(raw, clip, method="lower")) or float(raw.max())
        utility[among] = np.minimum(raw / top, 1.0) if top > 0 else 1.0
    return utility


def round_cost(observation: Observation, terms: RoundTerms, cost: Cost) -> FloatArray:
    """Return what one round costs at each site, relative to the median, shape [n].

    The energy is what the site draws now, for as long as its base work takes; carbon and money
    follow from it; the time is that of the site's own round, its exchange included.

    Returns
    -------
    Positive and finite; 1 at unusable sites, and everywhere if nothing costs anything.
    """
    usable = terms.usable
    if cost == "time":
        raw = terms.own_s[usable]
    else:
        local_s = terms.base_steps[usable] * terms.step_s[usable]
        raw = observation.used_power_w[usable] * local_s
        if cost == "carbon":
            raw = raw * observation.carbon_g_per_j[usable]
        elif cost == "money":
            raw = raw * observation.price_per_j[usable]
    relative = np.ones(usable.size)
    positive = raw[raw > 0]
    if positive.size:
        relative[usable] = np.maximum(raw / np.median(positive), _LEAST_COST)
    return relative


def take_all(policy: str, outlook: Outlook, reason: str) -> Decision:
    """Return the decision for all sites of an outlook: those chosen, less any without a link to
    the others in a ring or mesh."""
    k = outlook.order.size
    return outlook.decision(policy, k, outlook.table(np.array([k]), current=k), reason)


def draw(weights: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draw without replacement, each time with a probability in proportion to the weights.

    Parameters
    ----------
    weights
        Not negative, shape [m].
    count
        How many to draw, at most m.

    Returns
    -------
    Indices, shape [count], in the order drawn.
    """
    # Adding Gumbel noise to the logarithms and sorting does the same as drawing one by one.
    with np.errstate(divide="ignore"):
        keys = np.log(weights) + rng.gumbel(size=weights.size)
    return np.argsort(-keys, kind="stable")[:count]
