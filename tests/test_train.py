"""The job itself, in real processes under torchrun: few runs, each of which shows much."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest

from netem.capabilities import choose_backend
from powertrip.config import load_config
from powertrip.simulation.calibrate import calibrated, read_run
from powertrip.telemetry import events
from powertrip.training.digits import Digits
from powertrip.training.evaluation import evaluate
from powertrip.training.flat import FlatModel
from tests.processes import (
    ALONE,
    END_LIMIT_S,
    REPO,
    Run,
    is_loopback,
    listening_sockets,
    torchrun,
)
from tests.runtime.checkpoints import latest_model

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are found again through /proc"
)

EMULATES = choose_backend("auto").name != "none"
"""Whether this machine can give the sites links of their own."""

needs_links = pytest.mark.skipif(not EMULATES, reason="no emulated links on this machine")

TWO = (
    "sites.count=2", "selection.policy=all", "telemetry.metrics.port=0", "training.local_steps=4",
)  # fmt: skip
ENDLESS = ("goal.accuracy=null", "goal.max_rounds=1000000")


def test_a_run_reaches_its_target_and_leaves_nothing_behind_but_its_folder(tmp_path):
    overrides = (
        "sites.count=3", "goal.accuracy=0.8", "telemetry.metrics.port=0", "training.local_steps=4",
    )  # fmt: skip
    listeners = set()
    with Run(torchrun(3), *overrides, "--json", folder=tmp_path) as run:
        while run.process.poll() is None:
            listeners |= run.listeners()
            time.sleep(0.1)
        assert run.end() == 0, run.output
        run.assert_gone()
    assert {socket.role for socket in listeners} >= {"launcher", "coordinator"}
    assert not [s for s in listeners if s.role != "launcher" and not is_loopback(s)]
    assert not {s.inode for s in listeners} & {inode for inode, *_ in listening_sockets()}

    assert {path.name for path in run.run_dir.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "events.jsonl",
        "summary.json",
    }
    summary = run.last_json
    assert summary == run.summary
    rounds = run.of(events.Round)
    decisions = run.of(events.Decision)
    assert summary["reached"] is True
    assert summary["run_dir"] == str(run.run_dir)
    assert rounds[-1].test_accuracy >= 0.8 > max(r.test_accuracy for r in rounds[:-1])
    assert summary["time_to_target_s"] == rounds[-1].time_s > 0
    assert summary["rounds"] == len(rounds)
    assert summary["generations"] == len(decisions)
    assert summary["energy_j"] == pytest.approx(sum(r.energy_j for r in rounds))
    joined = sum(rebuild.join_bytes for rebuild in run.of(events.Rebuild))
    assert summary["bytes_sent"] == joined + sum(r.bytes_sent for r in rounds) > 0
    assert summary["digest"] == rounds[-1].digest

    configured = load_config(None, [*overrides, f"runtime.run_dir={run.runs}"])
    assert load_config(run.run_dir / "config.yaml") == configured

    saved = latest_model(run.run_dir)
    task = Digits()
    model = FlatModel(task.build_model())
    model.module.load_state_dict(saved.model)
    assert saved.digest == summary["digest"]
    assert evaluate(task, model, "test").accuracy == pytest.approx(summary["test_accuracy"])


def test_two_runs_at_once_with_one_seed_are_the_same_run(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = (
            "--json", "sites.count=3", "selection.policy=random-k", "selection.k=2",
            "selection.adjustment_interval=2", "selection.clock=modelled", "runtime.pacing=off",
            "goal.accuracy=null", "goal.max_rounds=12", f"telemetry.metrics.port={port}",
        )  # fmt: skip
        with (
            Run(torchrun(3), *options, folder=tmp_path / "a") as first,
            Run(ALONE, *options, folder=tmp_path / "b") as second,
        ):
            runs = (first, second)
            for run in runs:
                assert run.end() == 0, run.output
                run.assert_gone()

    def decisions(run):
        return [
            decision.model_dump(exclude={"wall_time", "decide_s"})
            for decision in run.of(events.Decision)
        ]

    assert first.summary["digest"] == second.summary["digest"] != ""
    assert decisions(first) == decisions(second)
    assert len({decision["members"] for decision in decisions(first)}) > 1
    assert first.summary["training_s"] == second.summary["training_s"] > 0
    for run in runs:
        assert f"port {port} is taken" in run.output
        url = run.of(events.RunStarted)[0].metrics_url
        assert url.startswith("http://127.0.0.1:")
        assert f":{port}/" not in url


@pytest.mark.parametrize(
    ("command", "policy", "role", "rank", "number", "code"),
    [
        pytest.param(torchrun(2), "all", "launcher", 0, signal.SIGINT, 130, id="ctrl-c"),
        # Who is not a member has ended before the last round has.
        pytest.param(ALONE, "static-k", "supervisor", 1, signal.SIGTERM, 143, id="one-of-two"),
    ],
)
def test_a_request_to_stop_saves_the_model(tmp_path, command, policy, role, rank, number, code):
    options = (*TWO, *ENDLESS, f"selection.policy={policy}", "selection.k=1")
    with Run(command, *options, folder=tmp_path) as run:
        run.await_event(events.Round, 2)
        pids = run.pids(role)
        # Without torchrun the launcher's command line is the supervisors'.
        pids = [pid for pid in pids if pid != run.process.pid] if role == "supervisor" else pids
        os.kill(pids[rank], number)
        ended = run.end(END_LIMIT_S)
        run.assert_gone(5.0)
    assert ended == (1 if command is not ALONE else code), run.output
    assert run.summary["outcome"] == "interrupted"
    assert run.summary["exit_code"] == code
    assert run.summary["reached"] is False
    saved = latest_model(run.run_dir)
    last = run.of(events.Round)[-1]
    assert (saved.round, saved.digest) == (last.round, last.digest)
    assert [e.outcome for e in run.of(events.RunEnded)] == ["interrupted"]
    assert run.of(events.Warned) == []
    assert "killed" not in run.stderr, run.stderr
    assert "powertrip/" not in run.stderr, run.stderr


def test_killed_processes_are_done_without_and_come_back(tmp_path):
    """A site dies, and then the coordinator: training goes on, and nothing is lost."""
    options = (
        "sites.count=3", "selection.policy=all", "telemetry.metrics.port=0",
        "training.local_steps=2", "runtime.stop_grace_s=5", "selection.adjustment_interval=4",
    )  # fmt: skip
    with Run(torchrun(3), *options, *ENDLESS, folder=tmp_path) as run:
        run.await_event(events.Round, 2)
        os.kill(run.pids("site")[1], signal.SIGKILL)
        run.await_event(events.SiteReturned)
        at = len(run.of(events.Round))
        run.await_event(events.Round, at + 3)
        os.kill(run.pids("coordinator")[0], signal.SIGKILL)
        run.await_event(events.Resumed)
        at = len(run.of(events.Round))
        run.await_event(events.Round, at + 2)
        os.kill(run.process.pid, signal.SIGINT)
        run.end(END_LIMIT_S)
        run.assert_gone(5.0)
    assert "rank 1: the site process was killed by SIGKILL; it is started again" in run.stderr
    assert "rank 0: the coordinator process was killed by SIGKILL" in run.stderr
    assert run.summary["outcome"] == "interrupted"
    rounds = run.of(events.Round)
    assert [event.round for event in rounds] == list(range(1, len(rounds) + 1))
    failures = [event.kind for event in run.of(events.Failure)]
    assert failures[:2] == ["SiteGone", "ExchangeFailed"]
    assert any("oregon" in event.newcomers for event in run.of(events.Rebuild))
    assert latest_model(run.run_dir).digest == rounds[-1].digest


@needs_links
@pytest.mark.parametrize("role", ["link daemon", "relay"])
def test_links_that_are_killed_end_the_run_at_once_and_are_named(tmp_path, role):
    with Run(ALONE, *TWO, *ENDLESS, folder=tmp_path) as run:
        run.await_event(events.Round, 2)
        before = set(Path(tempfile.gettempdir()).glob("netem-*"))
        os.kill(run.pids(role)[0], signal.SIGKILL)
        assert run.end(END_LIMIT_S) not in (0, 3), run.output
        run.assert_gone(5.0)
    assert [folder for folder in before if not folder.exists()], "the daemon's folder is left"
    failure = run.of(events.Failure)[-1]
    assert failure.kind == "LinksLost"
    assert "the link daemon (process" in failure.text
    assert run.summary["outcome"] == "failed"
    assert (run.runs / "links.log").exists()
    if role == "relay":
        assert "the relay to the store (process" in run.stderr
    assert "Traceback" not in run.stderr, run.stderr


@needs_links
def test_links_are_emulated_measured_and_met_by_the_exchanges(tmp_path):
    cut = "emulation.schedule=[{at_s: 0, src: iowa, dst: oregon, delay_s: 0.25}]"
    options = ("exchange.probe.enabled=false", "goal.accuracy=null", "goal.max_rounds=2", cut)
    measured = ("goal.accuracy=null", "goal.max_rounds=3")
    with (
        Run(ALONE, *TWO, *measured, folder=tmp_path / "measured") as first,
        Run(ALONE, *TWO, *options, folder=tmp_path / "slowed") as second,
    ):
        for run in (first, second):
            assert run.end() == 0, run.output
            run.assert_gone(5.0)
    (links,) = (event for event in first.of(events.LinksMeasured) if event.first)
    # Oregon's entries in the table differ by direction; the emulated link has their mean.
    rtt_s = sum(row.model_rtt_s for row in links.links) / 2
    assert {(row.src, row.dst) for row in links.links} == {("iowa", "oregon"), ("oregon", "iowa")}
    for row in links.links:
        assert 0.98 * rtt_s <= row.rtt_s <= rtt_s + 0.1
        assert row.bandwidth is None or row.bandwidth == pytest.approx(row.model_bandwidth, rel=0.5)
    # One all-reduce of two is two messages, one after the other.
    assert all(round_.exchange_s >= 0.98 * rtt_s for round_ in first.of(events.Round))
    assert second.of(events.LinksMeasured) == []
    assert all(round_.exchange_s >= 2 * 0.249 for round_ in second.of(events.Round))


@needs_links
def test_the_simulation_of_the_default_scenario_is_as_the_real_run(tmp_path):
    """Ten decisions and more over emulated links, and then the same in virtual time."""
    until = ("goal.accuracy=null", "goal.max_rounds=22", "telemetry.metrics.port=0")
    with Run(torchrun(8), *until, folder=tmp_path) as run:
        assert run.end() == 0, run.output
        recorded = read_run(run.run_dir)
    timing, found = calibrated(recorded)
    assert found.simulated_round_s == pytest.approx(found.real_round_s, rel=0.15)
    assert found.decisions >= 10
    assert found.same >= 0.8 * found.decisions
    # Whatever the machine, the sites keep the pace of their power.
    assert timing.speed == pytest.approx(1.0, rel=0.1)


def test_nothing_outlives_torchrun_itself(tmp_path):
    with Run(torchrun(2), *TWO, *ENDLESS, folder=tmp_path) as run:
        run.await_event(events.Round, 2)
        links = ["link daemon", "relay"] if EMULATES else []
        assert sorted(run.processes().values()) == [
            "coordinator", "launcher", *links, "site", "site", "supervisor", "supervisor",
        ]  # fmt: skip
        run.process.kill()
        run.assert_gone()
    assert run.of(events.Failure)[-1].kind == "ControlPlaneError"
    assert run.summary["outcome"] == "failed"


def test_a_target_out_of_reach_ends_with_code_3(tmp_path):
    options = (*TWO, "goal.accuracy=1", "goal.max_rounds=2", "runtime.pacing=off")
    with Run(ALONE, *options, "--json", folder=tmp_path) as run:
        assert run.end() == 3, run.output
        run.assert_gone()
    assert run.last_json["outcome"] == "budget"
    assert run.last_json["reached"] is False
    assert "target not reached within the budget" in run.stdout
    assert "Traceback" not in run.output


def test_a_wrong_setting_is_told_at_once(tmp_path):
    started_s = time.monotonic()
    with Run(ALONE, "training.lr=-1", "goal.accuraci=0.9", folder=tmp_path) as run:
        assert run.end() == 2
    assert time.monotonic() - started_s < 20
    assert "2 problems in " in run.stderr
    assert "training.lr" in run.stderr
    assert "goal.accuraci: unknown setting; did you mean accuracy?" in run.stderr
    assert "Traceback" not in run.output
    assert run.stdout == ""
    assert not run.runs.exists()


@pytest.mark.parametrize(
    ("processes", "says"),
    [
        (3, "there are 2 of them, but 3 processes were started; start 2 (--nproc_per_node=2"),
        (1, "start 2 (--nproc_per_node=2 on one machine), or use the first 1 of them"),
    ],
)
def test_a_wrong_number_of_processes_is_told_once(tmp_path, processes, says):
    with Run(torchrun(processes), *TWO, folder=tmp_path) as run:
        assert run.end() != 0
        run.assert_gone()
    assert run.stderr.count(says) == 1, run.stderr
    assert "powertrip/" not in run.stderr, run.stderr
    assert not run.runs.exists()


def test_a_task_that_does_not_import_is_told_once(tmp_path):
    with Run(ALONE, *TWO, "task=nowhere_to_be_found:Task", folder=tmp_path) as run:
        assert run.end() == 2, run.output
        run.assert_gone()
    assert run.output.count("there is no module 'nowhere_to_be_found'") == 1, run.output
    assert "Traceback" not in run.output


def test_the_task_of_the_documentation_trains_from_a_folder_of_its_own(tmp_path):
    page = (REPO / "docs" / "own-task.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    task = re.search(r"```yaml\n(task:.*?)```", page, re.DOTALL)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "my_task.py").write_text(code[1])
    (mine / "scenario.yaml").write_text(
        f"""
sites:
  list:
    - {{name: one, gpus: 1, samples_per_s: 1000, power: {{kind: constant, watts: 1000}}}}
    - {{name: two, gpus: 1, samples_per_s: 1000, power: {{kind: constant, watts: 1000}}}}
network: {{kind: matrix, rtt_s: [[0, 0.01], [0.01, 0]], bandwidth_bps: [[0, 1e8], [1e8, 0]]}}
goal: {{accuracy: 0.9, max_rounds: 100}}
selection: {{policy: all}}
telemetry: {{metrics: {{port: 0}}}}
runtime: {{pacing: off}}
{task[1]}
"""
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [*torchrun(2), "--config", str(mine / "scenario.yaml")]
    with Run(command, folder=tmp_path, cwd=elsewhere) as run:
        assert run.end() == 0, run.output
        run.assert_gone()
    assert run.summary["reached"] is True
    assert set(run.of(events.Round)[-1].members) == {"one", "two"}
