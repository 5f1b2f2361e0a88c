"""The daemon as a command."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from netem.client import Control
from tests.netem.fakes import REPO, WAIT_S


def run_main(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "netem.daemon", *arguments],
        cwd=REPO,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_runs_one_until_a_signal(tmp_path: Path, number: signal.Signals):
    plan, path = tmp_path / "plan.yaml", tmp_path / "a.sock"
    plan.write_text(yaml.safe_dump({"sites": ["a", "b"], "rate_scale": 0.25}))
    process = run_main(str(plan), "--socket", str(path))
    assert process.stderr is not None
    assert "links of 2 sites by the backend userspace, rates scaled by 0.25" in (
        process.stderr.readline()
    )
    with Control(path) as control:
        assert control.describe()["pid"] == process.pid
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err, path.exists()) == (0, "", False)


def test_the_command_says_what_is_wrong(tmp_path: Path):
    process = run_main(str(tmp_path / "none.yaml"), "--socket", str(tmp_path / "a.sock"))
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert "cannot be read" in err
    assert "Traceback" not in err
    process = run_main(str(tmp_path / "none.yaml"))
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert "name a plan and a --socket" in err
