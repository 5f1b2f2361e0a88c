"""The processes that train: their start, the handing out of jobs, and their end."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import torch

from powertrip.coordination.setup import Setup
from powertrip.simulation import worker as program
from powertrip.simulation.errors import LearnerFailed
from powertrip.simulation.in_process import InProcess
from powertrip.simulation.shared import SharedMemory, unnamed_file
from powertrip.simulation.worker import IGNORED, Answer, Job, Place, forked
from powertrip.training.data import IntArray
from powertrip.training.settings import TrainingSettings
from powertrip.training.task import Task

SLOTS_BYTES = 256 * 2**20
"""Memory for updates that are not yet taken, of all workers together."""
MOST_SLOTS = 8
AHEAD = 2
"""Jobs that a worker is given at once, so that it need not wait for its owner between them."""
CHECK_S = 1.0
ENDING_S = 0.05
"""How long the system may still show a thread that Python has joined."""
END_S = 1.0
"""How long a worker that was told to end may take."""


class Child(Protocol):
    """What is needed of a child process; `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class Forked:
    """A child process that is a fork of this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, `subprocess.TimeoutExpired` after `timeout` seconds."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class _Worker:
    rank: int
    child: Child
    connection: Connection
    free: list[int]
    running: dict[int, int] = field(default_factory=dict)  # ticket -> slot
    beat: int = 0
    news_s: float = 0.0  # when it last showed that it goes on


class Workers:
    """Persistent processes that do jobs on the model that all of them can see.

    Where this process has no other thread and trains on the CPU, the workers are forks of it: they
    are there at once, and share the data set. Elsewhere they are fresh processes, which load it.

    Parameters
    ----------
    setup
        The resolved scenario.
    task, shares
        What `load_parts` has loaded.
    count
        Number of workers.
    size
        Length of the model's vector.
    fork
        Whether to fork; None decides as said above.

    Attributes
    ----------
    memory
        What is shared with the workers.
    """

    def __init__(
        self,
        setup: Setup,
        task: Task,
        shares: Sequence[IntArray],
        *,
        count: int,
        size: int,
        fork: bool | None = None,
    ) -> None:
        self._limit_s = setup.config.runtime.silence_limit_s
        self._slots = max(2, min(MOST_SLOTS, SLOTS_BYTES // (4 * size * count)))
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._tickets = self._turn = 0
        if fork is None:
            fork = can_fork(setup.config.training)

        def build(rank: int) -> InProcess:
            return InProcess(task, shares, setup.config, rank=rank)

        with unnamed_file() as memory_fd, unnamed_file(setup.encode()) as setup_fd:
            self.memory = SharedMemory(size, count, self._slots, memory_fd)
            try:
                for rank in range(count):
                    if fork:
                        self._fork(rank, build)
                    else:
                        self._start(rank, size, count, memory_fd, setup_fd)
            except BaseException:
                self.close()
                raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(worker.child.pid for worker in self._workers)

    def run(
        self, jobs: Sequence[Job], ranks: Sequence[int] | None = None
    ) -> Iterator[tuple[object, torch.Tensor]]:
        """Have jobs done.

        Parameters
        ----------
        jobs
            They are begun in this order.
        ranks
            The worker that must do each job; None: whichever comes first.

        Yields
        ------
        tuple
            Each job's result and its update, [size], in the order of `jobs`. An update is valid
            until the next one is asked for.

        Raises
        ------
        LearnerFailed
            A worker has died, has shown no sign of life for `runtime.silence_limit_s`, or the task
            has raised an error.
        PowerTripError
            What a job has raised.
        """
        self._turn += 1
        turn = self._turn
        queues = self._queues(len(jobs), ranks)
        places: dict[int, int] = {}  # ticket -> place in jobs
        done: dict[int, tuple[object, _Worker, int]] = {}
        try:
            for place in range(len(jobs)):
                while True:
                    self._hand_out(jobs, queues, places)
                    if place in done:
                        break
                    for worker, slot, ticket, result in self._receive():
                        if ticket in places:
                            done[places[ticket]] = result, worker, slot
                        else:  # of a run that was broken off
                            worker.free.append(slot)
                result, worker, slot = done[place]
                if isinstance(result, Exception):
                    raise result
                yield result, self.memory.updates[worker.rank, slot]
                if turn != self._turn:
                    raise RuntimeError("another run has begun before this one was taken to its end")
                del done[place]
                worker.free.append(slot)
        finally:
            for _, worker, slot in done.values():
                worker.free.append(slot)

    def close(self) -> None:
        """End the workers, by force where they do not end by themselves."""
        for worker in self._workers:
            with suppress(OSError):  # it has ended by itself
                worker.connection.send(None)
            worker.connection.close()
        deadline_s = time.monotonic() + END_S
        for worker in self._workers:
            try:
                worker.child.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.child.kill()
                worker.child.wait(CHECK_S)
        self._workers.clear()
        self._selector.close()

    def _queues(self, count: int, ranks: Sequence[int] | None) -> list[deque[int]]:
        """What each worker has to do; one queue for all of them where any worker will do."""
        if ranks is None:
            return [deque(range(count))] * len(self._workers)
        queues: list[deque[int]] = [deque() for _ in self._workers]
        for place, rank in enumerate(ranks):
            queues[rank].append(place)
        return queues

    def _hand_out(
        self, jobs: Sequence[Job], queues: list[deque[int]], places: dict[int, int]
    ) -> None:
        # The place that is waited for is the first of a queue, or already given out: its worker's
        # slots hold results of earlier places only, and those have been taken.
        for ahead in range(AHEAD):
            for worker, queue in zip(self._workers, queues, strict=True):
                if not queue or not worker.free or len(worker.running) > ahead:
                    continue
                slot, place = worker.free.pop(), queue.popleft()
                self._tickets += 1
                if not worker.running:
                    worker.news_s = time.monotonic()
                worker.running[self._tickets], places[self._tickets] = slot, place
                try:
                    worker.connection.send((self._tickets, slot, jobs[place]))
                except OSError:
                    raise self._lost(worker) from None

    def _receive(self) -> Iterator[tuple[_Worker, int, int, object]]:
        """Wait for answers: the worker, its slot, the ticket and the result of each."""
        ready = self._selector.select(CHECK_S)
        if not ready:
            self._check_signs_of_life()
        for key, _ in ready:
            worker: _Worker = key.data
            try:
                answer: Answer = worker.connection.recv()
            except (EOFError, OSError):
                raise self._lost(worker) from None
            ticket, result = answer
            if ticket is None:
                assert isinstance(result, Exception)
                raise result
            worker.news_s = time.monotonic()
            yield worker, worker.running.pop(ticket), ticket, result

    def _check_signs_of_life(self) -> None:
        now_s = time.monotonic()
        for worker in self._workers:
            beat = int(self.memory.beats[worker.rank])
            if beat != worker.beat or not worker.running:
                worker.beat, worker.news_s = beat, now_s
            elif now_s - worker.news_s > self._limit_s:
                raise LearnerFailed(
                    f"process {worker.child.pid}, which trains, has done no step for "
                    f"{self._limit_s:g} s (runtime.silence_limit_s)"
                )

    def _lost(self, worker: _Worker) -> LearnerFailed:
        try:
            code = worker.child.wait(END_S)
        except subprocess.TimeoutExpired:
            how = "has closed its connection"
        else:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        hint = "; was there too little memory?" if how.endswith("SIGKILL") else ""
        return LearnerFailed(f"process {worker.child.pid}, which trains, {how}{hint}")

    def _fork(self, rank: int, build: Callable[[int], InProcess]) -> None:
        ours, theirs = _connection_pair()
        others = [ours, *(worker.connection for worker in self._workers)]
        place = Place(rank, self.memory, os.getpid())
        with theirs, _signals_blocked():
            pid = os.fork()
            if pid == 0:
                forked(theirs, place, lambda: build(rank), others)
        self._add(rank, Forked(pid), ours)

    def _start(self, rank: int, size: int, count: int, memory_fd: int, setup_fd: int) -> None:
        ours, theirs = _connection_pair()
        numbers = (rank, count, size, self._slots, os.getpid())
        descriptors = (memory_fd, setup_fd, theirs.fileno())
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        with theirs, _signals_blocked():
            child = subprocess.Popen(
                [sys.executable, "-m", program.__name__, *map(str, numbers + descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                env=environment,
            )
        self._add(rank, child, ours)

    def _add(self, rank: int, child: Child, connection: Connection) -> None:
        self._workers.append(_Worker(rank, child, connection, list(range(self._slots))))
        self._selector.register(connection, selectors.EVENT_READ, self._workers[-1])


def can_fork(settings: TrainingSettings) -> bool:
    """Whether a fork of this process can train: it has no other thread, and trains on the CPU."""
    if sys.platform != "linux" or (settings.device != "cpu" and torch.cuda.is_available()):
        return False
    deadline_s = time.monotonic() + ENDING_S
    while len(list(Path("/proc/self/task").iterdir())) > 1:
        if threading.active_count() > 1 or time.monotonic() > deadline_s:
            return False
        time.sleep(0.001)
    return True


def _connection_pair() -> tuple[Connection, Connection]:
    first, second = socket.socketpair()
    return Connection(first.detach()), Connection(second.detach())


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A child that is started meanwhile never sees what `IGNORED` names."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
