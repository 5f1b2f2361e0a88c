from __future__ import annotations

import math

import pytest
import torch

from powertrip.coordination.replay import replay
from powertrip.selection.outlook import look
from powertrip.selection.types import Observation
from powertrip.simulation.in_process import InProcess
from powertrip.simulation.learner import load_parts
from powertrip.simulation.oracle import PrefixGains
from powertrip.telemetry import events
from powertrip.training.outer import Nesterov
from tests.simulation.learners import Saturating

ORACLE = ("selection.policy=powertrip", "selection.projector=oracle", "selection.window=2")
MOMENTA = ("training.momentum=0.9", "outer={kind: nesterov, lr: 0.7, momentum: 0.7}")
WHOLE = "simulation.evaluate_samples=null"


def digits(setup) -> InProcess:
    return InProcess(*load_parts(setup), setup.config)


def seen_in(done, number: int) -> Observation:
    return Observation.from_json(done.of(events.Decision)[number].observation)


def test_the_gains_are_those_of_the_rounds_themselves(run, regions):
    """Each prefix of the ranking does the round from one snapshot, with momentum in both steps."""
    setup = regions(*ORACLE, *MOMENTA, "sites.count=6", "goal.max_rounds=3", "training.lr=0.1",
                    "simulation.evaluate_samples=70")  # fmt: skip
    done = run(setup, digits(setup))
    seen = seen_in(done, -1)
    learner, alone = digits(setup), digits(setup)
    vector = learner.initial()
    outer = Nesterov(0.7, 0.7, learner.parameters_size, "cpu")
    for round_ in (1, 2):  # some history, the same for both
        updates = [t.update.clone() for t in learner.train(vector, round_, [(0, 3), (4, 3)])]
        for _ in alone.train(vector, round_, [(0, 3), (4, 3)]):
            pass
        outer.step(vector, torch.stack(updates).mean(0))
    state, before = outer.state.clone(), vector.clone()

    def copied() -> Nesterov:
        copy = Nesterov(0.7, 0.7, learner.parameters_size, "cpu")
        copy.state = outer.state
        return copy

    gains = PrefixGains(setup.config, learner, copied).measure(seen, vector, 3)
    assert torch.equal(vector, before)
    assert torch.equal(outer.state, state)
    order = look(seen, setup.config.selection, keep_seats=True).order
    assert list(gains) == list(range(min(gains), max(gains) + 1))
    assert len(gains) >= 3
    for k, gain in gains.items():
        work = [(int(site), int(seen.base_steps[site])) for site in order[:k]]
        done_by = [(t.update.clone(), t.samples) for t in alone.train(vector, 3, work, keep=False)]
        mean = sum(u * n for u, n in done_by) / sum(n for _, n in done_by)
        after = vector.clone()
        copied().step(after, mean)
        losses = [alone.evaluate(x, "validation", 70).loss for x in (vector, after)]
        assert gain == pytest.approx(losses[0] - losses[1], rel=1e-4)
    # What the sites' own optimizers remember is what it was.
    work = [(site, 2) for site in (0, 4, 5)]
    for ours, theirs in zip(learner.train(vector, 3, work), alone.train(vector, 3, work),
                            strict=True):  # fmt: skip
        assert torch.equal(ours.update, theirs.update)


def test_what_was_measured_is_what_the_next_round_brings(run, regions):
    """Where all sites take part always, the round that is tried is the one that comes next."""
    everyone = ("sites.count=3", "selection.min_members=3", "selection.adjustment_interval=2",
                "selection.learn_kappa=false", WHOLE)  # fmt: skip
    setup = regions(*ORACLE, *MOMENTA, *everyone)
    done = run(setup, digits(setup))
    losses = {r.round: r.validation_loss for r in done.of(events.Round)}
    learner = digits(setup)
    losses[0] = learner.evaluate(learner.initial(), "validation").loss
    decided = done.of(events.Decision)
    assert [d.round for d in decided] == [1, 3, 5, 7]
    for decision in decided:
        tried = max(decision.round - 1, 1)  # decisions are made a round ahead, but for the first
        gains = decision.observation["measured_gains"]
        assert gains == {"3": pytest.approx(losses[tried - 1] - losses[tried], rel=1e-6)}

    plain = regions(*ORACLE, *MOMENTA, *everyone, "selection.projector=saturating")
    without = run(plain, digits(plain))
    assert without.summary.digest == done.summary.digest


def test_trials_are_made_for_decisions_only(run, regions):
    learner = Saturating(tuple(range(30, 110, 10)), kappa=4)
    setup = regions(*ORACLE, "selection.adjustment_interval=3", "selection.learn_kappa=false",
                    "goal.max_rounds=9", "selection.replan_threshold=null")  # fmt: skip
    done = run(setup, learner)
    tries = [round_ for round_, _, keep in learner.trained if not keep]
    assert len(tries) == len(done.of(events.Decision)) == 3
    assert tries == [1, 3, 6]
    for decision in done.of(events.Decision):
        gains = {int(k): gain for k, gain in decision.observation["measured_gains"].items()}
        # The learner's own curve, in float32 near 100.
        assert gains == {k: pytest.approx(k / (k + 4), abs=1e-4) for k in gains}
        for line in decision.candidates:
            assert line.gain == pytest.approx(gains[line.k])


def test_a_record_with_measured_gains_replays(run, regions):
    setup = regions(*ORACLE)
    done = run(setup, Saturating(tuple(range(30, 110, 10)), kappa=4))
    assert all(replayed.agree for replayed in replay(done.run_dir))


def test_a_round_that_would_diverge_brings_nothing(run, regions):
    class Wild(Saturating):
        def loss(self, vector):
            members = 1 / float(vector[1:].square().sum()) if vector[1:].any() else 0
            return math.inf if members > 2.5 else super().loss(vector)

    setup = regions(*ORACLE, "sites.count=4", "goal.max_rounds=1")
    done = run(setup, Wild((30, 40, 50, 60), kappa=4))
    gains = done.of(events.Decision)[0].observation["measured_gains"]
    assert gains["2"] > 0
    assert gains["3"] == gains["4"] == 0
