from __future__ import annotations

import numpy as np
import pytest

from powertrip.selection.critical import CriticalSettings, is_critical, participants


def critical(observe, update_norms, layer_norms=(), **options):
    seen = observe(update_norms=np.array(update_norms, float), layer_norms=layer_norms)
    return is_critical(seen, CriticalSettings(window=2, **options))


def test_the_start_is_critical(observe):
    assert critical(observe, [])
    assert critical(observe, [4, 3, 2])
    assert not critical(observe, [4, 3, 2, 1])


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        # Means of 2 and then 2.02 or 2.018: +1.0 % and +0.9 %.
        ([1, 3, 2, 2.04], True),
        ([1, 3, 2, 2.036], False),
        ([9, 9, 1, 3, 1, 3], False),
        ([1, 1, 0, 0], False),
        ([0, 0, 0, 0], False),
        ([0, 0, 0, 1], True),
    ],
)
def test_growing_norms_are_critical(observe, norms, expected):
    assert critical(observe, norms) == expected


def test_threshold(observe):
    assert not critical(observe, [2, 2, 2.1, 2.1], threshold=0.06)
    assert critical(observe, [2, 2, 2.1, 2.1], threshold=0.04)


def test_any_layer_that_changes_by_half_is_critical(observe):
    steady = [[4.0, 2.0], [4.0, 2.0], [4.0, 1.1], [4.0, 1.1]]
    falls = [[4.0, 2.0], [4.0, 2.0], [4.0, 1.0], [4.0, 0.9]]
    assert not critical(observe, [1, 1, 1, 1], steady, test="layers")
    assert critical(observe, [1, 1, 1, 1], falls, test="layers")
    assert not critical(observe, [1, 1, 1, 1], falls)


def test_without_layers_the_whole_update_counts(observe):
    assert critical(observe, [4, 4, 2, 2], test="layers")
    assert not critical(observe, [4, 4, 3, 3], test="layers")


def test_more_participants():
    assert participants(3, False, 1.5) == 3
    assert participants(3, True, 1.5) == 5
