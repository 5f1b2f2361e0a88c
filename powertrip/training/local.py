"""Local training at one site: the steps between two exchanges."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from powertrip.training.batches import Batches
from powertrip.training.data import IntArray, source
from powertrip.training.errors import TaskError, TrainingDiverged
from powertrip.training.fast_steps import FastSteps, fast_steps
from powertrip.training.flat import FlatModel
from powertrip.training.inner import build_inner
from powertrip.training.settings import TrainingSettings
from powertrip.training.task import Task, measure_of


class Pace(Protocol):
    """Decides when a site's local training ends, and how fast it may go."""

    def allows(self, step: int) -> bool:
        """Whether to do step number `step` of this round, counted from 0."""
        ...

    def step_done(self, samples: int) -> None:
        """Called after each step; returns when a site of this power would have finished it."""
        ...


class Steps:
    """Full speed for a fixed number of steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def allows(self, step: int) -> bool:
        """True for the first `steps` steps."""
        return step < self.steps

    def step_done(self, samples: int) -> None:
        """Return at once."""


@dataclass(frozen=True)
class LocalResult:
    """What a site did in a round.

    Attributes
    ----------
    steps, samples
        Local steps done, and the samples that they used.
    loss
        Mean training loss over the steps; None when there was none.
    loss_rms
        Root of the mean squared loss per sample, each sample's as it was in its step; None when
        there was no step. Where the task has no `losses`, the batch's mean loss stands for that of
        each of its samples.
    compute_s
        Time spent computing, without the waits of the pace.
    """

    steps: int
    samples: int
    loss: float | None
    loss_rms: float | None
    compute_s: float


class LocalTrainer:
    """Trains one site's copy of the model on the site's own samples.

    A round depends only on the model at its start, the round's number, and the inner optimizer's
    state. A round that is trained twice in a row, because its exchange failed, starts the second
    time from the inner state of the first.

    Parameters
    ----------
    task
        Data and loss.
    indices
        The site's training samples.
    settings
        Batch size and inner optimizer.
    seed, site
        Seed of the run and number of the site: they fix the batches.
    model
        Trained in place.
    fast
        What `fast_steps` has made for this task, these settings and this model, for trainers that
        take turns with one model; None makes it here, where it can be made.
    """

    def __init__(
        self,
        task: Task,
        indices: IntArray,
        settings: TrainingSettings,
        seed: int,
        site: int,
        model: FlatModel,
        fast: FastSteps | None = None,
    ) -> None:
        self.task = task
        self.settings = settings
        self.seed = seed
        self.site = site
        self.model = model
        self.batches = Batches(indices, settings.batch_size, seed=seed, site=site)
        self._source = source(task.train, "train")
        self._measure = measure_of(task)
        self._fast = fast or fast_steps(task, settings, model)
        self._optimizer = build_inner(settings)
        self._last_round: int | None = None
        self._state_before: dict[str, Tensor] = {}

    def train(self, round_index: int, pace: Pace, *, keep: bool = True) -> LocalResult:
        """Train for as long as the pace allows.

        Parameters
        ----------
        round_index
            Number of the round, from 0.
        pace
            Asked before every step, told after every step.
        keep
            False for a mere trial: the inner optimizer then goes on as if it had not taken place.

        Raises
        ------
        TrainingDiverged
            If the loss is infinite or not a number.
        TaskError
            If the task's `losses` are not one a sample.
        """
        if keep:
            self._prepare_optimizer(round_index)
            return self._train(round_index, pace)
        before = self._optimizer.state(), self._state_before, self._last_round
        try:
            self._prepare_optimizer(round_index)
            return self._train(round_index, pace)
        finally:
            state, self._state_before, self._last_round = before
            self._optimizer.load(state)

    def inner_state(self) -> dict[str, Tensor]:
        """A copy of the inner optimizer's state, for a checkpoint; empty before the first step."""
        return self._optimizer.state()

    def inner_state_before(self, round_index: int) -> dict[str, Tensor]:
        """The inner optimizer's state as a round found it, or would find it; not to be changed.

        That is what belongs to the commit of the round before, even while this one is trained.
        """
        if not self.settings.keep_inner_state:
            return {}
        return self._state_before if round_index == self._last_round else self.inner_state()

    def load_inner_state(self, state: dict[str, Tensor]) -> None:
        """Take the inner optimizer's state from a checkpoint."""
        self._optimizer.load(state)
        self._last_round = None

    def _train(self, round_index: int, pace: Pace) -> LocalResult:
        model, fast = self.model, self._fast
        started_s = time.perf_counter()
        if fast is None:
            self._seed_torch(round_index)
            model.module.train()
        else:
            fast.begin()
        compute_s = time.perf_counter() - started_s
        step = self._step if fast is None else fast.step
        steps = samples = 0
        loss_sum = 0.0
        squares: Tensor | float = 0.0

        while pace.allows(steps):
            started_s = time.perf_counter()
            batch = self.batches.batch(round_index, steps)
            value, squared = step(batch)
            squares += squared
            compute_s += time.perf_counter() - started_s
            self._check(value, "loss", f"step {steps} of round {round_index}")
            loss_sum += value
            steps += 1
            samples += len(batch)
            pace.step_done(len(batch))

        if fast is None:
            model.check_views()
        else:
            fast.end()
        if steps == 0:
            return LocalResult(0, 0, None, None, compute_s)
        loss_rms = math.sqrt(float(squares) / samples)
        self._check(loss_rms, "squared loss", f"the end of round {round_index}")
        return LocalResult(steps, samples, loss_sum / steps, loss_rms, compute_s)

    def _step(self, batch: IntArray) -> tuple[float, Tensor | float]:
        """Take a step; the batch's mean loss before it, and the sum of the squared losses."""
        inputs, targets = self._source.fetch(batch, self.model.device)
        loss, squared = self._losses_of(self.model.module(inputs), targets, len(batch))
        self._descend(loss)
        # Reading the loss waits for the device, so that the step is over when its time is.
        value = loss.item()
        return value, value * value * len(batch) if squared is None else squared

    def _losses_of(self, outputs: Any, targets: Any, count: int) -> tuple[Tensor, Tensor | None]:
        """The loss to differentiate; the sum of the samples' squared losses, if they are known.

        The outputs, which may be large, are let go before the backward pass.
        """
        loss, each = self._measure(outputs, targets)
        if each is None:
            return loss, None
        if each.shape != (count,):
            raise TaskError(
                f"the task's losses() gave a tensor of shape {tuple(each.shape)} for {count} "
                "samples; return one loss a sample, or leave the method out"
            )
        each = each.float()
        return loss, each.dot(each)

    def _descend(self, loss: Tensor) -> None:
        """Differentiate the loss and take the optimizer's step."""
        model, lr = self.model, self._optimizer.plain_lr
        if lr is None:
            model.gradient.zero_()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step(model.parameters, model.gradient)
            return
        # Gradients that nobody remembers need not be gathered in a vector.
        slopes = torch.autograd.grad(loss, model.trained, allow_unused=True)
        with torch.no_grad():
            for parameter, slope in zip(model.trained, slopes, strict=True):
                if slope is not None:
                    parameter.sub_(slope, alpha=lr)

    def _check(self, value: float, what: str, when: str) -> None:
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"the {what} at site {self.site} is {value} at {when}; lower training.lr "
                f"({self.settings.lr:g}) or outer.lr"
            )

    def _prepare_optimizer(self, round_index: int) -> None:
        if not self.settings.keep_inner_state:
            self._optimizer.load({})
        elif round_index == self._last_round:
            self._optimizer.load(self._state_before)
        else:
            self._state_before = self.inner_state()
        self._last_round = round_index

    def _seed_torch(self, round_index: int) -> None:
        """Fix whatever the model draws itself, such as dropout."""
        sequence = np.random.SeedSequence((self.seed, self.site, round_index))
        seed = int(sequence.generate_state(1, np.uint64)[0])
        if self.model.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # a hundredth of the time of all generators
        else:
            torch.manual_seed(seed)
