from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from powertrip.config import default_path, load_config
from powertrip.coordination.replay import replay
from powertrip.coordination.setup import Setup
from powertrip.errors import InputError
from powertrip.selection.policy import POLICIES
from powertrip.simulation import engine
from powertrip.simulation.in_process import InProcess
from powertrip.simulation.learner import load_parts
from powertrip.telemetry import events
from powertrip.telemetry.telemetry import Telemetry
from powertrip.training.errors import TrainingDiverged
from tests.jobs import QUICK
from tests.simulation.learners import BATCH, Quadratic, Saturating

EIGHT = tuple(range(30, 110, 10))
PLAIN = "simulation.timing={commit_round_trips: 0, build_round_trips: 0}"
EVERYONE = "selection.policy=all"


def digits(setup: Setup) -> InProcess:
    return InProcess(*load_parts(setup), setup.config)


def test_a_round_takes_the_mean_of_the_members_by_samples(run, regions):
    setup = regions("sites.count=3", EVERYONE, "goal.accuracy=null", "goal.max_rounds=5",
                    "training.local_steps=null", "training.local_epochs=1",
                    "simulation.evaluate_samples=null")  # fmt: skip
    done = run(setup, Quadratic())
    assert done.summary.outcome == "reached"
    x, losses = np.array([1.0, 2.0, 3.0]), []
    # One pass over 10, 20 and 30 samples is 1, 2 and 3 steps, which halve the distance each.
    weights, left = np.array([1, 2, 3]) / 6, np.array([1 / 2, 1 / 4, 1 / 8])
    for _ in range(5):
        x = sum(w * (np.eye(3)[i] + s * (x - np.eye(3)[i]))
                for i, (w, s) in enumerate(zip(weights, left, strict=True)))  # fmt: skip
        losses.append(((x - 1 / 3) ** 2).sum() / 2)
    rounds = done.of(events.Round)
    assert [r.test_loss for r in rounds] == pytest.approx(losses, rel=1e-5)
    assert [r.validation_loss for r in rounds] == pytest.approx(losses, rel=1e-5)
    by_name = {s.site: (s.steps, s.samples, s.loss) for s in rounds[0].sites}
    assert sorted(by_name.values()) == [(1, 10, 1.0), (2, 20, 2.0), (3, 30, 3.0)]
    assert rounds[0].train_loss == pytest.approx((10 * 1 + 20 * 2 + 30 * 3) / 60)


def test_the_outer_step_is_that_of_the_settings(run, regions):
    """Momentum: m <- 0.5 m + u, x <- x - 0.5 (u + 0.5 m)."""
    setup = regions("sites.count=2", EVERYONE, "goal.max_rounds=3", "training.local_steps=1",
                    "outer={kind: nesterov, lr: 0.5, momentum: 0.5}",
                    "simulation.evaluate_samples=null")  # fmt: skip
    done = run(setup, Quadratic((10, 10)))
    x, m, losses = np.array([1.0, 2.0]), np.zeros(2), []
    for _ in range(3):
        u = (x - 0.5) / 2
        m = 0.5 * m + u
        x = x - 0.5 * (u + 0.5 * m)
        losses.append(((x - 0.5) ** 2).sum() / 2)
    assert [r.test_loss for r in done.of(events.Round)] == pytest.approx(losses, rel=1e-5)


OVERLAP = "exchange.overlap=true"


def test_with_overlap_a_mean_counts_a_round_later(run, regions):
    setup = regions("sites.count=2", EVERYONE, "goal.max_rounds=5", "training.local_steps=1",
                    "simulation.evaluate_samples=null", OVERLAP)  # fmt: skip
    done = run(setup, Quadratic((10, 10)))
    x, late, own = np.array([1.0, 2.0]), np.zeros(2), np.zeros((2, 2))
    losses = []
    for _ in range(5):
        own = (x - own - np.eye(2)) / 2  # each from where its own update has led it
        x, late = x - late, own.mean(axis=0)
        losses.append(((x - 0.5) ** 2).sum() / 2)
    rounds = done.of(events.Round)
    assert [r.test_loss for r in rounds] == pytest.approx(losses, rel=1e-5)
    assert losses[0] == 1.25  # that of the model before any training
    assert done.of(events.Decision)[0].observation["overlap"] is True


def test_with_overlap_halves_are_tried_where_their_mean_will_be_applied(run, regions):
    class Recording(Quadratic):
        def evaluate(self, vector, split, limit=None):
            if split == "validation":
                validated.append(vector.clone())
            return super().evaluate(vector, split, limit)

    validated: list[torch.Tensor] = []
    setup = regions("sites.count=2", "selection={policy: together, min_members: 2}",
                    "goal.max_rounds=2", "training.local_steps=1", OVERLAP)  # fmt: skip
    run(setup, Recording((10, 10)))
    first, whole, half_a, half_b, second = validated
    assert first.tolist() == [1.0, 2.0]
    assert not whole.equal(first)
    assert whole.equal(second)  # the outer step takes the mean as it is
    torch.testing.assert_close(half_a + half_b, 2 * whole)


def rounded(numbers):
    """To whole parts of a 127th of the largest."""
    scale = np.abs(numbers).max() / 127
    return np.round(numbers / scale) * scale


def test_int8_rounds_each_update_and_their_mean(run, regions):
    plain = ("sites.count=3", EVERYONE, "goal.max_rounds=4", "training.local_steps=1",
             "simulation.evaluate_samples=null")  # fmt: skip
    done = run(regions(*plain, "exchange.codec=int8"), Quadratic((10, 10, 10)))
    x, losses = np.array([1.0, 2.0, 3.0]), []
    for _ in range(4):
        x = x - rounded(np.mean([rounded((x - optimum) / 2) for optimum in np.eye(3)], axis=0))
        losses.append(((x - 1 / 3) ** 2).sum() / 2)
    rounds = done.of(events.Round)
    assert [r.test_loss for r in rounds] == pytest.approx(losses, rel=1e-4)
    exact = run(regions(*plain), Quadratic((10, 10, 10))).of(events.Round)
    assert losses != pytest.approx([r.test_loss for r in exact], rel=1e-4)
    # 16 bytes are four numbers, with the weight; in a mesh of three each sends 4/3 of an update.
    assert [s.bytes_sent for s in exact[0].sites] == [round(16 * 4 / 3)] * 3
    assert [s.bytes_sent for s in rounds[0].sites] == [round((4 + 4) * 4 / 3)] * 3


def test_int8_makes_a_given_update_smaller_for_decisions_too(run, regions):
    million = ("simulation.update_bytes=1000000", "goal.max_rounds=2")
    done = {
        codec: run(regions(*million, f"exchange.codec={codec}"), Saturating(EIGHT, kappa=10))
        for codec in ("none", "int8")
    }
    seen = {c: job.of(events.Decision)[0].observation["update_bytes"] for c, job in done.items()}
    assert seen == {"none": 1_000_000, "int8": 250_980}


@pytest.mark.parametrize("policy", ["together", "powertrip"])
def test_overlap_and_int8_run_and_their_record_replays(run, regions, policy):
    overrides = (*CHANCE, OVERLAP, "exchange.codec=int8", f"selection.policy={policy}", "seed=3")
    first, again = (run(setup, digits(setup)) for setup in [regions(*overrides)] * 2)
    assert first.told() == again.told()
    assert len(first.of(events.Round)) == 8
    assert all(replayed.agree for replayed in replay(first.run_dir))


CHANCE = (
    "simulation.noise={speed: 0.2, exchange: 0.1, straggler_share: 0.2}",
    "simulation.dropouts={every_s: 8, lasts_s: 3, notice_s: 0.5}",
    "selection.replan_min_rounds=1",
)


def test_equal_seeds_make_equal_runs_and_others_do_not(run, regions):
    setups = [regions(*CHANCE, "seed=5") for _ in range(2)] + [regions(*CHANCE, "seed=6")]
    first, again, other = (run(setup, digits(setup)) for setup in setups)
    assert first.told() == again.told()
    assert len(first.of(events.Round)) == 8
    assert first.summary.digest == again.summary.digest != other.summary.digest
    assert first.summary.training_s != other.summary.training_s
    ours, theirs = ([r.test_loss for r in job.of(events.Round)] for job in (first, other))
    assert not set(ours) & set(theirs)


def test_the_run_ends_where_the_target_is_reached(run, regions):
    setup = regions("goal.accuracy=0.5", "goal.max_rounds=60", "training.lr=0.5")
    done = run(setup, digits(setup))
    rounds = done.of(events.Round)
    assert (done.summary.outcome, done.summary.exit_code) == ("reached", 0)
    assert rounds[-1].test_accuracy >= 0.5 > max(r.test_accuracy for r in rounds[:-1])
    assert done.summary.time_to_target_s == rounds[-1].time_s == done.events[-1].time_s
    assert done.summary.digest == rounds[-1].digest
    # Whoever sees the target near looks at all 359 test samples: none but whole ones count.
    assert rounds[-1].test_accuracy * 359 == pytest.approx(round(rounds[-1].test_accuracy * 359))


@pytest.mark.parametrize("budget", ["goal.max_rounds=3", "goal.max_s=3"])
def test_a_spent_budget_ends_the_run_with_exit_code_3(run, regions, budget):
    learner = Saturating(EIGHT, kappa=10)
    done = run(regions(budget, "simulation.evaluate_samples=50"), learner)
    assert (done.summary.outcome, done.summary.exit_code) == ("budget", 3)
    rounds = done.of(events.Round)
    if "max_rounds" in budget:
        assert len(rounds) == 3
    else:
        assert rounds[-1].time_s >= 3 > rounds[-2].time_s
    # At its end all samples are evaluated.
    assert learner.limits["test"] == [50] * (len(rounds) - 1) + [None]


def test_a_signal_ends_the_run_after_the_round_in_hand(run, regions):
    answers = iter([None, None, 15])
    done = run(regions(), Saturating(EIGHT, kappa=10), lambda: next(answers))
    assert (done.summary.outcome, done.summary.exit_code) == ("interrupted", 128 + 15)
    assert done.summary.rounds == 3
    reached = run(regions("goal.accuracy=null", "goal.max_rounds=1"),
                  Saturating(EIGHT, kappa=10), lambda: 15)  # fmt: skip
    assert (reached.summary.outcome, reached.summary.exit_code) == ("reached", 0)


class Broken(Saturating):
    """Fails in a round, or is no number any more after it."""

    def __init__(self, *, fails: int | None = None, diverges: int | None = None) -> None:
        super().__init__(EIGHT, kappa=10)
        self.fails, self.diverges = fails, diverges

    def train(self, vector, round_, work, *, keep=True):
        if round_ == self.fails:
            raise TrainingDiverged("iowa's loss is no number")
        return super().train(vector, round_, work, keep=keep)

    def loss(self, vector):
        rounds = len(self.limits["test"])
        return math.nan if rounds == self.diverges else super().loss(vector)


@pytest.mark.parametrize(
    ("broken", "text"),
    [(Broken(fails=3), "iowa's loss is no number"), (Broken(diverges=3), "lower training.lr")],
)
def test_what_fails_after_the_start_is_in_the_summary(run, regions, broken, text):
    done = run(regions(), broken)
    assert (done.summary.outcome, done.summary.exit_code) == ("failed", 1)
    assert (done.summary.rounds, done.summary.failures) == (2, 1)
    failure = done.of(events.Failure)[0]
    assert (failure.kind, failure.round) == ("TrainingDiverged", 3)
    assert text in failure.text
    assert failure.time_s == done.of(events.Round)[-1].time_s


def test_a_first_decision_that_cannot_be_made_is_a_failed_run(run, regions):
    dark = [f"sites.list.{site}.power={{kind: constant, watts: 0}}" for site in range(2)]
    done = run(regions("sites.count=2", *dark), Saturating((30, 40), kappa=10))
    assert (done.summary.outcome, done.summary.exit_code, done.summary.rounds) == ("failed", 1, 0)
    assert done.of(events.Failure)[0].kind == "NoUsableSite"
    assert [event.event for event in done.events] == ["run_started", "failure", "run_ended"]


@pytest.fixture
def simulated(tmp_path, monkeypatch) -> Callable:
    """Calls `simulate` with a learner in place of that of the settings."""

    def simulated(setup, learner, **options):
        def build(asked):
            assert asked is setup
            return learner

        monkeypatch.setattr(engine, "build_learner", build)
        with Telemetry(setup.config.telemetry, tmp_path) as telemetry:
            return engine.simulate(setup, telemetry, **options)

    return simulated


def test_the_learner_is_closed_however_the_run_ends(simulated, regions):
    for learner, outcome in ((Saturating(EIGHT, kappa=9), "budget"), (Broken(fails=1), "failed")):
        assert simulated(regions(), learner).outcome == outcome
        assert learner.closed == 1

    class Buggy(Saturating):
        def update(self, vector, site, steps):
            raise ZeroDivisionError

    learner = Buggy(EIGHT, kappa=9)
    with pytest.raises(ZeroDivisionError):
        simulated(regions(), learner)
    assert learner.closed == 1


def test_a_scenario_that_cannot_be_run_is_told_before_anything_begins(regions, tmp_path):
    setup = regions("task=nowhere:Nothing")
    with (
        Telemetry(setup.config.telemetry, tmp_path) as telemetry,
        pytest.raises(InputError, match="nowhere"),
    ):
        engine.simulate(setup, telemetry)
    assert (tmp_path / "events.jsonl").read_text() == ""


def test_a_part_of_the_samples_is_evaluated_until_the_target_is_near(run, regions):
    # Five members with kappa 5 gain 0.005 a round. Among 900 samples a share of 0.03 has a standard
    # deviation of 0.0057, so that what is above 0.0186 is near.
    five = ("sites.count=5", EVERYONE, "goal.accuracy=0.0299", "goal.max_rounds=50", PLAIN)
    learner = Saturating(EIGHT[:5], kappa=5)
    done = run(regions(*five, "simulation.evaluate_samples=900"), learner)
    assert done.summary.rounds == 6
    assert learner.limits["test"] == [900] * 3 + [900, None] * 3
    assert set(learner.limits["validation"]) == {900}
    learner = Saturating(EIGHT[:5], kappa=5)
    run(regions(*five, "simulation.evaluate_samples=null"), learner)
    assert set(learner.limits["test"]) == {None}
    assert len(learner.limits["test"]) == 6


def test_near_a_loss_is_within_a_tenth_of_it(run, regions):
    learner = Quadratic((10, 10))
    setup = regions("sites.count=2", EVERYONE, "goal={loss: 0.2, max_rounds: 50}",
                    "training.local_steps=1", "simulation.evaluate_samples=7")  # fmt: skip
    done = run(setup, learner)
    # The distance halves: 1.25, 0.3125 and 0.078 from 2.5/2.
    assert [r.test_loss for r in done.of(events.Round)] == pytest.approx([0.3125, 0.078125])
    assert learner.limits["test"] == [7, 7, None]


def test_not_every_round_need_be_evaluated(run, regions):
    learner = Saturating(EIGHT, kappa=10)
    done = run(regions("runtime.evaluate_every=3", "selection.learn_kappa=false"), learner)
    known = [r.round for r in done.of(events.Round) if r.test_accuracy is not None]
    assert known == [3, 6, 8]
    assert learner.limits["validation"] == [1000] * 3


@pytest.mark.parametrize(("kappa", "found"), [(4.0, 4.0), (30.0, 30.0)])
def test_trials_of_halves_find_kappa(run, regions, kappa, found):
    """The prior is 10; the learner's gain is k/(k+kappa) exactly."""
    learner = Saturating(EIGHT, kappa)
    setup = regions("selection={policy: together, adjustment_interval: 2, min_members: 8}",
                    "goal.max_rounds=60")  # fmt: skip
    done = run(setup, learner)
    seen = [event.observation["kappa"] for event in done.of(events.Decision)]
    assert seen[0] == 10
    assert seen[-1] == pytest.approx(found, rel=0.1)
    assert abs(math.log(seen[-1] / found)) < abs(math.log(seen[3] / found))


def test_trials_need_the_same_members_and_leave_no_trace(run, regions):
    """A generation of one round with other members after it brings no trial."""
    every = ("selection.policy=together", "selection.min_members=4", PLAIN, "goal.max_rounds=12")
    trying, without = (
        run(regions(*every, f"selection.learn_kappa={tries}"), Saturating(EIGHT, kappa=10))
        for tries in ("true", "false")
    )
    first = [job.of(events.Round)[:3] for job in (trying, without)]
    assert [r.digest for r in first[0]] == [r.digest for r in first[1]]
    moving = regions("selection={policy: random-k, k: 3, adjustment_interval: 1}")
    assert not moving.config.selection.tries_halves
    learner = Saturating(EIGHT, kappa=10)
    run(moving, learner)
    assert len(learner.limits["validation"]) == 8


def test_halves_are_tried_where_the_group_stays_together(run, regions, gone):
    """A generation begins with every round but the second; who is lost and comes back breaks it."""
    gone({1: [(2.0, 4.0)]})
    learner = Saturating(EIGHT[:4], kappa=10)
    setup = regions("sites.count=4", "selection.policy=together", "selection.min_members=4",
                    "selection.adjustment_interval=1", "goal.max_rounds=12", PLAIN)  # fmt: skip
    done = run(setup, learner)
    played = [set(event.members) for event in done.of(events.Round)]
    decided = {d.round: set(d.members) for d in done.of(events.Decision)}
    assert sorted(decided) == [1, *range(3, 13)]
    decided[2] = decided[1]
    tried = [r for r in (2, *range(4, 13)) if played[r - 2] == decided[r]]
    assert 6 <= len(tried) < 10
    # One evaluation a round; three for a trial, and the model before the first round.
    assert len(learner.limits["validation"]) == 12 + 3 * len(tried) + 1


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_runs_and_its_record_replays(run, regions, policy):
    overrides = ["selection.adjustment_interval=2", f"selection.policy={policy}", "seed=3"]
    if policy == "cefl":
        overrides += ["selection.cefl.critical.test=layers", "selection.cefl.critical.window=1"]
    done = run(regions(*overrides), Saturating(EIGHT, kappa=10))
    decided, rounds = done.of(events.Decision), done.of(events.Round)
    assert done.summary.outcome == "budget"
    assert len(rounds) == 8
    assert {d.policy for d in decided} == {policy}
    governed = {d.generation: d.members for d in decided}
    assert all(set(r.members) == set(governed[r.generation]) for r in rounds)
    again = list(replay(done.run_dir))
    assert len(again) == len(decided) >= 2
    for replayed in again:
        assert replayed.agree
        assert replayed.now.steps == replayed.then.steps
        assert replayed.now.deadline_s == replayed.then.deadline_s
        assert replayed.now.reason == replayed.then.reason
    if policy == "cefl":
        assert len(decided[-1].observation["layer_norms"][0]) == 2


@pytest.mark.parametrize("model", ["star", "ring", "mesh"])
@pytest.mark.parametrize("policy", ["together", "all"])
def test_without_noise_nothing_is_learned_of_the_exchange_and_the_speeds(
    run, regions, model, policy
):
    setup = regions(f"selection.exchange_model={model}", f"selection.policy={policy}",
                    "selection.adjustment_interval=2", "selection.clock=measured",
                    "goal.max_rounds=12")  # fmt: skip
    done = run(setup, Saturating(EIGHT, kappa=10))
    world = setup.build_world()
    for decision in done.of(events.Decision):
        assert decision.communication_correction == pytest.approx(1, rel=1e-9)
        modelled = dict(zip(world.names, world.throughput(decision.time_s), strict=True))
        assert decision.throughput == pytest.approx(modelled)
    assert len(done.of(events.Decision)) >= 6


def test_times_that_differ_from_the_model_are_learned(run, regions):
    setup = regions("simulation.timing={speed: 0.5, exchange: 2}", EVERYONE)
    last = run(setup, Saturating(EIGHT, kappa=10)).of(events.Decision)[-1]
    assert last.communication_correction == pytest.approx(2)
    modelled = setup.build_world().throughput(last.time_s)
    assert list(last.throughput.values()) == pytest.approx(modelled / 2)


def test_energy_carbon_and_money_add_up(run, regions):
    overrides = [f"sites.list.{site}.carbon={{kind: constant, g_per_kwh: {100 * (site + 1)}}}"
                 for site in range(3)]  # fmt: skip
    overrides += [f"sites.list.{site}.price={{kind: constant, per_kwh: {0.1 * (site + 1)}}}"
                  for site in range(3)]  # fmt: skip
    setup = regions("sites.count=3", *overrides, "selection.policy=static-k", "selection.k=2")
    done = run(setup, Saturating(EIGHT[:3], kappa=10))
    world, rounds = setup.build_world(), done.of(events.Round)
    sums = np.zeros(3)
    for event in rounds:
        trains_s = event.time_s - event.duration_s
        for share in event.sites:
            site = world.names.index(share.site)
            energy_j = world.energy_j(site, trains_s, share.local_s)
            assert share.energy_j == pytest.approx(energy_j, rel=1e-9)
            assert share.carbon_g == pytest.approx(energy_j / 3.6e6 * 100 * (site + 1))
            assert share.money == pytest.approx(energy_j / 3.6e6 * 0.1 * (site + 1))
            sums += share.energy_j, share.carbon_g, share.money
    summary = done.summary
    assert (summary.energy_j, summary.carbon_g, summary.money) == pytest.approx(tuple(sums))
    assert min(sums) > 0


def test_times_and_bytes_add_up(run, regions):
    setup = regions("selection={policy: random-k, k: 3, adjustment_interval: 1}",
                    "outer={kind: nesterov, lr: 0.7, momentum: 0.7}",
                    "simulation.update_bytes=40000", "simulation.timing.round_s=0.1")  # fmt: skip
    done = run(setup, Saturating(EIGHT, kappa=10))
    summary, rounds, rebuilds = done.summary, done.of(events.Round), done.of(events.Rebuild)
    phases = summary.local_s + summary.exchange_s + summary.rebuild_s + summary.overhead_s
    assert phases == pytest.approx(summary.training_s)
    assert summary.overhead_s >= 0.8 - 1e-9
    for event in rounds:
        assert [s.local_s + s.exchange_s for s in event.sites] == pytest.approx(
            [event.duration_s] * 3
        )
    assert summary.training_s == rounds[-1].time_s
    # Three members send four thirds of an update; a newcomer gets the model and the momentum.
    assert {s.bytes_sent for r in rounds for s in r.sites} == {round(40000 * 4 / 3)}
    assert all(e.join_bytes == 80_000 * len(e.newcomers) for e in rebuilds)
    before: set[str] = set()
    for event in rounds:
        new = next((e.newcomers for e in rebuilds if e.generation == event.generation), ())
        if before and event.generation > 1:
            assert set(new) >= set(event.members) - before
        before = set(event.members)
    joins = sum(e.join_bytes for e in rebuilds)
    assert joins > 0
    assert summary.bytes_sent == joins + 8 * 3 * round(40000 * 4 / 3)


def test_the_whole_run_is_on_the_record(run, regions):
    done = run(regions(EVERYONE, "selection.adjustment_interval=3"), Saturating(EIGHT, kappa=10))
    kinds = [event.event for event in done.events]
    # Decisions look a round ahead: those on rounds 4 and 7 are made after rounds 2 and 5.
    assert kinds == [
        "run_started", "decision", "rebuild", "round", "round", "decision", "round", "round",
        "round", "decision", "round", "round", "round", "run_ended",
    ]  # fmt: skip
    started = done.events[0]
    assert (started.pacing, started.policy, started.links[:9]) == ("virtual", "all", "simulated")
    times_s = [event.time_s for event in done.events]
    assert times_s == sorted(times_s)


def test_members_are_asked_for_the_work_that_was_decided(run, regions):
    learner = Saturating(EIGHT[:3], kappa=10)
    setup = regions("sites.count=3", EVERYONE, "goal.max_rounds=2", "training.batch_size=10")
    done = run(setup, learner)
    names = setup.build_world().names
    for (round_, work, keep), event in zip(learner.trained, done.of(events.Round), strict=True):
        assert (round_, keep) == (event.round, True)
        assert [(names[site], steps) for site, steps in work] == [
            (s.site, s.steps) for s in event.sites
        ]
        assert all(s.samples == BATCH * s.steps for s in event.sites)


def test_decisions_see_what_the_members_have_told(run, regions):
    setup = regions("selection={policy: static-k, k: 3, adjustment_interval: 2}")
    done = run(setup, Saturating(EIGHT, kappa=10))
    names = setup.build_world().names
    members = {names.index(name) for name in done.of(events.Round)[0].members}
    seen = done.of(events.Decision)[2].observation  # after the third round
    told = {site: loss for site, loss in enumerate(seen["loss_rms"]) if loss != "nan"}
    assert told == {site: 2.0 + site for site in members}
    assert {site for site, round_ in enumerate(seen["last_seen"]) if round_} == members
    # Three members bring 3/13 each round; what the first has brought nobody has measured.
    assert seen["gains"] == pytest.approx([3 / 13] * 2, abs=1e-4)
    assert seen["update_norms"][0] == pytest.approx(math.sqrt(1 / 3), rel=1e-6)


def test_a_real_run_on_the_modelled_clock_is_the_same_run(run, jobs):
    """Coordinator and sites, and the simulation without anything that the model lacks."""
    overrides = (
        "sites.count=4", "selection={policy: random-k, k: 2, exchange_model: star}",
        "selection.clock=modelled", "selection.adjustment_interval=1", "goal.max_rounds=8",
        "goal.accuracy=1", "runtime.rebuild_s=0", "training.momentum=0.9", "training.lr=0.1",
        "outer={kind: nesterov, lr: 0.7, momentum: 0.7}", PLAIN,
        "simulation.evaluate_samples=null", "simulation.workers=0",
    )  # fmt: skip
    setup = Setup(load_config(None, [*QUICK, *overrides]), default_path().parent)
    real, simulated = jobs.run(*overrides), run(setup, digits(setup))
    decided = [
        [(d.round, d.members, d.steps, d.reason) for d in job.of(events.Decision)]
        for job in (real, simulated)
    ]
    assert decided[0] == decided[1]
    assert len({members for _, members, *_ in decided[0]}) > 2
    rounds = list(zip(real.of(events.Round), simulated.of(events.Round), strict=True))
    assert len(rounds) == 8
    for ours, theirs in rounds:
        assert theirs.time_s == pytest.approx(ours.time_s, rel=1e-9)
        assert theirs.energy_j == pytest.approx(ours.energy_j, rel=1e-9)
        assert [s.samples for s in theirs.sites] == [s.samples for s in ours.sites]
        # The mean is added up in another order.
        assert theirs.train_loss == pytest.approx(ours.train_loss, rel=1e-4)
        assert theirs.validation_loss == pytest.approx(ours.validation_loss, rel=1e-4)
        assert theirs.test_accuracy == pytest.approx(ours.test_accuracy, abs=0.003)
    joins = list(zip(real.of(events.Rebuild), simulated.of(events.Rebuild), strict=True))
    assert len(joins) > 2
    for ours, theirs in joins:
        assert (theirs.generation, theirs.newcomers) == (ours.generation, ours.newcomers)
        # The simulation counts the weight that travels with an update, four bytes, here as well.
        assert theirs.join_bytes == pytest.approx(ours.join_bytes, rel=1e-3)


def test_a_run_leaves_torch_s_generator_alone(run, regions):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(regions(), Saturating(EIGHT, kappa=10))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_packaged_scenario_reaches_its_target(tmp_path):
    quiet = ["telemetry.console=none", "telemetry.metrics.enabled=false", "simulation.workers=0"]
    setup = Setup.resolve(None, quiet)
    assert setup.config == load_config(None, quiet)
    with Telemetry(setup.config.telemetry, tmp_path) as telemetry:
        summary = engine.simulate(setup, telemetry)
    assert (summary.outcome, summary.exit_code) == ("reached", 0)
    assert 5 < summary.time_to_target_s < 40
