from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from powertrip import cli
from powertrip.errors import ConfigError
from powertrip.experiments.experiment import (
    CellsFailed,
    Interrupted,
    conduct,
    failures,
    run_experiment,
)
from powertrip.experiments.grid import plan_experiment
from powertrip.experiments.progress import Progress
from powertrip.experiments.table import read_table
from powertrip.simulation.threads import THREADS
from tests.experiments.pretend import written

TRY = """
name: try
settings: {goal.accuracy: 0.95, goal.max_rounds: 2}
axes:
  policy:
    static: {selection.policy: static-k, each: {selection.k: [2, 4]}}
    all: {selection.policy: all, selection.k: 8}
seeds: 2
figures:
  - {kind: line, x: k, y: time_to_target_s, by: policy}
"""


@pytest.fixture
def go(tmp_path, pretend):
    """Runs the file's experiment; `ran` are the cells that it has simulated, in this process."""

    def go(text=TRY, *, simulate=None, workers=1, **options):
        go.ran = []

        def noted(setup, telemetry):
            go.ran.append((setup.config.selection.k, setup.config.seed))
            return (simulate or pretend)(setup, telemetry)

        experiment = plan_experiment(written(tmp_path, text))
        go.shown = StringIO()
        with Progress(Console(file=go.shown, width=100)) as progress:
            results = run_experiment(
                experiment,
                tmp_path / "out",
                progress,
                workers=workers,
                simulate=noted if workers == 1 else pretend,
                **options,
            )
        return experiment, results

    return go


def test_the_tables_have_a_row_a_cell_and_a_row_a_round(go, tmp_path):
    _, results = go()
    cells = read_table(tmp_path / "out" / "summary.csv")
    assert [(r["policy"], r["k"], r["seed"]) for r in cells] == [
        ("static", 2, 0),
        ("static", 2, 1),
        ("static", 4, 0),
        ("static", 4, 1),
        ("all", None, 0),
        ("all", None, 1),
    ]
    # With 2 sites 8/9 is reached in two rounds, with 4 24/25, with 8 80/81; a round takes k + seed.
    assert [r["time_to_target_s"] for r in cells] == [None, None, 8.0, 10.0, 16.0, 18.0]
    assert [r["outcome"] for r in cells] == ["budget"] * 2 + ["reached"] * 4
    rounds = read_table(tmp_path / "out" / "rounds.csv")
    assert len(rounds) == 12
    assert [(r["policy"], r["seed"], r["time_s"]) for r in rounds[-2:]] == [
        ("all", 1, 9.0),
        ("all", 1, 18.0),
    ]
    assert {path.name for path in results.files} >= {
        "summary.csv",
        "rounds.csv",
        "experiment.yaml",
        "time_to_target_s-against-k.png",
    }
    assert all(path.exists() for path in results.files)


def test_no_column_is_of_a_clock_on_the_wall(go):
    _, results = go()
    names = {*results.cells[0], *results.rounds[0]}
    assert not names & {"wall_s", "wall_time", "evaluation_s", "eval_s", "decide_s", "run_id"}


def test_finished_cells_are_not_run_again_and_changed_ones_are(go):
    go()
    assert len(go.ran) == 6
    go()
    assert go.ran == []
    assert "6 of 6 cells done already" in go.shown.getvalue()
    go(TRY.replace("[2, 4]", "[2, 5]"))
    assert go.ran == [(5, 0), (5, 1)]
    go(TRY.replace("0.95", "0.94"))
    assert len(go.ran) == 6
    go(fresh=True)
    assert len(go.ran) == 6


def test_all_settings_are_run_with_the_first_seed_before_any_with_the_second(go):
    go()
    assert [seed for _, seed in go.ran] == [0, 0, 0, 1, 1, 1]


def test_a_setting_under_two_labels_is_run_once(go):
    _, results = go(TRY.replace("all: {selection.policy: all, selection.k: 8}",
                                "two: {selection.policy: static-k, selection.k: 2}"))  # fmt: skip
    assert sorted(go.ran) == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert [r["time_to_target_s"] for r in results.cells] == [None, None, 8.0, 10.0, None, None]


def test_a_failed_cell_is_recorded_and_run_again_and_the_others_go_on(go, tmp_path):
    text = TRY.replace("[2, 4]", "[13, 14, 4]")
    experiment, results = go(text)
    rows = read_table(tmp_path / "out" / "summary.csv")
    assert [r["status"] for r in rows] == ["failed"] * 4 + ["done"] * 4
    assert rows[0]["error"] == "13 brings bad luck; take 12"
    assert (rows[2]["error"], rows[2]["rounds"]) == ("it diverged", 1)
    failed = failures(experiment, results)
    assert isinstance(failed, CellsFailed)
    assert failed.exit_code == 1
    assert "4 of 8 cells failed" in str(failed)
    assert "policy static, k 13, seed 1: 13 brings bad luck" in str(failed)
    go(text)
    assert sorted({k for k, _ in go.ran}) == [13, 14]
    experiment, results = go()
    assert failures(experiment, results) is None


def test_where_all_cells_fail_there_are_tables_and_no_figures(go):
    _, results = go("name: t\nsettings: {selection.k: 13}\nseeds: 2")
    assert {path.suffix for path in results.files} <= {".csv", ".yaml", ".parquet"}


def test_any_number_of_workers_makes_the_same_tables(go, tmp_path):
    tables = []
    for workers in (1, 2):
        _, results = go(workers=workers, fresh=True)
        tables.append([p.read_bytes() for p in results.files if p.suffix in (".csv", ".png")])
    assert tables[0] == tables[1]
    assert "done already" not in go.shown.getvalue()
    assert go.shown.getvalue().count("target after") == 4
    assert child_processes() == []


def child_processes() -> list[str]:
    """Processes of cells that this one has started and that are still there."""
    listed = subprocess.run(
        ["ps", "-o", "args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    return [line for line in listed if "LokyProcess" in line]


def test_two_at_once_in_one_folder_leave_whole_files(tmp_path, pretend):
    experiment = plan_experiment(written(tmp_path, TRY))
    contents = []

    def one():
        with Progress(Console(file=StringIO())) as progress:
            run_experiment(experiment, tmp_path / "out", progress, workers=1, simulate=pretend)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    one()
    cells = sorted((tmp_path / "out" / "cells").iterdir())
    assert [path.stem for path in cells] == sorted(cell.key for cell in experiment.cells)
    contents = [json.loads(path.read_text()) for path in cells]
    assert {cell["status"] for cell in contents} == {"done"}
    assert not list((tmp_path / "out").glob("**/*.part"))


def test_a_log_of_each_cell_is_kept_where_it_is_wanted(go, tmp_path):
    experiment, _ = go(keep_logs=True)
    kept = {path.name for path in (tmp_path / "out" / "logs").iterdir()}
    assert kept == {f"{cell.key}.jsonl.gz" for cell in experiment.cells}


@pytest.fixture
def conducted(tmp_path, pretend, monkeypatch):
    """Calls what the command calls, and returns what it printed."""

    def conducted(text=TRY, **options):
        monkeypatch.chdir(tmp_path)
        shown = StringIO()
        given = {
            "quick": False,
            "overrides": [],
            "out": None,
            "workers": 1,
            "backend": "processes",
            "keep_logs": False,
            "fresh": False,
            "dry_run": False,
            "simulate": pretend,
        }
        console = Console(file=shown, width=100)
        conduct(written(tmp_path, text), console, **given | options)
        return shown.getvalue()

    return conducted


def test_the_command_shows_a_line_a_cell_and_then_the_medians(conducted, tmp_path):
    shown = conducted().splitlines()
    assert shown[0].startswith("[1/6] policy static, k 2, seed 0: target missed, 2 rounds, ")
    assert shown[1].startswith("[2/6] policy static, k 4, seed 0: target after 8.00 s, 2 rounds, ")
    assert shown[6].split() == [
        "policy",
        "k",
        "reached",
        "to",
        "target",
        "rounds",
        "members",
        "test",
        "energy",
    ]
    assert shown[7].split()[:6] == ["static", "2", "0/2", "never", "2", "2.0"]
    assert shown[8].split()[:6] == ["static", "4", "2/2", "9.00", "s", "2"]
    assert shown[9].split()[:3] == ["all", "-", "2/2"]
    assert (tmp_path / "runs" / "try" / "summary.csv").exists()


def test_a_quick_run_has_a_folder_of_its_own(conducted, tmp_path):
    conducted(TRY + "quick: {seeds: 1}\n", quick=True)
    assert len(read_table(tmp_path / "runs" / "try-quick" / "summary.csv")) == 3


def test_a_dry_run_lists_the_cells_and_runs_none(conducted, tmp_path):
    conducted(TRY.replace("seeds: 2", "seeds: 1"))
    shown = conducted(dry_run=True).splitlines()
    assert [line.split()[-1] for line in shown[1:7]] == ["done", "run"] * 3
    assert shown[7] == "6 cells, 3 to run"


def test_the_command_line_passes_its_options_on(tmp_path, monkeypatch):
    for name in THREADS:
        monkeypatch.setenv(name, "3")
    path = written(tmp_path, TRY + "quick: {seeds: 1}\n")
    words = ["experiment", str(path), "goal.max_rounds=1", "--quick", "--dry-run"]
    done = CliRunner().invoke(cli.app, [*words, "--out", str(tmp_path / "here")])
    assert done.exit_code == 0
    assert done.output.endswith("3 cells, 3 to run\n")
    assert not (tmp_path / "here").exists()
    assert {os.environ[name] for name in THREADS} == {"1"}
    done = CliRunner().invoke(cli.app, ["experiment", str(tmp_path / "none.yaml"), "--dry-run"])
    assert isinstance(done.exception, ConfigError)


def test_a_bar_on_a_terminal_says_how_many_are_done_failed_and_to_go(tmp_path, pretend):
    shown = StringIO()
    console = Console(file=shown, force_terminal=True, width=100, color_system=None)
    experiment = plan_experiment(written(tmp_path, TRY.replace("[2, 4]", "[2, 13]")))
    with Progress(console) as progress:
        run_experiment(experiment, tmp_path / "out", progress, workers=1, simulate=pretend)
    text = shown.getvalue()
    assert "4 done, 2 failed, 0 to go" in text
    assert "[2/6] policy static, k 13, seed 0: failed: 13 brings bad luck; take 12" in text
    assert "target after" not in text


def test_the_command_fails_at_the_end_where_a_cell_has_failed(conducted, tmp_path):
    with pytest.raises(CellsFailed, match="2 of 6 cells failed"):
        conducted(TRY.replace("[2, 4]", "[13, 4]"))
    assert (tmp_path / "runs" / "try" / "summary.csv").exists()


def test_an_interrupted_experiment_goes_on_where_it_was(conducted, pretend, tmp_path):
    ran = []

    def stopping(setup, telemetry):
        ran.append(setup.config.selection.k)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return pretend(setup, telemetry)

    with pytest.raises(Interrupted, match="goes on from there"):
        conducted(simulate=stopping)
    assert "2 of 6 cells done already" in conducted()


SLOW = """
import sys, time
from pathlib import Path
from rich.console import Console
from powertrip.errors import InputError
from powertrip.experiments.experiment import conduct

file, folder = map(Path, sys.argv[1:])

def slow(setup, telemetry):
    (folder / f"began-{setup.config.seed}").touch()
    time.sleep(0.0 if setup.config.seed == 0 else 60.0)
    raise InputError("slept")

conduct(file, Console(), quick=False, overrides=[], out=folder / "out", workers=2,
        backend="processes", keep_logs=False, fresh=False, dry_run=False, simulate=slow)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_within_seconds_and_leaves_no_process(tmp_path, number):
    path = written(tmp_path, "name: t\nseeds: 4")
    script = tmp_path / "slow.py"
    script.write_text(textwrap.dedent(SLOW))
    (tmp_path / "scratch").mkdir()
    job = subprocess.Popen(
        [sys.executable, str(script), str(path), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
        start_new_session=True,
        text=True,
    )
    try:
        wait_for(lambda: (tmp_path / "began-2").exists())
        job.send_signal(number)
        output, _ = job.communicate(timeout=20)
        assert number == signal.SIGKILL or "Interrupted" in output
        wait_for(lambda: not in_session(job.pid), limit_s=10)
        assert list((tmp_path / "scratch").glob("powertrip-*")) == []
    finally:
        for process in (job.pid, *in_session(job.pid)):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        job.wait(timeout=10)


def in_session(session: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--sid", str(session)], capture_output=True, text=True, check=False
    ).stdout.split()
    return [int(pid) for pid in listed if int(pid) != session]


def wait_for(condition, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
