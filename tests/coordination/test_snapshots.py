"""What is restored from a snapshot goes on as if nothing had happened."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest

from powertrip.config import load_config
from powertrip.coordination import course as course_module
from powertrip.coordination.course import Course
from powertrip.coordination.messages import Probed
from powertrip.coordination.observer import Observer, ready_in
from powertrip.coordination.snapshots import SnapshotUnreadable
from powertrip.coordination.timekeeping import ModelledTime
from powertrip.errors import InputError
from powertrip.runtime.clock import MeasuredTime
from powertrip.simulation.engine import Simulation
from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from powertrip.telemetry.telemetry import Telemetry
from tests.coordination.test_course import Listener, Seconds, drive, reports
from tests.simulation.learners import Quadratic

ROUNDS, HALF = 12, 6
APART = {"wall_time", "decide_s"}
HELD_BY_SITES = ("_vector", "_mean", "_late", "_outer", "_holders", "_halves", "_validated")

# What changes between rounds: power, the members, and, with momentum, the outer state.
MOVING = (
    f"goal.max_rounds={ROUNDS}",
    "goal.accuracy=1",
    "selection.adjustment_interval=2",
    "outer={kind: nesterov, lr: 0.5, momentum: 0.5}",
    "simulation.evaluate_samples=null",
)


class Played(Simulation):
    """A simulation whose rounds the test counts out."""

    def __init__(self, setup, telemetry=None) -> None:
        world = setup.build_world()
        self.listener = Listener() if telemetry is None else telemetry
        super().__init__(setup, world, Quadratic(range(30, 110, 10)), self.listener)

    def play_rounds(self, count: int) -> None:
        for _ in range(count):
            self.play_round()
            self._course.record()

    def play_round(self) -> None:
        """All of a round but its record."""
        begin, round_ = self._course.begin, self._course.round + 1
        play = self._clock.play(begin, round_, self._holders)
        self._course.account(self._play(begin, round_, play))
        self._holders = set(play.members)
        self._course.ahead()

    def go_on_from(self, other: Played, state: object) -> None:
        """Take what sites would have in their checkpoints, and the rest from a snapshot."""
        for name in ("_vector", "_mean", "_late"):
            getattr(self, name).copy_(getattr(other, name))
        self._outer.state = other._outer.state.clone()
        self._holders = set(other._holders)
        self._halves, self._validated = other._halves, other._validated
        self._course.restore(state)

    @property
    def told(self) -> list[dict]:
        return [event.model_dump(exclude=APART) for event in self.listener.told]


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        ("together", ()),
        ("powertrip", ()),
        ("random-k", ("selection.k=3",)),
        ("cefl", ()),
        ("lookahead", ()),
        ("oort", ()),
    ],
)
def test_six_rounds_a_restart_and_six_more_are_twelve_rounds(regions, policy, more):
    setup = regions(*MOVING, f"selection.policy={policy}", *more)
    whole, first, second = (Played(setup) for _ in range(3))
    for played in (whole, first):
        played._course.start(played._holders)
        played._course.record()
    whole.play_rounds(ROUNDS - 1)
    first.play_rounds(HALF)
    text = json.dumps(first._course.snapshot(), allow_nan=False)
    second.go_on_from(first, json.loads(text))
    second.play_rounds(ROUNDS - 1 - HALF)
    assert first.told + second.told == whole.told
    assert second._course.round == ROUNDS - 1
    decisions = [event for event in whole.listener.told if isinstance(event, events.Decision)]
    assert len(decisions) >= 3
    assert sum(d.round > HALF + 2 for d in decisions) >= 1


@pytest.mark.parametrize("further", [None, 0, 1, 2])
def test_the_log_of_a_run_that_went_on_is_that_of_one_that_was_not_interrupted(
    regions, tmp_path, further
):
    """The coordinator ends before it tells of round 6 (None), or so many rounds after it."""
    setup = regions(*MOVING, "selection.policy=random-k", "selection.k=3")

    def log(name):
        apart = {*APART, "run_id", "run_dir"}
        return [e.model_dump(exclude=apart) for e in read_events(tmp_path / name / EVENT_LOG)]

    def played(telemetry):
        played = Played(setup, telemetry)
        played._course.announce(backend="gloo", pacing="virtual", links="none")
        played._course.start(played._holders)
        played._course.record()
        return played

    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    with Telemetry(setup.config.telemetry, tmp_path / "whole") as telemetry:
        played(telemetry).play_rounds(ROUNDS - 1)
    with Telemetry(setup.config.telemetry, tmp_path / "parts") as telemetry:
        first = played(telemetry)
        first.play_rounds(HALF - 1)
        first.play_round()
        state = json.dumps(first._course.snapshot())
        kept = copy.deepcopy({n: first.__dict__[n] for n in HELD_BY_SITES})
        if further is not None:
            first._course.record()
            first.play_rounds(further)
    with Telemetry(setup.config.telemetry, tmp_path / "parts", HALF) as telemetry:
        assert telemetry.kept.lost_rounds == (further or 0)
        second = Played(setup, telemetry)
        first.__dict__.update(kept)
        second.go_on_from(first, json.loads(state))
        second._course.record()
        second.play_rounds(ROUNDS - 1 - HALF)
        assert telemetry.summary().rounds == ROUNDS - 1
    assert log("parts") == log("whole")


@pytest.fixture
def measured(three_sites):
    """Makes courses on a measured clock, with all that there is to be learned."""

    def measured(*overrides: str) -> tuple[Course, Listener, Seconds]:
        path = three_sites.base_dir / "three-sites.yaml"
        config = load_config(
            path,
            ["selection.policy=together", "selection.clock=measured", "exchange.algorithm=mesh",
             "selection.exchange_model=mesh", "selection.adjustment_interval=2",
             "goal.max_rounds=99", *overrides],
        )  # fmt: skip
        world, listener, clock = three_sites.build_world(), Listener(), Ticking()
        observer = Observer(world, config, three_sites.ready())
        return Course(config, world, observer, clock, listener), listener, clock

    return measured


class Ticking(Seconds):
    def snapshot(self) -> dict:
        return {"time_s": self.time_s}

    def restore(self, state, *, passed_s) -> None:
        self.time_s = state["time_s"] + passed_s


def probe(course: Course) -> None:
    course._observer.learn_links(
        Probed(site=1, number=1, rtt_s=(0.1 / 3, None, 2.0), bandwidth=(1e6 / 3, None, None)),
        time_s=course._clock.now_s(),
    )


def test_what_was_measured_survives_to_the_bit(measured):
    course, _, _ = measured()
    course.start({0, 1, 2})
    probe(course)
    drive(course, 5, loss=1 / 3)
    course.account(reports(course, loss=0.1))
    state = course.snapshot()
    again, _, _ = measured()
    again.restore(json.loads(json.dumps(state, allow_nan=False)))
    assert again.snapshot() == state
    for name in ("_ratios", "_count", "_log", "_off", "_last_s"):
        for before, after in zip(_corrections(course), _corrections(again), strict=True):
            found, expected = getattr(after, name), getattr(before, name)
            assert found.dtype == expected.dtype
            assert found.tobytes() == expected.tobytes(), name
    assert np.isnan(course._observer._speed._ratios).any()
    assert course._observer._kappa._evidence.tobytes() == again._observer._kappa._evidence.tobytes()


def _corrections(course):
    observer = course._observer
    return (observer._exchange, observer._speed, observer._rebuild, *observer._links._corrections)


def test_events_that_were_not_told_are_told_by_who_goes_on(measured):
    course, listener, _ = measured()
    course.start({0, 1, 2})
    course.account(reports(course))
    course.ahead()
    again, told, _ = measured()
    again.restore(json.loads(json.dumps(course.snapshot())))
    course.record()
    again.record()
    assert [e.model_dump_json() for e in told.told] == [
        e.model_dump_json() for e in listener.told
    ]  # fmt: skip
    assert told.kinds == ["decision", "rebuild", "round", "decision"]
    assert told.told[-1].observation


def test_a_run_that_was_about_to_end_decides_when_it_goes_on(measured):
    course, _, _ = measured()
    course.start({0, 1, 2})
    course.account(reports(course))
    assert not course.decided
    again, _, _ = measured()
    again.restore(course.snapshot())
    assert not again.decided
    expected = course.ahead()
    assert again.ahead() == expected is not None
    assert course.decided
    assert again.decided


def test_what_is_done_again_survives(measured):
    seldom = "selection.policy=all", "selection.adjustment_interval=9"
    course, listener, _ = measured(*seldom)
    course.start({0, 1, 2})
    course.record()
    drive(course, 2)
    redone = course.redo((0, 2), {0, 2}, reason="rome is gone", standby=1)
    again, told, _ = measured(*seldom)
    again.restore(json.loads(json.dumps(course.snapshot())))
    assert again.begin == redone
    for each in (course, again):
        drive(each, 1)
    assert [e.model_dump(exclude=APART) for e in told.told] == [
        e.model_dump(exclude=APART) for e in listener.told[-len(told.told) :]
    ]  # fmt: skip
    assert told.told[-1].early == "rome is gone"
    assert told.kinds == ["decision", "rebuild", "round", "decision"]


def test_it_is_known_when_a_trial_is_under_way(measured):
    course, _, _ = measured("selection.min_members=3", "selection.replan_threshold=null")
    course.start({0, 1, 2})
    assert not course.tries
    found = []
    for _ in range(4):
        first = course.round + 1 == course.begin.first_round
        members, half = set(course.begin.members), course.begin.half
        course.account(reports(course))
        course.ahead()
        found.append((course.tries, first and bool(half) and set(course.begin.members) == members))
    assert any(tries for tries, _ in found)
    assert all(tries == expected for tries, expected in found)
    again, _, _ = measured()
    again.restore(course.snapshot())
    assert again.tries == course.tries


def test_before_the_first_round_and_before_the_start(measured):
    course, _, _ = measured()
    again, _, _ = measured()
    again.restore(course.snapshot())
    assert (again.round, again.generation) == (0, 0)
    begin = course.start({0, 1, 2})
    again.restore(json.loads(json.dumps(course.snapshot())))
    assert (again.begin, again.generation, again.round) == (begin, 1, 0)
    assert again._following is again._current


def test_the_first_reports_are_in_it(measured, three_sites):
    course, _, _ = measured()
    assert ready_in(course.snapshot()["observer"]) == three_sites.ready()


def test_another_scenario_is_refused(measured, three_sites):
    course, _, _ = measured()
    course.start({0, 1, 2})
    state = course.snapshot()
    other, _, _ = measured()
    other._observer._ready = tuple(three_sites.ready(samples=(10, 20, 31)))
    with pytest.raises(SnapshotUnreadable, match="their samples or their model"):
        other.restore(state)
    other, _, _ = measured()
    with pytest.raises(SnapshotUnreadable, match="sites are not paris, rome, oslo"):
        other.restore(state | {"sites": ["paris", "rome"]})
    with pytest.raises(SnapshotUnreadable, match=r"version 99.*knows version 1"):
        other.restore(state | {"version": 99})


HARM = (None, True, -1, 1.5, 10**400, 1e308, "x", "nan", [], {}, [[[]]], {"a": 1})


def places(state, path=()):
    """Every place in a JSON object, but few of a long list."""
    yield path
    if isinstance(state, dict):
        for key in state:
            yield from places(state[key], (*path, key))
    elif isinstance(state, list):
        for index in {0, len(state) - 1} if state else ():
            yield from places(state[index], (*path, index))


def test_whatever_is_damaged_only_the_named_error_comes_out(measured):
    course, _, _ = measured("telemetry.observations=never")
    course.start({0, 1, 2})
    probe(course)
    drive(course, 2)
    course.account(reports(course))
    state = course.snapshot()
    rng = np.random.default_rng(0)
    refused = tried = 0
    again, _, _ = measured()
    for path in places(state):
        for harm in rng.choice(len(HARM), size=2, replace=False):
            damaged = copy.deepcopy(state)
            if not path:
                damaged = HARM[harm]
            elif path[0] != "clock":  # of this test's own
                node = damaged
                for key in path[:-1]:
                    node = node[key]
                node[path[-1]] = HARM[harm]
            tried += 1
            try:
                again.restore(damaged)
            except SnapshotUnreadable:
                refused += 1
    assert issubclass(SnapshotUnreadable, InputError)
    assert refused > 0.6 * tried > 300


def test_a_measured_clock_goes_on_from_its_reading(monkeypatch):
    from powertrip.runtime import clock

    now = [100.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    first = MeasuredTime()
    first.start()
    now[0] = 107.25
    first._clock.set_apart(2.0)
    state = first.snapshot()
    assert state == {"measured_s": 5.25, "last_end_s": 0.0}
    now[0] = 3.0
    second = MeasuredTime()
    second.restore(state, passed_s=1.5)
    assert second.now_s() == 6.75
    now[0] = 4.0
    second._clock.set_apart(0.5)
    assert second.now_s() == 7.25
    with pytest.raises(SnapshotUnreadable, match="clock"):
        second.restore({"modelled_s": 1.0, "rebuilds": []}, passed_s=0.0)
    with pytest.raises(SnapshotUnreadable, match=r"clock\.measured_s"):
        second.restore({"measured_s": math.nan, "last_end_s": 0.0}, passed_s=0.0)


def test_a_modelled_clock_goes_on_from_its_reading_alone(measured):
    course, _, _ = measured()
    first, second = (ModelledTime(course._observer) for _ in range(2))
    first._now_s = 1 / 3
    first._rebuilds = {4, 2}
    second.restore(json.loads(json.dumps(first.snapshot())), passed_s=5.0)
    assert (second.now_s(), second._rebuilds) == (1 / 3, {2, 4})


def test_the_version_is_in_it(measured):
    course, _, _ = measured()
    assert course.snapshot()["version"] == course_module.SNAPSHOT_VERSION
