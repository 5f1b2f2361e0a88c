"""Trains many sites at once, as one batch of models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from powertrip.config import Config
from powertrip.simulation.errors import NotStackable
from powertrip.simulation.in_process import InProcess, carries_state
from powertrip.simulation.learner import Trained
from powertrip.training.batches import Batches
from powertrip.training.data import IntArray, source
from powertrip.training.errors import TaskError, TrainingDiverged
from powertrip.training.inner import InnerOptimizer, build_inner
from powertrip.training.task import Task

BLOCK_BYTES = {"cpu": 2**27, "cuda": 2**32}
"""Memory that the members trained at once may take together, by kind of device. Constants, so that
the blocks, and with them the last bits of the result, do not depend on the machine. On a CPU, for a
network of 106,000 parameters, blocks of 10 to 25 members were faster than of 5 or 50."""

_State = dict[str, Tensor]


@dataclass(frozen=True)
class _Member:
    place: int
    site: int
    steps: int
    state: _State

    @property
    def likeness(self) -> tuple[int, bool, int]:
        """Members that are equal in this can share an inner optimizer."""
        return -self.steps, bool(self.state), int(self.state.get("steps", 0))


@dataclass(frozen=True)
class _Crew:
    """Neighbouring rows whose members do equally many steps, with one inner optimizer for all."""

    rows: slice
    steps: int
    optimizer: InnerOptimizer


class Stacked(InProcess):
    """A `Learner` whose members stand as rows in one tensor and do each step together.

    Members train in blocks, a block's rows in the order of their steps, so that those who are done
    leave its end. Batches and inner optimizers are those of `LocalTrainer`, and so are the results
    but for rounding; random numbers that the model itself draws are others.

    On a CPU a member takes as long as it does by itself, so as many processes as there are cores
    are faster by that number. On a GPU, most of which one small model leaves idle, stacking may be
    the faster; that was not measured.

    Parameters
    ----------
    task, shares, config
        As in `InProcess`.

    Raises
    ------
    NotStackable
        `torch.func.vmap` cannot take the task's model or loss.
    TaskError
        The task's model cannot be trained.
    DeviceError
        The device of the settings does not exist.
    """

    def __init__(self, task: Task, shares: Sequence[IntArray], config: Config) -> None:
        super().__init__(task, shares, config)
        self._source = source(task.train, "train")
        self._losses: Callable[[Any, Any], Tensor] | None = getattr(task, "losses", None)
        self._batches: dict[int, Batches] = {}
        self._carries = carries_state(config.training)
        # Of each site: the last round, and the inner optimizer's state before and after it.
        self._states: dict[int, tuple[int, _State, _State]] = {}
        module = self._model.module
        self._trained = [name for name, p in module.named_parameters() if p.requires_grad]
        self._buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        self._step = vmap(self._member_step, randomness="different")
        self.block = max(1, BLOCK_BYTES[self.device.type] // self._member_bytes())
        self._try_out()

    def train(
        self, vector: Tensor, round_: int, work: Sequence[tuple[int, int]], *, keep: bool = True
    ) -> Iterator[Trained]:
        """Train the members a block at a time, as `Learner.train` says.

        Raises
        ------
        TrainingDiverged
            A member's loss is no number any more.
        TaskError
            The task's losses are not one a sample, or the model replaces a buffer.
        """
        for start in range(0, len(work), self.block):
            sequence = np.random.SeedSequence((self._config.seed, round_, start))
            torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
            yield from self._train_block(
                vector, round_, work[start : start + self.block], keep=keep
            )

    def close(self) -> None:
        """Let the sites' optimizers go."""
        super().close()
        self._states.clear()

    def _train_block(
        self, vector: Tensor, round_: int, work: Sequence[tuple[int, int]], *, keep: bool
    ) -> Iterator[Trained]:
        members = sorted(
            (
                _Member(place, site, steps, self._state_at(site, round_))
                for place, (site, steps) in enumerate(work)
            ),
            key=lambda member: member.likeness,
        )
        crews = self._crews(members)
        rows = vector.repeat(len(members), 1)
        buffers = self._buffers_of(rows)
        gradient = torch.empty(len(members), self.parameters_size, device=self.device)
        losses = torch.zeros(members[0].steps, len(members), device=self.device)
        squares = torch.zeros(len(members), device=self.device)
        for step in range(members[0].steps):
            active = [crew for crew in crews if crew.steps > step]
            count = active[-1].rows.stop
            batches = [self._batch(member.site, round_, step) for member in members[:count]]
            some = slice(count)
            losses[step, some], squared = self._gradients(
                rows[some], {n: b[some] for n, b in buffers.items()}, batches, gradient[some]
            )
            squares[some] += squared
            for crew in active:
                parameters = rows[crew.rows, : self.parameters_size]
                crew.optimizer.step(parameters, gradient[crew.rows])
        self._check(losses, squares, members, round_)
        if keep and self._carries:
            self._keep(members, crews, round_)

        views = self._model.views(rows)
        for name in buffers.keys() & views.keys():
            views[name].copy_(buffers[name])
        torch.sub(vector, rows, out=rows)
        sums, roots = losses.sum(dim=0, dtype=torch.float64).tolist(), squares.tolist()
        for row in sorted(range(len(members)), key=lambda row: members[row].place):
            member = members[row]
            samples = member.steps * self._config.training.batch_size
            yield Trained(
                site=member.site,
                steps=member.steps,
                samples=samples,
                loss=sums[row] / member.steps,
                loss_rms=math.sqrt(roots[row] / samples),
                update=rows[row],
            )

    def _gradients(
        self,
        rows: Tensor,
        buffers: dict[str, Tensor],
        batches: Sequence[IntArray],
        gradient: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Write each row's gradient; returns the losses and the sums of squares, [rows] each."""
        views = self._model.views(rows)
        trained = {name: views[name].detach().requires_grad_() for name in self._trained}
        fetched = self._source.fetch(np.concatenate(batches), self.device)
        inputs, targets = tree_map(lambda t: _rows(t, len(batches)), fetched)
        loss, squared = self._step({**views, **trained, **buffers}, inputs, targets)
        slopes = torch.autograd.grad(loss.sum(), list(trained.values()), allow_unused=True)
        parts = self._model.views(gradient)
        for name, slope in zip(trained, slopes, strict=True):
            parts[name].zero_() if slope is None else parts[name].copy_(slope)
        return loss.detach(), squared

    def _member_step(
        self, tensors: dict[str, Tensor], inputs: Any, targets: Any
    ) -> tuple[Tensor, Tensor]:
        """One member's loss, and the sum of its samples' squared losses."""
        held = dict(tensors)
        outputs = functional_call(self._model.module, held, (inputs,))
        for name, tensor in tensors.items():
            if held[name] is not tensor:
                raise TaskError(
                    f"the model has replaced its {name}; change it in place, for example with "
                    f"{name.rpartition('.')[2]}.copy_(...), so that it can be averaged"
                )
        loss = self._task.loss(outputs, targets)
        count = self._config.training.batch_size
        with torch.no_grad():
            if self._losses is None:
                return loss, loss.detach() ** 2 * count
            each = self._losses(outputs, targets).float()
            if each.shape != (count,):
                raise TaskError(
                    f"the task's losses() gave a tensor of shape {tuple(each.shape)} for {count} "
                    "samples; return one loss a sample, or leave the method out"
                )
            return loss, each.dot(each)

    def _buffers_of(self, rows: Tensor) -> dict[str, Tensor]:
        """The model's buffers, a row a member: as in `rows`, or as built where not in the vector.

        Copies, because a batch norm under vmap changes its running means in place only where they
        lie close together.
        """
        views = self._model.views(rows)
        return {
            name: (views[name] if name in views else built.expand(len(rows), *built.shape)).clone(
                memory_format=torch.contiguous_format
            )
            for name, built in self._buffers.items()
        }

    def _batch(self, site: int, round_: int, step: int) -> IntArray:
        if site not in self._batches:
            config = self._config
            size = config.training.batch_size
            self._batches[site] = Batches(self._shares[site], size, seed=config.seed, site=site)
        return self._batches[site].batch(round_, step)

    def _crews(self, members: Sequence[_Member]) -> list[_Crew]:
        crews, start = [], 0
        for _, alike in itertools.groupby(members, key=lambda member: member.likeness):
            crew = list(alike)
            optimizer = build_inner(self._config.training)
            optimizer.load(_stack([member.state for member in crew]))
            crews.append(_Crew(slice(start, start + len(crew)), crew[0].steps, optimizer))
            start += len(crew)
        return crews

    def _state_at(self, site: int, round_: int) -> _State:
        """What the site's inner optimizer starts a round from, as `LocalTrainer` has it."""
        if site not in self._states:
            return {}
        last, before, after = self._states[site]
        return before if last == round_ else after

    def _keep(self, members: Sequence[_Member], crews: Sequence[_Crew], round_: int) -> None:
        for crew in crews:
            state = crew.optimizer.state()
            for row, member in enumerate(members[crew.rows]):
                after = {n: t[row].clone() if t.dim() else t for n, t in state.items()}
                self._states[member.site] = (round_, member.state, after)

    def _check(
        self, losses: Tensor, squares: Tensor, members: Sequence[_Member], round_: int
    ) -> None:
        wrong = ~losses.isfinite()
        if bool(wrong.any()):
            step, row = wrong.nonzero()[0].tolist()
            value, when = losses[step, row].item(), f"step {step} of round {round_}"
        elif not bool(squares.isfinite().all()):
            row = int((~squares.isfinite()).nonzero()[0])
            value, when = squares[row].item(), f"the end of round {round_} (squared)"
        else:
            return
        raise TrainingDiverged(
            f"the loss at site {members[row].site} is {value} at {when}; lower training.lr "
            f"({self._config.training.lr:g}) or outer.lr"
        )

    def _member_bytes(self) -> int:
        """Memory that a member takes: what its backward pass needs, and four of its vectors."""
        saved = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal saved
            saved += tensor.numel() * tensor.element_size()
            return tensor

        views = self._model.views(self._initial.clone())
        for name in self._trained:
            views[name].requires_grad_()
        inputs, targets = self._source.fetch(self._batch(0, 0, 0), self.device)
        buffers = {name: built.clone() for name, built in self._buffers.items()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self._member_step({**views, **buffers}, inputs, targets)
        return saved + 4 * self.size * self._initial.element_size()

    def _try_out(self) -> None:
        """Two members' first step, so that a model that cannot be stacked is known at once."""
        rows = self._initial.repeat(2, 1)
        gradient = torch.empty(2, self.parameters_size, device=self.device)
        try:
            self._gradients(rows, self._buffers_of(rows), [self._batch(0, 0, 0)] * 2, gradient)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise NotStackable(
                "simulation.training is stacked, but torch.func.vmap cannot take this task's "
                f"model or loss ({reason}); write "
                "simulation.training: processes"
            ) from error


def _rows(value: Any, count: int) -> Any:
    return value.view(count, -1, *value.shape[1:]) if isinstance(value, Tensor) else value


def _stack(states: Sequence[_State]) -> _State:
    """States of like members as one, whose tensors have a row a member."""
    return {
        name: torch.stack([state[name] for state in states]) if first.dim() else first
        for name, first in states[0].items()
    }
