"""Real runs in processes of their own, found again by a mark in their environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from powertrip.chaos.processes import JobProcesses
from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from powertrip.telemetry.events import Event

REPO = Path(__file__).parents[1]
START_LIMIT_S = 90.0
"""A run of three sites starts in 5 s on an idle machine."""
END_LIMIT_S = 30.0
"""From a signal to the end of the last process; a second or two on an idle machine."""

_MARK = "POWERTRIP_TEST_MARK"
_LISTENING = "0A"


class Listener(NamedTuple):
    """A listening TCP socket."""

    inode: str
    address: str
    port: int
    role: str


def torchrun(processes: int) -> list[str]:
    """The beginning of a command line that trains under torchrun."""
    agent = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}"]
    return [*agent, "-m", "powertrip.train"]


ALONE = (sys.executable, "-m", "powertrip.train")
"""The beginning of a command line that trains without torchrun."""


class Run:
    """A command that is started, and all processes that come of it.

    Leaving the `with` block kills what still runs.

    Parameters
    ----------
    command
        Program and arguments.
    folder
        For the command's output and, as `runtime.run_dir`, for its runs.
    cwd, environment
        Where the command is started, and what is added to its environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        *overrides: str,
        folder: Path,
        cwd: Path = REPO,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.runs = folder / "runs"
        mark = uuid.uuid4().hex
        self._processes = JobProcesses(f"{_MARK}={mark}")
        # What a launcher sets, and what tests/conftest.py sets for processes of its own.
        unset = ("RANK", "LOCAL_RANK", "GLOO_SOCKET_IFNAME", "TORCH_CPP_LOG_LEVEL")
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        paths = [str(REPO), os.environ.get("PYTHONPATH", "")]
        self._out, self._err = folder / "stdout", folder / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, *overrides, f"runtime.run_dir={self.runs}"],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env={
                    **inherited,
                    "PYTHONPATH": os.pathsep.join(path for path in paths if path),
                    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                    "OMP_NUM_THREADS": "1",
                    **(environment or {}),
                    _MARK: mark,
                },
                start_new_session=True,
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    @property
    def output(self) -> str:
        return f"--- stdout\n{self.stdout}--- stderr\n{self.stderr}"

    @property
    def run_dir(self) -> Path:
        (path,) = (path for path in self.runs.iterdir() if path.is_dir())
        return path

    @property
    def events(self) -> list[Event]:
        return list(read_events(self.run_dir / EVENT_LOG, tolerate_cut=True))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "summary.json").read_text())

    @property
    def last_json(self) -> dict[str, Any]:
        return json.loads(self.stdout.splitlines()[-1])

    def processes(self) -> dict[int, str]:
        """The role of every process of this run that lives."""
        return {process.pid: process.role for process in self._processes.all()}

    def pids(self, role: str) -> list[int]:
        """Processes with a role, those of lower ranks first."""
        return [process.pid for process in self._processes.of(role)]

    def listeners(self) -> set[Listener]:
        """The sockets that processes of this run listen on."""
        owners = {}
        for pid, role in self.processes().items():
            try:
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    target = str(link.readlink())
                    if target.startswith("socket:["):
                        owners[target[len("socket:[") : -1]] = role
            except OSError:
                continue
        return {
            Listener(inode, address, port, owners[inode])
            for inode, address, port in listening_sockets()
            if inode in owners
        }

    def await_event(self, kind: type[Event], count: int = 1) -> None:
        """Wait until the run has recorded events of a kind."""
        deadline_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline_s:
            if list(self.runs.glob(f"*/{EVENT_LOG}")) and len(self.of(kind)) >= count:
                return
            assert self.process.poll() is None, f"it ended early\n{self.output}"
            time.sleep(0.05)
        raise AssertionError(f"no {kind.__name__} within {START_LIMIT_S:g} s\n{self.output}")

    def end(self, limit_s: float = START_LIMIT_S) -> int:
        """Wait for the command's end; returns its exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.processes()} still run after {limit_s:g} s\n{self.output}"
            ) from None

    def assert_gone(self, limit_s: float = END_LIMIT_S) -> None:
        """Check that all processes of the run end within a time."""
        deadline_s = time.monotonic() + limit_s
        while left := self.processes():
            assert time.monotonic() < deadline_s, f"left behind: {left}\n{self.output}"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._processes.kill()
        self.process.wait()


def listening_sockets() -> set[tuple[str, str, int]]:
    """Inode, address (as /proc writes it) and port of all listening TCP sockets."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING:
                address, port = fields[1].rsplit(":", 1)
                found.add((fields[9], address, int(port, 16)))
    return found


def is_loopback(listener: Listener) -> bool:
    """Whether only this machine can reach it."""
    return listener.address in (
        "0100007F",
        "00000000000000000000000001000000",
        "0000000000000000FFFF00000100007F",
    )
