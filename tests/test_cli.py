from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from powertrip import __version__, cli, train
from powertrip.config import default_path, load_config
from powertrip.errors import ConfigError, InputError
from tests.runtime.checkpoints import write_checkpoint


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def powertrip(monkeypatch, capsys):
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["powertrip", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return Done(caught.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    "code",
    [
        "import powertrip",
        "import powertrip.world",
        "import powertrip.selection",
        "import powertrip.runtime.supervisor",
        "import sys; sys.argv[1:] = ['--help']; from powertrip.cli import main; main()",
        "import sys; sys.argv[1:] = ['config']; from powertrip.cli import main; main()",
        "import sys; sys.argv[1:] = ['plan', '--help']; from powertrip.cli import main; main()",
        "import powertrip.coordination.replay, powertrip.telemetry.replay_table",
    ],
)
def test_nothing_light_imports_torch(code):
    report = (
        "import atexit, sys; atexit.register(lambda: sys.stderr.write(str('torch' in sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{report}\n{code}"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "False")


COMMANDS = ("config", "train", "export", "simulate", "experiment", "calibrate", "plan", "replay")


def test_help_names_the_commands():
    done = CliRunner().invoke(cli.app, ["--help"])
    assert done.exit_code == 0
    assert all(command in done.output for command in COMMANDS)


def test_the_version():
    done = CliRunner().invoke(cli.app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"{__version__}\n")


def test_config_prints_a_commented_scenario_that_loads(tmp_path):
    done = CliRunner().invoke(cli.app, ["config", "seed=7", "runtime.pacing=off"])
    assert done.exit_code == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(done.output, encoding="utf-8")
    assert load_config(printed) == load_config(None, ["seed=7", "runtime.pacing=off"])
    lines = done.output.splitlines()
    assert "# Seed of everything random" in lines[lines.index("seed: 7") - 1]
    assert "    # TCP port; when it is taken, and with 0, a free one is used and printed." in lines


def test_config_reads_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    content = yaml.safe_load(cli_output("config"))
    path.write_text(yaml.safe_dump(content | {"name": "mine"}), encoding="utf-8")
    assert yaml.safe_load(cli_output("config", "--config", str(path)))["name"] == "mine"


def cli_output(*arguments: str) -> str:
    done = CliRunner().invoke(cli.app, list(arguments))
    assert done.exit_code == 0
    return done.output


def test_bad_settings_end_with_exit_code_2_and_no_traceback(powertrip):
    done = powertrip("config", "training.lr=fast", "selection.polcy=all")
    assert done.returncode == 2
    assert done.stdout == ""
    head, *problems = done.stderr.splitlines()
    assert head.startswith("powertrip: 2 problems in ")
    assert problems[0].startswith("  training.lr: input should be a valid number")
    assert problems[1] == "  selection.polcy: unknown setting; did you mean policy?"
    assert len(problems) == 2


def test_an_unknown_option_ends_with_exit_code_2_and_no_traceback(powertrip):
    done = powertrip("config", "--nonsense")
    assert done.returncode == 2
    assert "No such option: --nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_train_hands_its_arguments_to_the_launcher(monkeypatch, tmp_path):
    from powertrip import launcher

    calls = []

    def launch(path, overrides, *, json_summary, resume):
        calls.append((path, overrides, json_summary, resume))
        return 3

    monkeypatch.setattr(launcher, "launch", launch)
    path = tmp_path / "a.yaml"
    done = CliRunner().invoke(cli.app, ["train", "--json", "--config", str(path), "a=1", "b.c=2"])
    assert done.exit_code == 3
    assert calls == [(path, ["a=1", "b.c=2"], True, None)]
    assert CliRunner().invoke(cli.app, ["train"]).exit_code == 3
    assert calls[1] == (None, [], False, None)
    assert CliRunner().invoke(cli.app, ["train", "--resume", "runs/x", "a=1"]).exit_code == 3
    assert calls[2] == (None, ["a=1"], False, Path("runs/x"))


def test_export_writes_the_model_and_tells_what_was_skipped(tmp_path):
    write_checkpoint(tmp_path, 4)
    (write_checkpoint(tmp_path, 8) / "model.pt").unlink()
    done = CliRunner().invoke(cli.app, ["export", str(tmp_path)])
    assert done.exit_code == 0
    path = tmp_path / "model.safetensors"
    assert done.stdout == f"{path}: 9 tensors, {path.stat().st_size} bytes, round 4\n"
    assert "warning: round-00000008 is no use" in done.stderr


@pytest.mark.parametrize("command", [["export"], ["train", "--resume"]])
def test_a_run_that_is_none_is_named_without_a_traceback(powertrip, tmp_path, command):
    done = powertrip(*command, str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert str(tmp_path / "nowhere") in done.stderr
    assert "Traceback" not in done.stderr


def test_train_refuses_bad_settings_before_anything_starts(powertrip, tmp_path):
    done = powertrip("train", f"runtime.run_dir={tmp_path / 'runs'}", "sites.count=9")
    assert done.returncode == 2
    assert "count is 9 but there are only 8 sites" in done.stderr


def test_a_real_run_refuses_what_only_simulations_know(powertrip, tmp_path, monkeypatch, capsys):
    done = powertrip("train", f"runtime.run_dir={tmp_path / 'runs'}", "exchange.overlap=true")
    assert done.returncode == 2
    assert "exchange.overlap: true is for `powertrip simulate` so far" in done.stderr
    # Under torchrun, too.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert train.main(["exchange.codec=int8"]) == 2
    assert "exchange.codec: int8 is for `powertrip simulate` so far" in capsys.readouterr().err
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("1.5s", 1.5), ("15m", 900), ("2h", 7200), ("1h30m5", 5405)],
)
def test_times_of_a_run(text, seconds):
    assert cli.run_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "1e3", "5m2h", "nan", "9" * 400])
def test_what_is_no_time_of_a_run(text):
    with pytest.raises(InputError, match="--at: "):
        cli.run_seconds(text)


def test_plan_takes_a_file_and_settings_in_any_order():
    path = str(default_path())
    first, second = (
        cli_output("plan", "--json", *words)
        for words in (
            (path, "selection.policy=static-k", "selection.k=2", "--at", "2m"),
            ("selection.policy=static-k", "--config", path, "selection.k=2", "--at", "120"),
        )
    )
    assert first == second
    plan = json.loads(first)
    assert (plan["policy"], plan["time_s"], len(plan["members"])) == ("static-k", 120.0, 2)
    told = cli_output("plan", "selection.policy=static-k", "--members", "tokyo, iowa")
    assert "members at present: tokyo, iowa\n" in told
    assert "reason: the best 4 of 8 usable sites\n" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.yaml",), "there is no scenario nowhere.yaml"),
        (("a.yaml", "b.yaml"), "2 scenarios were named: a.yaml, b.yaml; name one"),
        (("a.yaml", "--config", "b.yaml"), "2 scenarios were named: a.yaml, b.yaml; name one"),
        (("selection.polcy=all",), "did you mean policy?"),
        (("--at", "soon"), "--at: 'soon' is no time; write seconds, or 15m, 2h, 1h30m"),
        (("--members", "iowa,tokio"), "there is no site 'tokio'; did you mean tokyo?"),
    ],
)
def test_plan_refuses_what_it_does_not_know(powertrip, arguments, said):
    done = powertrip("plan", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.startswith("powertrip: ")


def test_replay_hands_on_the_policy_and_prints_a_line_a_decision(monkeypatch, tmp_path):
    from powertrip.coordination import replay
    from powertrip.telemetry.replay_table import Answer, Replayed

    calls = []

    def fake(run, overrides):
        calls.append((run, overrides))
        answer = Answer(
            policy="all", members=("a",), steps=(1,), deadline_s=None, predicted_round_s=1.0,
            reason="so",
        )  # fmt: skip
        for round_ in (1, 3):
            yield Replayed(
                time_s=0.0, round=round_, generation=1, sites=("a",), then=answer, now=answer,
                agree=True,
            )  # fmt: skip

    monkeypatch.setattr(replay, "replay", fake)
    run = str(tmp_path)
    told = cli_output("replay", run, "selection.k=3", "--policy", "static-k", "--json")
    assert [json.loads(line)["round"] for line in told.splitlines()] == [1, 3]
    assert calls == [(tmp_path, ["selection.k=3", "selection.policy=static-k"])]
    told = cli_output("replay", run)
    assert told.startswith(f"{tmp_path.name}: all then, all now\n")
    assert "2 of 2 decisions have the same members\n" in told


def test_replay_of_no_run_ends_with_exit_code_2_and_no_traceback(powertrip, tmp_path):
    done = powertrip("replay", str(tmp_path), "--policy", "all")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"powertrip: {tmp_path} is no recorded run, ")


def test_errors_of_the_project_end_with_their_exit_code(monkeypatch, capsys):
    def fail():
        raise ConfigError(["a: is wrong"], "x.yaml")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "powertrip: 1 problem in x.yaml:\n  a: is wrong\n"
