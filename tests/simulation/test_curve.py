from __future__ import annotations

import math

import pytest
import torch

from powertrip.simulation.curve import CurveLearner
from powertrip.training.settings import CurveSettings

CURVE = CurveSettings(kappa=6, h0=4, scale=2, classes=4, best=0.9, samples=30, parameters=99)


@pytest.fixture
def learner():
    with CurveLearner(CURVE, sites=5, batch_size=10) as learner:
        yield learner


def test_a_round_brings_what_its_members_and_their_steps_are_worth(learner):
    vector = learner.initial()
    trained = list(learner.train(vector, 1, [(3, 4), (0, 12)]))
    assert [(t.site, t.steps, t.samples) for t in trained] == [(3, 4, 40), (0, 12, 120)]
    # 2/(2+6) of the mean of 4/(1+1) and 12/(1+3).
    gain = 0.25 * (2 + 3) / 2
    for done in trained:
        assert float(vector - done.update) == pytest.approx(gain)


def test_accuracy_and_loss_approach_their_ends(learner):
    start = learner.evaluate(torch.tensor([0.0]), "test")
    assert (start.accuracy, start.loss) == pytest.approx((0.25, math.log(4)))
    later = learner.evaluate(torch.tensor([2.0]), "validation", 10)
    assert later.accuracy == pytest.approx(0.9 - 0.65 / math.e)
    assert later.loss == pytest.approx(math.log(4) / math.e)


def test_it_stands_for_sites_with_data_and_a_model_of_some_size(learner):
    assert learner.samples == (30,) * 5
    assert learner.update_bytes == 400
