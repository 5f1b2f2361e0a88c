"""What a round of other numbers of members would bring, by really training it: for `oracle`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from powertrip.config import Config
from powertrip.selection.outlook import look
from powertrip.selection.powertrip import PowerTrip
from powertrip.selection.types import Observation
from powertrip.simulation.learner import Learner
from powertrip.training.outer import OuterOptimizer


class PrefixGains:
    """Tries the first k sites of the ranking, for every k that a decision may weigh.

    All candidates start from the same snapshot and do their base steps. A site's training does not
    depend on who else takes part, so each trains once, and the mean of the first k updates is
    evaluated for every k.

    Parameters
    ----------
    config
        The ranking and the window.
    learner
        Trains and evaluates; what its inner optimizers remember is left as it is.
    outer
        Makes a copy of the outer optimizer as it stands.
    """

    def __init__(
        self, config: Config, learner: Learner, outer: Callable[[], OuterOptimizer]
    ) -> None:
        self._config, self._learner, self._outer = config, learner, outer

    def measure(self, seen: Observation, vector: Tensor, round_: int) -> Mapping[int, float]:
        """Measure the decrease of the validation loss by number of members.

        Parameters
        ----------
        seen
            What the policy is about to decide from.
        vector
            The model, [size]; left as it is.
        round_
            Number of the round that is tried.
        """
        settings = self._config.selection
        outlook = look(seen, settings, keep_seats=True)
        counts = PowerTrip(settings).counts(outlook).tolist()
        order = outlook.order[: counts[-1]].tolist()
        limit = self._config.simulation.evaluate_samples
        before = self._learner.evaluate(vector, "validation", limit).loss
        total = torch.zeros_like(vector)
        weight = 0
        gains: dict[int, float] = {}
        work = [(site, int(seen.base_steps[site])) for site in order]
        trials = self._learner.train(vector, round_, work, keep=False)
        for k, done in enumerate(trials, start=1):
            total.add_(done.update, alpha=done.samples)
            weight += done.samples
            if k in counts:
                tried = vector.clone()
                self._outer().step(tried, total / weight)
                after = self._learner.evaluate(tried, "validation", limit).loss
                gains[k] = before - after if np.isfinite(after) else 0.0
        return gains
