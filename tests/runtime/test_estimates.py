from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powertrip.runtime.estimates import Correction, LinkEstimates


def test_nothing_is_known_at_first():
    assert Correction(3).factors.tolist() == [1, 1, 1]


def test_the_first_measurement_is_taken_as_it_is_for_its_entry_alone():
    correction = Correction(3)
    correction.learn(1, measured=5.0, modelled=2.0)
    np.testing.assert_allclose(correction.factors, [1, 2.5, 1])


def test_later_measurements_count_three_tenths_on_a_log_scale():
    correction = Correction()
    correction.learn(0, 2.0, 1.0)
    correction.learn(0, 4.0, 1.0)
    assert correction.factors[0] == pytest.approx(2 * 2**0.3)
    correction.learn(0, 1.0, 1.0)
    assert correction.factors[0] == pytest.approx((2 * 2**0.3) ** 0.7)


@pytest.mark.parametrize("outlier", [1e5, 1e-5])
def test_an_outlier_moves_a_factor_by_at_most_a_half(outlier):
    correction = Correction()
    correction.learn(0, 1.0, 1.0)
    correction.learn(0, outlier, 1.0)
    moved = correction.factors[0]
    assert max(moved, 1 / moved) == pytest.approx(4**0.3)


def test_it_finds_the_ratio_behind_noise():
    correction = Correction()
    rng = np.random.default_rng(0)
    for noise in rng.lognormal(0, 0.1, size=300):
        correction.learn(0, 3 * noise, 1.0)
    assert correction.factors[0] == pytest.approx(3, rel=0.2)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_positive_number_says_nothing(wrong):
    correction = Correction()
    correction.learn(0, wrong, 1.0)
    correction.learn(0, 1.0, wrong)
    assert correction.factors[0] == 1
    correction.learn(0, 7.0, 1.0)
    assert correction.factors[0] == pytest.approx(7)


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=20))
def test_factors_stay_positive_and_finite(pairs):
    correction = Correction()
    for measured, modelled in pairs:
        correction.learn(0, measured, modelled)
        assert 1e-7 < correction.factors[0] < 1e7


def test_links_are_the_networks_until_they_are_measured(three_sites):
    world = three_sites.build_world()
    prior, star = world.star(0), LinkEstimates(world).star(0)
    for field in ("rtt_s", "up", "down", "reachable"):
        np.testing.assert_array_equal(getattr(star, field), getattr(prior, field))


def test_measured_links_replace_the_networks_each_direction_for_itself(three_sites):
    links = LinkEstimates(three_sites.build_world())
    links.learn(1, rtt_s=[0.15, None, 2.0], bandwidth=[5e5, None, None])
    links.learn(0, rtt_s=[None, 0.14, None], bandwidth=[None, None, 4e6])
    star = links.star(0)
    np.testing.assert_allclose(star.rtt_s, [0, 0.15, 0.2])
    np.testing.assert_allclose(star.up, [math.inf, 5e5, 2e6])
    np.testing.assert_allclose(star.down, [math.inf, 1e6, 4e6])
    assert star.reachable.all()


def test_a_site_without_a_link_stays_out_of_reach(three_sites):
    setup = three_sites.config.model_copy(
        update={
            "network": three_sites.config.network.model_copy(
                update={"bandwidth_bps": ((0, 8e6, 0), (8e6, 0, 8e6), (0, 8e6, 0))}
            )
        }
    )
    world = type(three_sites)(setup, three_sites.base_dir).build_world()
    links = LinkEstimates(world)
    links.learn(2, rtt_s=[0.1, 0.1, None], bandwidth=[1e6, 1e6, None])
    star = links.star(0)
    assert star.reachable.tolist() == [True, True, False]
    assert star.up[2] == star.down[2] == 0
