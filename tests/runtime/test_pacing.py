from __future__ import annotations

import math
import threading
from types import SimpleNamespace

import pytest

from powertrip.runtime import pacing
from powertrip.runtime.pacing import Pacer
from tests.steady import Steady


@pytest.fixture
def wall(monkeypatch):
    """The clock of the pacer, moved by the test and by waits on `stop`, which take no time."""

    class Stop:
        """An event whose waits move the clock, and that sets itself at a time of that clock."""

        def __init__(self) -> None:
            self.at_s = math.inf
            self.waits: list[float] = []

        def is_set(self) -> bool:
            return clock.now_s >= self.at_s

        def wait(self, timeout: float) -> bool:
            self.waits.append(timeout)
            clock.now_s = min(clock.now_s + max(timeout, 1e-9), max(self.at_s, clock.now_s))
            return self.is_set()

    clock = SimpleNamespace(now_s=500.0)
    clock.stop = Stop()
    monkeypatch.setattr(pacing.time, "monotonic", lambda: clock.now_s)
    return clock


def make(wall, world=None, *, start_s=0.0, steps=None, deadline_s=None, **options) -> Pacer:
    options = {"paced": True, "modelled_clock": False} | options
    return Pacer(
        world or Steady(), 3, start_s, batch_size=10, steps=steps, deadline_s=deadline_s,
        stop=wall.stop, **options,
    )  # fmt: skip


def train(wall, pacer: Pacer, compute_s=0.0, samples=10) -> list[float]:
    """Step while the pacer allows it; returns when each step ended."""
    began_s = wall.now_s
    ends: list[float] = []
    costs = iter(compute_s) if isinstance(compute_s, list) else None
    while pacer.allows(len(ends)):
        wall.now_s += next(costs) if costs else compute_s
        pacer.step_done(samples)
        ends.append(wall.now_s - began_s)
        assert len(ends) < 1000
    return ends


def test_steps_end_when_the_site_would_have_ended_them(wall):
    assert train(wall, make(wall, steps=4)) == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_the_pace_follows_the_power_within_a_round(wall):
    world = Steady(change_s=7.25)
    ends = train(wall, make(wall, world, start_s=7.0, steps=5), compute_s=0.01)
    # 25 samples at 100/s, the other 25 at 50/s.
    assert ends == pytest.approx([0.1, 0.2, 0.25 + 0.1, 0.25 + 0.3, 0.25 + 0.5])


def test_the_last_batch_may_be_smaller(wall):
    pacer = make(wall, steps=2)
    pacer.step_done(10)
    pacer.step_done(4)
    assert wall.now_s - 500 == pytest.approx(0.14)


def test_a_late_step_is_caught_up_by_the_next(wall):
    ends = train(wall, make(wall, steps=4), compute_s=[0.17, 0.02, 0.02, 0.02])
    assert ends == pytest.approx([0.17, 0.2, 0.3, 0.4])


def test_lag_is_how_far_the_last_step_was_late(wall):
    pacer = make(wall, steps=3)
    train(wall, pacer, compute_s=0.16)
    assert pacer.lag_s == pytest.approx(0.18)
    pacer = make(wall, steps=3)
    train(wall, pacer, compute_s=[0.25, 0.01, 0.01])
    assert pacer.lag_s == pytest.approx(0, abs=1e-9)


def test_without_pacing_the_machine_sets_the_speed(wall):
    pacer = make(wall, steps=3, paced=False)
    assert train(wall, pacer, compute_s=0.25) == pytest.approx([0.25, 0.5, 0.75])
    assert wall.stop.waits == []
    assert pacer.lag_s == 0


def test_no_step_is_begun_that_would_end_after_the_deadline(wall):
    ends = train(wall, make(wall, deadline_s=0.35), compute_s=0.01)
    assert ends == pytest.approx([0.1, 0.2, 0.3])


def test_a_step_that_ends_with_the_deadline_is_done(wall):
    world = Steady(speed=80.0)  # a step takes an eighth of a second, exactly
    assert len(train(wall, make(wall, world, deadline_s=0.5))) == 4


def test_steps_that_get_faster_fit_before_the_deadline(wall):
    # The first step takes a second, the others a tenth.
    world = Steady(10.0, change_s=1.0, later=10.0)
    ends = train(wall, make(wall, world, deadline_s=1.35), compute_s=0.01)
    assert ends == pytest.approx([1.0, 1.1, 1.2, 1.3])


def test_a_machine_too_slow_for_its_power_obeys_the_deadline_all_the_same(wall):
    ends = train(wall, make(wall, deadline_s=1.0), compute_s=0.3)
    assert ends == pytest.approx([0.3, 0.6, 0.9])


def test_a_deadline_binds_without_pacing_too(wall):
    ends = train(wall, make(wall, deadline_s=1.0, paced=False), compute_s=0.3)
    assert ends == pytest.approx([0.3, 0.6, 0.9])


@pytest.mark.parametrize("paced", [True, False])
@pytest.mark.parametrize("modelled_clock", [True, False])
def test_the_first_step_is_always_done(wall, paced, modelled_clock):
    pacer = make(wall, deadline_s=0.001, paced=paced, modelled_clock=modelled_clock)
    assert len(train(wall, pacer, compute_s=0.25)) == 1


def test_even_a_run_that_ends_gets_the_first_step(wall):
    wall.stop.at_s = 0
    pacer = make(wall, steps=5)
    assert train(wall, pacer, compute_s=0.01) == pytest.approx([0.01])


def test_a_stop_ends_the_wait_and_the_round(wall):
    wall.stop.at_s = 500.25
    pacer = make(wall, steps=10)
    assert train(wall, pacer, compute_s=0.01) == pytest.approx([0.1, 0.2, 0.25])


def test_a_site_without_power_waits_for_the_stop_alone(wall):
    wall.stop.at_s = 500 + 10_000.0
    pacer = make(wall, Steady(dark_s=0.25), steps=10)
    assert train(wall, pacer, compute_s=0.01) == pytest.approx([0.1, 0.2, 10_000])
    assert max(wall.stop.waits) <= 3600


def test_a_deadline_ends_the_round_of_a_site_whose_power_goes(wall):
    pacer = make(wall, Steady(dark_s=0.25), deadline_s=5.0)
    assert train(wall, pacer, compute_s=0.01) == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("compute_s", [0.0, 0.2])
@pytest.mark.parametrize("paced", [True, False])
def test_under_the_modelled_clock_a_deadline_is_a_number_of_steps(wall, paced, compute_s):
    # 40 samples until second 8, then 50/s for the other 0.5 s: 65 samples, 6.5 steps.
    world = Steady(change_s=8.0)
    pacer = make(wall, world, start_s=7.6, deadline_s=0.9, paced=paced, modelled_clock=True)
    assert len(train(wall, pacer, compute_s=compute_s)) == 6


@pytest.mark.parametrize("work", [{}, {"steps": 1, "deadline_s": 1.0}])
def test_work_is_either_steps_or_a_deadline(wall, work):
    with pytest.raises(ValueError, match="either steps or a deadline"):
        make(wall, **work)


def real(world, **work) -> Pacer:
    return Pacer(
        world, 3, 0.0, batch_size=10, **{"steps": None, "deadline_s": None} | work,
        paced=True, modelled_clock=False, stop=threading.Event(),
    )  # fmt: skip


def test_on_a_real_clock_no_step_ends_before_its_time():
    began_s = pacing.time.monotonic()
    pacer = real(Steady(speed=500.0), steps=5)
    for step in range(1, 6):
        pacer.step_done(10)
        assert pacing.time.monotonic() - began_s >= step * 0.02


def test_on_a_real_clock_a_stop_ends_a_wait_of_an_hour():
    stop = threading.Event()
    pacer = Pacer(
        Steady(speed=1e-3), 3, 0.0, batch_size=10, steps=5, deadline_s=None,
        paced=True, modelled_clock=False, stop=stop,
    )  # fmt: skip
    waiting = threading.Thread(target=pacer.step_done, args=(10,), daemon=True)
    waiting.start()
    waiting.join(timeout=0.05)
    assert waiting.is_alive()
    stop.set()
    waiting.join(timeout=20)
    assert not waiting.is_alive()
    assert not pacer.allows(1)
