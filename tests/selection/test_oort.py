from __future__ import annotations

import math

import numpy as np
import pytest

from powertrip.selection import SelectionSettings, build_policy
from powertrip.selection.oort import OortSettings, exploration, preferred_percentile
from powertrip.selection.round_time import round_terms

NEVER = np.nan


def decide(observation, k, **oort):
    return build_policy(SelectionSettings(policy="oort", k=k, oort=oort)).decide(observation)


def scores(observation, preferred_s, **oort):
    policy = build_policy(SelectionSettings(policy="oort", oort=oort))
    duration_s = observation.own_round_s
    return policy._score(observation, round_terms(observation, 0.01), duration_s, preferred_s)


def test_exploration_decays_by_the_round():
    plain = OortSettings()
    assert exploration(plain, 0) == exploration(plain, 1) == 0.9
    assert exploration(plain, 11) == pytest.approx(0.9 * 0.98**10)
    assert exploration(plain, 500) == 0.2


def test_score_by_hand(observe):
    seen = observe(
        round=21,
        samples=[100, 50, 100],
        loss_rms=[2.0, 1.0, 1.0],
        last_seen=[20, 5, 10],
        own_round_s=[8.0, 4.0, 2.0],
    )
    # Utilities 200, 50, 100, clipped at the quantile 0.95 of three, the second largest: 100.
    expected = [
        (1.0 + math.sqrt(0.1 * math.log(21) / 20)) * (4 / 8) ** 2,
        0.5 + math.sqrt(0.1 * math.log(21) / 5),
        1.0 + math.sqrt(0.1 * math.log(21) / 10),
    ]
    assert scores(seen, 4.0) == pytest.approx(expected)
    assert scores(seen, 4.0, alpha=0)[0] == pytest.approx(4 * expected[0])
    assert scores(seen, math.inf)[0] == pytest.approx(4 * expected[0])
    assert scores(seen, 4.0, confidence=0).tolist() == [0.25, 0.5, 1]


def test_pacer_rises_with_every_window_of_less_utility():
    plain = OortSettings(pacer_window=2)
    assert preferred_percentile(plain, np.array([])) == 30
    assert preferred_percentile(plain, np.array([4.0, 4, 3])) == 30
    # Windows of 8, 6, 7, 2: two of them fall.
    norms = np.array([4.0, 4, 3, 3, 3, 4, 1, 1])
    assert preferred_percentile(plain, norms) == 40
    assert preferred_percentile(plain, np.append(norms, 0.5)) == 40
    assert preferred_percentile(plain, np.linspace(9, 1, 100)) == 100


def test_a_pacer_that_waits_for_all_punishes_nobody(observe):
    seen = observe(own_round_s=[1.0, 50.0, 2.0], update_norms=np.linspace(9, 1, 1000))
    assert "preferred round inf s (percentile 100)" in decide(seen, 3).reason


def test_starts_with_unseen_sites_by_speed(observe):
    seen = observe(throughput=np.full(8, 100.0), delay_s=np.array([0.0] * 4 + [18.0] * 4))
    # Own rounds of 2 and 20 s: a fast one is ten times likelier.
    first = [decide(seen.replace(seed=s), 1).members[0] for s in range(400)]
    assert np.mean(np.array(first) < 4) == pytest.approx(40 / 44, abs=0.05)


def test_splits_between_seen_and_unseen(observe):
    n = 20
    seen = observe(
        throughput=np.full(n, 100.0),
        round=1000,
        last_seen=np.where(np.arange(n) < 10, 999, 0),
        loss_rms=np.where(np.arange(n) < 10, 1.0, NEVER),
    )
    made = decide(seen, 10)
    assert sum(site >= 10 for site in made.members) == 2
    assert "8 of 10 seen sites by utility, 2 of 10 unseen" in made.reason
    # Where one kind is used up, the other fills the places.
    assert len(decide(seen, 20).members) == 20
    all_seen = seen.replace(last_seen=np.full(n, 999), loss_rms=np.ones(n))
    assert len(decide(all_seen, 10).members) == 10


def test_draws_within_the_cutoff_only(observe):
    n = 6
    seen = observe(
        throughput=np.full(n, 100.0),
        round=1000,
        samples=np.full(n, 100),
        loss_rms=[1.0, 0.99, 0.97, 0.96, 0.9, 0.1],
        last_seen=np.full(n, 999),
        own_round_s=np.full(n, 5.0),
    )
    options = {"confidence": 0.0, "clip": 1.0}
    draws = {decide(seen.replace(generation=g), 2, **options).members for g in range(60)}
    # The second best has 0.99, and 95 % of that are 0.94.
    assert {site for members in draws for site in members} == {0, 1, 2, 3}
    exact = decide(seen, 2, **options, cutoff=1.0)
    assert exact.members == (0, 1)


def test_chance_comes_from_seed_and_generation(observe):
    seen = observe(throughput=np.arange(50.0, 90.0), seed=-3)
    draws = [decide(seen.replace(generation=g), 5).members for g in range(20)]
    assert len(set(draws)) > 15
    assert decide(seen.replace(generation=7), 5).members == draws[7]
