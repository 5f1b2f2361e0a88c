from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.selection import MissingGains
from powertrip.selection.gain import PROJECTORS, recent_gain


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
    [([], 1.0), ([0.5], 0.5), ([1.0, -0.1, -0.1], 0.8 / 3), ([-1.0, 0.0], 1.0), ([0.0], 1.0)],
)
def test_recent_gain_falls_back_to_all_rounds_then_to_one(observe, gains, expected):
    assert recent_gain(observe(gains=gains, interval_rounds=2)) == pytest.approx(expected)


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
