"""The order in which sites are preferred."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from powertrip.selection.checks import BoolArray, FloatArray, IntArray
from powertrip.selection.round_time import RoundTerms


def round_time_cost(terms: RoundTerms) -> FloatArray:
    """Cost of a site is its own round: the base work and one exchange, in seconds, shape [n].

    Under the rule `straggler` every prefix of this order is the fastest set of its size.
    """
    return terms.own_s


def power_to_cost(power_w: FloatArray, delay_s: FloatArray, weight: float) -> FloatArray:
    """Score power over delay; higher is better.

    ``(P_i / median P)^(1-w) / (T_i / median T)^w``. The publication describes in words a ratio of
    power to delay whose weights move from power to latency as the update grows; the form is ours.

    Parameters
    ----------
    power_w, delay_s
        Watts and seconds of the sites to compare, positive, shape [m].
    weight
        Weight w of the delay, from 0 to 1.

    Returns
    -------
    Scores, shape [m]; 1 for a site that is the median in both.
    """
    power = power_w / np.median(power_w)
    delay = delay_s / np.median(delay_s)
    return np.asarray(power ** (1 - weight) / delay**weight)


def communication_weight(terms: RoundTerms) -> float:
    """Share of a typical usable site's round at full power that is communication, 0 to 1.

    Full power, so that a site which gains power does not move the weights against itself. The
    typical delay is ``(mean of T_i^(1/3))^3``: close to a median, but such that a site that loses
    delay never falls. For a site i to fall behind j, ``w/(1-w) ln(T_j/T_i)`` has to shrink as T_i
    does, and so ``e_i ln(T_j/T_i) > 1``, with e_i the elasticity of ``w/(1-w)`` by T_i. Here e_i is
    the share x of i in the sum of cube roots, and ``x ln(T_j/T_i) <= 3 x ln((1-x)/x) <= 0.84``. A
    median, which a site may itself be, has an e_i of up to 1.
    """
    delay_s = float(np.mean(np.cbrt(terms.delay_s[terms.usable]))) ** 3
    full_power_s = terms.base_steps * terms.full_power_step_s
    compute_s = float(np.median(full_power_s[terms.usable]))
    return delay_s / (delay_s + compute_s)


def power_to_cost_cost(terms: RoundTerms) -> FloatArray:
    """Cost of a site is the inverse of its `power_to_cost` score, shape [n]."""
    cost = np.full(terms.usable.size, np.inf)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        score = power_to_cost(
            terms.power_w[terms.usable], terms.delay_s[terms.usable], communication_weight(terms)
        )
        cost[terms.usable] = 1 / score
    return cost


def power_to_cost_linear_cost(terms: RoundTerms) -> FloatArray:
    """Cost of a site by linear weights, ``w T_i/median T / ((1-w) P_i/median P)``, shape [n].

    Both weights are the same for all sites, so that they cancel in the order: an ablation.
    """
    cost = np.full(terms.usable.size, np.inf)
    w = min(max(communication_weight(terms), 1e-9), 1 - 1e-9)
    power_w, delay_s = terms.power_w[terms.usable], terms.delay_s[terms.usable]
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        power, delay = power_w / np.median(power_w), delay_s / np.median(delay_s)
        cost[terms.usable] = w * delay / ((1 - w) * power)
    return cost


RANKINGS: dict[str, Callable[[RoundTerms], FloatArray]] = {
    "round-time": round_time_cost,
    "power-to-cost": power_to_cost_cost,
    "power-to-cost-linear": power_to_cost_linear_cost,
}


def ranked(
    cost: FloatArray, allowed: BoolArray, seated: IntArray | None = None, seat_margin: float = 0.0
) -> IntArray:
    """Order the allowed sites by cost, ties by number.

    Parameters
    ----------
    cost
        Cost per site, lower is better, shape [n].
    allowed
        The sites to order, shape [n].
    seated
        Sites whose seats are kept unless another is better by more than `seat_margin`.
    seat_margin
        How much higher (0.1: 10 %) a seated site's cost may be before it loses its place.

    Returns
    -------
    Site numbers, best first, shape [number allowed].
    """
    seated_cost = cost.copy()
    if seated is not None:
        seated_cost[seated] /= 1 + seat_margin
    sites = np.flatnonzero(allowed)
    allowed_cost = seated_cost[sites]
    order = np.argsort(allowed_cost)
    # A stable sort takes five times as long: only where it makes a difference.
    ascending = allowed_cost[order]
    if (ascending[1:] == ascending[:-1]).any():
        order = np.argsort(allowed_cost, kind="stable")
    return sites[order]
