from __future__ import annotations

import numpy as np

from powertrip.selection import SelectionSettings, build_policy

STEADY = np.ones(20)


def decide(observation, k, **cefl):
    return build_policy(SelectionSettings(policy="cefl", k=k, cefl=cefl)).decide(observation)


def four(observe, **fields):
    """Sites of equal speed; utilities 100, 200, 300, 400, of which 300 is the clip."""
    return observe(
        **{
            "throughput": np.full(4, 100.0),
            "power_w": np.full(4, 1000.0),
            "round": 21,
            "last_seen": np.full(4, 20),
            "loss_rms": [1.0, 2.0, 3.0, 4.0],
            "update_norms": STEADY,
            **fields,
        }
    )


def test_utility_over_cost_by_hand(observe):
    seen = four(observe, carbon_g_per_j=np.array([1.0, 2.0, 5.0, 10.0]) * 1e-5)
    # Values in proportion to 1/1, 2/2, 3/5 and 3/10; equals by their round time, then number.
    made = decide(seen, 3)
    assert set(made.members) == {0, 1, 2}
    assert made.reason == (
        "3 of 4 usable sites by utility over carbon; no critical learning period"
    )
    # 1/1, 2/4, 3/25, 3/100, and without any cost 1, 2, 3, 3.
    assert set(decide(seen, 2, beta=2).members) == {0, 1}
    assert set(decide(seen, 2, beta=0).members) == {2, 3}


def test_cost_may_be_anything(observe):
    seen = four(
        observe,
        throughput=[100.0, 100.0, 100.0, 10.0],
        price_per_j=[1e-9, 1.0, 1.0, 1.0],
        carbon_g_per_j=[1.0, 1.0, 1e-9, 1.0],
    )
    assert decide(seen, 1, cost="money").members == (0,)
    assert decide(seen, 1, cost="carbon").members == (2,)
    # The fourth is ten times slower at the same power, so it takes ten times the energy.
    assert 3 not in decide(seen, 3, cost="energy").members
    assert 3 not in decide(seen, 3, cost="time").members


def test_more_participants_in_critical_periods(observe):
    growing = four(observe, update_norms=np.linspace(1, 2, 20))
    made = decide(growing, 2)
    assert len(made.members) == 4
    assert made.reason.endswith("; critical learning period")
    assert len(decide(growing, 1, critical={"enlarge": 3}).members) == 3
    assert len(decide(growing, 3).members) == 4
    assert len(decide(four(observe), 2).members) == 2


def test_unseen_sites_get_their_turn(observe):
    seen = four(observe, loss_rms=[np.nan, 2.0, 3.0, 1.0], last_seen=[0, 20, 20, 20])
    assert set(decide(seen, 2).members) == {0, 2}


def test_without_losses_and_costs_the_fastest(observe):
    seen = observe(throughput=[50.0, 10.0, 100.0, 60.0], update_norms=STEADY)
    assert decide(seen, 2).members == (2, 3)
