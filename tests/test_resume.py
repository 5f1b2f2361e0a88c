"""A run that goes on from a checkpoint, in real processes."""

from __future__ import annotations

import shutil
import sys

import pytest

from powertrip.runtime.manifest import CHECKPOINTS, folder_of
from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from tests.processes import ALONE, Run, torchrun
from tests.runtime.checkpoints import latest_model

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are found again through /proc"
)

ROUNDS = 14
REPRODUCIBLE = (
    "sites.count=2", "selection.clock=modelled", "selection.adjustment_interval=3",
    "training.momentum=0.9", "training.local_steps=4", "goal.accuracy=null",
    f"goal.max_rounds={ROUNDS}", "checkpoint.every_rounds=3", "checkpoint.keep=99",
    "runtime.pacing=off", "emulation.backend=off", "telemetry.metrics.port=0",
)  # fmt: skip
DURATIONS = {"wall_time", "decide_s", "eval_s"}  # of processes, which differ from run to run


def course_of(run) -> list[dict]:
    kinds = events.Decision, events.Round, events.Rebuild
    told = [event.model_dump(exclude=DURATIONS) for event in run.events if isinstance(event, kinds)]
    for event in told:
        for site in event.get("sites", ()):
            del site["exchange_s"]
    return told


@pytest.mark.timeout(300)  # two runs of 14 rounds, one after the other
def test_a_run_that_was_resumed_is_bit_by_bit_one_that_was_never_interrupted(tmp_path):
    with Run(ALONE, *REPRODUCIBLE, folder=tmp_path) as run:
        assert run.end() == 0, run.output
        run.assert_gone()
    whole, digest, run_dir = course_of(run), run.summary["digest"], run.run_dir
    made = [event.round for event in run.of(events.Checkpoint)]
    assert len(made) >= 4
    for round_ in made[3:]:
        shutil.rmtree(folder_of(run_dir, round_))
    model = folder_of(run_dir, made[2]) / "model.pt"
    model.write_bytes(model.read_bytes()[:-100])
    stands = made[1]

    with Run(torchrun(2), "--resume", str(run_dir), folder=tmp_path) as run:
        assert run.end() == 0, run.output
        run.assert_gone()
    (resumed,) = run.of(events.Resumed)
    assert (resumed.round, resumed.lost_rounds) == (stands, ROUNDS - stands)
    assert f"round-{made[2]:08d} is no use" in resumed.reason
    assert course_of(run) == whole
    assert latest_model(run_dir).digest == run.summary["digest"] == digest != ""
    assert (run.summary["rounds"], run.summary["resumes"]) == (ROUNDS, 1)
    assert f"resumed after round {stands}" in run.stdout
    assert (run_dir / CHECKPOINTS / f"round-{made[2]:08d}.unusable-1").is_dir()
    aside = list(read_events(run_dir / f"{EVENT_LOG}.dropped-1"))
    assert [e.round for e in aside if isinstance(e, events.Round)] == [
        *range(stands + 1, ROUNDS + 1)
    ]


@pytest.mark.parametrize("command", [ALONE, torchrun(2)])
def test_what_cannot_be_resumed_is_told_at_once(tmp_path, command):
    with Run([*command, "--resume", str(tmp_path / "nowhere")], folder=tmp_path) as run:
        assert run.end() != 0
        run.assert_gone()
    assert run.stderr.count("nowhere is no recorded run") == 1, run.stderr
    assert "powertrip/" not in run.stderr, run.stderr
    assert not run.runs.exists()
