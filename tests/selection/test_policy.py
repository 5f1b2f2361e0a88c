from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from powertrip.selection import POLICIES, NoUsableSite, SelectionSettings, build_policy
from powertrip.selection.round_time import round_terms

OPTIONS = st.builds(
    SelectionSettings,
    policy=st.sampled_from(sorted(POLICIES)),
    work=st.sampled_from(["straggler", "pooled", "together", "mean", "pooled-paper"]),
    ranking=st.sampled_from(["round-time", "power-to-cost", "power-to-cost-linear"]),
    projector=st.sampled_from(["saturating", "log"]),
    objective=st.sampled_from([{}, {"energy": 1.0}, {"time": 0.0, "carbon": 2.0}]),
    coverage=st.none() | st.integers(1, 5),
    k=st.integers(1, 15),
    window=st.integers(1, 15),
    margin=st.floats(0, 0.5),
    patience=st.integers(1, 3),
    seat_margin=st.floats(0, 0.5),
    initial_count=st.none() | st.integers(1, 15),
    min_members=st.integers(1, 15),
    radius_m=st.floats(1, 1e8),
)


@given(st.data(), OPTIONS)
@settings(max_examples=300, deadline=None)
def test_every_decision_is_sound(any_observation, data, options):
    seen = data.draw(any_observation())
    made = build_policy(options).decide(seen)
    usable = round_terms(seen, options.min_delay_s).usable
    assert usable[list(made.members)].all()
    assert made.policy == options.policy
    assert made.generation == seen.generation
    assert made.rounds == seen.interval_rounds
    assert made.reason
    assert [line.k for line in made.candidates if line.chosen] == [len(made.members)]
    for line in made.candidates:
        assert np.isfinite(line.efficiency)
        assert line.efficiency > 0
        assert line.round_s == pytest.approx(line.compute_s + line.communication_s)


@given(st.data(), OPTIONS)
@settings(max_examples=150, deadline=None)
def test_renaming_the_sites_changes_nothing(any_observation, data, options):
    seen = data.draw(any_observation())
    made = build_policy(options).decide(seen)
    renamed = np.array(data.draw(st.permutations(range(seen.sites))))
    names = np.argsort(renamed)
    arrays = ["power_w", "throughput", "full_speed", "samples", "rtt_s", "up", "down"]
    arrays += ["reachable", "distance_m", "base_steps", "used_power_w", "last_seen"]
    other = seen.replace(
        **{name: getattr(seen, name)[renamed] for name in arrays},
        hub=int(names[seen.hub]),
        members=tuple(names[list(seen.members)].tolist()) if seen.members else (),
    )
    again = build_policy(options).decide(other)
    if options.policy in ("random-k", "oort"):
        assert len(again.members) == len(made.members)
        return
    assert renamed[list(again.members)].tolist() == list(made.members)
    assert again.work == made.work
    assert again.streak == made.streak


@given(st.data(), OPTIONS, st.sampled_from([1 / 1024, 1 / 2, 4, 1024]))
@settings(max_examples=100, deadline=None)
def test_units_change_nothing(any_observation, data, options, factor):
    seen = data.draw(any_observation())
    made = build_policy(options).decide(seen)
    terms = round_terms(seen, options.min_delay_s)
    watts = seen.replace(power_w=seen.power_w * factor)
    assert build_policy(options).decide(watts).members == made.members
    seconds = seen.replace(
        throughput=seen.throughput / factor,
        full_speed=seen.full_speed / factor,
        rtt_s=seen.rtt_s * factor,
        up=seen.up / factor,
        down=seen.down / factor,
        rebuild_s=seen.rebuild_s * factor,
    )
    slower = options.model_copy(update={"min_delay_s": options.min_delay_s * factor})
    # Beyond 1e9 s a site counts as lost, in whatever unit.
    assume((round_terms(seconds, 1e-6).own_s <= 1e9).sum() == (terms.own_s <= 1e9).sum())
    again = build_policy(slower).decide(seconds)
    assert again.members == made.members
    if made.work.deadline_s is None:
        assert again.work == made.work
    else:
        deadline_s = np.array(made.work.deadline_s) * factor
        np.testing.assert_allclose(again.work.deadline_s, deadline_s, rtol=1e-9)
    assert again.predicted_round_s == pytest.approx(made.predicted_round_s * factor)


@given(st.data(), OPTIONS, st.sampled_from([2, 16, 256]))
@settings(max_examples=100, deadline=None)
def test_power_speed_and_batch_scaled_together_change_nothing(
    any_observation, data, options, factor
):
    seen = data.draw(any_observation())
    scaled = seen.replace(
        power_w=seen.power_w * factor,
        throughput=seen.throughput * factor,
        full_speed=seen.full_speed * factor,
        batch_size=seen.batch_size * factor,
    )
    policy = build_policy(options)
    made, again = policy.decide(seen), policy.decide(scaled)
    assert (again.members, again.work, again.candidates) == (
        made.members,
        made.work,
        made.candidates,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_usable_is_an_error(observe, policy):
    with pytest.raises(NoUsableSite):
        build_policy(SelectionSettings(policy=policy)).decide(observe(throughput=[0.0, 0.0]))


@pytest.mark.parametrize("policy", POLICIES)
def test_registered_under_its_own_name(policy):
    assert build_policy(SelectionSettings(policy=policy)).name == policy


def test_importing_selection_does_not_import_torch():
    code = "import sys, powertrip.selection; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
