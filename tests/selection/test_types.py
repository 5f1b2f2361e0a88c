from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.selection import (
    POLICIES,
    Candidate,
    Decision,
    Observation,
    RecordError,
    SelectionSettings,
    Work,
    build_policy,
)


def decision(**changes):
    line = Candidate(
        k=2,
        gain=0.1,
        compute_s=1.0,
        communication_s=0.5,
        round_s=1.5,
        switch_s=0.0,
        efficiency=0.07,
        chosen=True,
    )
    fields = {
        "generation": 3,
        "policy": "powertrip",
        "members": (4, 0),
        "work": Work(steps=(5, 6)),
        "rounds": 4,
        "predicted_round_s": 1.5,
        "candidates": (line,),
        "reason": "stay",
        "streak": -1,
    }
    return Decision(**fields | changes)


def through_json(obj):
    return json.loads(json.dumps(obj, allow_nan=False))


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_observation_and_decision_survive_strict_json(any_observation, data):
    seen = data.draw(any_observation()).replace(previous=decision())
    policy = build_policy(SelectionSettings(policy=data.draw(st.sampled_from(list(POLICIES)))))
    made = policy.decide(seen)
    again = Observation.from_json(through_json(seen.to_json()))
    assert again.to_json() == seen.to_json()
    assert again.previous == seen.previous
    assert policy.decide(again) == made
    assert Decision.from_json(through_json(made.to_json())) == made


def test_infinities_and_nan_are_kept_in_json(observe):
    seen = observe(
        throughput=[1.0, 2.0],
        up=[np.inf, 1.0],
        rtt_s=[0.0, np.nan],
        reachable=[True, False],
        distance_m=[0.0, np.nan],
    )
    obj = through_json(seen.to_json())
    assert obj["up"] == ["inf", 1.0]
    assert obj["distance_m"] == [0.0, "nan"]
    again = Observation.from_json(obj)
    assert np.isposinf(again.up[0])
    assert np.isnan(again.rtt_s[1])
    assert again.reachable.tolist() == [True, False]


def test_deadlines_survive_json():
    made = decision(work=Work(deadline_s=(1.5, 0.0)))
    assert Decision.from_json(through_json(made.to_json())) == made
    assert made.work.deadline_s == (1.5, 0.0)


def test_numpy_numbers_become_plain_ones():
    made = decision(members=np.array([4, 0]), work=Work(steps=np.array([5, 6])), rounds=np.int64(4))
    assert made == decision()
    assert all(type(m) is int for m in made.members)


def test_arrays_are_copied_and_sealed(observe):
    power_w = np.array([1.0, 2.0, 3.0])
    seen = observe(power_w=power_w)
    power_w[0] = 9
    assert seen.power_w[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        seen.power_w[0] = 9


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rtt_s", [0.1, 0.2], r"observation.rtt_s: expected shape \(3,\), got shape \(2,\)"),
        ("power_w", [[1.0, 2.0, 3.0]], r"observation.power_w: expected a vector"),
        ("power_w", [1.0, [2.0], 3.0], "ragged"),
        ("throughput", [1.0, -2.0, 3.0], r"observation.throughput\[1\]"),
        ("throughput", [1.0, 2.0, np.nan], r"observation.throughput\[2\]"),
        ("up", [np.nan, 1.0, 1.0], r"observation.up\[0\]"),
        ("reachable", [1, 0, 1], "observation.reachable: unexpected values"),
        ("samples", [1.5, 2, 3], "observation.samples: unexpected values"),
        ("gains", [np.nan], r"observation.gains\[0\]"),
        ("hub", 3, "observation.hub: expected a site from 0 to 2"),
        ("members", (0, 3), "observation.members: expected site numbers from 0 to 2"),
        ("members", (1, 1), "more than once"),
        ("update_bytes", 0, "observation.update_bytes: expected at least 1"),
        ("base_steps", 2.5, "observation.base_steps: expected a whole number"),
        ("batch_size", True, "observation.batch_size: expected a whole number"),
        ("communication_correction", 0.0, "observation.communication_correction"),
        ("rebuild_s", float("inf"), "observation.rebuild_s: expected a finite number"),
        ("time_s", "0", "observation.time_s: expected a number"),
        ("previous", {}, "observation.previous"),
        ("loss_rms", [1.0, -1.0, 1.0], r"observation.loss_rms\[1\]"),
        ("loss_rms", [1.0, np.inf, 1.0], r"observation.loss_rms\[1\]"),
        ("own_round_s", [1.0, 2.0], r"observation.own_round_s: expected shape \(3,\)"),
        ("last_seen", [0, -1, 2], r"observation.last_seen\[1\]"),
        ("last_seen", None, "observation.last_seen"),
        ("update_norms", [1.0, np.nan], r"observation.update_norms\[1\]"),
        ("layer_norms", [[1.0], [-1.0]], r"observation.layer_norms\[1, 0\]"),
        ("layer_norms", [[1.0], [1.0, 2.0]], "ragged"),
        ("used_power_w", [1.0, np.nan, 2.0], r"observation.used_power_w\[1\]"),
        ("carbon_g_per_j", [1.0, 1.0, -1.0], r"observation.carbon_g_per_j\[2\]"),
        ("power_history", [[1.0, 2.0]], "observation.power_history: expected rows of 3"),
        ("kappa", 0.0, "observation.kappa"),
        ("h0", np.nan, "observation.h0"),
        ("history_step_s", -1.0, "observation.history_step_s"),
        ("exchange_model", "bus", "observation.exchange_model: expected one of"),
        ("pair_rtt_s", np.zeros((3, 3)), "expected both or neither"),
        ("measured_gains", [0.1], "observation.measured_gains: expected gains by number"),
        ("measured_gains", {0: 0.1}, "observation.measured_gains: expected at least 1"),
        ("measured_gains", {2: np.nan}, r"observation.measured_gains\[2\]"),
    ],
)
def test_bad_observation_names_its_field(observe, field, value, message):
    with pytest.raises(RecordError, match=message):
        observe(throughput=[1.0, 2.0, 3.0]).replace(**{field: value})


def test_bad_matrices_between_sites_are_refused(observe):
    seen = observe(throughput=[1.0, 2.0])
    fine = np.ones((2, 2))
    with pytest.raises(RecordError, match=r"pair_bandwidth: expected 2 rows, got 1"):
        seen.replace(pair_rtt_s=fine, pair_bandwidth=fine[:1])
    with pytest.raises(RecordError, match=r"pair_rtt_s\[1, 0\]: expected 0 to inf, got nan"):
        seen.replace(pair_rtt_s=[[0.0, 1.0], [np.nan, 0.0]], pair_bandwidth=fine)
    ignored = [[np.nan, 1.0], [2.0, np.nan]]
    assert seen.replace(pair_rtt_s=ignored, pair_bandwidth=fine).pair_rtt_s[1, 0] == 2.0


def test_what_is_left_out_is_plain(observe):
    seen = observe(throughput=[1.0, 2.0])
    assert np.isnan(seen.loss_rms).all()
    assert np.isnan(seen.own_round_s).all()
    assert seen.last_seen.tolist() == [0, 0]
    assert seen.used_power_w.tolist() == seen.power_w.tolist()
    assert seen.carbon_g_per_j.tolist() == seen.price_per_j.tolist() == [0, 0]
    assert seen.power_history.shape == (0, 2)
    assert seen.layer_norms.shape == (0, 0)
    assert seen.update_norms.shape == (0,)
    assert (seen.kappa, seen.h0, seen.history_step_s) == (10, 10, 0)
    assert (seen.exchange_model, seen.pair_rtt_s, dict(seen.measured_gains)) == ("star", None, {})
    assert seen.overlap is False


def test_every_field_survives_json(observe):
    seen = observe(
        throughput=[1.0, 2.0],
        loss_rms=[np.nan, 0.5],
        last_seen=[0, 3],
        own_round_s=[1.5, np.nan],
        update_norms=[2.0, 1.0],
        layer_norms=[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
        kappa=4.5,
        h0=5.0,
        used_power_w=[3.0, 4.0],
        carbon_g_per_j=[1e-4, 2e-4],
        price_per_j=[1e-8, 0.0],
        power_history=[[1.0, 2.0], [3.0, 4.0]],
        history_step_s=300.0,
        exchange_model="mesh",
        pair_rtt_s=[[0.0, np.inf], [0.1, 0.0]],
        pair_bandwidth=[[np.inf, 0.0], [1e6, np.inf]],
        measured_gains={1: 0.1, 4: -0.2},
        overlap=True,
    )
    again = Observation.from_json(through_json(seen.to_json()))
    assert again.to_json() == seen.to_json()
    assert again.pair_rtt_s[0, 1] == np.inf
    assert again.measured_gains == {1: 0.1, 4: -0.2}
    assert again.overlap is True
    assert np.isnan(again.own_round_s[1])
    assert again.layer_norms.tolist() == seen.layer_norms.tolist()


def test_logs_without_the_fields_that_may_be_left_out_are_read(observe):
    seen = observe()
    obj = seen.to_json()
    older = {k: obj[k] for k in list(obj)[: list(obj).index("names") + 1]}
    assert Observation.from_json(older).to_json() == obj
    with pytest.raises(RecordError, match="with counts as keys"):
        Observation.from_json(obj | {"measured_gains": {"x": 1}})
    with pytest.raises(RecordError, match="overlap: expected true or false, got 1"):
        Observation.from_json(obj | {"overlap": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": ()}, "at least one site"),
        ({"members": (1, -1)}, "site numbers from 0"),
        ({"members": (1, 1)}, "more than once"),
        ({"members": (1, 2, 3)}, "decision.work: expected one entry for each of 3 members, got 2"),
        ({"predicted_round_s": float("nan")}, "decision.predicted_round_s"),
        ({"rounds": 0}, "decision.rounds"),
        ({"reason": None}, "expected texts"),
    ],
)
def test_bad_decision_names_its_field(changes, message):
    with pytest.raises(RecordError, match=message):
        decision(**changes)


@pytest.mark.parametrize(
    "fields",
    [{}, {"steps": (1,), "deadline_s": (1.0,)}, {"steps": (0,)}, {"deadline_s": (-1.0,)}],
)
def test_work_is_positive_steps_or_deadlines(fields):
    with pytest.raises(RecordError, match="work"):
        Work(**fields)


def test_candidate_refuses_what_is_not_finite():
    line = decision().candidates[0].to_json()
    with pytest.raises(RecordError, match=r"candidate\.efficiency"):
        Candidate(**line | {"efficiency": float("inf")})
    with pytest.raises(RecordError, match=r"candidate\.chosen"):
        Candidate(**line | {"chosen": 1})


def test_json_with_wrong_keys_or_values_is_refused(observe):
    obj = observe().to_json()
    with pytest.raises(RecordError, match="missing 'hub', unknown 'hob'"):
        Observation.from_json({k: v for k, v in obj.items() if k != "hub"} | {"hob": 1})
    with pytest.raises(RecordError, match="'fast' is not a number"):
        Observation.from_json(obj | {"up": [1.0, 2.0, "fast"]})
    with pytest.raises(RecordError, match="expected a list"):
        Observation.from_json(obj | {"up": None})
    with pytest.raises(RecordError, match="expected an object"):
        Decision.from_json([])


def test_base_steps_are_the_same_everywhere_or_one_number_a_site(observe):
    assert observe(throughput=[1.0, 2.0], base_steps=7).base_steps.tolist() == [7, 7]
    assert observe(throughput=[1.0, 2.0], base_steps=[3, 4]).base_steps.tolist() == [3, 4]
    with pytest.raises(RecordError, match=r"base_steps: expected shape \(2,\)"):
        observe(throughput=[1.0, 2.0], base_steps=[1, 2, 3])


def test_sites_in_words_have_their_names_where_these_are_known(observe):
    seen = observe(throughput=[1.0] * 8)
    assert seen.listed([3, 1]) == "site 3, site 1"
    named = seen.replace(names=tuple("abcdefgh"))
    assert named.listed([3, 1]) == "d, b"
    assert named.listed(range(8)) == "a, b, c, d, e and 3 more"
    with pytest.raises(RecordError, match="expected 8 names, got 2"):
        seen.replace(names=("a", "b"))
    with pytest.raises(RecordError, match="expected texts"):
        seen.replace(names=(*"abcdefg", None))
