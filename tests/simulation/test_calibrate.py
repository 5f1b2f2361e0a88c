from __future__ import annotations

import pytest

from powertrip.config import default_path, load_config
from powertrip.coordination.run_dir import NoRecordedRun, make_run_dir
from powertrip.coordination.setup import Setup
from powertrip.simulation.calibrate import CannotCalibrate, agreement, calibrated, fit, read_run
from powertrip.simulation.engine import simulate
from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from powertrip.telemetry.telemetry import Telemetry


def run(folder, *overrides, policy="together", rounds=12):
    """The folder of a run that looks like a real one: simulated, with times that differ."""
    config = load_config(
        None,
        [
            "telemetry.metrics.enabled=false",
            "telemetry.console=none",
            "simulation.workers=0",
            f"selection.policy={policy}",
            f"runtime.run_dir={folder}",
            "goal.accuracy=null",
            f"goal.max_rounds={rounds}",
            *overrides,
        ],
    )
    path = make_run_dir(config)
    with Telemetry(config.telemetry, path) as telemetry:
        simulate(Setup(config, default_path().parent), telemetry)
    log = path / EVENT_LOG
    log.write_text(log.read_text().replace('"pacing":"virtual"', '"pacing":"modelled"'))
    return path


def test_the_constants_of_a_run_are_found_again(tmp_path):
    path = run(
        tmp_path,
        "simulation.timing.speed=0.8",
        "simulation.timing.exchange=1.5",
        "simulation.timing.exchange_s=0.05",
        "simulation.timing.round_s=0.04",
        "simulation.timing.build_round_trips=12",
        "selection.k=3",
        policy="random-k",  # exchanges that differ tell the slope from the offset
    )
    timing = fit(read_run(path))
    assert timing.speed == pytest.approx(0.8, rel=1e-6)
    assert timing.exchange == pytest.approx(1.5, rel=0.02)
    assert timing.exchange_s == pytest.approx(0.05, abs=0.01)
    assert timing.round_s == pytest.approx(0.04, rel=1e-6)
    assert timing.build_round_trips == pytest.approx(12, rel=1e-6)


def test_round_trips_of_the_commit_are_found_where_they_are_waited_for(tmp_path):
    path = run(
        tmp_path,
        "simulation.timing.commit_round_trips=4",
        "selection.k=3",
        "training.local_steps=1",
        policy="random-k",
        rounds=20,
    )
    timing = fit(read_run(path))
    assert timing.commit_round_trips == pytest.approx(4, abs=0.25)


def test_what_a_run_cannot_tell_keeps_its_default(tmp_path):
    timing = fit(read_run(run(tmp_path, policy="centralized")))
    assert (timing.exchange, timing.exchange_s) == (1, 0)
    assert timing.commit_round_trips == 2


def test_the_run_is_simulated_as_it_was(tmp_path):
    path = run(tmp_path, "simulation.timing.exchange=2", "simulation.timing.speed=0.9")
    timing, found = calibrated(read_run(path))
    assert timing.exchange == pytest.approx(2, rel=1e-6)
    assert found.simulated_round_s == pytest.approx(found.real_round_s, rel=1e-3)
    assert found.decisions == found.same > 4


def test_disagreement_shows(tmp_path):
    one, other = (
        list(read_events(run(tmp_path, "selection.k=3", policy=policy) / EVENT_LOG))
        for policy in ("static-k", "random-k")
    )
    found = agreement(one, other)
    decisions = [event for event in one if isinstance(event, events.Decision)]
    assert found.decisions == len(decisions)
    assert found.same < found.decisions
    assert found.simulated_round_s > found.real_round_s


def test_only_a_real_run_that_is_long_enough_says_something(tmp_path):
    with pytest.raises(NoRecordedRun, match="is no recorded run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(CannotCalibrate, match="has 3 rounds; at least 5"):
        read_run(run(tmp_path, rounds=3))
    path = run(tmp_path, rounds=6)
    log = path / EVENT_LOG
    log.write_text(log.read_text().replace('"pacing":"modelled"', '"pacing":"virtual"'))
    with pytest.raises(CannotCalibrate, match="simulated itself"):
        read_run(path)
