from __future__ import annotations

import csv

import numpy as np
import pytest

from powertrip.selection.forecast import forecast_power

DAY = 96


def relative_error(watts, *, steps, season, start, every):
    """RMS error of the forecasts from `start` on, over that of persistence, all sites together."""
    error = stay = 0.0
    for t in range(start, len(watts) - steps, every):
        made = forecast_power(watts[: t + 1], watts[t], steps, season)
        truth = watts[t + 1 : t + 1 + steps].mean(axis=0)
        error += np.sum((made.power_w - truth) ** 2)
        stay += np.sum((watts[t] - truth) ** 2)
    return float(np.sqrt(error / stay))


def days(count, noise, seed=0, sites=20):
    rng = np.random.default_rng(seed)
    wave = np.sin(2 * np.pi * np.arange(count * DAY) / DAY)
    return 1000 + 300 * wave[:, np.newaxis] + noise * rng.normal(size=(count * DAY, sites))


def test_a_noiseless_season_is_foretold():
    watts = days(4, 0.0, sites=2)
    t = 3 * DAY + 17
    made = forecast_power(watts[: t + 1], watts[t], 8, DAY)
    assert made.seasonal
    assert made.fitted.all()
    assert made.power_w == pytest.approx(watts[t + 1 : t + 9].mean(axis=0), rel=1e-3)


@pytest.mark.parametrize(("steps", "most"), [(4, 0.95), (16, 0.6)])
def test_better_than_persistence_in_noisy_seasons(steps, most):
    error = relative_error(days(6, 30.0), steps=steps, season=DAY, start=2 * DAY, every=29)
    assert error < most


@pytest.mark.parametrize("steps", [1, 4, 16, 48])
@pytest.mark.parametrize("start", [40, 200])
def test_a_random_walk_is_left_alone(steps, start):
    rng = np.random.default_rng(1)
    watts = 1000 + np.cumsum(rng.normal(size=(500, 40)), axis=0)
    error = relative_error(watts, steps=steps, season=DAY, start=start, every=31)
    assert error < 1.02


def test_tends_back_to_the_mean_without_a_season():
    rng = np.random.default_rng(2)
    watts = np.zeros((400, 30))
    for t in range(1, 400):
        watts[t] = 0.7 * watts[t - 1] + rng.normal(size=30)
    assert relative_error(watts + 50, steps=4, season=10_000, start=150, every=17) < 0.95


@pytest.mark.parametrize("rows", [0, 1, 8, 35])
def test_short_history_is_persistence(rows):
    now_w = np.array([5.0, 7.0])
    made = forecast_power(np.ones((rows, 2)), now_w, 4, DAY)
    assert made.power_w.tolist() == [5, 7]
    assert not made.fitted.any()


def test_constant_power_stays():
    made = forecast_power(np.full((300, 3), 4.0), np.full(3, 4.0), 5, DAY)
    assert made.power_w.tolist() == [4, 4, 4]


def test_power_is_never_negative():
    watts = np.maximum(days(4, 10.0) - 1000, 0)
    for t in range(2 * DAY, 4 * DAY, 13):
        assert (forecast_power(watts[:t], watts[t - 1], 12, DAY).power_w >= 0).all()


def test_better_than_persistence_on_real_power(real_data):
    columns = []
    for path in sorted((real_data / "google_power").glob("*.csv")):
        rows = sorted(
            (int(row["time"]), 1 - float(row["measured_power_util"]))
            for row in csv.DictReader(path.read_text().splitlines())
        )
        columns.append(np.array([unused for _, unused in rows]))
    least = min(map(len, columns)) // 3 * 3
    watts = np.array([column[:least] for column in columns]).T.reshape(-1, 3, len(columns))
    watts = 1e6 * watts.mean(axis=1)
    for steps, most in ((1, 1.05), (4, 1.0), (12, 0.9)):
        error = relative_error(watts, steps=steps, season=DAY, start=3 * DAY, every=61)
        assert error < most
