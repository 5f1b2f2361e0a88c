"""What a run of many generations leaves behind in its processes and in its store.

Run with ``python -m benchmarks.generations``: eight sites, new members in every round. Reads /proc,
so Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from powertrip.runtime.control import ENTRIES_KEPT, job_store
from powertrip.telemetry.eventlog import EVENT_LOG

FIRST = 20
"""The generation that later ones are compared with: by then all has been used once."""
WINDOW = 8
"""Generations in a row that a sample is the most of: a site holds a group only while a member."""
SLACK = 4
"""File descriptors and threads that a group in the making holds for moments."""
LIMIT_BYTES = 20_000_000
"""Memory that a process may grow by."""


@dataclass(frozen=True)
class Sample:
    """What a process holds."""

    fds: int
    threads: int
    rss_bytes: int

    def most(self, other: Sample) -> Sample:
        """The larger of each."""
        return Sample(
            max(self.fds, other.fds),
            max(self.threads, other.threads),
            max(self.rss_bytes, other.rss_bytes),
        )


def children(parent: int) -> list[int]:
    """All descendants of a process."""
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended
            for child in (task / "children").read_text().split():
                found += [int(child), *children(int(child))]
    return found


def name_of(pid: int) -> str:
    """Role and rank of a process of the run."""
    role = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    if "powertrip.runtime.process" in role:
        return f"{role[-1]} {environment_of(pid)['RANK']}"
    rank = environment_of(pid).get("RANK")
    return "launcher" if rank is None else f"supervisor {rank}"


def environment_of(pid: int) -> dict[str, str]:
    """A process's environment."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def sample(pid: int) -> Sample:
    """What a process holds at this moment."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return Sample(
        fds=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        threads=int(fields["Threads"]),
        rss_bytes=int(fields["VmRSS"].split()[0]) * 1024,
    )


class Watch:
    """Samples a running job whenever it has come to a generation.

    Parameters
    ----------
    job
        The launcher.
    runs
        Where the job makes its folder.
    """

    def __init__(self, job: subprocess.Popen[bytes], runs: Path) -> None:
        self._job, self._runs = job, runs
        self._store: dist.Store | None = None
        self._names: dict[int, str] = {}

    def await_generation(self, generation: int) -> None:
        """Wait until a generation has begun.

        Raises
        ------
        SystemExit
            The job has ended before.
        """
        while self._job.poll() is None:
            for log in self._runs.glob(f"*/{EVENT_LOG}"):
                if log.read_bytes().count(b'"event":"decision"') >= generation:
                    return
            time.sleep(0.02)
        sys.exit(f"the job ended with {self._job.returncode} before generation {generation}")

    def window(self, first: int) -> tuple[dict[str, Sample], int]:
        """The most that each process, and the store in keys, hold in a few generations."""
        most, most_keys = dict[str, Sample](), 0
        for generation in range(first, first + WINDOW):
            self.await_generation(generation)
            held, keys = self._sample()
            most = {name: one.most(most.get(name, one)) for name, one in held.items()}
            most_keys = max(most_keys, keys)
        return most, most_keys

    def _sample(self) -> tuple[dict[str, Sample], int]:
        if self._store is None:
            pids = [self._job.pid, *children(self._job.pid)]
            self._names = {pid: name_of(pid) for pid in pids}
            coordinator = next(pid for pid, n in self._names.items() if n == "coordinator 0")
            os.environ.update(environment_of(coordinator))
            self._store = job_store(timeout_s=10)
        samples = {name: sample(pid) for pid, name in sorted(self._names.items())}
        return samples, len(self._store.list_keys())


def main() -> int:
    """Print the table of growth; 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=210)
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    options = parser.parse_intermixed_args()
    last = options.generations - WINDOW
    marks = sorted({FIRST, *range(60, last, 50), last})
    taken = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "powertrip.train", "selection.policy=random-k"]
        command += ["selection.k=4", "selection.adjustment_interval=1", "runtime.pacing=off"]
        command += ["training.local_steps=2", "goal.accuracy=null", "telemetry.console=none"]
        command += [f"goal.max_rounds={options.generations}", "telemetry.metrics.port=0"]
        command += [*options.overrides, f"runtime.run_dir={folder}"]
        job = subprocess.Popen(command)
        try:
            watch = Watch(job, Path(folder))
            for mark in marks:
                taken[mark] = watch.window(mark)
            if job.wait() != 0:
                sys.exit(f"the job ended with {job.returncode}")
        finally:
            job.terminate()
            job.wait()
    return report(taken)


def report(taken: dict[int, tuple[dict[str, Sample], int]]) -> int:
    """Print what was sampled; 1 if a limit is broken."""
    first, *_, last = taken
    broken = []
    most_growth = 0
    heads = "".join(f"{mark:>8}" for mark in taken)
    print(f"{'generation':<14}{heads}  fds | threads | RSS, MB")
    for name, before in taken[first][0].items():
        held = [samples[name] for samples, _ in taken.values()]
        for text in (
            "".join(f"{one.fds:8}" for one in held),
            "".join(f"{one.threads:8}" for one in held),
            "".join(f"{one.rss_bytes / 1e6:8.1f}" for one in held),
        ):
            print(f"{name:<14}{text}")
        after = held[-1]
        for what in ("fds", "threads"):
            growth = getattr(after, what) - getattr(before, what)
            if growth > SLACK:
                broken.append(f"{name}: {growth} more {what}")
        growth = after.rss_bytes - before.rss_bytes
        most_growth = max(most_growth, growth)
        if growth > LIMIT_BYTES:
            broken.append(f"{name}: {growth / 1e6:.1f} MB more")
    keys = [count for _, count in taken.values()]
    print(f"{'store keys':<14}{''.join(f'{count:8}' for count in keys)}")
    if keys[-1] > ENTRIES_KEPT + SLACK:
        broken.append(f"{keys[-1]} keys in the store")
    print(
        f"from generation {first} to {last} a process grew by {most_growth / 1e6:.1f} MB at most: "
        + ("; ".join(broken) or "within the limits")
    )
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
