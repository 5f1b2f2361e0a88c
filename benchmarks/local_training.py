"""A simulated round's local training beside plain torch loops, in turns in the same run.

Run with ``python -m benchmarks.local_training``: 100 sites train the CNN of the task `idx` for one
epoch over 100 images of 28 x 28 pixels each, in batches of 20, and their updates are added up. The
images are Fashion-MNIST from the folder POWERTRIP_DATA, or random ones where there is none. Rounds
of all the ways follow each other, so a machine that is busy with other work slows down all of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from powertrip.coordination.setup import DATA_VARIABLE, Setup
from powertrip.simulation.learner import Learner, build_learner

SAMPLES, BATCH, LR = 100, 20, 0.1
WAIT_S = 300.0
LIMIT = 1.15
"""A simulated round over the best plain loop's."""

SIMULATED = "simulated, processes"

_SCENARIO = Path(__file__).parents[1] / "configs" / "hundred-regions.yaml"


def network(*, fast: bool) -> nn.Module:
    """The CNN of `task.idx.model`; `fast` pools before the ReLU, with channels last."""
    pool, relu = nn.MaxPool2d(2), nn.ReLU()
    between = (pool, relu) if fast else (relu, pool)
    convolutions = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
    head = nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10)
    model = nn.Sequential(convolutions[0], *between, convolutions[1], *between, *head)
    return model.to(memory_format=torch.channels_last) if fast else model


class PlainLoop:
    """What one would write for a few sites, without anything around it.

    Parameters
    ----------
    images, labels
        [samples, 28, 28] bytes, and [samples].
    fast
        See `network`.
    """

    def __init__(self, images: Tensor, labels: Tensor, *, fast: bool) -> None:
        inputs = images.float()[..., None].permute(0, 3, 1, 2) / 255
        self.inputs = inputs if fast else inputs.contiguous(memory_format=torch.contiguous_format)
        self.labels = labels
        self.model = network(fast=fast)
        self.parameters = list(self.model.parameters())
        self.start = [p.detach().clone() for p in self.parameters]
        self.total = [torch.zeros_like(p) for p in self.start]

    def round(self) -> None:
        """Train each site's samples from the same start, and add up the changes."""
        with torch.no_grad():
            torch._foreach_zero_(self.total)
        for first in range(0, len(self.labels), SAMPLES):
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.start)
            order = torch.randperm(SAMPLES) + first
            for rows in order.split(BATCH):
                for parameter in self.parameters:
                    parameter.grad = None
                outputs = self.model(self.inputs[rows])
                functional.cross_entropy(outputs, self.labels[rows]).backward()
                with torch.no_grad():
                    slopes = [p.grad for p in self.parameters]
                    torch._foreach_add_(self.parameters, slopes, alpha=-LR)
            with torch.no_grad():
                torch._foreach_add_(self.total, self.parameters)


def plain_process(connection: Connection, threads: int, images: Tensor, labels: Tensor) -> None:
    """Do plain rounds, slow or fast, as asked, until the connection ends."""
    torch.set_num_threads(threads)
    loops = {fast: PlainLoop(images, labels, fast=fast) for fast in (False, True)}
    while True:
        try:
            fast = connection.recv()
        except EOFError:
            return
        loops[fast].round()
        connection.send(None)


class PlainProcesses:
    """Plain loops, each with its part of the sites, that run at once."""

    def __init__(self, count: int, threads: int, images: Tensor, labels: Tensor) -> None:
        context = multiprocessing.get_context("spawn")
        self._all = []
        for part in np.array_split(np.arange(len(labels) // SAMPLES), count):
            rows = slice(int(part[0]) * SAMPLES, (int(part[-1]) + 1) * SAMPLES)
            ours, theirs = context.Pipe()
            process = context.Process(
                target=plain_process,
                args=(theirs, threads, images[rows].clone(), labels[rows].clone()),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._all.append((process, ours))

    def round(self, *, fast: bool) -> None:
        """A round of all of them."""
        for _, connection in self._all:
            connection.send(fast)
        for _, connection in self._all:
            if not connection.poll(WAIT_S):
                sys.exit("a plain loop does not end")
            connection.recv()

    def close(self) -> None:
        """End them."""
        for process, connection in self._all:
            connection.close()
            process.join(WAIT_S)


class Simulated:
    """Rounds of a learner, with plain averaging."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._vector = learner.initial()
        self._round = 0
        steps = SAMPLES // BATCH
        self._work = [(site, steps) for site in range(len(learner.samples))]

    def round(self) -> None:
        """Train all sites and take the mean of their updates off the model."""
        self._round += 1
        total = torch.zeros_like(self._vector)
        for trained in self.learner.train(self._vector, self._round, self._work):
            total.add_(trained.update, alpha=1 / len(self._work))
        self._vector = self._vector - total


def write_random_images(folder: Path) -> None:
    """Random images in the files of a data set called `random`."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 12_000), ("t10k", 1000)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        labels[:10] = np.arange(10)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + values.tobytes())


@contextmanager
def scenario(sites: int, *overrides: str) -> Iterator[Setup]:
    """The scenario of the measurement."""
    with tempfile.TemporaryDirectory() as folder:
        data = os.environ.get(DATA_VARIABLE)
        task = "{dataset: fashion-mnist"
        if not data or not (Path(data) / "fashion_mnist").is_dir():
            print(f"{DATA_VARIABLE} names no folder with fashion_mnist: random images\n")
            write_random_images(Path(folder))
            task = f"{{dataset: custom, folder: {folder}, train: train, test: t10k"
        settings = [
            f"sites.fleet.count={sites}",
            f"sites.count={sites}",
            f"task={{name: idx, idx: {task}, model: cnn, train_samples: {sites * SAMPLES}}}}}",
            "partition=iid",
            "training.device=cpu",
            f"training.batch_size={BATCH}",
            f"training.lr={LR}",
            "training.momentum=0",
            *overrides,
        ]
        yield Setup.resolve(_SCENARIO, settings)


def memory_bytes(pids: list[int]) -> tuple[int, int]:
    """Memory that is resident in processes, each shared page once; and the sum of their peaks."""
    shares, peaks = 0, 0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        status = Path(f"/proc/{pid}/status").read_text()
        shares += 1024 * int(rollup.split("\nPss:")[1].split()[0])
        peaks += 1024 * int(status.split("\nVmHWM:")[1].split()[0])
    return shares, peaks


def main() -> int:
    """Print each way's seconds a round; 1 if the simulation's processes are over the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--stacked", action="store_true", help="measure that way as well")
    parser.add_argument("--best-only", action="store_true", help="of the plain loops")
    options = parser.parse_args()
    sites, count = options.sites, options.processes
    torch.set_num_threads(1)
    with ExitStack() as stack:
        setup = stack.enter_context(scenario(sites, f"simulation.workers={count}"))
        started_s = time.perf_counter()
        learner = stack.enter_context(build_learner(setup))
        started_s = time.perf_counter() - started_s
        simulated = Simulated(learner)
        ways: dict[str, Callable[[], None]] = {SIMULATED: simulated.round}
        if options.stacked:
            stacked = stack.enter_context(scenario(sites, "simulation.training=stacked"))
            ways["simulated, stacked"] = Simulated(
                stack.enter_context(build_learner(stacked))
            ).round
        images = torch.randint(0, 256, (sites * SAMPLES, 28, 28), dtype=torch.uint8)
        labels = torch.randint(0, 10, (sites * SAMPLES,))
        apart = PlainProcesses(count, 1, images, labels)
        stack.callback(apart.close)
        best = f"plain, {count} processes, channels last, pooling first"
        ways[best] = lambda: apart.round(fast=True)
        if not options.best_only:
            threads = PlainProcesses(1, count, images, labels)
            stack.callback(threads.close)
            ways[f"plain, {count} processes"] = lambda: apart.round(fast=False)
            ways[f"plain, 1 process with {count} threads"] = lambda: threads.round(fast=False)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for round_ in range(1 + options.rounds):  # the first one warms up
            for way, do in ways.items():
                began_s = time.perf_counter()
                do()
                if round_:
                    times[way].append(time.perf_counter() - began_s)
        pids = [os.getpid(), *getattr(learner, "pids", ())]
        resident, peaks = memory_bytes(pids)
    ratios = {
        way: statistics.median(a / b for a, b in zip(taken, times[best], strict=True))
        for way, taken in times.items()
    }
    print(f"{sites} sites; seconds a round (median, least), and over the best plain loop's")
    for way, taken in times.items():
        print(f"{way:<52}{statistics.median(taken):8.3f}{min(taken):8.3f}{ratios[way]:8.3f}")
    print(
        f"the learner was there after {started_s:.2f} s; {len(pids)} processes with "
        f"{resident / 1e6:.0f} MB; the sum of their peaks, what they share counted in each: "
        f"{peaks / 1e6:.0f} MB"
    )
    return int(ratios[SIMULATED] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
