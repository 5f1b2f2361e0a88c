from __future__ import annotations

import numpy as np

from powertrip.selection import SelectionSettings, build_policy


def decide(observation, k, **ecolearn):
    options = {"early_rounds": 0, "spares": 0} | ecolearn
    return build_policy(SelectionSettings(policy="ecolearn", k=k, ecolearn=options)).decide(
        observation
    )


def five(observe, **fields):
    """Sites of equal speed and utility, ever dirtier: 1, 2, 3, 4, 5 g in a round."""
    return observe(
        **{
            "throughput": np.full(5, 100.0),
            "power_w": np.full(5, 1000.0),
            "carbon_g_per_j": np.arange(1.0, 6.0) / 2000,
            "round": 30,
            "last_seen": np.full(5, 29),
            "loss_rms": np.ones(5),
            **fields,
        }
    )


def test_useful_and_clean(observe):
    assert set(decide(five(observe), 2).members) == {0, 1}
    # Values 1/1, 1/2, 1/3, 4/4, 4/5.
    loss_rms = [1.0, 1.0, 1.0, 4.0, 4.0]
    assert set(decide(five(observe, loss_rms=loss_rms), 2).members) == {0, 3}
    assert set(decide(five(observe, loss_rms=loss_rms), 2, beta=0).members) == {3, 4}


def test_more_in_the_first_rounds(observe):
    assert len(decide(five(observe), 2, early_rounds=30).members) == 4
    assert len(decide(five(observe), 2, early_rounds=29).members) == 2
    assert len(decide(five(observe), 1, early_rounds=99, enlarge=2.5).members) == 3
    assert "(the first 30 rounds)" in decide(five(observe), 2, early_rounds=30).reason


def test_spares_are_clean_and_in_time(observe):
    # The two chosen emit 1.5 g in the mean: up to 3 g is twice that.
    made = decide(five(observe), 2, spares=1.0, spare_carbon=2.0)
    assert set(made.members) == {0, 1, 2}
    assert made.reason.endswith("and 1 spares")
    assert len(decide(five(observe), 2, spares=0.3).members) == 2
    assert set(decide(five(observe), 2, spares=0.3, spare_carbon=9).members) == {0, 1, 2}
    slow = five(observe, throughput=[100.0, 100.0, 50.0, 100.0, 100.0])
    assert set(decide(slow, 2, spares=0.3, spare_carbon=9).members) == {0, 1, 3}
    assert len(decide(five(observe), 5, spares=1.0, spare_carbon=9).members) == 5
