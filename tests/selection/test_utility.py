from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.selection import Observation, SelectionSettings, build_policy
from powertrip.selection.round_time import round_terms
from powertrip.selection.utility import draw, round_cost, statistical_utility, trained

BY_UTILITY = ["oort", "cefl", "ecolearn"]


@st.composite
def measured(draw, any_observation):
    """Draw observations of sites that have trained for a while, at least one of them."""
    seen = draw(any_observation())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, rounds = seen.sites, draw(st.integers(1, 200))
    last_seen = rng.integers(0, rounds + 1, n) * (rng.random(n) > 0.3)
    never = last_seen == 0
    return seen.replace(
        round=rounds + 1,
        samples=rng.integers(0, 1000, n),
        loss_rms=np.where(never, np.nan, np.exp(rng.normal(0, draw(st.floats(0, 3)), n))),
        last_seen=last_seen,
        own_round_s=np.where(never | (rng.random(n) < 0.3), np.nan, np.exp(rng.normal(2, 1, n))),
        update_norms=rng.random(rounds),
        layer_norms=rng.random((rounds, 3)),
        carbon_g_per_j=rng.random(n) * (rng.random(n) > 0.3) * 1e-4,
        price_per_j=rng.random(n) * 1e-7,
        power_history=rng.random((draw(st.integers(0, 60)), n)) * 1e4,
        history_step_s=60.0,
    )


OPTIONS = st.builds(
    SelectionSettings,
    policy=st.sampled_from([*BY_UTILITY, "lookahead"]),
    k=st.integers(1, 15),
    oort=st.fixed_dictionaries({"alpha": st.floats(0, 5), "cutoff": st.floats(0, 1)}),
    cefl=st.fixed_dictionaries(
        {
            "cost": st.sampled_from(["carbon", "energy", "money", "time"]),
            "beta": st.floats(0, 3),
            "critical": st.fixed_dictionaries({"test": st.sampled_from(["norm", "layers"])}),
        }
    ),
    ecolearn=st.fixed_dictionaries(
        {"spares": st.floats(0, 2), "spare_carbon": st.floats(0, 5), "early_rounds": st.just(100)}
    ),
    lookahead=st.fixed_dictionaries({"season_s": st.floats(1, 2000)}),
)


@given(st.data(), OPTIONS)
@settings(max_examples=150, deadline=None)
def test_decisions_are_sound_and_can_be_made_again(any_observation, data, options):
    seen = data.draw(measured(any_observation))
    made = build_policy(options).decide(seen)
    usable = round_terms(seen, options.min_delay_s).usable
    assert usable[list(made.members)].all()
    assert len(made.members) >= min(options.k, int(usable.sum())) or options.policy == "lookahead"
    assert np.isfinite([line.efficiency for line in made.candidates]).all()
    read = Observation.from_json(json.loads(json.dumps(seen.to_json(), allow_nan=False)))
    assert build_policy(options).decide(read) == made


@given(st.data(), OPTIONS, st.sampled_from([1 / 1024, 1 / 2, 4, 1024]))
@settings(max_examples=100, deadline=None)
def test_scale_of_losses_carbon_and_money_changes_nothing(any_observation, data, options, factor):
    seen = data.draw(measured(any_observation))
    made = build_policy(options).decide(seen)
    for name in ("loss_rms", "carbon_g_per_j", "price_per_j", "update_norms", "layer_norms"):
        scaled = seen.replace(**{name: getattr(seen, name) * factor})
        assert build_policy(options).decide(scaled).members == made.members


@given(st.data(), OPTIONS)
@settings(max_examples=100, deadline=None)
def test_renaming_measured_sites_changes_nothing(any_observation, data, options):
    seen = data.draw(measured(any_observation))
    made = build_policy(options).decide(seen)
    renamed = np.array(data.draw(st.permutations(range(seen.sites))))
    names = np.argsort(renamed)
    arrays = ["power_w", "throughput", "full_speed", "samples", "rtt_s", "up", "down", "reachable"]
    arrays += ["distance_m", "base_steps", "loss_rms", "last_seen", "own_round_s", "used_power_w"]
    arrays += ["carbon_g_per_j", "price_per_j"]
    other = seen.replace(
        **{name: getattr(seen, name)[renamed] for name in arrays},
        power_history=seen.power_history[:, renamed],
        hub=int(names[seen.hub]),
        members=tuple(names[list(seen.members)].tolist()) if seen.members else (),
    )
    again = build_policy(options).decide(other)
    if options.policy == "oort":
        assert len(again.members) == len(made.members)
    else:
        assert renamed[list(again.members)].tolist() == list(made.members)


@pytest.mark.parametrize("policy", [*BY_UTILITY, "lookahead"])
def test_members_of_a_mesh_have_links_to_each_other(observe, policy):
    rtt_s, bandwidth = np.full((3, 3), 0.1), np.full((3, 3), 1e6)
    rtt_s[1, 2], bandwidth[1, 2] = np.inf, 0.0
    seen = observe(exchange_model="mesh", pair_rtt_s=rtt_s, pair_bandwidth=bandwidth)
    made = build_policy(SelectionSettings(policy=policy, k=3)).decide(seen)
    assert len(made.members) == 2
    assert 0 in made.members


@pytest.mark.parametrize("section", ["oort", "cefl", "ecolearn", "lookahead"])
def test_every_setting_of_a_policy_is_described(section):
    for model in (getattr(SelectionSettings(), section), SelectionSettings().cefl.critical):
        for name, field in type(model).model_fields.items():
            assert field.description, name


def test_utility_by_hand():
    samples, loss_rms = np.array([100, 200, 50, 10, 400]), np.array([1.0, 2.0, 4.0, 1.0, np.nan])
    among = np.array([True, True, True, True, False])
    # 100, 400, 200, 10: the quantile 0.7 of four is the third, 200.
    utility = statistical_utility(samples, loss_rms, among, 0.7)
    assert utility.tolist() == [0.5, 1, 1, 0.05, 0]
    assert statistical_utility(samples, loss_rms, among, 1.0).tolist() == [0.25, 1, 0.5, 0.025, 0]


def test_an_outlier_counts_as_much_as_the_next():
    loss_rms = np.array([1.0, 1.2, 1.1, 1e6])
    utility = statistical_utility(np.full(4, 10), loss_rms, np.full(4, True), 0.95)
    assert utility == pytest.approx([1 / 1.2, 1, 1.1 / 1.2, 1])


def test_without_any_utility_all_are_equal():
    among = np.array([True, True, False])
    assert statistical_utility(np.zeros(3, int), np.ones(3), among, 0.9).tolist() == [1, 1, 0]
    few = statistical_utility(np.array([0, 0, 0, 5]), np.ones(4), np.full(4, True), 0.5)
    assert few.tolist() == [0, 0, 0, 1]


def test_trained_needs_a_round_and_a_loss(observe):
    seen = observe(last_seen=[0, 3, 3], loss_rms=[1.0, np.nan, 1.0])
    assert trained(seen).tolist() == [False, False, True]


def test_costs_by_hand(observe):
    # Local work of 200 samples: 2, 4 and 1 s; exchanges of 1 s.
    seen = observe(
        delay_s=[1.0, 1.0, 1.0],
        power_w=[900.0, 500.0, 300.0],
        used_power_w=[600.0, 500.0, 300.0],
        carbon_g_per_j=[0.0, 2e-4, 1e-4],
        price_per_j=[1e-8, 2e-8, 1e-8],
    )
    terms = round_terms(seen, 0.01)
    assert round_cost(seen, terms, "time") == pytest.approx(np.array([3, 5, 2]) / 3)
    assert round_cost(seen, terms, "energy") == pytest.approx(np.array([1200, 2000, 300]) / 1200)
    assert round_cost(seen, terms, "money") == pytest.approx(np.array([1200, 4000, 300]) / 1200)
    # 0, 0.4 and 0.03 g: the median of what is above 0 is 0.215.
    assert round_cost(seen, terms, "carbon") == pytest.approx([1e-3, 0.4 / 0.215, 0.03 / 0.215])


def test_costs_that_nobody_tells_are_equal(observe):
    seen = observe()
    assert round_cost(seen, round_terms(seen, 0.01), "carbon").tolist() == [1, 1, 1]


def test_draws_follow_the_weights():
    rng = np.random.default_rng(0)
    weights = np.array([1.0, 0.0, 3.0])
    first = np.array([draw(weights, 1, rng)[0] for _ in range(4000)])
    assert (first == 1).sum() == 0
    assert (first == 2).mean() == pytest.approx(0.75, abs=0.03)
    assert sorted(draw(weights, 3, rng).tolist()) == [0, 1, 2]
    assert draw(weights, 0, rng).size == 0
