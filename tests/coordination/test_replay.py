from __future__ import annotations

import json
from pathlib import Path

import pytest

from powertrip.config import dump_config, load_config
from powertrip.coordination.observer import Observer
from powertrip.coordination.replay import OBSERVED, ReplayError, replay
from powertrip.coordination.run_dir import NoRecordedRun
from powertrip.errors import ConfigError, InputError
from powertrip.selection import MissingGains, SelectionSettings, build_policy
from powertrip.selection.types import Observation
from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EVENT_LOG, EventLogError, EventWriter


@pytest.fixture
def record(three_sites, tmp_path):
    """Writes what a run under three_sites would: one decision for each tuple of members."""

    def record(*seen: tuple[int, ...], policy: str = "all", **changes) -> Path:
        run = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        run.mkdir()
        settings = load_config(
            three_sites.base_dir / "three-sites.yaml", [f"selection.policy={policy}"]
        )
        (run / "config.yaml").write_text(dump_config(settings))
        world = three_sites.build_world()
        observer = Observer(world, settings, three_sites.ready())
        writer = EventWriter(run / EVENT_LOG)
        previous = None
        for generation, members in enumerate(seen, start=1):
            observation = observer.observe(
                time_s=float(generation),
                next_round=6 * generation - 5,
                generation=generation,
                members=members,
                previous=previous,
            )
            previous = build_policy(settings.selection).decide(observation)
            fields = {
                "time_s": observation.time_s,
                "generation": generation,
                "round": observation.round,
                "members": tuple(world.names[site] for site in previous.members),
                "policy": policy,
                "reason": previous.reason,
                "predicted_round_s": previous.predicted_round_s,
                "rounds": previous.rounds,
                "steps": previous.work.steps,
                "deadline_s": previous.work.deadline_s,
                "decide_s": 0.0,
                "power_w": dict(zip(world.names, observation.power_w.tolist(), strict=True)),
                "throughput": dict.fromkeys(world.names, 1.0),
                "observation": observation.to_json(),
            }
            writer.write(events.Decision(**fields | changes))
        writer.close()
        return run

    return record


@pytest.mark.parametrize("policy", ["powertrip", "together"])
def test_a_run_replayed_under_its_own_policy_agrees_everywhere(jobs, policy):
    settings = (
        f"selection.policy={policy}",
        "selection.initial_count=2",
        "selection.adjustment_interval=1",
        "goal.max_rounds=8",
    )
    job = jobs.run(*settings)
    (job.run_dir / "config.yaml").write_text(
        dump_config(load_config(None, ["selection.clock=modelled", *settings]))
    )
    found = list(replay(job.run_dir))
    taken = job.of(events.Decision)
    assert len(found) == len(taken) > 1
    for decision, event in zip(found, taken, strict=True):
        assert decision.agree
        assert decision.now == decision.then
        assert (decision.round, decision.now.members) == (event.round, event.members)


def test_another_policy_decides_on_what_the_run_had_seen(record):
    run = record((), (1, 2))
    for path in (run, run / EVENT_LOG):
        first, second = replay(path, ["selection.policy=static-k", "selection.k=2"])
        assert (first.then.policy, first.now.policy) == ("all", "static-k")
        assert first.then.members == ("paris", "rome", "oslo")
        assert first.now.members == ("paris", "rome")
        assert not first.agree
        assert (second.generation, second.round, second.time_s) == (2, 7, 2.0)
    # Members as recorded hold their seats, although the first replayed decision took others.
    (_, kept) = replay(
        run, ["selection.policy=static-k", "selection.k=2", "selection.seat_margin=1e6"]
    )
    assert set(kept.now.members) == {"rome", "oslo"}


def test_a_policy_remembers_its_own_last_decision(record):
    # Work that is shared out makes growing pay; the record's own policy knows no patience.
    run = record((0,), (0,), (0,))
    found = list(
        replay(run, ["selection.policy=powertrip", "selection.work=pooled", "selection.patience=3"])
    )
    assert [len(decision.now.members) > 1 for decision in found] == [False, False, True]
    assert "seen in 2 of 3 decisions" in found[1].now.reason


def test_a_preset_stands_for_all_that_it_sets(record):
    run = record((), (0, 1))
    written = json.loads((run / EVENT_LOG).read_text().splitlines()[1])
    observation = Observation.from_json(written["observation"])
    paper = SelectionSettings(preset="paper", min_delay_s=0.05)
    expected = build_policy(paper).decide(observation)
    (_, second) = replay(run, ["selection.preset=paper"])
    assert second.now.policy == "powertrip"
    assert second.now.reason == expected.reason
    assert second.now.predicted_round_s == expected.predicted_round_s
    (_, third) = replay(run, ["selection.policy=static-k", "selection.preset=paper"])
    assert third.now.policy == "static-k"
    (_, fourth) = replay(run, ["selection.preset=default"])
    assert fourth.now.policy == SelectionSettings().policy


def test_the_order_of_the_members_is_no_disagreement(record):
    (decision,) = replay(record((), members=("oslo", "rome", "paris")))
    assert decision.now.members == ("paris", "rome", "oslo")
    assert decision.agree


def test_a_log_that_was_cut_short_is_replayed_up_to_there(record):
    run = record((), (0, 1))
    log = run / EVENT_LOG
    log.write_bytes(log.read_bytes()[:-20])
    assert len(list(replay(run))) == 1


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.lr=1", "training.lr cannot be replayed: a replay changes the policy alone"),
        ("selection", "selection cannot be replayed: a replay changes the policy alone"),
        ("selection.kappa=3", "selection.kappa cannot be replayed: it acts on what the run has"),
    ],
)
def test_only_the_policy_can_be_changed(record, override, said):
    with pytest.raises(ReplayError, match=said):
        list(replay(record(()), [override]))


def test_the_settings_that_are_observed_exist():
    assert set(SelectionSettings.model_fields) >= OBSERVED


def test_what_cannot_be_replayed_says_so(record, tmp_path):
    with pytest.raises(NoRecordedRun, match=r"nowhere is no recorded run, .*nowhere is missing"):
        list(replay(tmp_path / "nowhere"))
    with pytest.raises(NoRecordedRun, match=r"events\.jsonl is missing: name the folder of a run"):
        list(replay(tmp_path))
    with pytest.raises(ReplayError, match=r"holds no decision: the run ended before its first"):
        list(replay(record()))
    with pytest.raises(ReplayError, match=r"decision 1 in .* holds no observation"):
        list(replay(record((), observation={})))
    with pytest.raises(ReplayError, match=r"decision 1 in .* cannot be replayed: observation"):
        list(replay(record((), observation={"time_s": 1.0})))
    run = record(())
    with pytest.raises(ConfigError, match="unknown policy 'nope'; write one of: powertrip"):
        list(replay(run, ["selection.policy=nope"]))
    with pytest.raises(MissingGains):
        list(replay(run, ["selection.policy=powertrip", "selection.projector=oracle"]))
    with pytest.raises(EventLogError, match="is not JSON"):
        list(replay(run / "config.yaml"))
    (run / "config.yaml").unlink()
    with pytest.raises(NoRecordedRun, match=r"config\.yaml is missing") as caught:
        list(replay(run))
    assert isinstance(caught.value, InputError)
