from __future__ import annotations

import pytest
from pydantic import ValidationError

from powertrip.selection import SelectionSettings


def test_unknown_policy_lists_the_known_ones():
    with pytest.raises(ValidationError, match=r"unknown policy 'best'; write one of: powertrip, "):
        SelectionSettings(policy="best")


@pytest.mark.parametrize(
    "field",
    [
        {"k": 0},
        {"adjustment_interval": 0},
        {"margin": -0.1},
        {"patience": 0},
        {"min_delay_s": 0},
        {"work": "none"},
        {"kay": 3},
        {"seat_margin": float("nan")},
    ],
)
def test_bad_options_are_refused(field):
    with pytest.raises(ValidationError):
        SelectionSettings(**field)


def test_every_field_is_described():
    for name, field in SelectionSettings.model_fields.items():
        assert field.description, name


def test_the_paper_preset_fills_what_is_not_written():
    paper = SelectionSettings(preset="paper", margin=0.1)
    assert (paper.work, paper.ranking, paper.projector) == ("mean", "power-to-cost", "log")
    assert (paper.margin, paper.patience, paper.exchange_model) == (0.1, 1, "star")
    assert SelectionSettings(**paper.model_dump()) == paper
    with pytest.raises(ValidationError):
        SelectionSettings(preset="other")
