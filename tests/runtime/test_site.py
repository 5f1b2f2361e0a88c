from __future__ import annotations

from typing import ClassVar

import pytest

from powertrip.coordination.errors import SitesStalled
from powertrip.selection.policy import POLICIES
from powertrip.selection.types import Decision, Work
from powertrip.telemetry import events
from powertrip.training.errors import TrainingDiverged

BATCH = 8


@pytest.fixture
def deadlines(monkeypatch):
    """A policy of which all sites are members, each until a deadline of its own."""

    def use(*deadline_s: float) -> str:
        class Until:
            name: ClassVar[str] = "until"

            def __init__(self, settings) -> None:
                pass

            def decide(self, observation) -> Decision:
                return Decision(
                    generation=observation.generation,
                    policy=self.name,
                    members=tuple(range(observation.sites)),
                    work=Work(deadline_s=deadline_s),
                    rounds=observation.interval_rounds,
                    predicted_round_s=max(deadline_s),
                    candidates=(),
                    reason="all until their deadlines",
                )

        monkeypatch.setitem(POLICIES, "until", Until)
        return "selection.policy=until"

    return use


def site(index: int, watts: float, samples_per_s: float) -> list[str]:
    """Overrides that give a site a constant power; all of it is 2000 W."""
    return [
        f"sites.list.{index}.gpus=8",
        f"sites.list.{index}.samples_per_s={samples_per_s}",
        f"sites.list.{index}.power={{kind: constant, watts: {watts}}}",
    ]


# 400, 100 and 50 samples a second: 50, 12.5 and 6.25 steps.
THREE = [
    "sites.count=3", f"training.batch_size={BATCH}", "goal.accuracy=1",
    *site(0, 2000, 400), *site(1, 500, 400), *site(2, 2000, 50),
]  # fmt: skip


@pytest.mark.parametrize("pacing", ["off", "modelled"])
def test_by_the_model_sites_do_the_steps_that_their_power_allows_by_the_deadline(
    jobs, deadlines, pacing
):
    job = jobs.run(
        *THREE, deadlines(0.5, 0.5, 0.25), f"runtime.pacing={pacing}", "goal.max_rounds=2"
    )
    assert job.summary.rounds == 2
    for event in job.of(events.Round):
        assert [s.steps for s in event.sites] == [25, 6, 1]
        assert [s.samples for s in event.sites] == [200, 48, 8]
        assert [s.local_s for s in event.sites] == [0.5, 0.5, 0.25]
        assert event.local_s == 0.5
    (decision, *_) = job.of(events.Decision)
    assert (decision.steps, decision.deadline_s) == (None, (0.5, 0.5, 0.25))


def test_by_the_model_deadlines_give_equal_runs(jobs, deadlines):
    policy = deadlines(0.2, 0.2, 0.2)
    first, second = (jobs.run(*THREE, policy, "goal.max_rounds=5") for _ in range(2))
    assert first.summary.digest == second.summary.digest
    assert first.summary.training_s == second.summary.training_s


def test_on_the_wall_sites_stop_at_the_deadline_having_done_what_their_power_allows(
    jobs, deadlines
):
    job = jobs.run(
        *THREE, deadlines(0.5, 0.5, 0.5), "runtime.pacing=modelled",
        "selection.clock=measured", "goal.max_rounds=3",
    )  # fmt: skip
    assert job.summary.rounds == 3
    rounds = job.of(events.Round)
    for event in rounds:
        # No site does more than its power allows; a machine that is too slow lets it do less.
        for each, speed, most in zip(event.sites, (400, 100, 50), (25, 6, 3), strict=True):
            assert 1 <= each.steps <= most
            assert each.samples / speed - 0.01 <= each.local_s < 0.5 + 5
    fast, weak, _ = zip(*([s.steps for s in event.sites] for event in rounds), strict=True)
    assert max(fast) > max(weak)


def test_on_the_wall_a_deadline_binds_without_pacing(jobs, deadlines):
    job = jobs.run(
        *THREE, deadlines(0.3, 0.3, 0.3), "runtime.pacing=off", "selection.clock=measured",
        "goal.max_rounds=3",
    )  # fmt: skip
    rounds = job.of(events.Round)
    assert all(s.local_s < 0.3 + 5 for event in rounds for s in event.sites)
    # If its power counted, the slow site could not do two steps.
    assert max(event.sites[2].steps for event in rounds) > 2


def test_a_deadline_too_short_for_one_step_gives_one_step(jobs, deadlines):
    job = jobs.run(*THREE, deadlines(0.5, 0.001, 0.5), "goal.max_rounds=1")
    (event,) = job.of(events.Round)
    assert [s.steps for s in event.sites] == [25, 1, 3]


def test_updates_count_by_the_samples_behind_them(jobs, deadlines):
    seen = []

    def watch(site):
        over = site._mean.over

        def recorded(group, weight, limit_s=None):
            total = over(group, weight, limit_s)
            seen.append((site.index, weight, total))
            return total

        site._mean.over = recorded

    jobs.run(*THREE, deadlines(0.5, 0.5, 0.5), "goal.max_rounds=1", sabotage=watch)
    assert sorted(seen) == [(0, 200, 272), (1, 48, 272), (2, 24, 272)]


def test_a_loss_that_is_no_number_is_told_as_that(jobs):
    job = jobs.run("sites.count=2", "selection.policy=all", "training.lr=1e30",
                   "training.local_steps=1", "goal.max_rounds=3")  # fmt: skip
    (failure,) = job.of(events.Failure)
    assert failure.kind == TrainingDiverged.__name__
    assert "after round 1 the validation or test loss is no longer a number" in failure.text
    assert "lower training.lr (1e+30) or outer.lr (0.7)" in failure.text
    assert (job.summary.outcome, job.summary.exit_code) == ("failed", 1)


def test_a_site_whose_power_ends_for_good_ends_the_run_with_its_name(jobs, tmp_path):
    (tmp_path / "p.csv").write_text("time_s,site,watts\n0,x,2000\n1,x,2000\n2,x,0\n")
    power = f"{{kind: csv, path: {tmp_path / 'p.csv'}, site: x, after_end: hold}}"
    job = jobs.run(
        *THREE, "world.time_scale=1", "selection.policy=all", "goal.max_rounds=99",
        "selection.adjustment_interval=99", f"sites.list.1.power={power}",
    )  # fmt: skip
    (failure,) = job.of(events.Failure)
    assert failure.kind == SitesStalled.__name__
    assert f"round {job.summary.rounds + 1} never ends by the model" in failure.text
    assert job.of(events.Round)[-1].time_s < 2.5
    assert (job.summary.outcome, job.summary.exit_code) == ("failed", 1)
    assert len(job.of(events.Checkpoint)) == 1
