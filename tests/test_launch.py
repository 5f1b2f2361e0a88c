"""The recipes in launch/, run as a user runs them."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from powertrip.telemetry import events
from tests.processes import REPO, Run

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are found again through /proc"
)

LOCAL = str(REPO / "launch" / "local.sh")
NODES = str(REPO / "launch" / "nodes.sh")


@pytest.mark.parametrize(
    ("command", "node"),
    [
        ([LOCAL], None),
        ([LOCAL, "0"], None),
        ([LOCAL, "four"], None),
        ([LOCAL, "--json"], None),
        ([NODES, "2", "1"], "0"),
        ([NODES, "2", "1", "127.0.0.1"], None),
        ([NODES, "2", "1", "127.0.0.1"], "first"),
        ([NODES, "2", "none", "127.0.0.1"], "0"),
        ([NODES, "2", "1", "127.0.0.1"], "2"),
    ],
)
def test_a_wrong_call_is_answered_with_the_usage(command, node):
    environment = {"PATH": "/usr/bin:/bin"} | ({"NODE": node} if node else {})
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
    assert command[0] in done.stderr
    assert done.stdout == ""


def test_local_starts_as_many_sites_as_it_is_told(tmp_path):
    options = ("sites.count=2", "telemetry.metrics.port=0")
    with Run([LOCAL, "1"], *options, folder=tmp_path) as run:
        assert run.end() != 0
        run.assert_gone()
    assert "there are 2 of them, but 1 processes were started" in run.stderr


def test_two_nodes_finish_one_run_together(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = (
        "sites.count=2", "selection.policy=all", "telemetry.metrics.port=0",
        "runtime.pacing=off", "goal.accuracy=null", "goal.max_rounds=5",
    )  # fmt: skip
    command = [NODES, "2", "1", "127.0.0.1"]
    # The later node may be the first to start.
    second, first = (
        Run(
            command, *options, folder=tmp_path / node,
            environment={"NODE": node, "PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"},
        )
        for node in "10"
    )  # fmt: skip
    with second, first:
        for run in (first, second):
            assert run.end() == 0, run.output
            run.assert_gone()
    assert first.summary["outcome"] == "reached"
    assert [set(r.members) for r in first.of(events.Round)] == [{"iowa", "oregon"}] * 5
    assert not second.runs.exists()
