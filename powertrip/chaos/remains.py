"""What a job holds of the machine while it runs, and what is left of that when it has ended."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from netem import cleanup
from powertrip.chaos.processes import JobProcesses, Process

_LISTENING = "0A"
_SHARED_MEMORY = "/dev/shm/"
_AGAIN_S = 0.05
_FEWEST_SAMPLES = 120
_WARM_UP = 20  # samples of a process that are left out, or up to 60 where there are three times
_LONGEST_WARM_UP = 60  # as many: it is still opening what it needs
_SPARE = 12  # descriptors: those of a group that was not there at first
_GROWTH = 1.25


class Remains:
    """Samples a job's processes, and says what they have left or let grow.

    Parameters
    ----------
    processes
        The job's.
    temporary
        A folder that only this job uses for temporary files.
    """

    def __init__(self, processes: JobProcesses, temporary: Path) -> None:
        self._processes, self._temporary = processes, temporary
        self._descriptors: defaultdict[Process, list[int]] = defaultdict(list)
        self._sockets: dict[str, Process] = {}
        self._shared: dict[Path, Process] = {}
        self._networks: dict[str, Process] = {}
        self._own_network = _network(Path("/proc/self"))

    def sample(self) -> None:
        """Look at what the job's processes hold at this moment."""
        for process in self._processes.all():
            folder = Path(f"/proc/{process.pid}")
            with suppress(OSError):  # it has ended meanwhile
                targets = [str(link.readlink()) for link in (folder / "fd").iterdir()]
                self._descriptors[process].append(len(targets))
                for target in targets:
                    if target.startswith("socket:["):
                        self._sockets[target[len("socket:[") : -1]] = process
                    elif target.startswith(_SHARED_MEMORY):
                        self._shared[Path(target)] = process
                network = _network(folder)
                if network != self._own_network:
                    self._networks[network] = process

    def left(self, limit_s: float = 20.0) -> list[str]:
        """What is there of the ended job still, in words.

        Parameters
        ----------
        limit_s
            How long its last processes may take to end.
        """
        deadline_s = time.monotonic() + limit_s
        while (alive := self._processes.all()) and time.monotonic() < deadline_s:
            time.sleep(_AGAIN_S)
        found = [f"the process {process} is left" for process in alive]
        found += [
            f"port {port} is left, which {self._sockets[inode]} listened at"
            for inode, port in _listening()
            if inode in self._sockets
        ]
        networks = _networks()
        found += [
            f"the network namespace of {process} is left, in process {networks[network]}"
            for network, process in self._networks.items()
            if network in networks
        ]
        found += [f"{path} is left, of {p}" for path, p in self._shared.items() if path.exists()]
        found += [f"{path} is left" for path in sorted(self._temporary.iterdir())]
        return found

    def clean(self, limit_s: float = 5.0) -> None:
        """Remove what the link daemon of a job that was killed could not remove itself.

        Parameters
        ----------
        limit_s
            How long the kernel may take to close what it held.
        """
        deadline_s = time.monotonic() + limit_s
        while any(self._temporary.iterdir()) and time.monotonic() < deadline_s:
            cleanup.remove(cleanup.find(self._temporary))
            time.sleep(_AGAIN_S)

    def record(self, path: Path) -> None:
        """Write how many descriptors each process held in turn, a line of JSON a process."""
        with path.open("w", encoding="utf-8") as file:
            for process, counts in self._descriptors.items():
                file.write(json.dumps({"process": str(process), "descriptors": counts}) + "\n")

    def growing(self) -> list[str]:
        """Processes that hold more and more descriptors, in words."""
        found = []
        for process, counts in self._descriptors.items():
            counts = counts[max(_WARM_UP, min(len(counts) // 3, _LONGEST_WARM_UP)) :]
            if len(counts) < _FEWEST_SAMPLES:
                continue
            third = len(counts) // 3
            # How many a group needs changes with its members: the typical number does not.
            first, last = statistics.median(counts[:third]), statistics.median(counts[-third:])
            if last > _GROWTH * first + _SPARE:
                found.append(
                    f"{process} holds more and more descriptors: {first:g} at first, {last:g} later"
                )
        return found


def _network(folder: Path) -> str:
    return str((folder / "ns" / "net").readlink())


def _networks() -> dict[str, int]:
    """Every network namespace that a process is in, with one of these."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                found[_network(folder)] = int(folder.name)
    return found


def _listening() -> list[tuple[str, int]]:
    """Inode and port of the listening TCP sockets of this process's network."""
    found = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING:
                    found.append((fields[9], int(fields[1].rsplit(":", 1)[1], 16)))
    return found
