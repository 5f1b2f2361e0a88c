"""One member's share of evaluating the model, and models that it might have become."""

from __future__ import annotations

import math

import torch

from powertrip.config import Config
from powertrip.coordination.messages import Tally
from powertrip.training.errors import TrainingDiverged
from powertrip.training.evaluation import Counts, evaluate
from powertrip.training.flat import FlatModel
from powertrip.training.task import Task


class Evaluator:
    """Evaluates a site's share of the validation and test samples.

    Parameters
    ----------
    task, model
        What is evaluated, as it stands.
    config
        How often.
    """

    def __init__(self, task: Task, model: FlatModel, config: Config) -> None:
        self._task, self._model, self._config = task, model, config

    def after_round(
        self, round_: int, share: int, shares: int
    ) -> tuple[Tally | None, Tally | None]:
        """Evaluate after a round, where that is due: validation and test.

        Parameters
        ----------
        round_
            Number of the round.
        share, shares
            Which part of the samples, from 0, and of how many.

        Raises
        ------
        TrainingDiverged
            A loss is no number any more.
        """
        every = self._config.runtime.evaluate_every
        if round_ % every and round_ != self._config.goal.max_rounds:
            return None, None
        counts = [
            evaluate(self._task, self._model, split, shard=share, shards=shares)
            for split in ("validation", "test")
        ]
        if not all(math.isfinite(c.loss_sum) for c in counts):
            raise TrainingDiverged(
                f"after round {round_} the validation or test loss is no longer a number; lower "
                f"training.lr ({self._config.training.lr:g}) or outer.lr "
                f"({self._config.outer.learning_rate:g})"
            )
        validation, test = map(_tally, counts)
        return validation, test

    def validation_of(self, vector: torch.Tensor, share: int, shares: int) -> Tally:
        """Evaluate another model on the share of the validation samples; it replaces the one there.

        Parameters
        ----------
        vector
            The model, laid out as `FlatModel.vector`.
        """
        self._model.vector.copy_(vector)
        counts = evaluate(self._task, self._model, "validation", shard=share, shards=shares)
        return _tally(counts)


def _tally(counts: Counts) -> Tally:
    return Tally(correct=counts.correct, loss_sum=counts.loss_sum, count=counts.count)
