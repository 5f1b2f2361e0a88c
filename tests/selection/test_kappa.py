from __future__ import annotations

import numpy as np
import pytest

from powertrip.selection.kappa import KappaEstimator, prior_h0


def estimate(kappa, seed, *, rounds=40, noise=0.1, outliers=0.05):
    """Ten decisions of four rounds: gains that shrink, 10 % noise on each, some far off."""
    rng = np.random.default_rng(seed)
    estimator = KappaEstimator()

    def measured(members, scale):
        gain = scale * members / (members + kappa) * (1 + noise * rng.normal())
        return gain + (rng.random() < outliers) * rng.choice([-3, 3]) * scale

    for i in range(rounds):
        members, scale = int(rng.integers(8, 17)), 0.3 * 0.93**i
        part = members // 2
        halves = (measured(part, scale) + measured(part, scale)) / 2
        estimator.learn(members, part, halves, measured(members, scale))
    return estimator


@pytest.mark.parametrize("kappa", [3, 10, 40])
def test_found_within_a_factor_of_one_and_a_half_after_ten_decisions(kappa):
    found = np.array([estimate(kappa, seed).kappa for seed in range(60)])
    within = (found >= kappa / 1.5) & (found <= kappa * 1.5)
    assert within.mean() >= 0.9
    assert found.mean() == pytest.approx(kappa, rel=0.15)


def test_by_hand():
    # gains 4/(4+kappa) and 8/(8+kappa) at kappa 8: 1/3 and 1/2, so r = 2/3
    estimator = KappaEstimator()
    for _ in range(100):
        assert estimator.learn(8, 4, 1 / 3, 1 / 2)
    assert estimator.kappa == pytest.approx(8, rel=0.02)
    assert estimator.factor < 1.1


def test_halves_of_an_odd_number_count_as_their_mean():
    # gains k/(k+8): 2/10 and 3/11 for halves of 2 and 3, 5/13 for all
    estimator = KappaEstimator()
    for _ in range(100):
        estimator.learn(5, 2.5, (2 / 10 + 3 / 11) / 2, 5 / 13)
    assert estimator.kappa == pytest.approx(8, rel=0.1)


def test_starts_with_the_prior_and_stays_within_bounds():
    assert KappaEstimator().kappa == pytest.approx(10, rel=0.01)
    assert KappaEstimator(4.0).kappa == pytest.approx(4, rel=0.05)
    low, high = KappaEstimator(), KappaEstimator()
    for _ in range(50):
        low.learn(8, 4, 1.0, 1.0)
        high.learn(8, 4, 0.5, 1.0)
    assert (low.kappa, high.kappa) == (3, 40)


def test_what_says_nothing_is_left_out():
    estimator = KappaEstimator()
    said = [
        estimator.learn(8, 4, gain_part, gain_all)
        for gain_part, gain_all in [(0, 0), (np.nan, 1), (1, np.nan), (-np.inf, 1), (1, np.inf)]
    ]
    assert not any([*said, estimator.learn(4, 4, 1, 1), estimator.learn(1, 0, 1, 1)])
    assert estimator.kappa == pytest.approx(10, rel=0.01)


def test_halves_that_do_harm_ask_for_more_members():
    few, many, both = KappaEstimator(), KappaEstimator(), KappaEstimator()
    for _ in range(10):
        assert few.learn(40, 20, 0.9, 1.0)
        assert many.learn(40, 20, -0.5, 1.0)
        assert both.learn(40, 20, -1.0, -0.3)
    assert few.kappa < 10 < min(many.kappa, both.kappa)
    # As noisy as this, but without any that is negative: those with a positive gain alone mislead.
    told, lucky = KappaEstimator(), KappaEstimator()
    rng = np.random.default_rng(0)
    for _ in range(60):
        half, all_ = 40 / 70 + 0.4 * rng.normal(), 80 / 110 + 0.4 * rng.normal()
        told.learn(80, 40, half, all_)
        if half > 0.3:
            lucky.learn(80, 40, half, all_)
    assert lucky.kappa < 0.8 * told.kappa


def test_one_outlier_does_not_move_it():
    estimator = estimate(10, 1, outliers=0)
    before = estimator.kappa
    estimator.learn(10, 5, 5.0, 0.1)
    assert estimator.kappa == pytest.approx(before, rel=0.1)


def test_uncertainty_shrinks():
    assert estimate(10, 0).factor < estimate(10, 0, rounds=4).factor < KappaEstimator().factor


def test_server_momentum_halves_h0():
    assert (prior_h0(0.9), prior_h0(0.0)) == (5, 10)
