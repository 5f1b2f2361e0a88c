from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.selection import NoUsableSite, Work
from powertrip.selection.round_time import predicted_round_s, round_terms
from powertrip.selection.work_rules import WORK_RULES


def test_delay_is_round_trip_plus_both_transfers_times_correction(observe):
    seen = observe(
        throughput=[1.0, 1.0, 1.0],
        rtt_s=[0.0, 0.1, 0.02],
        up=[np.inf, 1e6, 4e6],
        down=[np.inf, 2e6, 1e6],
        update_bytes=1_000_000,
        communication_correction=1.5,
    )
    # hub: 0, lifted to the floor; 1.5 (0.1 + 1 + 0.5); 1.5 (0.02 + 0.25 + 1)
    np.testing.assert_allclose(round_terms(seen, 0.01).delay_s, [0.01, 2.4, 1.905])


def test_no_link_is_an_infinite_delay(observe):
    seen = observe(up=[0.0, 1e6, 1e6], reachable=[True, False, True])
    assert np.isposinf(round_terms(seen, 0.01).delay_s[:2]).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"throughput": [100.0, 0.0]},
        {"power_w": [1.0, 0.0]},
        {"reachable": [True, False]},
        {"up": [1.0, 0.0]},
        {"down": [1e6, 0.0]},
        {"throughput": [100.0, 1e-300]},
    ],
)
def test_a_site_without_power_or_link_is_not_usable(observe, changes):
    seen = observe(**{"throughput": [100.0, 100.0]} | changes)
    assert round_terms(seen, 0.01).usable.tolist() == [True, False]


def test_nobody_usable_is_an_error_that_says_why(observe):
    seen = observe(throughput=[0.0, 5.0, 0.0], reachable=[True, False, True])
    with pytest.raises(NoUsableSite, match=r"none of 3 sites.* 1 have power, 2 have a link"):
        round_terms(seen, 0.01)


def test_straggler_prefixes_by_hand(observe):
    # 20 steps of 10 samples: 2, 4 and 1 s of computing
    seen = observe(throughput=[100.0, 50.0, 200.0], delay_s=[0.5, 0.25, 3.5])
    terms = round_terms(seen, 0.01)
    times = WORK_RULES["straggler"].prefix_times(terms, np.array([0, 1, 2]))
    np.testing.assert_allclose(times.round_s, [2.5, 4.25, 4.5])
    np.testing.assert_allclose(times.compute_s, [2.0, 4.0, 1.0])
    np.testing.assert_allclose(times.communication_s, [0.5, 0.25, 3.5])
    assert WORK_RULES["straggler"].work(terms, np.array([2, 0])) == Work(steps=(20, 20))


def test_pooled_prefixes_by_hand(observe):
    # 3 sites x 20 steps x 10 samples = 600 samples a round
    seen = observe(throughput=[100.0, 50.0, 250.0], delay_s=[0.5, 0.25, 3.5])
    terms = round_terms(seen, 0.01)
    times = WORK_RULES["pooled"].prefix_times(terms, np.array([0, 1, 2]))
    np.testing.assert_allclose(times.compute_s, [6.0, 4.0, 1.5])
    np.testing.assert_allclose(times.communication_s, [0.5, 0.5, 3.5])
    assert WORK_RULES["pooled"].work(terms, np.array([0, 1])) == Work(steps=(40, 20))


def test_pooled_steps_that_do_not_divide_go_where_they_end_first(observe):
    # 4 steps among speeds 3:2:2 are 1.71, 1.14, 1.14; the last step ends first at site 0
    seen = observe(throughput=[30.0, 20.0, 20.0, 0.0], delay_s=[0.1] * 4, base_steps=1)
    terms = round_terms(seen, 0.01)
    assert WORK_RULES["pooled"].work(terms, np.array([0, 1, 2])) == Work(steps=(2, 1, 1))


def test_pooled_gives_a_feeble_site_one_step_and_counts_its_time(observe):
    seen = observe(throughput=[1000.0, 1.0], delay_s=[0.1, 0.1], base_steps=5)
    terms = round_terms(seen, 0.01)
    members = np.array([0, 1])
    work = WORK_RULES["pooled"].work(terms, members)
    assert work.steps == (9, 1)
    assert predicted_round_s(terms, members, work) == pytest.approx(10.1)
    times = WORK_RULES["pooled"].prefix_times(terms, members)
    assert times.round_s[1] == pytest.approx(10.1)


def test_round_with_deadlines_ends_with_the_last_exchange(observe):
    terms = round_terms(observe(delay_s=[0.5, 1.0, 2.0]), 0.01)
    work = Work(deadline_s=(4.5, 3.5))
    assert predicted_round_s(terms, np.array([0, 2]), work) == pytest.approx(5.5)


def test_with_overlap_the_longer_of_training_and_exchange_counts(observe):
    # base work: 2, 4 and 1 s
    terms = round_terms(observe(delay_s=[0.5, 0.25, 3.5], overlap=True), 0.01)
    assert terms.own_s.tolist() == [2.0, 4.0, 3.5]
    times = WORK_RULES["straggler"].prefix_times(terms, np.array([0, 2, 1]))
    np.testing.assert_allclose(times.round_s, [2.0, 3.5, 4.0])
    np.testing.assert_allclose(times.communication_s, [0.0, 2.5, 0.0])
    # 600 samples shared by 100, 300 and 350 a second
    pooled = WORK_RULES["pooled"].prefix_times(terms, np.array([0, 2, 1]))
    np.testing.assert_allclose(pooled.round_s, [6.0, 3.5, 3.5])
    assert predicted_round_s(terms, np.arange(3), Work(deadline_s=(3.0, 2.0, 1.0))) == 3.5


@given(st.data(), st.sampled_from(["straggler", "pooled"]), st.booleans())
@settings(max_examples=100, deadline=None)
def test_prefixes_agree_with_the_definition(any_observation, data, name, overlap):
    seen = data.draw(any_observation()).replace(overlap=overlap)
    terms = round_terms(seen, 0.01)
    order = np.random.default_rng(0).permutation(np.flatnonzero(terms.usable))
    rule = WORK_RULES[name]
    round_s = rule.prefix_times(terms, order).round_s
    for k in range(1, order.size + 1):
        members = order[:k]
        speed = seen.throughput[members]
        delay_s = terms.delay_s[members]
        if name == "straggler":
            local_s = seen.base_steps[members] * seen.batch_size / speed
            expected = max(np.maximum(local_s, delay_s) if overlap else local_s + delay_s)
        else:
            total = seen.base_steps.sum() * seen.batch_size
            shared_s = total / sum(speed)
            local_s = max(shared_s, max(seen.batch_size / speed))
            expected = max(local_s, *delay_s) if overlap else local_s + max(delay_s)
        assert round_s[k - 1] == pytest.approx(expected)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_pooled_work_is_the_fixed_total_at_balanced_times(any_observation, data):
    seen = data.draw(any_observation())
    terms = round_terms(seen, 0.01)
    members = np.flatnonzero(terms.usable)
    steps = np.array(WORK_RULES["pooled"].work(terms, members).steps)
    total = seen.base_steps.sum()
    assert steps.min() >= 1
    assert steps.sum() == total or (steps.sum() > total and steps.min() == 1)
    # nobody with more than the minimum works longer than one of its steps over the fair time
    fair_s = total / np.sum(1 / terms.step_s[members])
    more = steps > 1
    assert (((steps - 1) * terms.step_s[members])[more] <= fair_s * (1 + 1e-9)).all()
