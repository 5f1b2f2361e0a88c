import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powertrip.world.errors import TraceError
from powertrip.world.trace import trace_from_samples


def trace(times, watts, *, max_gap_s=1000.0, **options):
    return trace_from_samples(times, watts, after_end="loop", max_gap_s=max_gap_s, **options)


def test_unsorted_samples_are_sorted_and_start_at_zero():
    made = trace([300, 0, 100, 200], [4, 1, 2, 3])
    assert made.times_s.tolist() == [0, 100, 200, 300]
    assert made.values.tolist() == [1, 2, 3, 4]
    assert made.end_s == 400
    assert trace([1700, 1600], [2, 1]).times_s.tolist() == [0, 100]


def test_missing_samples_are_interpolated():
    made = trace([0, 10, 20, 60, 70], [1, 2, 4, 12, 0])
    assert made.times_s.tolist() == [0, 10, 20, 30, 40, 50, 60, 70]
    assert made.values.tolist() == [1, 2, 4, 6, 8, 10, 12, 0]
    assert made.end_s == 80


def test_slight_jitter_makes_no_samples():
    made = trace([0, 10, 20, 34, 40, 50], [1, 2, 3, 4, 5, 6])
    assert made.times_s.tolist() == [0, 10, 20, 34, 40, 50]


def test_irregular_values_hold():
    made = trace([0, 10, 60], [1, 2, 3])
    assert made.at([9.9, 10, 59, 60]).tolist() == [1, 2, 2, 3]
    assert made.end_s == 90


def test_single_sample_holds_for_ever():
    assert trace([50], [7]).at([0, 1e9]).tolist() == [7, 7]


def test_first_value_holds_from_the_origin_on():
    made = trace([20, 30, 40], [5, 6, 7], origin_s=0.0)
    assert made.at([0, 19, 29, 30]).tolist() == [5, 5, 5, 6]
    assert made.end_s == 50


@pytest.mark.parametrize(
    ("times", "watts", "message"),
    [
        ([], [], "has no samples"),
        ([0, 1], [1.0], "2 times do not go with 1 powers"),
        ([0, 1, 2], [1, float("nan"), 2], "sample 1: the power is nan"),
        ([0, float("inf"), 2], [1, 1, 2], "sample 1: the time is inf"),
        ([0, 1, 2], [1, 1, -3.5], r"sample 2: the power is -3.5 W; write 0 or more"),
        ([5, 1, 5], [1, 1, 1], r"the time 5 s appears twice \(sample 0 and sample 2\)"),
        ([0, 10, 2000], [1, 1, 1], r"gap of 1990 s from 10 s to 2000 s; raise max_gap_s"),
    ],
)
def test_bad_samples_are_refused(times, watts, message):
    with pytest.raises(TraceError, match=message):
        trace(times, watts)


def test_late_start_is_a_gap():
    with pytest.raises(TraceError, match="begins with a gap of 1500 s"):
        trace([1500, 1600], [1, 2], origin_s=0.0)


def test_messages_name_source_and_lines():
    with pytest.raises(TraceError, match=r"power\.csv, line 9: the power is -1 W"):
        trace([0, 1], [1, -1], source="power.csv", lines=[4, 9])


@given(
    st.sets(st.integers(0, 60), min_size=31, max_size=61),
    st.floats(-50, 50),
    st.floats(4e3, 1e4),
)
def test_samples_of_a_line_come_back_whole(kept, slope, base):
    kept |= {0, 60}
    times = 300 * np.array(sorted(kept), dtype=float)
    steps = np.diff(sorted(kept))
    made = trace(times, base + slope * times / 300, max_gap_s=1e9)
    if (steps == 1).sum() * 2 > steps.size:
        assert made.times_s == pytest.approx(300.0 * np.arange(61))
        assert made.values == pytest.approx(base + slope * np.arange(61.0))
        assert made.end_s == pytest.approx(61 * 300)
    assert (np.diff(made.times_s) > 0).all()
