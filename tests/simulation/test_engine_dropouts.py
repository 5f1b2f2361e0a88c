"""Runs in which sites fail and come back."""

from __future__ import annotations

import pytest

from powertrip.telemetry import events
from tests.simulation.learners import Saturating

EIGHT = tuple(range(30, 110, 10))
PLAIN = "simulation.timing={commit_round_trips: 0, build_round_trips: 0}"
EVERYONE = "selection.policy=all"


def test_a_site_that_fails_comes_back_and_gets_the_model_again(run, regions, gone):
    gone({1: [(1.0, 4.0)]})
    setup = regions("sites.count=3", EVERYONE, "selection.adjustment_interval=2",
                    "goal.max_rounds=20", "simulation.dropouts.notice_s=0.5",
                    "simulation.update_bytes=1000", PLAIN)  # fmt: skip
    done = run(setup, Saturating(EIGHT[:3], kappa=10))
    rounds, failures = done.of(events.Round), done.of(events.Failure)
    assert {(f.kind, f.site) for f in failures} == {("SiteGone", "oregon")}
    broken = next(r for r in rounds if r.time_s >= 1.0)
    assert failures[0].round == broken.round
    assert [f.round for f in failures] == list(range(broken.round, broken.round + len(failures)))
    assert broken.members == tuple(n for n in rounds[0].members if n != "oregon")
    # Until it is gone from the decisions the rounds go on without it, and when it is back it is
    # a newcomer, with the others as its donors.
    decided = done.of(events.Decision)
    assert any("oregon" not in d.members for d in decided)
    without = [r for r in rounds if "oregon" not in r.members]
    back = rounds[without[-1].round]
    assert back.time_s - back.duration_s >= 4.0
    assert "oregon" in back.members
    rebuild = next(e for e in done.of(events.Rebuild) if e.generation == back.generation)
    assert (rebuild.newcomers, rebuild.join_bytes) == (("oregon",), 1000)
    summary = done.summary
    phases = summary.local_s + summary.exchange_s + summary.rebuild_s + summary.overhead_s
    assert phases == pytest.approx(summary.training_s)
    assert summary.failures == len(failures)


def test_a_site_that_is_back_within_its_generation_joins_in_it(run, regions, gone):
    gone({1: [(1.0, 1.5)]})
    setup = regions("sites.count=3", EVERYONE, "selection.adjustment_interval=50",
                    "selection.replan_threshold=null", "simulation.update_bytes=1000",
                    PLAIN)  # fmt: skip
    done = run(setup, Saturating(EIGHT[:3], kappa=10))
    assert done.summary.generations == 1
    joined = [e for e in done.of(events.Rebuild) if e.newcomers]
    assert [(e.newcomers, e.join_bytes) for e in joined] == [(("oregon",), 1000)]
    assert joined[0].seconds > 0
    summary = done.summary
    phases = summary.local_s + summary.exchange_s + summary.rebuild_s + summary.overhead_s
    assert phases == pytest.approx(summary.training_s)


def test_where_all_are_gone_the_run_waits_and_charges_what_is_drawn_after_it(run, regions, gone):
    gone({0: [(1.0, 50.0)], 1: [(1.0, 60.0)]})
    setup = regions("sites.count=2", EVERYONE, "selection.adjustment_interval=1", PLAIN)
    done = run(setup, Saturating(EIGHT[:2], kappa=10))
    assert done.summary.outcome == "budget"
    rounds, world = done.of(events.Round), setup.build_world()
    waited = next(r for r in rounds if r.time_s > 50)
    assert waited.members == ("iowa",)
    (share,) = waited.sites
    trains_s = waited.time_s - share.local_s
    assert trains_s == pytest.approx(50)
    assert share.energy_j == pytest.approx(world.energy_j(0, trains_s, share.local_s))
    phases = [getattr(done.summary, f"{p}_s") for p in ("local", "exchange", "rebuild", "overhead")]
    assert sum(phases) == pytest.approx(done.summary.training_s)
    assert done.summary.overhead_s > 45


def test_a_decision_is_made_even_where_all_are_gone_at_present(run, regions, gone):
    setup = regions("sites.count=2", EVERYONE, "selection.adjustment_interval=1",
                    "simulation.dropouts.notice_s=1", PLAIN)  # fmt: skip
    ends_s = [r.time_s for r in run(setup, Saturating(EIGHT[:2], kappa=10)).of(events.Round)]
    # The second fails in the third round, and the first within a second after it.
    gone({1: [(ends_s[1] + 0.01, 60.0)], 0: [(ends_s[2] + 0.5, 50.0)]})
    done = run(setup, Saturating(EIGHT[:2], kappa=10))
    assert done.summary.outcome == "budget"
    assert done.of(events.Round)[2].time_s == pytest.approx(ends_s[2] + 1)
    assert done.of(events.Round)[3].time_s > 50
    assert {f.kind for f in done.of(events.Failure)} == {"SiteGone"}
