from __future__ import annotations

import pytest
from pydantic import ValidationError

from powertrip.runtime.settings import CheckpointSettings


@pytest.mark.parametrize(
    ("settings", "rounds", "seconds", "due"),
    [
        ({}, 1, 60.0, True),
        ({}, 1000, 59.9, False),
        ({}, 0, 1000.0, False),  # nothing has come since the last one
        ({"every_s": None}, 1000, 1e6, False),
        ({"every_s": None, "every_rounds": 3}, 3, 0.0, True),
        ({"every_s": None, "every_rounds": 3}, 2, 1e6, False),
        ({"every_s": 5, "every_rounds": 3}, 1, 5.0, True),
    ],
)
def test_when_a_checkpoint_is_due(settings, rounds, seconds, due):
    assert CheckpointSettings(**settings).is_due(rounds, seconds) is due


@pytest.mark.parametrize("wrong", [{"every_s": 0}, {"every_rounds": 0}, {"keep": 0}])
def test_values_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValidationError):
        CheckpointSettings(**wrong)
