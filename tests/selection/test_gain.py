from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.selection import POLICIES, MissingGains, SelectionSettings, build_policy
from powertrip.selection.gain import PROJECTORS, recent_gain, trend


def test_log_by_hand(observe):
    seen = observe(gains=[9.0, 0.1, 0.3, 0.1, 0.3], interval_rounds=4)
    gain = PROJECTORS["log"].project(seen, 3, np.array([1, 3, 7]))
    # g = 0.2; (1/3)(ln 4/ln 2) = 2/3; 1; (7/3)(ln 4/ln 8) = 14/9
    np.testing.assert_allclose(gain, [0.2 * 2 / 3, 0.2, 0.2 * 14 / 9])


def test_saturating_by_hand(observe):
    seen = observe(gains=[0.2], kappa=6.0)
    gain = PROJECTORS["saturating"].project(seen, 3, np.array([2, 3, 6]))
    # k / (k + 6): 1/4, 1/3, 1/2
    np.testing.assert_allclose(gain, [0.2 * 3 / 4, 0.2, 0.2 * 3 / 2])


def test_oracle_takes_what_was_measured(observe):
    seen = observe(measured_gains={2: 0.3, 3: -0.1})
    gain = PROJECTORS["oracle"].project(seen, 2, np.array([2, 3]))
    np.testing.assert_allclose(gain, [0.3, 1e-12])
    with pytest.raises(MissingGains, match=r"no gain was measured for 4 members .known: \[2, 3\]"):
        PROJECTORS["oracle"].project(seen, 2, np.array([3, 4]))


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([], 1.0),
        ([0.5], 0.5),
        # of the last two rounds -0.1; of all, the median of 1, 0.45, 0.8/3 and three times -0.1
        ([1.0, -0.1, -0.1], (0.8 / 3 - 0.1) / 2),
        ([14.0, -1.0, -1.0, -1.0, -1.0], 2.0),
        ([-1.0, 0.0], 1.0),
        ([0.0], 1.0),
    ],
)
def test_recent_gain_falls_back_to_more_rounds_then_to_their_mean_then_to_one(
    observe, gains, expected
):
    assert recent_gain(observe(gains=gains, interval_rounds=2)) == pytest.approx(expected)


def test_trend_by_hand():
    # losses fall by 0, 1, 3, 3: slopes 1, 1.5, 1, 2, 1, 0; Kendall's S has a deviation of
    # sqrt(4 3 13 / 18) = 2.94, so that the interval is the whole of 0 to 2
    made = trend(np.array([1.0, 2.0, 0.0]))
    assert made.per_round == 1.0
    assert made.uncertainty == 1.0
    assert trend(np.array([0.5])).per_round == 0.5
    assert trend(np.array([0.5])).uncertainty == math.inf
    assert trend(np.full(8, 0.25)).uncertainty == pytest.approx(0)


def test_uncertainty_of_the_trend_is_that_of_its_error():
    rng = np.random.default_rng(0)
    losses = -0.01 * np.arange(13) + rng.normal(0, 0.02, (400, 13))
    made = [trend(-np.diff(line)) for line in losses]
    off = np.array([abs(t.per_round - 0.01) / t.uncertainty for t in made])
    assert 0.6 < np.mean(off < 1) < 0.8
    assert np.mean(off < 3) > 0.98


def with_an_outlier(gains, place, size):
    """The gains, had one of the losses been measured too high."""
    wrong = gains.copy()
    wrong[place] -= size
    if place + 1 < gains.size:
        wrong[place + 1] += size
    return wrong


@pytest.mark.parametrize("size", [-5.0, 5.0])
@pytest.mark.parametrize("rounds", [4, 12])
def test_one_outlying_evaluation_hardly_shows_in_the_trend(observe, rounds, size):
    gains = 0.01 + np.random.default_rng(1).normal(0, 0.001, rounds)
    for place in range(rounds):
        seen = observe(gains=with_an_outlier(gains, place, size), interval_rounds=4)
        assert recent_gain(seen) == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_outlying_evaluation_does_not_move_a_decision(observe, policy):
    choose = build_policy(SelectionSettings(policy=policy, patience=1, margin=0.0)).decide
    seen = observe(
        throughput=[100.0, 90.0, 80.0, 40.0, 5.0],
        delay_s=[0.1, 0.3, 0.2, 0.6, 0.1],
        rebuild_s=0.5,
        members=(0, 1),
        gains=np.full(8, 0.01),
    )
    made = choose(seen)
    for place in range(8):
        wrong = choose(seen.replace(gains=with_an_outlier(seen.gains, place, 5.0)))
        assert (wrong.members, wrong.work) == (made.members, made.work)
        for line, before in zip(wrong.candidates, made.candidates, strict=True):
            assert line.gain == pytest.approx(before.gain, rel=0.2)


@given(
    st.lists(st.floats(-1e18, 1e18), max_size=20),
    st.integers(1, 10**6),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=5),
    st.integers(1, 30),
)
@settings(max_examples=200, deadline=None)
def test_log_is_positive_and_finite_and_grows_with_k(observe, gains, current, counts, interval):
    seen = observe(gains=gains, interval_rounds=interval)
    counts = np.unique(counts)
    gain = PROJECTORS["log"].project(seen, current, counts)
    assert (gain > 0).all()
    assert np.isfinite(gain).all()
    assert (np.diff(gain) > 0).all()
    ratio = gain / PROJECTORS["log"].project(observe(), current, counts)
    assert math.isclose(ratio.max(), ratio.min(), rel_tol=1e-9)
