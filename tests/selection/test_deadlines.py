from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.selection import SelectionSettings, build_policy
from powertrip.selection.deadlines import (
    Crew,
    expected_steps,
    prefix_sums,
    whole_steps,
    worth,
)
from powertrip.selection.round_time import round_terms
from powertrip.selection.work_rules import WORK_RULES

NONE = np.empty((0, 3))


@pytest.fixture
def three(observe):
    # steps of 0.1, 0.2 and 0.05 s
    return observe(throughput=[100.0, 50.0, 200.0], delay_s=[0.5, 0.25, 3.5], h0=10.0)


def test_worth_by_hand():
    np.testing.assert_allclose(worth(np.array([0.0, 1.0, 10.0, 30.0]), 10.0), [0, 10 / 11, 5, 7.5])


def test_steps_until_the_deadline_by_hand(three):
    terms = round_terms(three, 0.01)
    members = np.array([0, 1])
    # 0.7 - 0.5 = 0.2 s: 2 steps, the second ends with the deadline; 0.45 s: 2 steps
    local_s = 0.7 - terms.delay_s[members]
    assert whole_steps(local_s, terms.step_s[members]).tolist() == [2, 2]
    assert whole_steps(np.array([-1.0]), np.array([0.1])).tolist() == [0]
    # at 0.72 s they do no more; two steps are worth 2 / 1.2
    crew = Crew.of(terms, members)
    np.testing.assert_allclose(crew.trimmed_s([0.72, 0.7]), [0.7, 0.7])
    np.testing.assert_allclose(crew.worth([0.7, 0.55]), [4 / 1.2, 0.0])
    assert crew.shortest_s == pytest.approx(0.6)
    assert crew.work(0.7).deadline_s == pytest.approx((0.2, 0.45))


def test_sums_by_hand(three):
    terms = round_terms(three, 0.01)
    sums = prefix_sums(terms, np.array([1, 0, 2]), 0.7, np.array([[10.0, 20.0, 30.0]]))
    # two steps each are worth 2 / 1.2; site 2 can do none
    np.testing.assert_allclose(sums.worth, [2 / 1.2, 4 / 1.2, 0.0])
    np.testing.assert_allclose(sums.drawn[0, :2], [9.0, 11.0])


def test_best_round_by_hand(observe):
    # alone: H steps in 0.5 + 0.1 H s bring H / (1 + H/10); best at H = sqrt(0.5 * 10 / 0.1) = 7
    terms = round_terms(observe(throughput=[100.0], delay_s=[0.5], h0=10.0), 0.01)
    assert Crew.of(terms, np.array([0])).best_round_s() == pytest.approx(1.2)


def test_the_whole_set_sets_the_deadline_in_a_mesh(observe):
    seen = observe(
        throughput=[100.0, 50.0, 200.0],
        exchange_model="mesh",
        pair_rtt_s=np.full((3, 3), 0.4),
        pair_bandwidth=np.full((3, 3), np.inf),
    )
    terms = round_terms(seen, 0.01)
    sums = prefix_sums(terms, np.array([0, 2, 1]), 0.4, NONE)
    # 0.4 s are 4, 8 and 2 steps; then an exchange, which takes 0.01 s alone, else two of 0.2 s
    np.testing.assert_allclose(sums.round_s, [0.41, 0.8, 0.8])
    expected = [4 / 1.4, 4 / 1.4 + 8 / 1.8, 4 / 1.4 + 8 / 1.8 + 2 / 1.2]
    np.testing.assert_allclose(sums.worth, expected)
    assert Crew.of(terms, np.array([0, 2])).work(0.8).deadline_s == pytest.approx((0.4, 0.4))


def test_with_overlap_by_hand(three):
    terms = round_terms(three.replace(overlap=True), 0.01)
    crew = Crew.of(terms, np.array([0, 1]))
    # An exchange of 0.5 s needs a round as long; in it they do 5 steps of 0.1 s and 2 of 0.2 s.
    assert crew.shortest_s == 0.5
    assert crew.steps([0.49, 0.5, 0.72]).tolist() == [[0, 2], [5, 2], [7, 3]]
    np.testing.assert_allclose(crew.trimmed_s([0.72, 0.55]), [0.7, 0.5])
    assert crew.work(0.7).deadline_s == (0.7, 0.7)
    assert crew.added_s(0.7).tolist() == [0.0, 0.0]
    sums = prefix_sums(terms, np.array([1, 0, 2]), 0.7, np.array([[10.0, 20.0, 30.0]]))
    # 3 and 7 steps; the exchange of site 2 does not fit
    np.testing.assert_allclose(sums.worth, [3 / 1.3, 3 / 1.3 + 7 / 1.7, 0.0])
    np.testing.assert_allclose(sums.drawn[0, :2], [14.0, 21.0])


def test_with_overlap_in_a_mesh_by_hand(observe):
    seen = observe(
        throughput=[100.0, 50.0, 200.0],
        exchange_model="mesh",
        pair_rtt_s=np.full((3, 3), 0.4),
        pair_bandwidth=np.full((3, 3), np.inf),
        overlap=True,
    )
    terms = round_terms(seen, 0.01)
    sums = prefix_sums(terms, np.array([0, 2, 1]), 0.3, NONE)
    # 0.3 s are 3, 6 and 1 steps; an exchange takes 0.01 s alone, else 0.4 s
    np.testing.assert_allclose(sums.round_s, [0.3, 0.4, 0.4])
    expected = np.cumsum([3 / 1.3, 6 / 1.6, 1 / 1.1])
    np.testing.assert_allclose(sums.worth, expected)
    assert Crew.of(terms, np.array([0, 2])).work(0.5).deadline_s == (0.5, 0.5)


def test_as_a_work_rule_by_hand(observe):
    seen = observe(throughput=[100.0], delay_s=[0.5], h0=10.0)
    times = WORK_RULES["together"].prefix_times(round_terms(seen, 0.01), np.array([0]))
    assert times.communication_s[0] == pytest.approx(0.5)
    # near the best, which lies between two lengths that are weighed
    assert times.worth[0] / times.round_s[0] == pytest.approx(7 / 1.7 / 1.2, rel=0.05)


def test_expected_steps(three):
    made = build_policy(SelectionSettings(policy="static-k", k=2, work="together")).decide(three)
    assert made.members == (0, 1)
    local_s = np.array(made.work.deadline_s)
    expected = np.floor(local_s / [0.1, 0.2] + 1e-6)
    assert expected_steps(three, made).tolist() == expected.tolist()
    slower = three.replace(throughput=[0.1, 50.0, 200.0])
    assert expected_steps(slower, made)[0] == 1
    straggler = build_policy(SelectionSettings(policy="static-k", k=2)).decide(three)
    assert expected_steps(three, straggler).tolist() == [20, 20]


@given(st.data(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_all_end_together_and_no_other_length_is_better(any_observation, data, overlap):
    seen = data.draw(any_observation()).replace(overlap=overlap)
    terms = round_terms(seen, 0.01)
    members = np.flatnonzero(terms.usable)
    crew = Crew.of(terms, members)
    round_s = crew.best_round_s()
    local_s = np.array(crew.work(round_s).deadline_s)
    expected_s = 0.0 if overlap else terms.delay_s[members]
    np.testing.assert_allclose(local_s + expected_s, round_s)
    assert (terms.delay_s[members] <= round_s).all()

    def per_second(length_s):
        steps = whole_steps(length_s - expected_s, terms.step_s[members])
        return worth(steps, terms.h0).sum() / length_s

    assert whole_steps(local_s, terms.step_s[members]).min() >= 1
    for factor in (1.05, 1.3, 2.0, 8.0):
        assert per_second(round_s * factor) <= per_second(round_s) * 1.02


def test_mean_and_pooled_paper_by_hand(observe):
    # at full speed 200: 1 s for the base work; fractions 0.5, 0.25, 1
    seen = observe(throughput=[100.0, 50.0, 200.0], delay_s=[0.5, 0.25, 3.5])
    terms = round_terms(seen, 0.01)
    mean = WORK_RULES["mean"].prefix_times(terms, np.arange(3))
    np.testing.assert_allclose(mean.compute_s, [2, 1 / 0.375, 1 / (1.75 / 3)])
    np.testing.assert_allclose(mean.communication_s, [0.5, 0.5, 3.5])
    paper = WORK_RULES["pooled-paper"].prefix_times(terms, np.arange(3))
    np.testing.assert_allclose(paper.compute_s, [6, 4, 600 / 350])
    for name in ("mean", "pooled-paper"):
        assert WORK_RULES[name].work(terms, np.arange(2)).steps == (20, 20)
