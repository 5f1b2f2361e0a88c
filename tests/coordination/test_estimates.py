from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powertrip.coordination.estimates import FADES_S, LINK_FADES_S, Correction, LinkEstimates


def learned(*measured, size=1, every_s=1.0, **settings) -> Correction:
    """A correction of entry 0 against a model of 1, measured at seconds 0, 1, 2, ..."""
    correction = Correction(size, **{"model_off": 2.0} | settings)
    for i, value in enumerate(measured):
        correction.learn(0, value, 1.0, i * every_s)
    return correction


def factor(*measured) -> float:
    return float(learned(*measured).factors(len(measured) - 1.0)[0])


def test_nothing_is_known_at_first():
    unknown = Correction(3, model_off=2.0)
    assert unknown.factors(0.0).tolist() == [1, 1, 1]
    assert unknown.spread(0.0).tolist() == pytest.approx([2, 2, 2])


def test_the_first_measurement_is_taken_as_it_is_for_its_entry_alone():
    correction = Correction(3, model_off=2.0)
    correction.learn(1, measured=5.0, modelled=2.0, time_s=7.0)
    np.testing.assert_allclose(correction.factors(7.0), [1, 2.5, 1])


def test_many_entries_are_learned_at_once():
    correction = Correction(4, model_off=2.0)
    correction.learn([3, 0, 1], [8.0, math.nan, 3.0], [2.0, 1.0, 6.0], 0.0)
    correction.learn([3, 0], [10.0, 7.0], 2.0, 0.0)
    correction.learn(3, 12.0, 2.0, 0.0)
    np.testing.assert_allclose(correction.factors(0.0), [3.5, 0.5, 1, 5])


def test_the_median_of_the_last_five_counts():
    assert factor(2, 3, 7) == pytest.approx(3)
    assert factor(2, 3, 7, 1, 5) == pytest.approx(3)
    # Of the last five (7, 1, 5, 8, 9) the middle one is 7.
    assert factor(2, 3, 7, 1, 5, 8, 9) == pytest.approx(7)


def test_of_two_middle_ones_the_nearer_to_the_factor_before_counts():
    assert factor(2, 3) == pytest.approx(2)
    assert factor(2, 3, 7, 9) == pytest.approx(3)
    # 2, 3, 9 gave 3; with 8 the middle ones are 3 and 8.
    assert factor(2, 3, 9, 8) == pytest.approx(3)


@pytest.mark.parametrize("outlier", [1e5, 1e-5])
@pytest.mark.parametrize("normal", range(1, 9))
def test_an_outlier_moves_a_factor_to_a_neighbour_at_most(outlier, normal):
    noisy = np.random.default_rng(normal).uniform(2.8, 3.2, size=normal)
    assert 2.8 <= factor(*noisy, outlier) <= 3.2
    assert 2.8 <= factor(*noisy, outlier, 3.0) <= 3.2


@pytest.mark.parametrize("before", range(1, 9))
def test_a_lasting_change_is_taken_in_with_the_third_measurement(before):
    assert factor(*[1.0] * before, 4.0, 4.0, 4.0) == pytest.approx(4)


def test_it_finds_the_ratio_behind_noise():
    rng = np.random.default_rng(0)
    assert factor(*(3 * rng.lognormal(0, 0.1, size=300))) == pytest.approx(3, rel=0.2)


def test_what_is_old_fades_to_the_model():
    correction = learned(8.0, fades_s=100.0, fresh_s=30.0)
    ages_s = [0, 30, 130, 230, 1e6]
    factors = [float(correction.factors(age_s)[0]) for age_s in ages_s]
    assert factors == pytest.approx([8, 8, 8 ** math.exp(-1), 8 ** math.exp(-2), 1])


def test_what_has_faded_is_forgotten():
    old = learned(8.0, 8.0, 8.0, fades_s=100.0)
    old.learn(0, 2.0, 1.0, 2 + 290.0)
    assert old.factors(292.0)[0] == pytest.approx(8)
    old = learned(8.0, 8.0, 8.0, fades_s=100.0)
    old.learn(0, 2.0, 1.0, 2 + 310.0)
    assert old.factors(312.0)[0] == pytest.approx(2)


def test_uncertainty_shrinks_with_measurements():
    spreads = [float(learned(*[3.0] * n).spread(n - 1.0)[0]) for n in range(6)]
    assert all(later < before for before, later in pairwise(spreads))
    assert spreads[0] == pytest.approx(2)
    assert spreads[1] == pytest.approx(1.25)
    # Five equal measurements: one fifth of the assumed variance, times pi/2 over 5.
    assert spreads[5] == pytest.approx(math.exp(math.log(1.25) * math.sqrt(math.pi / 50)))


def test_uncertainty_grows_with_the_spread_of_the_measurements():
    calm, wild = learned(3.0, 3.1, 2.9, 3.0, 3.0), learned(3.0, 6.0, 1.5, 3.0, 9.0)
    assert 1 < calm.spread(4.0)[0] < 1.2 < wild.spread(4.0)[0]


def test_uncertainty_grows_with_age_towards_the_models():
    correction = learned(3.0, 3.0, 3.0, fades_s=100.0)
    spreads = [float(correction.spread(2.0 + age_s)[0]) for age_s in (0, 50, 100, 1e5)]
    assert all(later > before for before, later in pairwise(spreads))
    assert spreads[-1] == pytest.approx(2)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_positive_number_says_nothing(wrong):
    correction = learned(wrong)
    correction.learn(0, 1.0, wrong, 0.0)
    assert correction.factors(0.0)[0] == 1
    correction.learn(0, 7.0, 1.0, 0.0)
    assert correction.factors(0.0)[0] == pytest.approx(7)


@given(
    st.lists(st.tuples(st.floats(), st.floats(), st.floats(-1e9, 1e9)), max_size=20),
    st.floats(-1e9, 1e9),
)
def test_factors_stay_positive_and_finite(measurements, time_s):
    correction = Correction(model_off=2.0)
    for measured, modelled, at_s in measurements:
        correction.learn(0, measured, modelled, at_s)
    assert 1e-7 < correction.factors(time_s)[0] < 1e7
    assert 1 <= correction.spread(time_s)[0] < math.inf


def links_of(setup) -> LinkEstimates:
    return LinkEstimates(setup.build_world(), interval_s=60.0)


def test_links_are_the_networks_until_they_are_measured(three_sites):
    world = three_sites.build_world()
    prior, star = world.star(0), links_of(three_sites).star(0, 0.0)
    for field in ("rtt_s", "up", "down", "reachable"):
        np.testing.assert_array_equal(getattr(star, field), getattr(prior, field))
    rtt_s, bandwidth = links_of(three_sites).pairs(0.0)
    np.testing.assert_array_equal(rtt_s, world.rtt_s)
    np.testing.assert_array_equal(bandwidth, world.bandwidth)


def test_measured_links_replace_the_networks_each_direction_for_itself(three_sites):
    links = links_of(three_sites)
    links.learn(1, [0.15, None, 2.0], [5e5, None, None], 0.0)
    links.learn(0, [None, 0.14, None], [None, None, 4e6], 0.0)
    star = links.star(0, 0.0)
    np.testing.assert_allclose(star.rtt_s, [0, 0.15, 0.2])
    np.testing.assert_allclose(star.up, [math.inf, 5e5, 2e6])
    np.testing.assert_allclose(star.down, [math.inf, 1e6, 4e6])
    assert star.reachable.all()
    rtt_s, bandwidth = links.pairs(0.0)
    np.testing.assert_allclose(rtt_s, [[0, 0.14, 0.2], [0.15, 0, 2], [0.2, 1, 0]])
    np.testing.assert_allclose(
        bandwidth, [[math.inf, 1e6, 4e6], [5e5, math.inf, 1e6], [2e6, 1e6, math.inf]]
    )


def test_links_fade_only_when_the_next_measurements_are_overdue(three_sites):
    links = links_of(three_sites)
    links.learn(1, [0.2, None, None], [None, None, None], 10.0)
    ages_s = [0, 120, 120 + LINK_FADES_S, 1e6]
    rtt_s = [float(links.star(0, 10.0 + age_s).rtt_s[1]) for age_s in ages_s]
    assert rtt_s == pytest.approx([0.2, 0.2, 0.1 * 2 ** math.exp(-1), 0.1])
    assert LINK_FADES_S < FADES_S


def test_a_site_without_a_link_stays_out_of_reach(three_sites):
    setup = three_sites.config.model_copy(
        update={
            "network": three_sites.config.network.model_copy(
                update={"bandwidth_bps": ((0, 8e6, 0), (8e6, 0, 8e6), (0, 8e6, 0))}
            )
        }
    )
    links = links_of(type(three_sites)(setup, three_sites.base_dir))
    links.learn(2, [0.1, 0.1, None], [1e6, 1e6, None], 0.0)
    star = links.star(0, 0.0)
    assert star.reachable.tolist() == [True, True, False]
    assert star.up[2] == star.down[2] == 0
    rtt_s, bandwidth = links.pairs(0.0)
    assert rtt_s[2, 0] == rtt_s[0, 2] == math.inf
    assert bandwidth[2, 0] == bandwidth[0, 2] == 0
    assert rtt_s[2, 1] == pytest.approx(0.1)
