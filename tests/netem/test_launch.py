"""A daemon as a process of its own, with the emulator in it."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netem.client import Control
from netem.errors import AddressInUse, DaemonLost, PlanError, Unsupported
from netem.launch import RunningDaemon, start_daemon
from netem.plan import Link, Plan
from netem.protocol import Channel
from tests.netem.fakes import REPO, WAIT_S, Site, needs_root

PLAN = Plan(sites=("a", "b"), default=Link(delay_s=0.03), subnet="10.97.0.0/24")
STARTER = """
import sys, time
from netem.launch import start_daemon
from netem.plan import Plan
daemon = start_daemon(Plan(sites=("a", "b")), "userspace", tied=sys.argv[1] == "tied")
print(daemon.pid, daemon.socket_path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    with start_daemon(PLAN, "userspace", log_path=tmp_path / "daemon.log") as running:
        yield running


def gone(pid: int) -> bool:
    """Wait until a process that is not one's child has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], WAIT_S)[0])
    finally:
        os.close(fd)


@needs_root
def test_two_sites_meet_the_delay_of_their_link(daemon: RunningDaemon, tmp_path: Path):
    with Site(daemon.socket_path, 0) as a, Site(daemon.socket_path, 1) as b:
        assert (a.read(), b.read()) == ("10.97.0.10", "10.97.0.11")
        b.send(
            "import socket\n"
            "s = socket.create_server(('', 5000)); show(1)\n"
            "c, _ = s.accept()\n"
            "while d := c.recv(1): c.sendall(d)\n"
        )
        b.read()
        seconds = a.run(
            "import socket, time\n"
            "s = socket.create_connection(('10.97.0.11', 5000), 10)\n"
            "times = []\n"
            "for _ in range(5):\n"
            "    t = time.monotonic(); s.sendall(b'x'); s.recv(1)\n"
            "    times.append(time.monotonic() - t)\n"
            "show(min(times))\n"
        )
        assert 0.0595 <= seconds < 0.08
        with Control(daemon.socket_path) as control:
            stats = control.stats()
        assert stats[0, 1].packets >= 5
        assert stats[1, 0].bytes > 5 * 40
    log = (tmp_path / "daemon.log").read_text()
    assert "site 1 (b) is attached: process" in log


JOIN_GLOO = """
import os; os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
import torch
from datetime import timedelta
from torch.distributed import ProcessGroupGloo, TCPStore
limit, here = timedelta(seconds=20), site.site
def join():
    store = TCPStore("10.97.0.10", 5000, None, here == 0, limit, wait_for_workers=False)
    if here == 0:
        show("serves")
    return store, ProcessGroupGloo(store, here, 2, limit)
"""


@needs_root
def test_a_gloo_all_reduce_sends_what_a_ring_sends(tmp_path: Path):
    plan = Plan(sites=("a", "b"), default=Link(delay_s=0.005), subnet="10.97.0.0/24")
    data_bytes = 4 << 20
    with (
        start_daemon(plan, "userspace", log_path=tmp_path / "log") as daemon,
        Site(daemon.socket_path, 0) as a,
        Site(daemon.socket_path, 1) as b,
        Control(daemon.socket_path) as control,
    ):
        for site in (a, b):
            site.read()
            site.send(JOIN_GLOO)
        assert a.run("store, group = join(); show(0)") == "serves"
        b.send("store, group = join(); show(0)")
        assert (a.read(), b.read()) == (0, 0)
        before = control.stats()
        for site in (a, b):
            site.send(
                f"data = torch.ones({data_bytes // 4}); group.allreduce([data]).wait()\n"
                "show(data.sum().item())"
            )
        assert a.read() == b.read() == 2 * data_bytes // 4
        sent = control.stats()
        for pair in ((0, 1), (1, 0)):
            # Of k sites in a ring each sends 2 (k - 1) / k of the data to its neighbour.
            assert 1.0 <= (sent[pair].bytes - before[pair].bytes) / data_bytes <= 1.06


def test_a_stopped_daemon_leaves_nothing(tmp_path: Path):
    with start_daemon(PLAN, "userspace", log_path=tmp_path / "log") as running:
        folder = running.socket_path.parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not running.lost
    assert not folder.exists()
    assert gone(running.pid)
    running.stop()


def test_its_death_is_noticed_at_once(daemon: RunningDaemon):
    begun_s = time.monotonic()
    os.kill(daemon.pid, signal.SIGKILL)
    assert daemon.wait_lost(WAIT_S)
    assert time.monotonic() - begun_s < 1.0
    # A process that dies closes what it holds in turn: its listener may be the last.
    with (
        pytest.raises(DaemonLost, match=r"no link daemon answers|has ended"),
        Control(daemon.socket_path) as control,
    ):
        control.describe()


def starter(kind: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, kind],
        cwd=REPO,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_a_tied_daemon_ends_when_its_starter_is_killed():
    with starter("tied") as process:
        assert process.stdout is not None
        pid, path = process.stdout.readline().split()
        process.kill()
    assert gone(int(pid))
    assert not Path(path).parent.exists()


def test_an_untied_daemon_outlives_its_starter_while_it_is_used():
    with starter("untied") as process:
        assert process.stdout is not None
        pid, path = process.stdout.readline().split()
        with Control(path) as control:
            process.kill()
            process.wait()
            assert control.describe()["pid"] == int(pid)
            control.stop()
    assert gone(int(pid))
    assert not Path(path).parent.exists()


def test_what_the_daemon_cannot_do_is_raised_here(tmp_path: Path):
    log = tmp_path / "log"
    with pytest.raises(Unsupported, match="there is no backend 'carrier-pigeon'"):
        start_daemon(PLAN, "carrier-pigeon", log_path=log)
    assert "there is no backend" in log.read_text()
    with (
        start_daemon(PLAN, "userspace", tmp_path / "a.sock", log_path=log),
        pytest.raises(AddressInUse, match=r"a\.sock"),
    ):
        start_daemon(PLAN, "userspace", tmp_path / "a.sock", log_path=log)
    assert not (tmp_path / "a.sock").exists()


def test_a_second_daemon_s_failure_leaves_the_first_s_socket(tmp_path: Path):
    path = tmp_path / "a.sock"
    with start_daemon(PLAN, "userspace", path, log_path=tmp_path / "log"):
        with pytest.raises(AddressInUse):
            start_daemon(PLAN, "userspace", path, log_path=tmp_path / "log")
        with Control(path) as control:
            assert len(control.links()) == 2


def test_a_daemon_that_does_not_come_up_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    with pytest.raises(DaemonLost, match=r"did not answer `start` within 0\.3 s"):
        start_daemon(PLAN, "userspace", log_path=tmp_path / "log", timeout_s=0.3)
    silent.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(DaemonLost, match="has ended"):
        start_daemon(PLAN, "userspace", log_path=tmp_path / "log")


def test_a_bad_plan_on_the_wire_is_a_plan_error(daemon: RunningDaemon):
    channel = Channel.connect(daemon.socket_path)
    with pytest.raises(PlanError, match="loss"):
        channel.request("change", change={"src": "a", "dst": "b", "loss": 3})
    channel.close()
