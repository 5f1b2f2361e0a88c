from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.selection.ranking import (
    RANKINGS,
    communication_weight,
    power_to_cost,
    power_to_cost_cost,
    ranked,
    round_time_cost,
)
from powertrip.selection.round_time import round_terms
from powertrip.selection.work_rules import WORK_RULES


def test_round_time_cost_by_hand(observe):
    seen = observe(throughput=[100.0, 50.0, 200.0], delay_s=[0.5, 0.25, 3.5])
    np.testing.assert_allclose(round_time_cost(round_terms(seen, 0.01)), [2.5, 4.25, 4.5])


def test_power_to_cost_by_hand():
    # medians 200 W and 4 s; (P/200)^0.5 / (T/4)^0.5
    score = power_to_cost(np.array([800.0, 200.0, 50.0]), np.array([1.0, 4.0, 4.0]), 0.5)
    np.testing.assert_allclose(score, [4.0, 1.0, 0.5])


def test_weighted_costs_by_hand(observe):
    # Delays 1 and 27, typically 8, beside 8 s of computing: a weight of 1/2. Of the medians (14 s,
    # 200 W) the delays are 1/14 and 27/14, the powers 1/2 and 3/2.
    seen = observe(throughput=[10.0, 30.0], full_speed=[25.0, 25.0], delay_s=[1.0, 27.0])
    terms = round_terms(seen, 0.01)
    np.testing.assert_allclose(RANKINGS["power-to-cost-linear"](terms), [1 / 7, 9 / 7])
    np.testing.assert_allclose(power_to_cost_cost(terms), [(1 / 7) ** 0.5, (9 / 7) ** 0.5])


def test_linear_weights_cancel(observe):
    seen = observe(throughput=[100.0, 50.0, 200.0], delay_s=[0.5, 0.25, 3.5])
    orders = set()
    for size in (1, 10**9):
        terms = round_terms(seen.replace(update_bytes=size), 0.01)
        orders.add(tuple(ranked(RANKINGS["power-to-cost-linear"](terms), terms.usable).tolist()))
    # delay over power: 0.5/1000, 0.25/500 (a tie), 3.5/2000
    assert orders == {(0, 1, 2)}


def test_power_to_cost_at_its_limits():
    power_w, delay_s = np.array([10.0, 20.0, 40.0]), np.array([2.0, 1.0, 4.0])
    np.testing.assert_allclose(power_to_cost(power_w, delay_s, 0), [0.5, 1, 2])
    np.testing.assert_allclose(power_to_cost(power_w, delay_s, 1), [1, 2, 0.5])


def test_weight_is_the_communication_share_of_a_typical_round(observe):
    # usable sites: delays 1 and 27, typically ((1 + 3) / 2)^3 = 8; 20 x 10 samples at a full speed
    # of 50 (4 s)
    seen = observe(
        throughput=[10.0, 25.0, 0.0], full_speed=[50.0, 50.0, 1.0], delay_s=[1.0, 27.0, 64.0]
    )
    assert communication_weight(round_terms(seen, 0.01)) == pytest.approx(8 / 12)


def test_weight_moves_from_power_to_latency_as_the_update_grows(observe):
    weights = [
        communication_weight(round_terms(observe(update_bytes=size), 0.01))
        for size in (10**3, 10**6, 10**9)
    ]
    assert weights[0] < weights[1] < weights[2]
    assert weights[2] > 0.99


def test_ties_go_by_number_and_others_are_left_out():
    cost = np.array([2.0, 1.0, 1.0, 0.5, 2.0])
    allowed = np.array([True, True, True, False, True])
    assert ranked(cost, allowed).tolist() == [1, 2, 0, 4]


def test_seats_are_kept_up_to_the_margin():
    allowed = np.full(3, True)
    assert ranked(np.array([1.0, 1.08, 3.0]), allowed, np.array([1]), 0.1).tolist() == [1, 0, 2]
    assert ranked(np.array([1.0, 1.12, 3.0]), allowed, np.array([1]), 0.1).tolist() == [0, 1, 2]


def place(observation, name, site):
    terms = round_terms(observation, 0.01)
    return ranked(RANKINGS[name](terms), terms.usable).tolist().index(site)


@given(st.data(), st.sampled_from(sorted(RANKINGS)), st.floats(1.01, 100))
@settings(max_examples=150, deadline=None)
def test_a_site_that_gains_power_never_falls(any_observation, data, name, factor):
    seen = data.draw(any_observation(least_sites=2))
    site = data.draw(st.sampled_from(np.flatnonzero(round_terms(seen, 0.01).usable).tolist()))
    gains = np.where(np.arange(seen.sites) == site, factor, 1.0)
    better = seen.replace(power_w=seen.power_w * gains, throughput=seen.throughput * gains)
    assert place(better, name, site) <= place(seen, name, site)


def with_links(seen, site, factor):
    """The same, with the links of a site so many times better."""
    gains = np.where(np.arange(seen.sites) == site, factor, 1.0)
    return seen.replace(rtt_s=seen.rtt_s / gains, up=seen.up * gains, down=seen.down * gains)


@given(st.data(), st.sampled_from(sorted(RANKINGS)), st.floats(1.01, 1e6))
@settings(max_examples=300, deadline=None)
def test_a_site_that_loses_delay_never_falls(any_observation, data, name, factor):
    seen = data.draw(any_observation(least_sites=2))
    site = data.draw(st.sampled_from(np.flatnonzero(round_terms(seen, 0.01).usable).tolist()))
    better = with_links(seen, site, factor)
    assert place(better, name, site) <= place(seen, name, site)


def test_a_site_that_loses_delay_falls_if_the_weight_comes_from_a_median(observe):
    # Why it does not: site 0 is the median and has least delay but one, site 2 power and delay.
    power_w, delay_s = np.array([1.0, 1.0, 1.4]), np.array([1.0, 0.5, 9.0])
    compute_s = 5.0
    nearer_s = np.array([0.6, 0.5, 9.0])
    places = []
    for each_s in (delay_s, nearer_s):
        weight = np.median(each_s) / (np.median(each_s) + compute_s)
        score = power_to_cost(power_w, each_s, weight)
        places.append(int(np.sum(score > score[0])))
    assert places[1] > places[0]
    places = []
    for each_s in (delay_s, nearer_s):
        seen = observe(
            throughput=power_w * 10,
            power_w=power_w,
            delay_s=each_s,
            full_speed=np.full(3, 200 / compute_s),
        )
        places.append(place(seen, "power-to-cost", 0))
    assert places[1] <= places[0]


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_watts_have_no_unit_in_power_to_cost(any_observation, data):
    seen = data.draw(any_observation())
    terms = round_terms(seen, 0.01)
    scaled = round_terms(seen.replace(power_w=seen.power_w * 1024), 0.01)
    np.testing.assert_allclose(power_to_cost_cost(scaled), power_to_cost_cost(terms))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_prefixes_of_round_time_are_the_fastest_sets_under_straggler(any_observation, data):
    seen = data.draw(any_observation())
    terms = round_terms(seen, 0.01)
    order = ranked(round_time_cost(terms), terms.usable)
    round_s = WORK_RULES["straggler"].prefix_times(terms, order).round_s
    k = data.draw(st.integers(1, order.size))
    other = np.array(data.draw(st.permutations(order.tolist())))
    other_s = WORK_RULES["straggler"].prefix_times(terms, other).round_s
    assert round_s[k - 1] <= other_s[k - 1]
