from __future__ import annotations

import math

import pytest

from powertrip.coordination.limits import TimeLimits

FLOOR_S, CEILING_S = 1.0, 30.0


@pytest.fixture
def limits():
    return TimeLimits(FLOOR_S, CEILING_S)


def test_before_three_rounds_are_measured_a_round_may_take_long(limits):
    assert limits.round_s(4.0) == 3 * 4.0 + CEILING_S
    for _ in range(2):
        limits.learn(4.0, 4.0)
    assert limits.round_s(4.0) == 3 * 4.0 + CEILING_S
    limits.learn(4.0, 4.0)
    assert limits.round_s(4.0) < 3 * 4.0


def test_where_the_pace_is_modelled_the_first_rounds_are_waited_for_less_long():
    assert TimeLimits(FLOOR_S, CEILING_S, paced=True).round_s(4.0) == 3 * 4.0 + 5 * FLOOR_S


def test_equal_rounds_leave_a_slack_of_half_of_one(limits):
    for _ in range(5):
        limits.learn(4.0, 8.0)  # twice what is predicted, always
    assert limits.round_s(4.0) == pytest.approx(8 + 4)
    assert limits.round_s(10.0) == pytest.approx(20 + 10)  # as the prediction goes, so the limit


def test_the_slack_has_a_floor_and_a_ceiling(limits):
    for _ in range(5):
        limits.learn(1.0, 1.0)
    assert limits.round_s(0.1) == pytest.approx(0.1 + FLOOR_S)
    assert limits.round_s(1000.0) == pytest.approx(1000 + CEILING_S)


def test_rounds_that_differ_leave_six_deviations(limits):
    for factor in (0.9, 1.0, 1.0, 1.1, 1.2):
        limits.learn(2.0, 2.0 * factor)
    # Logarithms around their median log 1.0: |.| = .105, 0, 0, .0953, .182; their median is .0953.
    deviation = 1.4826 * math.log(1.1)
    assert limits.round_s(2.0) == pytest.approx(2.0 * math.exp(6 * deviation))


def test_one_slow_round_of_many_changes_little(limits):
    for _ in range(19):
        limits.learn(1.0, 1.0)
    calm_s = limits.round_s(10.0)
    limits.learn(1.0, 100.0)
    assert limits.round_s(10.0) == pytest.approx(calm_s)


def test_rounds_of_long_ago_are_forgotten(limits):
    for _ in range(20):
        limits.learn(1.0, 5.0)
    for _ in range(20):
        limits.learn(1.0, 1.0)
    assert limits.round_s(10.0) == pytest.approx(15.0)


@pytest.mark.parametrize("nothing", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_time_says_nothing(limits, nothing):
    for _ in range(5):
        limits.learn(nothing, 1.0)
        limits.learn(1.0, nothing)
    assert limits.round_s(1.0) == 3 + CEILING_S


def test_wild_rounds_have_a_limit_too(limits):
    for power in range(20):
        limits.learn(1.0, 10.0 ** (power * 5 - 50))
    assert math.isfinite(limits.round_s(1.0))


def test_the_limit_of_joining_follows_what_it_is_expected_to_take(limits):
    assert limits.join_s(0.0, 0.0) == 2 * FLOOR_S
    assert limits.join_s(1.0, 2.0) == 9 + 9
    assert limits.join_s(1e6, 0.0) == 2 * CEILING_S


def test_a_floor_above_the_ceiling_raises_it():
    limits = TimeLimits(10.0, 1.0)
    assert limits.round_s(1.0) == 3 + 10
