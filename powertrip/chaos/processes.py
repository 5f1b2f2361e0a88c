"""The processes of a job on this machine, found by a mark in their environment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from powertrip.errors import PowerTripError

_ROLES = {
    "torch.distributed.run": "launcher",
    "powertrip.train": "supervisor",
    "netem.daemon": "link daemon",
}
_AGAIN_S = 0.02


class NobodyThere(PowerTripError):
    """A process that a fault is for is not there."""

    def __init__(self, role: str, rank: int | None, limit_s: float) -> None:
        whose = "" if rank is None else f" of rank {rank}"
        super().__init__(f"there has been no process {role}{whose} for {limit_s:g} s")


class Process(NamedTuple):
    """A process that lives, or did so when it was looked for."""

    pid: int
    role: str
    """launcher, supervisor, site, coordinator, link daemon, relay; else its command line."""
    rank: int | None
    """Which of the role; None where there is only one."""

    def __str__(self) -> str:
        return f"{self.role}{'' if self.rank is None else f' {self.rank}'} ({self.pid})"


class JobProcesses:
    """Finds the processes of a job, and ends them.

    Parameters
    ----------
    mark
        ``NAME=value`` in the environment of the job's processes and of no others; they inherit it
        from the first one.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def all(self) -> list[Process]:
        """All of them, lower ranks first."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            try:
                environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it ended meanwhile, or belongs to another user
                continue
            if self._mark in environment:
                ranks = [entry[5:] for entry in environment if entry.startswith("RANK=")]
                found.append(_process(int(folder.name), words, ranks))
        return sorted(found, key=lambda p: (-1 if p.rank is None else p.rank, p.pid))

    def of(self, role: str, rank: int | None = None) -> list[Process]:
        """Those of a role, and of a rank where one is named."""
        return [p for p in self.all() if p.role == role and (rank is None or p.rank == rank)]

    def await_one(self, role: str, rank: int | None = None, *, limit_s: float = 20.0) -> Process:
        """The first of a role, which may be about to be started again.

        Raises
        ------
        NobodyThere
            There has been none for so long.
        """
        deadline_s = time.monotonic() + limit_s
        while not (found := self.of(role, rank)):
            if time.monotonic() > deadline_s:
                raise NobodyThere(role, rank, limit_s)
            time.sleep(_AGAIN_S)
        return found[0]

    def kill(self, limit_s: float = 10.0) -> list[Process]:
        """SIGKILL to all of them, again until none is left; who is left all the same."""
        deadline_s = time.monotonic() + limit_s
        while (left := self.all()) and time.monotonic() < deadline_s:
            for process in left:
                send(process, signal.SIGKILL)
            time.sleep(_AGAIN_S)
        return left


def send(process: Process, number: signal.Signals) -> bool:
    """Send a signal; whether the process was still there."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
        return True
    return False


def _process(pid: int, words: Sequence[str], ranks: Sequence[str]) -> Process:
    role = _role(words)
    rank = int(ranks[0]) if ranks and ranks[0].isdecimal() else None
    if role == "supervisor" and rank is None:
        role = "launcher"  # `powertrip.train` without torchrun
    if role in ("launcher", "link daemon", "relay", "coordinator"):
        rank = None
    return Process(pid, role, rank)


def _role(words: Sequence[str]) -> str:
    """What a command line is for; the command line itself where it is none of ours."""
    if "powertrip.runtime.process" in words:
        return words[words.index("powertrip.runtime.process") + 1]
    if any("from netem.relay import" in word for word in words):
        return "relay"
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if len(words) > 1 and Path(words[1]).name == "torchrun":
        module = "torch.distributed.run"
    return _ROLES.get(module, " ".join(words).strip())
