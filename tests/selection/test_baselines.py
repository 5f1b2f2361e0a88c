from __future__ import annotations

import numpy as np
import pytest

from powertrip.selection import SelectionSettings, build_policy


def decide(observation, **options):
    return build_policy(SelectionSettings(**options)).decide(observation)


# Own round times at 20 steps of 10 samples: 2.5, 4.25, 4.5, 1.5 s.
FOUR = {"throughput": [100.0, 50.0, 200.0, 200.0], "delay_s": [0.5, 0.25, 3.5, 0.5]}


def test_static_k_takes_the_best(observe):
    made = decide(observe(**FOUR), policy="static-k", k=2)
    assert made.members == (3, 0)
    assert made.work.steps == (20, 20)
    assert made.predicted_round_s == pytest.approx(2.5)
    assert made.reason == "the best 2 of 4 usable sites"


def test_static_k_takes_all_where_there_are_fewer(observe):
    seen = observe(**FOUR, reachable=[True, False, True, False])
    assert decide(seen, policy="static-k", k=3).members == (0, 2)


def test_static_k_keeps_seats(observe):
    seen = observe(**FOUR, members=(3, 1))
    assert decide(seen, policy="static-k", k=2, seat_margin=0.6).members == (3, 0)
    assert decide(seen, policy="static-k", k=2, seat_margin=0.8).members == (3, 1)


def test_random_k_draws_afresh_and_repeatably(observe):
    seen = observe(throughput=np.arange(1.0, 21.0), seed=-3)
    draws = [decide(seen.replace(generation=g), policy="random-k", k=5).members for g in range(30)]
    assert len(set(draws)) > 20
    assert {site for draw in draws for site in draw} == set(range(20))
    assert draws[4] == decide(seen.replace(generation=4), policy="random-k", k=5).members
    other = [decide(seen.replace(seed=1, generation=g), policy="random-k", k=5) for g in range(30)]
    assert [d.members for d in other] != draws
    assert all(list(draw) == sorted(draw, reverse=True) for draw in draws)


def test_all_takes_every_usable_site_in_order(observe):
    seen = observe(**FOUR | {"throughput": [100.0, 50.0, 0.0, 200.0]})
    assert decide(seen, policy="all").members == (3, 0, 1)


def test_centralized_takes_the_most_power(observe):
    seen = observe(**FOUR, power_w=[5.0, 9.0, 7.0, 9.0])
    made = decide(seen, policy="centralized")
    assert made.members == (1,)
    assert made.reason == "site 1 has most power (9 W)"
    seen = seen.replace(reachable=[True, False, True, False])
    assert decide(seen, policy="centralized").members == (2,)


def test_fixed_radius_takes_the_near_ones_and_the_hub(observe):
    seen = observe(**FOUR, hub=1, distance_m=[1.6e6, np.nan, 1.7e6, np.nan])
    made = decide(seen, policy="fixed-radius")
    assert made.members == (0, 1)
    assert made.reason == "2 usable sites within 1609.34 km of the hub"
    assert set(decide(seen, policy="fixed-radius", radius_m=2e6).members) == {0, 1, 2}


def test_fixed_radius_with_nobody_near_takes_the_nearest(observe):
    seen = observe(
        **FOUR | {"throughput": [100.0, 0.0, 200.0, 200.0]},
        hub=1,
        distance_m=[9e6, 0.0, 8e6, np.nan],
    )
    made = decide(seen, policy="fixed-radius")
    assert made.members == (2,)
    assert "0 usable sites" in made.reason
    assert "site 2 is the nearest" in made.reason
    unknown = seen.replace(distance_m=np.full(4, np.nan), reachable=[False, True, True, True])
    assert decide(unknown, policy="fixed-radius").members == (2,)


def test_baselines_show_the_line_they_took(observe):
    made = decide(observe(**FOUR, rebuild_s=2.0, gains=[0.5]), policy="all")
    (line,) = made.candidates
    assert (line.k, line.gain, line.switch_s, line.chosen) == (4, 0.5, 2.0, True)
    # 4 x 0.5 / (4 x 4.5 + 2)
    assert line.efficiency == pytest.approx(0.1)
