from __future__ import annotations

from types import SimpleNamespace

import pytest

from powertrip.coordination.messages import Begin
from powertrip.runtime import clock
from powertrip.runtime.clock import MeasuredTime, TrainingClock


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


def begin(members, *, newcomers=()) -> Begin:
    return Begin(
        generation=1, members=members, steps=(1,) * len(members), deadline_s=None, first_round=1,
        clock_s=0.0, transfers=[{"donor": 9, "newcomer": site} for site in newcomers],
    )  # fmt: skip


def report(site, **times):
    return SimpleNamespace(site=site, **times)


def test_measured_time_is_the_wall_without_evaluations(wall):
    measured = MeasuredTime()
    wall.now_s += 20.0
    assert measured.now_s() == 0.0
    measured.start()
    wall.now_s += 1.0
    assert measured.announce(1, rebuild=True, meanwhile=None, round_=0) == 1.0
    wall.now_s += 6.0
    reports = [
        report(0, local_s=2.0, exchange_s=3.0, evaluation_s=0.5, rebuild_s=0.1),
        report(1, local_s=4.0, exchange_s=1.0, evaluation_s=1.5, rebuild_s=0.2),
    ]
    first = measured.account(begin((0, 1)), reports)
    assert (first.start_s, first.end_s) == (0.0, 7.0 - 1.5)
    assert first.local_s == (2.0, 4.0)
    assert (first.times.local_s, first.times.exchange_s) == (4.0, 1.0)
    assert (first.times.evaluation_s, first.times.rebuild_s) == (1.5, 0.2)
    wall.now_s += 2.0
    # Rome waits for the model for as long as the others are still in the round before.
    second = measured.account(begin((0, 1), newcomers=(1,)), reports)
    assert (second.start_s, second.end_s) == (5.5, 6.0)
    assert second.times.rebuild_s == 0.1
    assert measured.now_s() == 6.0
