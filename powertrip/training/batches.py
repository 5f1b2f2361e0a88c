"""Which samples a site takes at which step, without any memory of what came before."""

from __future__ import annotations

import numpy as np

from powertrip.training.data import IntArray


class Batches:
    """The batches of one site as a pure function of seed, site, round and step.

    In each round the site goes through its samples in a fresh random order, and again in another
    one when it comes to their end; every batch is full, so a batch may straddle two passes.

    Parameters
    ----------
    indices
        The site's training samples.
    batch_size
        Samples per batch.
    seed, site
        What tells the random orders of runs and of sites apart.
    """

    def __init__(self, indices: IntArray, batch_size: int, *, seed: int, site: int) -> None:
        if len(indices) == 0:
            raise ValueError(f"site {site} has no samples")
        self.indices = np.asarray(indices, dtype=np.int64)
        self.batch_size = batch_size
        self._key = (seed, site)
        self._orders: dict[tuple[int, int], IntArray] = {}

    def batch(self, round_index: int, step: int) -> IntArray:
        """Indices of the samples of one step, `batch_size` of them."""
        count = len(self.indices)
        taken = []
        position, end = step * self.batch_size, (step + 1) * self.batch_size
        while position < end:
            lap, offset = divmod(position, count)
            part = self._order(round_index, lap)[offset : offset + end - position]
            taken.append(part)
            position += len(part)
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def _order(self, round_index: int, lap: int) -> IntArray:
        key = (round_index, lap)
        if key not in self._orders:
            if len(self._orders) >= 2:
                del self._orders[next(iter(self._orders))]
            rng = np.random.default_rng((*self._key, *key))
            self._orders[key] = rng.permutation(self.indices)
        return self._orders[key]
