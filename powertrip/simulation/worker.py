"""One of the processes that train: it does one job after the other until its owner is gone."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal, Protocol, TypeAlias

from powertrip.coordination.setup import Setup
from powertrip.errors import PowerTripError
from powertrip.simulation.errors import LearnerFailed
from powertrip.simulation.in_process import InProcess
from powertrip.simulation.learner import load_parts
from powertrip.simulation.shared import SharedMemory
from powertrip.training.data import IntArray
from powertrip.training.evaluation import Counts
from powertrip.training.local import Steps

OWNER_CHECK_S = 2.0
"""How often an idle worker makes sure that it still has an owner."""

IGNORED = (signal.SIGINT, signal.SIGTERM)
"""Blocked in workers from before their start: their owner gets these too, and ends them."""


@dataclass(frozen=True)
class Place:
    """What a worker has in common with its owner.

    Attributes
    ----------
    rank
        Its number among the workers.
    memory
        Shared with all of them.
    owner
        The owner's process id.
    """

    rank: int
    memory: SharedMemory
    owner: int

    def orphaned(self) -> bool:
        """Whether the owner is gone."""
        return os.getppid() != self.owner


class Job(Protocol):
    """Something that any worker can do with the model that is in the shared memory."""

    def run(self, learner: InProcess, place: Place, slot: int) -> object:
        """Do it; an update goes to the worker's slot with that number."""
        ...


@dataclass(frozen=True)
class SiteResult:
    """A member's round, but for the update, which is in its slot."""

    steps: int
    samples: int
    loss: float
    loss_rms: float


@dataclass(frozen=True)
class TrainSite:
    """Train a member for a number of steps; see `Learner.train`."""

    round: int
    site: int
    steps: int
    keep: bool

    def run(self, learner: InProcess, place: Place, slot: int) -> SiteResult:
        """Leave the update in the slot."""
        trained = learner.train_site(
            place.memory.vector,
            self.round,
            self.site,
            _Watched(self.steps, place),
            keep=self.keep,
            out=place.memory.updates[place.rank, slot],
        )
        return SiteResult(trained.steps, trained.samples, trained.loss, trained.loss_rms)


@dataclass(frozen=True)
class EvaluateBlock:
    """Evaluate some samples of a split."""

    split: Literal["validation", "test"]
    indices: IntArray

    def run(self, learner: InProcess, place: Place, slot: int) -> Counts:
        """The counts of the block."""
        (counts,) = learner.evaluate_blocks(place.memory.vector, self.split, [self.indices])
        return counts


Message: TypeAlias = "tuple[int, int, Job] | None"
"""To a worker: ticket, slot and job; None: end."""
Answer: TypeAlias = "tuple[int | None, object]"
"""From a worker: ticket and result, or an exception as the result; without a ticket, it cannot
even begin."""


class _Watched(Steps):
    """Shows the owner that the steps go on, and ends the process when there is no owner."""

    def __init__(self, steps: int, place: Place) -> None:
        super().__init__(steps)
        self._place = place
        self._beat = place.memory.beats[place.rank]

    def step_done(self, samples: int) -> None:
        self._beat += 1
        if self._place.orphaned():
            os._exit(1)


def serve(connection: Connection, place: Place, build: Callable[[], InProcess]) -> None:
    """Do jobs until the owner says to end, or is gone.

    Parameters
    ----------
    connection
        To the owner.
    place
        What is shared with it.
    build
        Makes the learner that does the jobs.
    """
    try:
        try:
            learner = build()
        except Exception as error:  # noqa: BLE001 (whatever a user's own task raises)
            connection.send((None, _portable(error)))
            return
        while (message := _next_message(connection, place)) is not None:
            ticket, slot, job = message
            try:
                result = job.run(learner, place, slot)
            except Exception as error:  # noqa: BLE001 (whatever a user's own task raises)
                result = _portable(error)
            connection.send((ticket, result))
    except (EOFError, ConnectionError):
        return  # the owner has gone


def _next_message(connection: Connection, place: Place) -> Message:
    # The end of the connection is not enough: others may have inherited the owner's end of it.
    while not connection.poll(OWNER_CHECK_S):
        if place.orphaned():
            return None
    message: Message = connection.recv()
    return message


def _portable(error: Exception) -> PowerTripError:
    """The error as its owner can raise it: the project's own as they are, the rest described."""
    if isinstance(error, PowerTripError) and type(error).__init__ is PowerTripError.__init__:
        return error
    trace = "".join(traceback.format_exception(error)).rstrip()
    return LearnerFailed(
        f"the task has failed with {type(error).__name__}: {error}; in the process that trained:\n"
        f"{trace}"
    )


def forked(
    connection: Connection, place: Place, build: Callable[[], InProcess], others: list[Connection]
) -> None:
    """What a forked child of the owner does instead of going on; it never returns.

    Parameters
    ----------
    connection, place, build
        As in `serve`.
    others
        Ends of connections that belong to the owner alone.
    """
    code = 1
    try:
        gc.freeze()  # what it has from its owner is neither collected nor copied
        for other in others:
            other.close()
        serve(connection, place, build)
        code = 0
    except BaseException:  # noqa: BLE001 (the owner's own code must not go on here)
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    """Serve as a fresh process, which `powertrip.simulation.workers.Workers` starts."""
    numbers, descriptors = sys.argv[1:6], sys.argv[6:]
    rank, workers, size, slots, owner = map(int, numbers)
    memory_fd, setup_fd, connection_fd = map(int, descriptors)
    place = Place(rank, SharedMemory(size, workers, slots, memory_fd), owner)
    os.close(memory_fd)

    def build() -> InProcess:
        setup = Setup.decode(os.pread(setup_fd, os.fstat(setup_fd).st_size, 0))
        os.close(setup_fd)
        return InProcess(*load_parts(setup), setup.config, rank=rank)

    with Connection(connection_fd) as connection:
        serve(connection, place, build)
    os._exit(0)  # torch would take half a second to take itself down


if __name__ == "__main__":
    main()
