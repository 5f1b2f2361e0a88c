from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from powertrip.coordination.messages import Tally
from powertrip.exchange.collective import WeightedMean
from powertrip.runtime.trial import HalfTrial
from powertrip.telemetry import events
from tests.exchange.conftest import Members

UPDATES = np.random.default_rng(0).normal(size=(4, 501)).astype(np.float32)
WEIGHTS = np.array([32.0, 8.0, 16.0, 5.0])
BEFORE = np.linspace(-1, 1, 501, dtype=np.float32)


@pytest.fixture(scope="module")
def members():
    return Members()


def weighted(sites):
    return np.average(UPDATES[list(sites)], axis=0, weights=WEIGHTS[list(sites)])


@pytest.mark.parametrize("algorithm", ["ring", "mesh"])
def test_both_halves_and_all_are_tried_from_the_model_before(members, algorithm):
    half = (1, 3)
    sent = threading.Barrier(4)

    def work(group):
        site = group.members[group.rank]
        mean = WeightedMean(501, torch.device("cpu"))
        mean.update.copy_(torch.from_numpy(UPDATES[site]))
        before = torch.from_numpy(BEFORE.copy())
        trial = HalfTrial(
            group, half, site=site, mean=mean, weight=float(WEIGHTS[site]), before=before
        )
        total = mean.over(group, weight=float(WEIGHTS[site]))
        trial.begin(mean, total)
        sent.wait(10)
        # The next round: another exchange in the same buffer, from another model.
        before.zero_()
        mean.update.fill_(9.0)
        trial.forward()
        mean.over(group, weight=1.0)
        trial.finish()
        tried = []

        def tally(vector):
            tried.append(vector.numpy().copy())
            return Tally(correct=len(tried), loss_sum=0.0, count=1)

        return trial.evaluate(tally), tried

    for trial, tried in members.each((0, 1, 2, 3), work, algorithm=algorithm).values():
        assert trial.part == 2
        order = (trial.before, trial.all, trial.half_a, trial.half_b)
        assert [tally.correct for tally in order] == [1, 2, 3, 4]
        expected = (0.0, weighted((0, 1, 2, 3)), weighted(half), weighted((0, 2)))
        for vector, update in zip(tried, expected, strict=True):
            np.testing.assert_allclose(vector, BEFORE - update, rtol=1e-4, atol=1e-5)


def observed(job):
    return [decision.observation for decision in job.of(events.Decision)]


def test_a_run_learns_kappa_and_the_trials_change_nothing_else(jobs):
    options = ("sites.count=4", "selection.policy=together", "goal.accuracy=1",
               "goal.max_rounds=20", "training.lr=0.2")  # fmt: skip
    tried = jobs.run(*options)
    plain = jobs.run(*options, "selection.learn_kappa=false", "selection.kappa=5")
    assert {seen["kappa"] for seen in observed(plain)} == {5}
    kappas = [seen["kappa"] for seen in observed(tried)]
    # The first trial is evaluated in the second round, and seen by the decision after that.
    assert kappas[0] == 10
    assert len(set(kappas[1:])) > 1
    again = jobs.run(*options)
    assert again.summary.digest == tried.summary.digest
    assert [seen["kappa"] for seen in observed(again)] == kappas


@pytest.mark.parametrize("policy", ["static-k", "together"])
def test_only_policies_that_read_kappa_have_it_tried(jobs, policy):
    job = jobs.run("sites.count=2", f"selection.policy={policy}", "selection.k=2",
                   "goal.max_rounds=6", "goal.accuracy=1")  # fmt: skip
    update = 4 * (6_186 + 1)
    sent = [round_.bytes_sent // update for round_ in job.of(events.Round)]
    assert max(sent) == (2 if policy == "static-k" else 4)
