from __future__ import annotations

import torch

from powertrip.simulation.eager import EagerTraining
from tests.simulation.learners import Quadratic


def test_each_member_starts_where_its_own_update_has_led():
    learner = Quadratic((10, 10, 10))
    eager = EagerTraining(learner, lr=0.5)
    x = torch.tensor([1.0, 2.0, 3.0])

    def updates(vector, round_, *sites):
        work = [(site, 1) for site in sites]
        return {done.site: done.update.clone() for done in eager.train(vector, round_, work)}

    first = updates(x, 1, 0, 1)
    for site in (0, 1):
        assert first[site].equal(learner.update(x, site, 1))
    # Site 2 is new, and starts from the committed model; site 1 was no member in round 2.
    second = updates(x, 2, 2, 0)
    assert list(second) == [2, 0]
    assert second[2].equal(learner.update(x, 2, 1))
    assert second[0].equal(learner.update(x - 0.5 * first[0], 0, 1))
    y = x + 1
    third = updates(y, 3, 0, 1)
    assert third[0].equal(learner.update(y - 0.5 * second[0], 0, 1))
    assert third[1].equal(learner.update(y, 1, 1))
