from __future__ import annotations

import numpy as np
import pytest
import torch

from powertrip.exchange.settings import ExchangeSettings
from powertrip.simulation.averaging import Averaging
from tests.simulation.learners import Quadratic

WORK = ((0, 1), (1, 2), (2, 3))


@pytest.fixture
def average():
    def average(**settings):
        learner = Quadratic()
        vector, mean = learner.initial(), torch.full((3,), 9.0)
        options = {name: settings.pop(name) for name in ("half", "alone") if name in settings}
        averaging = Averaging(ExchangeSettings(**settings), learner, vector, lr=1.0)
        trained, parts = averaging.average(vector, 1, WORK, out=mean, **options)
        assert [done.site for done in trained] == [0, 1, 2]
        updates = [learner.update(vector, site, steps).numpy() for site, steps in WORK]
        return mean.numpy(), parts, np.array(updates)

    return average


def test_the_mean_is_weighted_by_samples(average):
    mean, parts, updates = average()
    # 10, 20 and 30 samples for one to three steps of ten
    np.testing.assert_allclose(mean, np.array([1, 2, 3]) @ updates / 6, rtol=1e-6)
    assert parts is None


def test_some_and_the_others_have_means_of_their_own(average):
    mean, parts, updates = average(half={0, 2})
    np.testing.assert_allclose(parts.half, np.array([1, 0, 3]) @ updates / 4, rtol=1e-6)
    np.testing.assert_allclose(parts.rest, updates[1], rtol=1e-6)
    np.testing.assert_allclose((4 * parts.half + 2 * parts.rest) / 6, mean, rtol=1e-6)


def test_what_is_not_sent_is_not_packed(average):
    exact = average()[0]
    assert not np.array_equal(average(codec="int8")[0], exact)
    assert np.array_equal(average(codec="int8", alone=True)[0], exact)
