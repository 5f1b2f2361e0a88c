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

SLOW = """
import sys
from netem import daemon
from netem.engines.userspace import UserspaceEngine
class Slow(UserspaceEngine):
    def close(self):
        super().close()
        print("closed", flush=True)
def build(backend, plan, job, underlay):
    print("building", flush=True)
    sys.stdin.readline()
    return Slow(plan, job)
daemon.build_engine = build
sys.exit(daemon.main(sys.argv[1:]))
"""


def run_main(*arguments: str, how: tuple[str, str] = ("-m", "netem.daemon")) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *how, *arguments],
        cwd=REPO,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        stdin=subprocess.PIPE,
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


def test_a_signal_that_comes_while_the_links_are_made_leaves_nothing(tmp_path: Path):
    plan, path = tmp_path / "plan.yaml", tmp_path / "a.sock"
    plan.write_text(yaml.safe_dump({"sites": ["a", "b"]}))
    process = run_main(str(plan), "--socket", str(path), how=("-c", SLOW))
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate("go on\n", timeout=WAIT_S)
    assert (process.returncode, out, path.exists()) == (0, "closed\n", False)
    assert "Traceback" not in err


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
