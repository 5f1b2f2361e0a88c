"""Does a fault to a running job on this machine, and undoes it."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from netem.client import Control
from netem.errors import NetemError
from netem.launch import SOCKET_FOLDER_PREFIX
from netem.plan import Change, Link
from powertrip.chaos.processes import JobProcesses, NobodyThere, Process, send
from powertrip.chaos.schedule import OF_LINKS, Fault
from powertrip.errors import PowerTripError
from powertrip.runtime.faults import FAULTS_VARIABLE, BadUpdate, Faults

_SLOWER = 100.0
_SLOWEST_BPS = 1000.0
_FAST_BPS = 1e9  # what a link without a limit is taken for
_CUT = {"up": False}
Pair = tuple[int, int]


class NoLinks(PowerTripError):
    """A fault of links is asked for, and the job's links are not emulated."""

    def __init__(self) -> None:
        super().__init__(
            "the job has no emulated links that could be changed (emulation.backend; "
            "`python -m netem doctor` says what this machine lacks)"
        )


class Injector:
    """Does faults to a job, and undoes them.

    Faults may overlap. What is undone after its process or link has ended does no harm.

    Parameters
    ----------
    processes
        The job's.
    faults_path
        The file that `POWERTRIP_FAULTS` names in the job's environment (`environment`).
    find_limit_s
        How long a process that is being started anew is waited for.
    """

    def __init__(
        self, processes: JobProcesses, faults_path: Path, *, find_limit_s: float = 20.0
    ) -> None:
        self._processes, self._path = processes, faults_path
        self._find_limit_s = find_limit_s
        self._frozen: dict[Fault, Process] = {}
        self._limited: dict[Fault, list[Process]] = {}
        self._of_links: list[Fault] = []
        self._of_sites: list[Fault] = []
        self._links: _Links | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the job's environment must have for faults that a site does to itself."""
        return {FAULTS_VARIABLE: str(self._path)}

    def begin(self, fault: Fault) -> None:
        """Let a fault happen.

        Raises
        ------
        NobodyThere
            The process that it is for is not there.
        NoLinks
            There is no link daemon.
        """
        match fault.kind:
            case "kill_site":
                self._kill("site", fault.sites[0])
            case "kill_supervisor":
                self._kill("supervisor", fault.sites[0])
            case "kill_coordinator":
                self._kill("coordinator", None)
            case "kill_job":
                self._processes.kill()
            case "freeze_site":
                site = self._find("site", fault.sites[0])
                send(site, signal.SIGSTOP)
                self._frozen[fault] = site
            case "disk_full":
                self._fill_disk(fault)
            case "no_power" | "bad_update":
                self._of_sites.append(fault)
                self._write_faults()
            case _:
                self._of_links.append(fault)
                self._set_links()

    def end(self, fault: Fault) -> None:
        """Undo a fault; nothing where it has not begun or cannot be undone."""
        if (frozen := self._frozen.pop(fault, None)) is not None:
            send(frozen, signal.SIGCONT)
        for process in self._limited.pop(fault, ()):
            _limit_files(process.pid, None)
        if fault in self._of_sites:
            self._of_sites.remove(fault)
            self._write_faults()
        if fault in self._of_links:
            self._of_links.remove(fault)
            with suppress(NoLinks):  # they have ended with the job
                self._set_links()

    def end_all(self) -> None:
        """Undo whatever has been begun."""
        for fault in (*self._frozen, *self._limited, *self._of_sites, *self._of_links):
            self.end(fault)

    @contextmanager
    def during(self, fault: Fault) -> Iterator[None]:
        """Have a fault for the body of a `with`."""
        self.begin(fault)
        try:
            yield
        finally:
            self.end(fault)

    def close(self) -> None:
        """Undo whatever has been begun, and let the link daemon go."""
        try:
            self.end_all()
        finally:
            if self._links is not None:
                self._links.close()
                self._links = None

    def _find(self, role: str, rank: int | None) -> Process:
        return self._processes.await_one(role, rank, limit_s=self._find_limit_s)

    def _kill(self, role: str, rank: int | None) -> None:
        while not send(self._find(role, rank), signal.SIGKILL):
            pass  # it has ended since it was found, and another takes its place

    def _fill_disk(self, fault: Fault) -> None:
        found = [*self._processes.of("coordinator"), *self._processes.of("site")]
        if not found:
            raise NobodyThere("coordinator", None, 0.0)
        self._limited[fault] = found
        for process in found:
            _limit_files(process.pid, 0)

    def _write_faults(self) -> None:
        faults = Faults(
            no_power=tuple(f.sites[0] for f in self._of_sites if f.kind == "no_power"),
            bad_updates=tuple(
                BadUpdate(
                    site=f.sites[0],
                    how="exploding" if f.how == "exploding" else "nan",
                    name=str(f.number),
                )
                for f in self._of_sites
                if f.kind == "bad_update"
            ),
        )
        partial = self._path.with_name(f"{self._path.name}.partial")
        partial.write_text(faults.model_dump_json(), encoding="utf-8")
        partial.replace(self._path)

    def _set_links(self) -> None:
        daemon = next(iter(self._processes.of("link daemon")), None)
        if daemon is None:
            raise NoLinks
        if self._links is None or self._links.pid != daemon.pid:
            if self._links is not None:
                self._links.close()
            self._links = _Links(daemon)
        self._links.apply(self._of_links)


class _Links:
    """The links of a job's daemon: as they were at first, with faults laid over them."""

    def __init__(self, daemon: Process) -> None:
        self.pid = daemon.pid
        self._control = _control(daemon)
        # powertrip's plans have no scale of their own, so a link is as it is told.
        self._first = self._control.links()
        self._present = dict(self._first)

    def apply(self, faults: list[Fault]) -> None:
        wanted = changed_links(self._first, faults)
        try:
            for (src, dst), link in wanted.items():
                if link != self._present[src, dst]:
                    self._control.change(Change(src=src, dst=dst, both=False, **link.model_dump()))
        except NetemError as error:
            raise NoLinks from error
        self._present = wanted

    def close(self) -> None:
        self._control.close()


def changed_links(links: Mapping[Pair, Link], faults: Sequence[Fault]) -> dict[Pair, Link]:
    """What faults of links, laid over each other, make of all links."""
    wanted = dict(links)
    for fault in faults:
        for pair, fields in _changes(fault, wanted).items():
            wanted[pair] = wanted[pair].model_copy(update=dict(fields))
    return wanted


def _changes(fault: Fault, links: Mapping[Pair, Link]) -> dict[Pair, Mapping[str, object]]:
    """What a fault makes of which links."""
    assert fault.kind in OF_LINKS
    if fault.kind == "partition":
        side = set(fault.sites)
        return {pair: _CUT for pair in links if (pair[0] in side) != (pair[1] in side)}
    a, b = fault.sites
    if fault.kind == "one_way":
        return {(a, b): _CUT}
    if fault.kind == "cut_link":
        return {(a, b): _CUT, (b, a): _CUT}
    slow: dict[Pair, Mapping[str, object]] = {}
    for pair in ((a, b), (b, a)):
        rate_bps = links[pair].rate_bps or _FAST_BPS
        slow[pair] = {"rate_bps": max(rate_bps / _SLOWER, _SLOWEST_BPS)}
    return slow


def _control(daemon: Process) -> Control:
    """Reach a link daemon, whose socket is in the folder for its temporary files."""
    for socket_path in _temporary_folder(daemon.pid).glob(f"{SOCKET_FOLDER_PREFIX}*/*.sock"):
        with suppress(NetemError):
            control = Control(socket_path)
            if control.describe()["pid"] == daemon.pid:
                return control
            control.close()
    raise NoLinks


def _temporary_folder(pid: int) -> Path:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"TMPDIR="):
                return Path(os.fsdecode(entry.removeprefix(b"TMPDIR=")))
    return Path(tempfile.gettempdir())


def _limit_files(pid: int, size_bytes: int | None) -> None:
    """Let no file of a process grow beyond a size; None takes the limit away again."""
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        soft = hard if size_bytes is None else size_bytes
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
