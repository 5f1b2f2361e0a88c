"""Trains the sites in persistent processes, as many at once as there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal, Self, cast

import torch
from torch import Tensor

from powertrip.coordination.setup import Setup
from powertrip.simulation.in_process import carries_state
from powertrip.simulation.learner import Trained
from powertrip.simulation.worker import EvaluateBlock, SiteResult, TrainSite
from powertrip.simulation.workers import Workers
from powertrip.training.data import IntArray
from powertrip.training.evaluation import Counts, sample_blocks
from powertrip.training.flat import initial_model
from powertrip.training.task import Task


class Processes:
    """A `Learner` whose members are trained, and its blocks of samples evaluated, by workers.

    A member is trained by whichever worker is free. Where sites have inner optimizers that
    remember something, each site always has the same worker.

    Parameters
    ----------
    setup
        The resolved scenario.
    task, shares
        What `powertrip.simulation.learner.load_parts` has loaded of it.
    count
        Number of workers, at least one.
    fork
        Whether workers are forks of this process; None where they can be.

    Attributes
    ----------
    size, parameters_size, samples, update_bytes
        As in `powertrip.simulation.learner.Learner`.

    Raises
    ------
    TaskError
        The task's model cannot be trained.
    """

    def __init__(
        self,
        setup: Setup,
        task: Task,
        shares: Sequence[IntArray],
        *,
        count: int,
        fork: bool | None = None,
    ) -> None:
        config = setup.config
        torch.set_num_threads(config.training.threads)
        self._task = task
        self._model = initial_model(task, seed=config.seed)
        self.size = self._model.vector.numel()
        self.parameters_size = self._model.parameters_size
        self.update_bytes = self._model.update_bytes
        self.samples = tuple(len(share) for share in shares)
        self._count = count
        self._pinned = carries_state(config.training)
        self._workers = Workers(setup, task, shares, count=count, size=self.size, fork=fork)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return self._workers.pids

    def initial(self) -> Tensor:
        """A copy of the vector that every site starts with."""
        return self._model.vector.clone()

    def train(
        self, vector: Tensor, round_: int, work: Sequence[tuple[int, int]], *, keep: bool = True
    ) -> Iterator[Trained]:
        """Train the members, as `Learner.train` says.

        Raises
        ------
        TrainingDiverged
            A member's loss is no number any more.
        TaskError
            The task's losses are not one a sample.
        LearnerFailed
            A worker has died or fallen silent, or the task has raised an error.
        """
        self._workers.memory.vector.copy_(vector)
        jobs = [TrainSite(round_, site, steps, keep) for site, steps in work]
        ranks = [site % self._count for site, _ in work] if self._pinned else None
        for job, (result, update) in zip(jobs, self._workers.run(jobs, ranks), strict=True):
            r = cast(SiteResult, result)
            yield Trained(job.site, r.steps, r.samples, r.loss, r.loss_rms, update)

    def evaluate(
        self, vector: Tensor, split: Literal["validation", "test"], limit: int | None = None
    ) -> Counts:
        """Evaluate a model on a split, as `Learner.evaluate` says; the same errors as `train`."""
        self._workers.memory.vector.copy_(vector)
        jobs = [EvaluateBlock(split, block) for block in sample_blocks(self._task, split, limit)]
        parts = (cast(Counts, counts) for counts, _ in self._workers.run(jobs))
        return sum(parts, start=Counts(0.0, 0.0, 0))

    def norms(self, vector: Tensor) -> list[float]:
        """Euclidean norm of each trained parameter's part of a vector or update."""
        return self._model.norms(vector)

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
