"""What the members of a simulated round learn, and the mean of it as the exchange brings it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from powertrip.exchange.settings import ExchangeSettings
from powertrip.simulation.codec import Int8
from powertrip.simulation.eager import EagerTraining
from powertrip.simulation.learner import Learner, Trained


@dataclass(frozen=True)
class Parts:
    """Mean updates of some of a round's members, and of the others."""

    half: Tensor
    rest: Tensor


class Averaging:
    """Trains the members of a round and adds up their updates, weighted by samples.

    Parameters
    ----------
    settings
        Whether the exchange overlaps with training, and how updates travel. A vector of one number
        is no model: it is neither trained eagerly nor packed.
    lr
        The outer learning rate.
    learner
        Trains; owned by the caller.
    like
        A vector of the learner's.
    """

    def __init__(
        self, settings: ExchangeSettings, learner: Learner, like: Tensor, *, lr: float
    ) -> None:
        model = learner.size > 1
        eager = settings.overlap and model
        self._train = EagerTraining(learner, lr).train if eager else learner.train
        self._codec = Int8(like) if settings.codec == "int8" and model else None

    def average(
        self,
        vector: Tensor,
        round_: int,
        work: Sequence[tuple[int, int]],
        *,
        out: Tensor,
        half: Collection[int] = (),
        alone: bool = False,
    ) -> tuple[list[Trained], Parts | None]:
        """Write the mean update into `out`, [size].

        Parameters
        ----------
        vector, round_, work
            As `Learner.train` takes them.
        out
            Where the mean goes.
        half
            Some of the members, whose own mean is wanted, too; none for no such thing.
        alone
            Whether nothing is sent.

        Returns
        -------
        What the members did, and the means of `half` and of the rest.
        """
        codec = None if alone else self._codec
        part = torch.zeros_like(out) if half else None
        out.zero_()
        total = part_total = 0
        trained: list[Trained] = []
        for done in self._train(vector, round_, work):
            update = done.update if codec is None else codec.through(done.update)
            out.add_(update, alpha=done.samples)
            total += done.samples
            if part is not None and done.site in half:
                part.add_(update, alpha=done.samples)
                part_total += done.samples
            trained.append(done)
        parts = None
        if part is not None:
            parts = Parts(part / part_total, (out - part) / (total - part_total))
        out /= total
        if codec is not None:
            out.copy_(codec.through(out))
        return trained, parts
