import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powertrip.world.steps import AfterEnd, StepFunction, constant

# 10 for 2 s, 0 for 3 s, 4 for 5 s: 40 in a period of 10 s.
TIMES, VALUES, END_S = np.array([0.0, 2.0, 5.0]), np.array([10.0, 0.0, 4.0]), 10.0


def function(after_end: AfterEnd) -> StepFunction:
    return StepFunction(TIMES, VALUES, END_S, after_end)


@pytest.mark.parametrize(
    ("after_end", "expected"),
    [
        ("loop", [10, 10, 0, 4, 4, 10, 0]),
        ("hold", [10, 10, 0, 4, 4, 4, 4]),
        ("zero", [10, 10, 0, 4, 4, 0, 0]),
    ],
)
def test_value_holds_from_each_time_on_and_then_as_told(after_end, expected):
    at = function(after_end).at([0.0, 1.999, 2.0, 5.0, 9.999, 10.0, 12.5])
    assert at.tolist() == expected


@pytest.mark.parametrize(
    ("after_end", "start_s", "stop_s", "expected"),
    [
        ("loop", 0, 10, 40),
        ("loop", 1, 6, 14),
        ("loop", 1, 31, 120),
        ("loop", 8, 11, 18),
        ("hold", 8, 20, 48),
        ("zero", 8, 20, 8),
        ("zero", 30, 50, 0),
        ("hold", 3, 3, 0),
    ],
)
def test_integral_by_hand(after_end, start_s, stop_s, expected):
    assert function(after_end).integral(start_s, stop_s) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("after_end", "start_s", "amount", "expected"),
    [
        ("loop", 0, 10, 1),
        ("loop", 0, 20, 2),  # reached before the power fails, not after
        ("loop", 0, 24, 6),
        ("loop", 3, 20, 10),
        ("loop", 0, 80, 20),
        ("loop", 0, 400, 100),
        ("hold", 0, 60, 15),
        ("zero", 0, 40, 10),
        ("zero", 0, 40.001, math.inf),
        ("zero", 12, 1, math.inf),
        ("loop", 3, 0, 3),
    ],
)
def test_reach_by_hand(after_end, start_s, amount, expected):
    assert function(after_end).reach(start_s, amount) == pytest.approx(expected)


def test_nothing_is_ever_reached_without_any_power():
    for after_end in ("loop", "hold", "zero"):
        none = StepFunction(TIMES, np.zeros(3), END_S, after_end)
        assert none.reach(1.0, 1e-9) == math.inf
        assert none.integral(0.0, 1e9) == 0


def test_constant_lasts_for_ever():
    assert constant(3.0).integral(100.0, 1e6) == pytest.approx(3 * (1e6 - 100))
    assert constant(3.0).reach(5.0, 3e9) == pytest.approx(1e9 + 5)
    assert constant(3.0).at(1e12) == 3.0


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="cannot integrate"):
        function("loop").integral(2.0, 1.0)
    with pytest.raises(ValueError, match="cannot integrate"):
        function("loop").integral(math.nan, 1.0)
    with pytest.raises(ValueError, match="cannot look for"):
        function("loop").reach(0.0, -1.0)


@st.composite
def functions(draw):
    lengths = draw(st.lists(st.floats(0.01, 1000), min_size=1, max_size=8))
    values = draw(
        st.lists(st.just(0.0) | st.floats(0.01, 1000), min_size=len(lengths), max_size=len(lengths))
    )
    ends = np.cumsum(lengths)
    times = np.concatenate(([0.0], ends[:-1]))
    after_end = draw(st.sampled_from(["loop", "hold", "zero"]))
    return StepFunction(times, np.array(values), float(ends[-1]), after_end)


@given(functions(), st.floats(0, 5000), st.floats(0.001, 5000))
def test_reach_inverts_integral(f, start_s, amount):
    stop_s = f.reach(start_s, amount)
    if math.isinf(stop_s):
        assert f.integral(start_s, 1e9) < amount * (1 + 1e-6) or not f.values.any()
    else:
        assert f.integral(start_s, stop_s) == pytest.approx(amount, rel=1e-6, abs=1e-6)


@given(functions(), st.floats(0, 5000), st.floats(0, 5000), st.floats(0, 5000))
def test_integral_adds_up(f, start_s, first_s, second_s):
    middle_s = start_s + first_s
    stop_s = middle_s + second_s
    whole = f.integral(start_s, stop_s)
    parts = f.integral(start_s, middle_s) + f.integral(middle_s, stop_s)
    assert whole == pytest.approx(parts, rel=1e-9, abs=1e-5)


@given(functions(), st.floats(0, 3000), st.floats(0.1, 3000))
def test_integral_is_the_sum_of_the_values(f, start_s, duration_s):
    edges = np.linspace(start_s, start_s + duration_s, 2001)
    middles = (edges[1:] + edges[:-1]) / 2
    width = duration_s / 2000
    # Each jump of the function lies in one cell of the sum, and errs there by the jump at most.
    jumps = (2 + duration_s / f.end_s) * (len(f.values) + 1)
    error = jumps * width * f.values.max()
    total = f.integral(start_s, start_s + duration_s)
    assert total == pytest.approx(float(f.at(middles).sum() * width), abs=error + 1e-6)
