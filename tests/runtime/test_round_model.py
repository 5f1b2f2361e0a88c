from __future__ import annotations

import math

import pytest

from powertrip.runtime.messages import Begin
from powertrip.runtime.round_model import RoundModel


def begin(members, *, steps=None, deadline_s=None) -> Begin:
    return Begin(
        generation=1, members=members, steps=steps, deadline_s=deadline_s, first_round=1,
        rounds=1, transfers=(), clock_s=0.0,
    )  # fmt: skip


@pytest.fixture
def model(three_sites):
    return RoundModel(three_sites.build_world(), three_sites.config, update_bytes=500_000)


def test_local_training_takes_its_samples_over_the_speed(model):
    work = begin((2, 0, 1), steps=(2, 4, 1))
    # 10 samples a step at 100, 50 and 25 samples a second.
    assert model.local_s(work, 0, 0.0) == pytest.approx(0.4)
    assert model.local_s(work, 1, 0.0) == pytest.approx(0.2)
    assert model.local_s(work, 2, 0.0) == pytest.approx(0.8)


def test_power_that_changes_within_a_round_counts(model):
    # From second 10 on, oslo has half its power.
    work = begin((2,), steps=(5,))
    assert model.local_s(work, 2, 9.0) == pytest.approx(1.0 + 25 / 12.5)
    assert model.local_s(work, 2, 10.0) == pytest.approx(4.0)


def test_a_deadline_is_its_own_length(model):
    work = begin((1, 2), deadline_s=(0.3, 0.7))
    assert model.local_s(work, 1, 0.0) == 0.3
    assert model.local_s(work, 2, 99.0) == 0.7
    assert model.stalled(work, 50.0) == []


def test_a_round_ends_with_the_last_member_to_train_and_reach_the_hub(model):
    assert model.round_s(begin((0, 1), steps=(40, 1)), 0.0) == pytest.approx(4.0 + 0.05)
    assert model.round_s(begin((0, 1), steps=(4, 4)), 0.0) == pytest.approx(0.8 + 1.1)
    assert model.round_s(begin((0, 2), deadline_s=(1.0, 0.5)), 0.0) == pytest.approx(1.45)


def test_a_site_without_power_stalls_the_round(model):
    # From second 20 on, oslo has none for good.
    work = begin((0, 2), steps=(1, 5))
    assert model.stalled(work, 0.0) == []
    assert model.stalled(work, 19.0) == ["oslo"]
    assert model.round_s(work, 20.0) == math.inf
