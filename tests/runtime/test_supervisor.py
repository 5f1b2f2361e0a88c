"""A supervisor in a process of its own, whose children are small programs instead of sites.

Whatever a test starts shares one pipe for its output, which ends only when the last of them has
ended: that is how a test knows that nobody is left.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from powertrip.config import load_config
from powertrip.coordination.setup import Setup
from powertrip.runtime import supervisor
from powertrip.runtime.errors import PresenceUnusable
from powertrip.runtime.supervisor import RUN_VARIABLE, child_environment, presence_listener

LIMIT_S = 30
"""Far more than anything here takes: what hangs is to fail."""

CHILD = """
import os, signal, sys

signal.alarm(100)  # whatever goes wrong, nobody stays
role, act = sys.argv[1], os.environ["ACT_" + sys.argv[1].upper()].split()
told = len(sys.stdin.buffer.read())

def say(*words):
    os.write(1, (" ".join(map(str, (role, *words))) + "\\n").encode())

def stop(number, frame):
    say("got", signal.Signals(number).name)
    if "ignore" not in act:
        sys.exit(0)

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, stop)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
say("is", os.getpid(), "told", told)
if act[0] == "exit":
    os._exit(int(act[1]))
if act[0] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    signal.pause()
"""

SUPERVISOR = """
import json, os, subprocess, sys
from pathlib import Path
from powertrip.config import load_config
from powertrip.runtime import supervisor
from powertrip.coordination.setup import Setup

start = subprocess.Popen

def popen(command, **options):
    assert command[1:3] == ["-m", "powertrip.runtime.process"]
    return start([sys.executable, "-I", "-S", CHILD, command[3]], **options)

CHILD, grace_s, *roles = sys.argv[1:]
supervisor.subprocess.Popen = popen
setup = Setup(load_config(), Path("."))
print("message", len(setup.encode()), flush=True)
run = supervisor.Supervisor(setup, roles, os.environ, grace_s=float(grace_s))
sys.exit(run.run())
"""


class Running:
    """A supervisor, or what was started in its place, with its output."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"RANK": "3"} | environment,
        )
        self.lines: list[str] = []

    def read_until(self, *beginnings: str) -> list[list[str]]:
        """Read lines until each of these has begun one; returns the words of those lines."""
        found: dict[str, list[str]] = {}
        while set(found) != set(beginnings):
            line = self.process.stdout.readline()
            assert line, f"ended without {set(beginnings) - set(found)}: {self.lines}"
            self.lines.append(line.rstrip("\n"))
            for beginning in beginnings:
                if line.startswith(beginning):
                    found[beginning] = line.split()
        return [found[beginning] for beginning in beginnings]

    def end(self) -> int:
        """Wait until all have ended; returns the exit code of the first."""
        rest, _ = self.process.communicate(timeout=LIMIT_S)
        self.lines += rest.splitlines()
        return self.process.returncode


@pytest.fixture
def start(tmp_path):
    running: list[Running] = []
    child, script = tmp_path / "child.py", tmp_path / "supervisor.py"
    child.write_text(CHILD)
    script.write_text(SUPERVISOR)

    def start(*, grace_s: float = LIMIT_S, under: tuple[str, ...] = (), **acts: str) -> Running:
        """`acts` says what each child does: `exit CODE`, `die`, `wait`, or `wait ignore`."""
        command = [*under, sys.executable, str(script), str(child), str(grace_s), *acts]
        running.append(Running(command, {f"ACT_{k.upper()}": act for k, act in acts.items()}))
        return running[-1]

    yield start
    for each in running:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate(timeout=LIMIT_S)


def test_children_are_told_the_setup_on_their_standard_input(start):
    running = start(coordinator="exit 0", site="exit 0")
    assert running.end() == 0
    size = next(line.split()[1] for line in running.lines if line.startswith("message"))
    told = {line.split()[0]: line.split()[-1] for line in running.lines if " told " in line}
    assert told == {"coordinator": size, "site": size}
    assert len(running.lines) == 3


@pytest.mark.parametrize(
    ("acts", "code"),
    [
        ({"site": "exit 0"}, 0),
        ({"site": "exit 2"}, 2),
        ({"coordinator": "exit 3", "site": "exit 0"}, 3),
        ({"coordinator": "exit 0", "site": "exit 4"}, 4),
        ({"coordinator": "exit 3", "site": "exit 1"}, 3),
    ],
)
def test_the_exit_code_is_the_first_childs_or_else_any_failure(start, acts, code):
    running = start(**acts)
    assert running.end() == code


@pytest.mark.parametrize("role", ["site", "coordinator"])
def test_a_child_that_is_killed_is_told_of_and_started_again(start, role):
    running = start(coordinator="wait", site="wait")
    found = running.read_until("site is", "coordinator is")
    (killed,) = [words for words in found if words[0] == role]
    os.kill(int(killed[2]), signal.SIGKILL)
    (again,) = running.read_until(f"{role} is")
    assert again[2] != killed[2]
    running.process.terminate()
    assert running.end() == 0
    told = f"powertrip: rank 3: the {role} process was killed by SIGKILL; it is started again"
    assert running.lines.count(told) == 1


def test_a_site_that_fails_is_started_again_and_ever_later(start):
    running = start(site="exit 1")
    started_s = []
    for _ in range(3):
        running.read_until("site is")
        started_s.append(time.monotonic())
    assert started_s[2] - started_s[1] > 0.9  # the first time it is at once
    running.process.terminate()
    assert running.end() in (0, 1)  # as it is told to, or on its own


def test_a_mistake_in_the_scenario_is_not_tried_again(start):
    running = start(site="exit 2")
    assert running.end() == 2
    assert sum(line.startswith("site is") for line in running.lines) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_reaches_every_child(start, number):
    running = start(coordinator="wait", site="wait")
    running.read_until("site is", "coordinator is")
    running.process.send_signal(number)
    assert running.end() == 0
    for role in ("coordinator", "site"):
        assert f"{role} got {number.name}" in running.lines
    assert not [line for line in running.lines if line.startswith("powertrip:")]


def test_a_child_that_does_not_end_is_killed_after_the_grace(start):
    running = start(grace_s=0.3, coordinator="wait", site="wait ignore")
    running.read_until("site is", "coordinator is")
    asked_s = time.monotonic()
    running.process.terminate()
    assert running.end() == 128 + signal.SIGKILL
    assert time.monotonic() - asked_s >= 0.3
    assert "site got SIGTERM" in running.lines
    assert running.lines[-1] == (
        "powertrip: rank 3: the site process did not end within 0.3 s: killed"
    )


def test_a_site_that_outlives_the_coordinator_has_the_grace_to_end(start):
    running = start(grace_s=0.3, coordinator="exit 3", site="wait ignore")
    assert running.end() == 3
    assert "powertrip: rank 3: the site process did not end within 0.3 s: killed" in running.lines
    assert not [line for line in running.lines if line.startswith("site got")]


def test_a_second_request_does_not_lengthen_the_grace(start):
    running = start(grace_s=0.6, site="wait ignore")
    running.read_until("site is")
    running.process.terminate()
    asked_s = time.monotonic()
    running.read_until("site got")
    running.process.send_signal(signal.SIGINT)
    running.read_until("site got SIGINT")
    assert running.end() == 128 + signal.SIGKILL
    assert time.monotonic() - asked_s < LIMIT_S


def test_children_die_with_a_supervisor_that_is_killed(start):
    running = start(coordinator="wait ignore", site="wait ignore")
    running.read_until("site is", "coordinator is")
    running.process.kill()
    assert running.end() == -signal.SIGKILL  # and so have they, which have never been told
    assert not [line for line in running.lines if " got " in line]


def test_all_end_when_the_launcher_is_killed(start):
    launcher = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    running = start(under=(sys.executable, "-c", launcher), site="wait")
    running.read_until("site is")
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    assert running.lines[-1] == "site got SIGTERM"


ONE_MACHINE = {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8", "HOME": "/h", "MASTER_ADDR": "some-host"}


def test_children_on_one_machine_listen_on_loopback_only():
    child = child_environment(ONE_MACHINE)
    assert child["GLOO_SOCKET_IFNAME"] == "lo"
    assert child["MASTER_ADDR"] == "127.0.0.1"  # where all of them find the coordinator
    assert (child["OMP_NUM_THREADS"], child["HOME"]) == ("1", "/h")
    assert child["TORCH_CPP_LOG_LEVEL"] == "ERROR"


def test_children_on_several_machines_choose_their_interface():
    child = child_environment(ONE_MACHINE | {"WORLD_SIZE": "16"})
    assert not {"GLOO_SOCKET_IFNAME", "RES_OPTIONS"} & child.keys()
    assert child["MASTER_ADDR"] == "some-host"


def test_what_the_user_has_set_stays():
    own = {
        "GLOO_SOCKET_IFNAME": "eth7",
        "OMP_NUM_THREADS": "4",
        "RES_OPTIONS": "edns0",
        "TORCH_CPP_LOG_LEVEL": "INFO",
    }
    assert child_environment(ONE_MACHINE | own).items() >= own.items()


def test_the_coordinator_listens_on_loopback_where_all_are_on_its_machine():
    with presence_listener(ONE_MACHINE) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    several = ONE_MACHINE | {"WORLD_SIZE": "16"}
    for address in ("127.0.0.2", "localhost"):
        with presence_listener(several | {"MASTER_ADDR": address}) as listener:
            assert listener.getsockname()[0].startswith("127.0.0.")


def test_a_name_of_loopback_alone_is_of_no_use_to_other_machines(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(PresenceUnusable, match=r"some-host.*127\.0\.1\.1.*--master-addr"):
        presence_listener(ONE_MACHINE | {"WORLD_SIZE": "16"})


def test_the_runs_number_is_the_coordinators_alone_and_the_same_for_all_its_processes(monkeypatch):
    started = []

    def start(command, *, env, **_):
        started.append((command[-1], env.get(RUN_VARIABLE)))
        return SimpleNamespace(stdin=io.BytesIO(), pid=1)

    monkeypatch.setattr(supervisor.subprocess, "Popen", start)
    for _ in range(2):
        setup = Setup(load_config(), Path())
        boss = supervisor.Supervisor(setup, ("coordinator", "site"), ONE_MACHINE, grace_s=1)
        for role in ("coordinator", "site", "coordinator"):
            boss._start(role)
    runs = [run for role, run in started if role == "coordinator"]
    assert {len(run) for run in runs} == {64}
    assert (runs[0], runs[2]) == (runs[1], runs[3])
    assert runs[0] != runs[2]
    assert not any(run for role, run in started if role == "site")
