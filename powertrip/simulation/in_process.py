"""Trains the sites one after the other in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal, Self

import torch
from torch import Tensor

from powertrip.config import Config
from powertrip.simulation.learner import Trained
from powertrip.training.data import IntArray
from powertrip.training.device import prepare_torch
from powertrip.training.evaluation import Counts, evaluate_at, sample_blocks
from powertrip.training.fast_steps import fast_steps
from powertrip.training.flat import initial_model
from powertrip.training.local import LocalTrainer, Pace, Steps
from powertrip.training.settings import TrainingSettings
from powertrip.training.task import Task


def carries_state(settings: TrainingSettings) -> bool:
    """Whether a site's inner optimizer remembers anything from one round to the next."""
    return settings.keep_inner_state and (settings.optimizer != "sgd" or settings.momentum > 0)


class InProcess:
    """A `Learner` without any other process: one model, which each site trains in turn.

    Buffers of whole numbers, which are no part of the vector, start every site's round as the
    model was built with them.

    Parameters
    ----------
    task
        Data, model and loss.
    shares
        Each site's training samples.
    config
        Seed and training settings.
    rank
        Number of this process among those that train, which share the machine's GPUs.

    Attributes
    ----------
    size, parameters_size, samples, update_bytes
        As in `powertrip.simulation.learner.Learner`.
    device
        Where the vectors are.

    Raises
    ------
    TaskError
        The task's model cannot be trained.
    DeviceError
        The device of the settings does not exist.
    """

    def __init__(
        self, task: Task, shares: Sequence[IntArray], config: Config, *, rank: int = 0
    ) -> None:
        self.device = prepare_torch(config.training, local_rank=rank)
        self._task, self._shares, self._config = task, tuple(shares), config
        self._model = initial_model(task, seed=config.seed, device=self.device)
        self._initial = self._model.vector.clone()
        counters = [b for b in self._model.module.buffers() if not b.is_floating_point()]
        self._counters = [(counter, counter.clone()) for counter in counters]
        self._carries_state = carries_state(config.training)
        self._fast = fast_steps(task, config.training, self._model)
        self._trainers: dict[int, LocalTrainer] = {}
        self._update = torch.empty_like(self._initial)
        self.size = self._initial.numel()
        self.parameters_size = self._model.parameters_size
        self.samples = tuple(len(share) for share in self._shares)
        self.update_bytes = self._model.update_bytes

    def initial(self) -> Tensor:
        """A copy of the vector that every site starts with."""
        return self._initial.clone()

    def train(
        self, vector: Tensor, round_: int, work: Sequence[tuple[int, int]], *, keep: bool = True
    ) -> Iterator[Trained]:
        """Train the members one after the other, as `Learner.train` says.

        Raises
        ------
        TrainingDiverged
            A member's loss is no number any more.
        TaskError
            The task's losses are not one a sample.
        """
        for site, steps in work:
            yield self.train_site(vector, round_, site, Steps(steps), keep=keep, out=self._update)

    def train_site(
        self, vector: Tensor, round_: int, site: int, pace: Pace, *, keep: bool, out: Tensor
    ) -> Trained:
        """Train one member and write its update into `out`, [size], which is where `vector` is."""
        trainer = self._trainer(site)
        self._model.vector.copy_(vector)
        for counter, at_start in self._counters:
            counter.copy_(at_start)
        result = trainer.train(round_, pace, keep=keep)
        if not self._carries_state:
            trainer.load_inner_state({})  # a thousand sites would keep a thousand of them
        assert result.loss is not None, "a pace allows at least one step"
        assert result.loss_rms is not None
        torch.sub(vector, self._model.vector.to(vector.device), out=out)
        return Trained(site, result.steps, result.samples, result.loss, result.loss_rms, out)

    def evaluate(
        self, vector: Tensor, split: Literal["validation", "test"], limit: int | None = None
    ) -> Counts:
        """Evaluate a model on a split, as `Learner.evaluate` says."""
        parts = self.evaluate_blocks(vector, split, sample_blocks(self._task, split, limit))
        return sum(parts, start=Counts(0.0, 0.0, 0))

    def evaluate_blocks(
        self, vector: Tensor, split: Literal["validation", "test"], blocks: Sequence[IntArray]
    ) -> list[Counts]:
        """Counts of each block of samples of a split."""
        self._model.vector.copy_(vector)
        return [evaluate_at(self._task, self._model, split, block) for block in blocks]

    def norms(self, vector: Tensor) -> list[float]:
        """Euclidean norm of each trained parameter's part of a vector or update."""
        return self._model.norms(vector)

    def close(self) -> None:
        """Let the sites' optimizers go."""
        self._trainers.clear()

    def _trainer(self, site: int) -> LocalTrainer:
        if site not in self._trainers:
            config = self._config
            self._trainers[site] = LocalTrainer(
                self._task,
                self._shares[site],
                config.training,
                config.seed,
                site,
                self._model,
                self._fast,
            )
        return self._trainers[site]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
