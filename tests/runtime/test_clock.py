from __future__ import annotations

import pytest

from powertrip.runtime import clock
from powertrip.runtime.clock import TrainingClock


@pytest.fixture
def wall(monkeypatch):
    """The clock on the wall, which only the test moves."""

    class Wall:
        now_s = 1000.0

    monkeypatch.setattr(clock.time, "monotonic", lambda: Wall.now_s)
    return Wall


def test_it_counts_from_its_making(wall):
    training = TrainingClock()
    wall.now_s += 2.5
    assert training.now_s() == 2.5


def test_evaluation_does_not_count(wall):
    training = TrainingClock()
    wall.now_s += 5
    training.set_apart(2)
    assert training.now_s() == 3
    wall.now_s += 4
    training.set_apart(1)
    assert training.now_s() == 6


def test_it_follows_another_clock(wall):
    training = TrainingClock()
    wall.now_s += 5
    training.set_apart(2)
    training.set(40.0)
    assert training.now_s() == 40
    wall.now_s += 3
    training.set_apart(1)
    assert training.now_s() == 42
