from __future__ import annotations

import math

import pytest
import torch

from powertrip.runtime.guard import EXPLODES, UpdateGuard


def update(norm: float) -> torch.Tensor:
    return torch.tensor([0.6, 0.8, 0.0]) * norm


@pytest.fixture
def guard():
    guard = UpdateGuard()
    for norm in (1.0, 2.0, 3.0):
        assert guard.reason_against(update(norm)) is None
    return guard


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_no_number_is_enough(bad):
    vector = update(1.0)
    vector[2] = bad
    assert UpdateGuard().reason_against(vector) == "the update is no number"


def test_an_update_far_beyond_the_usual_is_refused(guard):
    assert guard.reason_against(update(2.0 * EXPLODES * 0.99)) is None
    reason = UpdateGuard.reason_against(guard, update(1000.0))
    assert reason == "the update's norm is 1e+03, and was 2.5 until now"


def test_what_is_refused_is_not_remembered(guard):
    for _ in range(20):
        assert guard.reason_against(update(1e6)) is not None
    assert guard.reason_against(update(2.0)) is None


def test_before_three_updates_nothing_is_usual():
    guard = UpdateGuard()
    for norm in (1e-6, 1.0, 1e6):
        assert guard.reason_against(update(norm)) is None


def test_norms_beyond_single_precision_are_numbers():
    assert UpdateGuard().reason_against(torch.full((3,), 1e30)) is None


def test_after_updates_of_nothing_anything_may_come():
    guard = UpdateGuard()
    for norm in (0.0, 0.0, 0.0, 5.0):
        assert guard.reason_against(update(norm)) is None


def test_the_usual_follows_the_last_five(guard):
    for norm in (30.0, 40.0, 50.0, 60.0, 70.0):
        assert guard.reason_against(update(norm)) is None
    assert guard.reason_against(update(900.0)) is None
