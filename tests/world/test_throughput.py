import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powertrip.world.throughput import CapCurve, PowerModel, cap_curves, spend

V100, A40 = cap_curves()["v100"], cap_curves()["a40"]


def fraction(budget_w, gpus, rated_w=250.0, *, mode="caps", whole_gpus=False, curve=V100):
    done, used_w = spend(budget_w, gpus, rated_w, mode=mode, whole_gpus=whole_gpus, curve=curve)
    return float(done), float(used_w)


@pytest.mark.parametrize(
    ("budget_w", "whole", "expected"),
    [
        (0, False, (0, 0)),
        (500, False, (0.25, 500)),
        (600, False, (0.3, 600)),
        (600, True, (0.25, 500)),
        (249, True, (0, 0)),
        (2000, True, (1, 2000)),
        (9000, False, (1, 2000)),
    ],
)
def test_gpus_at_full_power(budget_w, whole, expected):
    assert fraction(budget_w, 8, mode="gpus", whole_gpus=whole) == pytest.approx(expected)


def test_curves_are_those_measured():
    assert V100.at(np.array([100, 125, 150, 175, 200, 225, 250]) / 250) == pytest.approx(
        [0.516, 0.684, 0.842, 0.914, 0.950, 0.982, 1], abs=6e-4
    )
    assert A40.at(np.array([100, 150, 200, 250, 300]) / 300) == pytest.approx(
        [0.344, 0.606, 0.923, 0.994, 1], abs=6e-4
    )
    assert V100.at([0.0, 0.399, 0.4, 1.0, 3.0]) == pytest.approx([0, 0, 0.5159, 1, 1])
    assert V100.at(0.45) == pytest.approx((0.5159 + 0.6840) / 2)


def test_half_the_power_gives_well_over_half_the_speed():
    # 150 W (0.6) is the V100's best cap, .842/.6 = 1.403 for each unit of power: at half the
    # power 5/6 of the GPUs run at it.
    done, used_w = fraction(1000, 8)
    assert done == pytest.approx(0.5 * V100.speeds[2] / 0.6)
    assert done > 0.7
    assert used_w == 1000


def test_whole_gpus_under_a_cap_by_hand():
    # 500 W: 3 GPUs at 166.7 W do 3 x .890 = 2.670, 4 at 125 W 2.736, 5 at 100 W 2.580.
    done, used_w = fraction(500, 8, whole_gpus=True)
    assert done == pytest.approx(4 * 0.6840 / 8)
    assert used_w == pytest.approx(500)
    # 330 W: 2 GPUs at 165 W do 2 x .8855 = 1.771 and beat 3 at 110 W, 3 x .5831 = 1.749.
    done, _ = fraction(330, 8, whole_gpus=True)
    assert done == pytest.approx(2 * (0.8422 + 0.6 * (0.9143 - 0.8422)) / 8, rel=1e-3)


def test_below_the_lowest_cap_the_gpu_is_off():
    assert fraction(99, 1, whole_gpus=True) == (0, 0)
    assert fraction(100, 1, whole_gpus=True)[0] == pytest.approx(0.5159)
    assert fraction(0, 4) == (0, 0)


def brute_force(budget, gpus, curve, counts):
    return max(float(m * curve.at(budget / m)) for m in counts) / gpus


@given(st.floats(0, 40), st.integers(1, 32), st.sampled_from([V100, A40]))
def test_whole_gpus_are_the_best_of_all_counts(budget, gpus, curve):
    done, used_w = fraction(budget, gpus, 1.0, whole_gpus=True, curve=curve)
    assert done == pytest.approx(brute_force(budget, gpus, curve, range(1, gpus + 1)), abs=1e-9)
    assert used_w <= min(budget, gpus) + 1e-9


@given(st.floats(0.001, 12), st.integers(1, 10), st.sampled_from([V100, A40]))
def test_parts_of_gpus_are_the_best_of_all_shares(budget, gpus, curve):
    done, used_w = fraction(budget, gpus, 1.0, curve=curve)
    counts = np.linspace(gpus / 2000, gpus, 2000)
    at_best = brute_force(budget, gpus, curve, counts)
    assert at_best - 1e-9 <= done <= at_best + 0.02
    assert used_w == pytest.approx(min(budget, gpus))


@given(
    st.floats(0, 20),
    st.floats(0, 20),
    st.integers(1, 10),
    st.sampled_from(["gpus", "caps"]),
    st.booleans(),
)
def test_more_power_is_never_slower(one, other, gpus, mode, whole):
    low, high = sorted((one, other))
    slow, few_w = fraction(low, gpus, 1.0, mode=mode, whole_gpus=whole)
    fast, _ = fraction(high, gpus, 1.0, mode=mode, whole_gpus=whole)
    assert 0 <= slow <= fast + 1e-9 <= 1 + 2e-9
    assert few_w <= min(low, gpus) + 1e-6


def test_model_gives_each_site_its_own_curve():
    model = PowerModel(
        np.array([8.0, 8.0]),
        np.array([250.0, 300.0]),
        ["v100", "a40"],
        mode="caps",
        whole_gpus=False,
    )
    done, used_w = model.spend(np.array([800.0, 800.0]))
    assert done[0] == pytest.approx(0.4 * 0.8422 / 0.6, rel=1e-3)
    # The A40 is at its best at 175 W: .854 for .583 of the power.
    assert done[1] == pytest.approx((800 / 2400) * 0.854 / (175 / 300), rel=1e-3)
    assert used_w.tolist() == [800, 800]
    assert model.spend_at(1, np.array([800.0]))[0] == pytest.approx(done[1])


def test_a_concave_curve_runs_all_gpus():
    curve = CapCurve(np.array([0.25, 0.5, 1.0]), np.array([0.5, 0.75, 1.0]))
    assert fraction(3.0, 4, 1.0, curve=curve)[0] == pytest.approx(0.875)
    # Below the lowest cap as many as can run do: 0.5 of 1 GPU's power feeds 2 at 0.25.
    assert fraction(0.5, 4, 1.0, curve=curve)[0] == pytest.approx(2 * 0.5 / 4)
