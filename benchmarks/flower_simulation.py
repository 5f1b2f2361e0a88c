"""The same training simulated by PowerTrip, by Flower, and by a plain loop, side by side.

Run with ``make bench-flower``, which makes the environment of Flower. 100 sites learn from 100
images of Fashion-MNIST each: the network of `task.idx.model: cnn`, which is that of `flower_net`,
one local epoch in batches of 20, every site in every round, the mean of their models, the accuracy
on 2,000 held-out samples after each round. Flower runs as ``flwr run`` has it and by the older
Python call that needs no server; the limits are of the first. The sides take turns. The result is
there at the end of the last round. A warm round is the time between the ends of two rounds; the
memory is the sum over all processes of a side (PSS, so that what they share counts once), and so is
the processor time, which other work on the machine changes less than it does the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from benchmarks.flower_net import BATCH, LR
from powertrip.coordination.setup import data_folder
from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from powertrip.telemetry.events import Round
from powertrip.training.idx import IdxImages
from powertrip.training.partition import partition
from powertrip.training.settings import IdxSettings, PartitionSettings

SITES = 100
TOTAL_LIMIT = 0.25
"""Launch to result, as a share of Flower's."""
ROUND_LIMIT = 0.5
"""A warm round, as a share of Flower's."""
PLAIN_LIMIT = 1.15
"""A warm round, over that of the plain loop."""
MEMORY_LIMIT_BYTES = 1.5e9

_POWERTRIP = "from powertrip.cli import main; main()"
_TIMEOUT_S = 600.0
_LOOK_EVERY_S = 0.5
_APP = """\
[project]
name = "flower-benchmark"
version = "1.0.0"
description = "The training of benchmarks/flower_simulation.py"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "powertrip"

[tool.flwr.app.components]
serverapp = "benchmarks.flower_app:server_app"
clientapp = "benchmarks.flower_app:client_app"

[tool.flwr.app.config]
"""
# 1,000 samples each for validation and test; the model is that of `flower_net`.
_IMAGES = {
    "dataset": "fashion-mnist",
    "model": "cnn",
    "train_samples": 10_000,
    "test_samples": 1000,
    "validation_share": 1 / 60,
}
_REGIONS = ("gcp:us-central1", "gcp:europe-west1", "gcp:asia-northeast1", "gcp:us-west1")


@dataclass
class Side:
    """One way of running the training, and what was measured of it."""

    name: str
    totals_s: list[float] = field(default_factory=list)
    rounds_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)
    memories_bytes: list[float] = field(default_factory=list)
    accuracy: float = float("nan")


class Watch:
    """Looks twice a second at what the processes of a side use.

    Attributes
    ----------
    peak_bytes
        The largest sum of their memory.
    """

    def __init__(self, folder: Path) -> None:
        self.peak_bytes = 0
        self._processor_s: dict[int, float] = {}
        self._folder = folder
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    @property
    def processor_s(self) -> float:
        """Processor time that they have used."""
        return sum(self._processor_s.values())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(_LOOK_EVERY_S):
            tree = family(self._folder)
            for pid in tree:
                used_s = self._processor_s.get(pid, 0.0)
                self._processor_s[pid] = max(used_s, processor_s(pid))
            self.peak_bytes = max(self.peak_bytes, sum(map(pss_bytes, tree)))


def family(folder: Path) -> set[int]:
    """Processes whose environment names this folder, and their descendants."""
    mark = f"BENCHMARK_FOLDER={folder}".encode()
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if (fields := stat(pid)) is None:
            continue
        children.setdefault(int(fields[1]), []).append(pid)
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    fresh = list(found)
    while fresh:
        fresh = [child for parent in fresh for child in children.get(parent, [])]
        found.update(fresh)
    return found


def stat(pid: int) -> list[str] | None:
    """A process's status from its third field on, its state; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def processor_s(pid: int) -> float:
    """Processor time of a process, its ended and awaited children's apart; 0 if it has ended."""
    fields = stat(pid)
    return 0.0 if fields is None else sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def pss_bytes(pid: int) -> int:
    """A process's proportional share of the memory it uses; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def run(side: Side, folder: Path, rounds: int, command: Sequence[str], **more: str) -> float:
    """Run one side to its end, and note the memory and the processor time that it took.

    Returns
    -------
    float
        When it was started, Unix seconds.

    Raises
    ------
    SystemExit
        It failed, or took too long.
    """
    mark = {"BENCHMARK_FOLDER": str(folder), "BENCHMARK_ROUNDS": str(rounds), **more}
    with tempfile.TemporaryFile("w+") as output, Watch(folder) as watch:
        started_s = time.time()
        process = subprocess.Popen(
            command, env={**os.environ, **mark}, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            code: int | None = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        for pid in family(folder):  # Flower's server would stay
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        if code != 0:
            output.seek(0)
            sys.exit(f"{' '.join(command)}\nended with {code}:\n{output.read()[-4000:]}")
    side.processor_s.append(watch.processor_s)
    side.memories_bytes.append(watch.peak_bytes)
    return started_s


def write_data(folder: Path) -> None:
    """Write the task's samples and their spread over the sites, for the sides without PowerTrip."""
    task = IdxImages(IdxSettings(**_IMAGES), data_dir=data_folder(), base_dir=Path())
    shares = partition(PartitionSettings(), task, SITES, seed=0)
    assert isinstance(task.train, tuple)
    assert isinstance(task.validation, tuple)
    assert isinstance(task.test, tuple)
    held_out = [np.concatenate(parts) for parts in zip(task.validation, task.test, strict=True)]
    np.savez(
        folder / "data.npz",
        images=task.train[0].numpy(),
        labels=task.train[1].numpy(),
        clients=np.stack(shares),
        held_out_images=held_out[0],
        held_out_labels=held_out[1],
    )


def write_scenario(path: Path, rounds: int) -> None:
    """Write the scenario: equal sites, all of them members of every round."""
    site = {"gpus": 1, "samples_per_s": 1000, "power": {"kind": "constant", "watts": 300}}
    sites = [
        {"name": f"site-{i}", "region": _REGIONS[i % len(_REGIONS)], **site} for i in range(SITES)
    ]
    scenario = {
        "name": "flower",
        "goal": {"accuracy": None, "max_rounds": rounds},
        "sites": {"list": sites},
        "network": {"kind": "table"},
        "task": {"name": "idx", "idx": _IMAGES},
        "partition": "iid",
        "training": {"batch_size": BATCH, "local_epochs": 1, "lr": LR, "device": "cpu"},
        "outer": "fedavg",
        "selection": {"policy": "all"},
        "simulation": {"evaluate_samples": None},
        "telemetry": {"metrics": {"port": 0}},
    }
    path.write_text(yaml.safe_dump(scenario))


def powertrip(side: Side, folder: Path, rounds: int, overrides: Sequence[str]) -> None:
    """Run PowerTrip's simulation."""
    scenario = folder / "flower.yaml"
    write_scenario(scenario, rounds)
    with tempfile.TemporaryDirectory(dir=folder) as runs:
        command = [sys.executable, "-c", _POWERTRIP, "simulate", str(scenario)]
        command += [*overrides, f"runtime.run_dir={runs}"]
        started_s = run(side, folder, rounds, command)
        (log,) = Path(runs).glob(f"**/{EVENT_LOG}")
        done = [event for event in read_events(log) if isinstance(event, Round)]
    note(side, started_s, [event.wall_time for event in done], done[-1].test_accuracy or 0.0)


def plain_loop(side: Side, folder: Path, rounds: int) -> None:
    """Run the plain loop."""
    command = [sys.executable, "-m", "benchmarks.flower_plain"]
    started_s = run(side, folder, rounds, command)
    note(side, started_s, **json.loads((folder / "plain.json").read_text()))


def flower(side: Side, folder: Path, rounds: int, python: Path, *, server: bool) -> None:
    """Run Flower, by ``flwr run`` with its server or by its Python call."""
    app, home = folder / "app", folder / "flwr"
    shutil.rmtree(app, ignore_errors=True)
    (app / "benchmarks").mkdir(parents=True)
    (app / "pyproject.toml").write_text(_APP)
    for name in ("flower_app.py", "flower_net.py"):
        shutil.copy(Path(__file__).with_name(name), app / "benchmarks")
    resources = f"num-supernodes={SITES} client-resources-num-cpus=1"
    config = f"{resources} init-args-num-cpus={os.cpu_count()}"
    call = [str(python), "-c", "from benchmarks.flower_app import main; main()"]
    tool = str(python.with_name("flwr"))
    command = [tool, "run", str(app), "--federation-config", config, "--stream"]
    started_s = run(
        side,
        folder,
        rounds,
        command if server else call,
        PATH=f"{python.parent.absolute()}:{os.environ['PATH']}",
        PYTHONPATH=str(app),
        FLWR_HOME=str(home),
        FLWR_TELEMETRY_ENABLED="0",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_worker_niceness="0",  # on a busy machine Ray's workers would come last
    )
    result = folder / "flower.json"
    note(side, started_s, **json.loads(result.read_text()))
    result.unlink()


def note(side: Side, started_s: float, ends_s: list[float], accuracy: float) -> None:
    """Keep a run's length, its warm rounds, and its last accuracy."""
    side.totals_s.append(ends_s[-1] - started_s)
    side.rounds_s += np.diff(ends_s).tolist()
    side.accuracy = accuracy


def main() -> int:
    """Print a line for each side; 1 if a limit does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower", type=Path, default=Path(".venv-flower/bin/python"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    options = parser.parse_intermixed_args()
    names = ("powertrip", "flower", "flower-call", "plain")
    sides = ours, served, called, plain = tuple(map(Side, names))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        rounds = options.rounds
        for _ in range(options.repeats):
            powertrip(ours, folder, rounds, options.overrides)
            flower(served, folder, rounds, options.flower, server=True)
            plain_loop(plain, folder, rounds)
            flower(called, folder, rounds, options.flower, server=False)

    total_s = {side.name: statistics.median(side.totals_s) for side in sides}
    round_s = {side.name: statistics.median(side.rounds_s) for side in sides}
    heads = ("launch to end", "warm round", "processors", "memory", "accuracy")
    print(f"{'side':<12}{''.join(f'{head:>15}' for head in heads)}")
    for side in sides:
        memory = max(side.memories_bytes) / 1e9
        print(
            f"{side.name:<12}{total_s[side.name]:13.2f} s{round_s[side.name]:13.3f} s"
            f"{statistics.median(side.processor_s):13.1f} s{memory:12.2f} GB{side.accuracy:15.3f}"
        )
    checks = [
        ("launch to end over Flower's", total_s["powertrip"] / total_s["flower"], TOTAL_LIMIT),
        ("warm round over Flower's", round_s["powertrip"] / round_s["flower"], ROUND_LIMIT),
        ("warm round over the plain loop's", round_s["powertrip"] / round_s["plain"], PLAIN_LIMIT),
        ("memory in GB", max(ours.memories_bytes) / 1e9, MEMORY_LIMIT_BYTES / 1e9),
    ]
    for what, value, limit in checks:
        print(f"{what:<34}{value:8.3f}   at most {limit:g}{'' if value <= limit else ': NOT HELD'}")
    return int(any(value > limit for _, value, limit in checks))


if __name__ == "__main__":
    sys.exit(main())
