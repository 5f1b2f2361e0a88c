from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from powertrip.config import load_config
from powertrip.coordination.accounts import RoundAccount, RoundTimes
from powertrip.coordination.course import BUDGET_EXIT_CODE, Course
from powertrip.coordination.errors import DigestMismatch
from powertrip.coordination.messages import Report, Tally
from powertrip.coordination.observer import Observer
from powertrip.telemetry import events


@dataclass
class Listener:
    """Keeps events in place of a telemetry."""

    run_dir: Path = Path("runs/there")
    metrics_url: str | None = None
    told: list[events.Event] = field(default_factory=list)

    def emit(self, event: events.Event) -> None:
        self.told.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.event for event in self.told]


class Seconds:
    """Rounds of one second: 0.25 s for what comes before, 0.5 s training, 0.25 s exchange."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.idle_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def announce(self, generation, *, rebuild, meanwhile, round_) -> float:
        return self.time_s

    def account(self, begin, reports) -> RoundAccount:
        start_s = self.time_s
        self.time_s += 1 + self.idle_s
        times = RoundTimes(local_s=0.5, exchange_s=0.25, evaluation_s=0.0, rebuild_s=0.25)
        return RoundAccount(start_s, self.time_s, times, (0.5,) * len(reports), idle_s=self.idle_s)


@pytest.fixture
def make(three_sites):
    def make(*overrides: str) -> tuple[Course, Listener, Seconds]:
        path = three_sites.base_dir / "three-sites.yaml"
        config = load_config(
            path, ["selection.policy=random-k", "selection.k=2", "selection.clock=measured",
                   "selection.adjustment_interval=2", "selection.replan_threshold=null",
                   *overrides],
        )  # fmt: skip
        world, listener, clock = three_sites.build_world(), Listener(), Seconds()
        observer = Observer(world, config, three_sites.ready())
        return Course(config, world, observer, clock, listener), listener, clock

    return make


def reports(course, *, correct=0, loss=1.0, joined=(), **changes) -> list[Report]:
    tally = Tally(correct=correct, loss_sum=10 * loss, count=10)
    fields = {
        "generation": course.generation, "round": course.round + 1, "steps": 4, "samples": 40,
        "loss": 0.5, "loss_rms": 0.6, "update_norm": 1.0, "local_s": 0.5, "lag_s": 0.0,
        "exchange_s": 0.25, "evaluation_s": 0.0, "bytes_sent": 7, "digest": "d",
        "validation": tally, "test": tally, "rebuild_s": 0.25,
    }  # fmt: skip
    return [
        Report(site=site, joined_bytes=50 if site in joined else 0, **fields | changes)
        for site in course.begin.members
    ]


def drive(course, rounds: int, **changes) -> None:
    for _ in range(rounds):
        course.account(reports(course, **changes))
        assert course.end() is None
        course.ahead()
        course.record()


def test_the_start_is_told_with_what_the_world_warns_of(make, three_sites):
    course, listener, _ = make("seed=7")
    course.announce(backend="gloo", pacing="virtual", links="none")
    (started,) = listener.told
    assert (started.sites, started.policy, started.seed) == (("paris", "rome", "oslo"),
                                                              "random-k", 7)  # fmt: skip
    assert (started.backend, started.pacing, started.links) == ("gloo", "virtual", "none")
    assert (started.run_id, started.run_dir) == ("there", "runs/there")
    course._world.warnings = ("a trace is short",)
    course.announce(backend="gloo", pacing="virtual", links="none")
    assert listener.kinds == ["run_started", "run_started", "warning"]
    assert listener.told[-1].text == "a trace is short"


def test_events_come_in_the_order_in_which_things_have_happened(make):
    course, listener, _ = make()
    begin = course.start({0, 1, 2})
    assert (course.round, course.generation, course.begin) == (0, 1, begin)
    assert listener.told == []  # nothing is told before the sites know
    course.record()
    drive(course, 5)
    assert [kind for kind in listener.kinds if kind != "rebuild"] == [
        "decision", "round", "decision", "round", "round", "decision", "round", "round", "decision",
    ]  # fmt: skip
    for event, after in pairwise(listener.told):
        if isinstance(event, events.Rebuild):
            assert (after.event, after.generation) == ("round", event.generation)
    decided = [e for e in listener.told if isinstance(e, events.Decision)]
    # One round ahead: the decision on round 3 is made after the first.
    assert [(d.round, d.time_s) for d in decided] == [(1, 0.0), (3, 1.0), (5, 3.0), (7, 5.0)]
    rounds = [e for e in listener.told if isinstance(e, events.Round)]
    assert [(r.round, r.generation, r.time_s) for r in rounds] == [
        (1, 1, 1.0), (2, 1, 2.0), (3, 2, 3.0), (4, 2, 4.0), (5, 3, 5.0)
    ]  # fmt: skip
    for event in rounds:
        assert event.members == decided[event.generation - 1].members
        assert event.predicted_round_s == decided[event.generation - 1].predicted_round_s
    rebuilds = [e for e in listener.told if isinstance(e, events.Rebuild)]
    changes = [
        after.generation for before, after in pairwise(decided)
        if set(before.members) != set(after.members) and after.generation <= 3
    ]  # fmt: skip
    assert [e.generation for e in rebuilds] == [1, *changes]
    assert all(e.seconds == 0.25 for e in rebuilds)


def test_what_a_rebuild_takes_is_learned_from_the_second_on(make):
    """The first group is built while nothing else is done."""
    course, listener, _ = make("runtime.rebuild_s=0.5")
    course.start({0, 1, 2})
    drive(course, 9)
    decided = [e for e in listener.told if isinstance(e, events.Decision)]
    second = next(
        e for e in listener.told if isinstance(e, events.Rebuild) and e.generation > 1
    )  # which took 0.25 s
    for decision in decided:
        expected_s = 0.25 if decision.time_s > second.time_s else 0.5
        assert decision.observation["rebuild_s"] == pytest.approx(expected_s, rel=1e-3)
    assert decided[1].time_s < second.time_s < decided[-1].time_s


def test_what_ahead_returns_begins_with_the_round_after_next(make):
    course, _, _ = make()
    course.start({0, 1, 2})
    course.account(reports(course))
    after_next = course.ahead()
    assert after_next.first_round == 3
    assert course.begin.generation == course.generation == 1
    course.account(reports(course))
    assert course.ahead() is None
    assert course.begin == after_next


def test_no_decision_is_made_for_rounds_beyond_the_last(make):
    course, listener, _ = make("goal.max_rounds=4", "goal.accuracy=1")
    course.start({0, 1, 2})
    course.record()
    drive(course, 3)
    assert listener.kinds.count("decision") == 2
    course.account(reports(course))
    assert course.end() == ("budget", BUDGET_EXIT_CODE)


@pytest.mark.parametrize(
    ("goal", "found", "end"),
    [
        (["goal.accuracy=0.5"], {"correct": 5}, ("reached", 0)),
        (["goal.accuracy=0.5"], {"correct": 4}, None),
        (["goal.loss=0.8"], {"loss": 0.8}, ("reached", 0)),
        (["goal.loss=0.8"], {"loss": 0.9}, None),
        (["goal.accuracy=0.5"], {"test": None}, None),
        (["goal.accuracy=0.5", "goal.max_rounds=1"], {}, ("budget", 3)),
        (["goal.accuracy=0.5", "goal.max_s=1"], {}, ("budget", 3)),
        (["goal.accuracy=0.5", "goal.max_s=1.1"], {}, None),
        (["goal.accuracy=0.5", "goal.max_s=1"], {"correct": 5}, ("reached", 0)),
        (["goal.max_rounds=1"], {}, ("reached", 0)),
        (["goal.max_s=1"], {}, ("budget", 3)),
    ],
)
def test_how_a_run_ends(make, goal, found, end):
    course, _, _ = make(*goal)
    course.start({0, 1, 2})
    course.account(reports(course, **found))
    assert course.end() == end


def test_a_site_that_joins_without_a_rebuild_is_told_of(make):
    course, listener, _ = make("selection.policy=all", "selection.adjustment_interval=9")
    course.start({0, 1, 2})
    course.record()
    drive(course, 1)
    drive(course, 1, joined=(1,))
    drive(course, 1)
    rebuilds = [e for e in listener.told if isinstance(e, events.Rebuild)]
    assert [(e.time_s, e.newcomers, e.join_bytes) for e in rebuilds] == [
        (0.25, (), 0), (1.25, ("rome",), 50)
    ]  # fmt: skip


def test_where_the_members_were_waited_for_they_train_after_it(make):
    """Oslo has 500 W until second 10 and 250 W after it."""
    course, listener, clock = make("selection.policy=all", "selection.adjustment_interval=9")
    course.start({0, 1, 2})
    clock.idle_s = 9.5
    course.account(reports(course))
    course.record()
    event = listener.told[-1]
    oslo = next(site for site in event.sites if site.site == "oslo")
    # From 9.5 + 0.25 s on, half a second.
    assert oslo.energy_j == pytest.approx(0.25 * 500 + 0.25 * 250)
    assert (event.duration_s, event.overhead_s) == pytest.approx((10.25, 9.5))


def test_members_that_disagree_end_the_run(make):
    course, _, _ = make()
    course.start({0, 1, 2})
    first, second = reports(course)
    with pytest.raises(DigestMismatch):
        course.account([first, second.model_copy(update={"digest": "other"})])
    assert course.round == 0


def test_a_round_is_done_again_by_those_left_on_the_terms_of_the_decision(make):
    course, listener, _ = make("selection.policy=all", "selection.adjustment_interval=9")
    course.start({0, 1, 2})
    course.record()
    drive(course, 2)
    first = course.begin
    again = course.redo((2, 0), {0, 2}, reason="rome is gone", standby=1)
    kept = [first.members.index(site) for site in (2, 0)]
    assert again.members == (2, 0)
    assert (again.generation, again.first_round, again.redo) == (2, 3, True)
    assert (again.standby, again.transfers, again.half) == (1, (), ())
    assert again.steps == (
        None if first.steps is None else tuple(first.steps[place] for place in kept)
    )
    assert again.deadline_s == (
        None if first.deadline_s is None else tuple(first.deadline_s[place] for place in kept)
    )
    assert (course.begin, course.announced, course.round) == (again, 2, 2)
    course.record()
    told = listener.told[-1]
    assert (told.event, told.members, told.reason) == (
        "decision", ("oslo", "paris"), "rome is gone"
    )  # fmt: skip


def test_after_a_round_done_again_the_next_decision_comes_early_and_from_what_was_dropped(make):
    course, _, _ = make()  # decides every second round
    course.start({0, 1, 2})
    course.account(reports(course))
    dropped = course.ahead()
    assert dropped.generation == 2
    again = course.redo(course.begin.members[:1], {0, 1, 2}, reason="one is gone")
    assert again.generation == 3
    assert again.first_round == 2
    course.account(reports(course))
    after_next = course.ahead()
    assert (after_next.generation, after_next.first_round) == (4, 4)
    assert course.begin == again  # for one round more
    course.account(reports(course))
    assert course.ahead() is None


def test_newcomers_among_those_left_get_the_model_from_who_holds_it(make):
    course, _, _ = make("selection.policy=all")
    course.start({0, 1, 2})
    drive(course, 1)
    again = course.redo((2, 1), {0, 1}, reason="once more")
    assert [(t.donor, t.newcomer) for t in again.transfers] == [(1, 2)]
    with pytest.raises(ValueError, match="no site holds the current model"):
        course.redo((1,), set(), reason="nobody")


def test_where_no_member_is_left_others_are_chosen(make):
    course, _, _ = make("selection.policy=all")
    course.start({0, 1, 2})
    drive(course, 1)
    course._observer.miss(np.array([False, True, False]))
    begin = course.redo((), {0}, reason="all are gone")
    assert set(begin.members) == {0, 2}
    assert (begin.redo, begin.first_round) == (True, 2)
    assert [(t.donor, t.newcomer) for t in begin.transfers] == [(0, 2)]
