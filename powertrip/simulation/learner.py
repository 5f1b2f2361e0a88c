"""What a simulated run learns with: the interface, and how an implementation is chosen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

from powertrip.coordination.setup import Setup, data_folder
from powertrip.simulation.errors import NotStackable
from powertrip.training.data import IntArray
from powertrip.training.evaluation import Counts
from powertrip.training.partition import partition
from powertrip.training.task import Task, load_task


@dataclass(frozen=True)
class Trained:
    """What one member did in a round.

    Attributes
    ----------
    site
        Its number.
    steps, samples
        Local steps done, and the samples that they used.
    loss, loss_rms
        As in `powertrip.training.local.LocalResult`.
    update
        Float32, [size]: the vector that the round started from minus the one that it ended with.
        Valid until the next member's is asked for.
    """

    site: int
    steps: int
    samples: int
    loss: float
    loss_rms: float
    update: Tensor


class Learner(Protocol):
    """Trains the sites' models, wherever that is done, one round after the other.

    What it yields is the same, to the last bit, however many processes share the work.

    Attributes
    ----------
    size, parameters_size
        Length of the model's vector, laid out as `powertrip.training.flat.FlatModel` has it, and
        of its part that holds the parameters.
    samples
        Training samples of each site.
    update_bytes
        Size of one update as it travels, with its weight.
    """

    @property
    def size(self) -> int: ...

    @property
    def parameters_size(self) -> int: ...

    @property
    def samples(self) -> tuple[int, ...]: ...

    @property
    def update_bytes(self) -> int: ...

    def initial(self) -> Tensor:
        """A copy of the vector that every site starts with, [size]: the same for the same seed.

        It is where the learner wants the vectors that it is given to be.
        """
        ...

    def train(
        self, vector: Tensor, round_: int, work: Sequence[tuple[int, int]], *, keep: bool = True
    ) -> Iterator[Trained]:
        """Train the members of a round, each from the same vector.

        Parameters
        ----------
        vector
            The committed model, [size]; it must not change before the last member is yielded.
        round_
            Number of the round; with seed and site it fixes the batches.
        work
            Each member's site and its number of local steps, at least one.
        keep
            Whether the sites' inner optimizers keep what they have learned in this round; False
            for a mere trial.

        Yields
        ------
        Trained
            One for each member, in the order of `work`. Take all of them: of a round that is
            broken off nobody knows whose inner optimizers have gone on.
        """
        ...

    def evaluate(
        self, vector: Tensor, split: Literal["validation", "test"], limit: int | None = None
    ) -> Counts:
        """Evaluate a model on a split.

        Parameters
        ----------
        vector
            The model, [size].
        split
            Name of the split.
        limit
            Take at most so many samples, always the same ones, evenly spread; None takes all.
        """
        ...

    def norms(self, vector: Tensor) -> list[float]:
        """Euclidean norm of each trained parameter's part of a vector or update."""
        ...

    def close(self) -> None:
        """End what it has started; it cannot be used any more."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def load_parts(setup: Setup) -> tuple[Task, tuple[IntArray, ...]]:
    """The task, and each site's training samples, as a site of a real run has them.

    Raises
    ------
    TaskError, PartitionError
        The task cannot be loaded or spread over the sites.
    """
    config = setup.config
    task = load_task(config.task, data_dir=data_folder(), base_dir=setup.base_dir, seed=config.seed)
    return task, partition(config.partition, task, len(config.sites.selected), config.seed)


def build_learner(setup: Setup) -> Learner:
    """Make the learner that the scenario's section `simulation` asks for.

    Raises
    ------
    TaskError, PartitionError, DeviceError
        The scenario's task, its partition, or the device cannot be used.
    NotStackable
        simulation.training is stacked, which the task's model does not allow.
    """
    from powertrip.simulation.in_process import InProcess
    from powertrip.simulation.processes import Processes

    config = setup.config
    if config.task.name == "curve":
        from powertrip.simulation.curve import CurveLearner

        sites, batch_size = len(config.sites.selected), config.training.batch_size
        return CurveLearner(config.task.curve, sites=sites, batch_size=batch_size)
    task, shares = load_parts(setup)
    on_gpu = config.training.device != "cpu" and torch.cuda.is_available()
    if config.simulation.training == "stacked" or (config.simulation.training == "auto" and on_gpu):
        from powertrip.simulation.stacked import Stacked

        try:
            return Stacked(task, shares, config)
        except NotStackable:
            if config.simulation.training == "stacked":
                raise
    workers = config.simulation.workers
    if workers is None:
        workers = 0 if on_gpu else _cores() // config.training.threads
        workers = 0 if workers == 1 else workers  # it would work alone, and this process wait
    if workers == 0:
        return InProcess(task, shares, config)
    return Processes(setup, task, shares, count=min(workers, len(shares)))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
