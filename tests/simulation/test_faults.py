from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.simulation.faults import Noise, Outages
from powertrip.simulation.settings import DropoutSettings, NoiseSettings

LOUD = NoiseSettings(speed=0.2, exchange=0.1, straggler_share=0.25, straggler_slowdown=4)
OFTEN = DropoutSettings(every_s=30, lasts_s=10)


def outages(seed: int = 1, sites: int = 3, dropouts: DropoutSettings = OFTEN) -> Outages:
    return Outages(dropouts, seed=seed, sites=sites)


def test_without_noise_everything_takes_as_long_as_it_takes():
    noise = Noise(NoiseSettings(), seed=3, sites=4)
    assert noise.slowdown(7).tolist() == [1, 1, 1, 1]
    assert noise.exchange(7) == 1


def test_noise_follows_from_seed_and_round_whatever_was_asked_before():
    late, early = (Noise(LOUD, seed=3, sites=5) for _ in range(2))
    for round_ in (1, 2, 3, 2):
        early.slowdown(round_)
    assert late.exchange(9) == early.exchange(9)
    assert late.slowdown(9).tolist() == early.slowdown(9).tolist()
    assert late.slowdown(9).tolist() != late.slowdown(10).tolist()
    other = Noise(LOUD, seed=4, sites=5)
    assert other.exchange(9) != late.exchange(9)
    assert not np.equal(other.slowdown(9), late.slowdown(9)).any()


def test_kinds_of_noise_do_not_disturb_each_other():
    plain = LOUD.model_copy(update={"straggler_share": 0.0, "exchange": 0.0})
    both, alone = (Noise(s, seed=3, sites=1000).slowdown(5) for s in (LOUD, plain))
    ratio = both / alone
    # Rounded to tell the two apart from what floating-point division makes of them.
    assert set(np.round(ratio, 9)) == {1.0, 4.0}
    assert 0.2 < (ratio > 2).mean() < 0.3


def test_deviations_are_those_of_the_settings():
    only_speed = NoiseSettings(speed=0.2, exchange=0.1)
    noise = Noise(only_speed, seed=0, sites=20_000)
    logs = np.log(noise.slowdown(1))
    assert abs(logs.mean()) < 0.01
    assert logs.std() == pytest.approx(0.2, rel=0.05)
    lengths = np.log([noise.exchange(round_) for round_ in range(1, 2001)])
    assert abs(lengths.mean()) < 0.02
    assert lengths.std() == pytest.approx(0.1, rel=0.1)


def test_without_dropouts_nobody_is_ever_gone():
    never = outages(dropouts=DropoutSettings())
    assert never.gone(1e9).tolist() == [False, False, False]
    assert never.fails_s(1, 0.0, 1e9) == math.inf
    assert never.back_s(5.0) == 5.0


def test_times_up_and_down_have_their_means():
    many = outages(sites=400)
    times_s = np.arange(200.0, 1000.0, 40.0)
    share = np.mean([many.gone(t_s).mean() for t_s in times_s])
    assert share == pytest.approx(10 / (30 + 10), abs=0.03)
    fresh = outages(sites=2000)
    first_s = np.array([fresh.fails_s(site, 0.0, 1e4) for site in range(2000)])
    assert first_s.mean() == pytest.approx(30, rel=0.1)
    assert first_s.std() == pytest.approx(30, rel=0.15)
    lasts_s = [
        outages(seed=seed, sites=1).back_s(alone_s) - alone_s
        for seed in range(400)
        for alone_s in [outages(seed=seed, sites=1).fails_s(0, 0.0, 1e4)]
    ]
    assert np.mean(lasts_s) == pytest.approx(10, rel=0.2)


def test_a_site_has_its_own_schedule_however_many_others_there_are():
    few, many = outages(sites=2), outages(sites=9)
    times_s = np.linspace(0, 500, 301)
    assert [few.gone(t).tolist() for t in times_s] == [many.gone(t)[:2].tolist() for t in times_s]
    columns = np.array([many.gone(t) for t in times_s]).T
    assert len({column.tobytes() for column in columns}) == 9
    assert [outages(seed=2).gone(t).tolist() for t in times_s] != [
        outages().gone(t).tolist() for t in times_s
    ]


@settings(max_examples=60, deadline=None)
@given(
    asked_s=st.lists(st.floats(0, 2000), max_size=8),
    start_s=st.floats(0, 1500),
    length_s=st.floats(0, 300),
    seed=st.integers(0, 50),
)
def test_the_ways_to_ask_agree_in_any_order(asked_s, start_s, length_s, seed):
    asked, fresh = outages(seed), outages(seed)
    for time_s in asked_s:
        asked.gone(time_s)
    end_s = start_s + length_s
    gone = fresh.gone(start_s)
    assert asked.gone(start_s).tolist() == gone.tolist()
    fails_s = [fresh.fails_s(site, start_s, end_s) for site in range(3)]
    assert [asked.fails_s(site, start_s, end_s) for site in range(3)] == fails_s
    for site, first_s in enumerate(fails_s):
        if gone[site]:
            assert first_s == start_s
        elif math.isinf(first_s):
            for time_s in np.linspace(start_s, end_s, 7):
                assert not fresh.gone(time_s)[site]
        else:
            assert start_s < first_s <= end_s
            assert fresh.gone(first_s)[site]
            assert not fresh.gone(np.nextafter(first_s, 0))[site]
    back_s = fresh.back_s(start_s)
    assert asked.back_s(start_s) == back_s
    if gone.any():
        assert back_s > start_s
        returned = gone & ~fresh.gone(back_s)
        assert returned.any()
        assert fresh.gone(np.nextafter(back_s, 0))[returned].all()
    else:
        assert back_s == start_s
