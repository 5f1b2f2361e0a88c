"""Training that goes on while the mean of the round before is on its way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from powertrip.simulation.learner import Learner, Trained


class EagerTraining:
    """Each member starts from the committed model, moved by its own update of the round before.

    That update stands for the mean of all, until this arrives and takes its place. It counts as the
    outer step counts the mean, without the momentum: so two rounds that follow one another in the
    direction of a steep valley do not add up, which makes late means diverge. Whoever was no member
    in the round before starts from the committed model.

    Source: after Kale et al., Eager Updates for Overlapped Communication and Computation in DiLoCo,
    2025, arXiv:2502.12996; there a member's own update is its share of a mean whose other shares
    are those of the round before, and the outer step takes it with its momentum.

    Parameters
    ----------
    learner
        Trains the members, one after the other, as each starts from a vector of its own.
    lr
        The outer learning rate.
    """

    def __init__(self, learner: Learner, lr: float) -> None:
        self._learner, self._lr = learner, lr
        self._own: dict[int, Tensor] = {}

    def train(
        self, vector: Tensor, round_: int, work: Sequence[tuple[int, int]]
    ) -> Iterator[Trained]:
        """Train the members of a round, as `Learner.train` says."""
        before, self._own = self._own, {}
        for site, steps in work:
            start = vector
            if (own := before.pop(site, None)) is not None:
                start = torch.sub(vector, own, alpha=self._lr)
            for done in self._learner.train(start, round_, [(site, steps)]):
                self._own[site] = done.update.clone()
                yield done
