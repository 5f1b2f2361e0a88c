from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
import yaml
from typer.testing import CliRunner

from powertrip import __version__, cli
from powertrip.config import load_config
from powertrip.errors import ConfigError


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


def test_help_names_the_commands():
    done = CliRunner().invoke(cli.app, ["--help"])
    assert done.exit_code == 0
    assert "config" in done.output
    assert "train" in done.output


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

    def launch(path, overrides, *, json_summary):
        calls.append((path, overrides, json_summary))
        return 3

    monkeypatch.setattr(launcher, "launch", launch)
    path = tmp_path / "a.yaml"
    done = CliRunner().invoke(cli.app, ["train", "--json", "--config", str(path), "a=1", "b.c=2"])
    assert done.exit_code == 3
    assert calls == [(path, ["a=1", "b.c=2"], True)]
    assert CliRunner().invoke(cli.app, ["train"]).exit_code == 3
    assert calls[1] == (None, [], False)


def test_train_refuses_bad_settings_before_anything_starts(powertrip, tmp_path):
    done = powertrip("train", f"runtime.run_dir={tmp_path / 'runs'}", "sites.count=9")
    assert done.returncode == 2
    assert "count is 9 but the list has only 8 sites" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_errors_of_the_project_end_with_their_exit_code(monkeypatch, capsys):
    def fail():
        raise ConfigError(["a: is wrong"], "x.yaml")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "powertrip: 1 problem in x.yaml:\n  a: is wrong\n"
