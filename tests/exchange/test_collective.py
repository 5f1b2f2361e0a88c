from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.exchange.collective import WeightedMean
from powertrip.exchange.errors import ExchangeError

CPU = torch.device("cpu")


def mean_over(members, updates, weights):
    """Every member's (mean, total weight, bytes sent)."""

    def work(group):
        site = group.members[group.rank]
        mean = WeightedMean(len(updates[site]), CPU)
        mean.update.copy_(torch.from_numpy(updates[site]))
        total = mean.over(group, weight=weights[site])
        return mean.update.numpy(), total, group.bytes_sent

    return members.each(tuple(range(len(updates))), work)


def test_the_mean_is_weighted_by_samples(members):
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(3, 2001)).astype(np.float32)
    weights = [512, 64, 7]
    results = mean_over(members, updates, weights)
    expected = np.average(updates.astype(np.float64), axis=0, weights=weights)
    for mean, total, _ in results.values():
        np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)
        assert np.array_equal(mean, results[0][0])
        assert total == 512 + 64 + 7
    # Each of 2 others gets a third of the update and its weight, and each third's sum.
    assert sum(sent for *_, sent in results.values()) == 3 * 2 * 2 * (2001 + 1) * 4 // 3


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-100, 100, width=32), st.integers(0, 10_000)), min_size=2, max_size=4
    ).filter(lambda pairs: any(weight for _, weight in pairs))
)
def test_the_mean_lies_between_the_updates_that_count(members, pairs):
    updates = [np.full(3, value, dtype=np.float32) for value, _ in pairs]
    results = mean_over(members, updates, [weight for _, weight in pairs])
    counted = [value for value, weight in pairs if weight]
    slack = 1e-4 * max(map(abs, counted)) + 1e-6
    for mean, total, _ in results.values():
        assert total == sum(weight for _, weight in pairs)
        assert min(counted) - slack <= mean.min() <= mean.max() <= max(counted) + slack


def test_a_member_of_weight_0_has_no_say(members):
    updates = [np.full(4, value, dtype=np.float32) for value in (2, 1000, 4)]
    for mean, total, _ in mean_over(members, updates, [3, 0, 1]).values():
        assert mean.tolist() == [2.5] * 4
        assert total == 4


def test_no_weight_at_all_is_an_error_at_every_member(members):
    updates = np.ones((2, 3), dtype=np.float32)
    results = mean_over(members, updates, [0, 0])
    for error in results.values():
        assert isinstance(error, ExchangeError)
        assert "no member trained on a single sample" in str(error)
        assert error.generation > 0


def test_one_member_keeps_its_own_update(members):
    update = np.array([[1.0, -3.0, 0.1]], dtype=np.float32)
    ((mean, total, sent),) = mean_over(members, update, [48]).values()
    np.testing.assert_allclose(mean, update[0], rtol=1e-6)
    assert (total, sent) == (48, 0)


def test_an_update_travels_with_one_slot_more():
    mean = WeightedMean(10, CPU)
    assert mean.update.shape == (10,)
    assert mean.nbytes == 44


@pytest.mark.parametrize("ahead", [False, True])
def test_a_mean_can_be_used_round_after_round(members, ahead):
    def work(group):
        mean = WeightedMean(2, CPU)
        means = []
        for round_ in range(3):
            if ahead:
                mean.expect(group)
            mean.update.fill_(float(group.rank + round_))
            mean.over(group, weight=1 + round_)
            means.append(mean.update.tolist())
        return means

    assert members.each((0, 1), work)[1] == [[0.5, 0.5], [1.5, 1.5], [2.5, 2.5]]


@pytest.mark.parametrize("failing", [0, 1])
def test_the_loss_of_a_member_is_an_error(members, failing):
    def work(group):
        if group.rank != failing:
            WeightedMean(50_000, CPU).over(group, weight=1)

    results = members.each((0, 1), work, timeout_s=50)
    assert isinstance(results[1 - failing], ExchangeError)
