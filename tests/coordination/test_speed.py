from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powertrip.coordination.speed import steps_by_deadline
from tests.steady import Steady


@pytest.mark.parametrize(
    ("deadline_s", "steps"),
    [(0.0, 1), (-1.0, 1), (0.05, 1), (0.1, 1), (0.19, 1), (0.2, 2), (0.3, 3), (0.7, 7), (9.99, 99)],
)
def test_whole_steps_by_a_deadline(deadline_s, steps):
    assert steps_by_deadline(Steady(), 3, 0.0, deadline_s, 10) == steps


@given(
    st.floats(0.1, 1e4), st.floats(0, 1e4), st.floats(0, 100), st.floats(0, 100), st.integers(1, 64)
)
def test_steps_by_a_deadline_end_before_it(speed, start_s, change_s, deadline_s, batch_size):
    world = Steady(speed, change_s=change_s)
    steps = steps_by_deadline(world, 3, start_s, deadline_s, batch_size)
    assert steps >= 1
    slack_s = 1e-6 * (start_s + deadline_s + 1)
    if steps > 1:
        assert world.seconds_for(3, start_s, steps * batch_size) <= deadline_s + slack_s
    assert world.seconds_for(3, start_s, (steps + 1) * batch_size) >= deadline_s - slack_s
