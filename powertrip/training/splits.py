"""Set samples aside for validation and test, the same ones in every run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from powertrip.training.data import IntArray
from powertrip.training.errors import TaskError


def split_indices(
    count: int,
    *,
    validation: float,
    test: float = 0.0,
    groups: npt.ArrayLike | None = None,
    seed: int = 0,
) -> tuple[IntArray, IntArray, IntArray]:
    """Deal the numbers 0 to count - 1 into train, validation and test.

    The seed is fixed rather than that of the run, so that the accuracies of different runs are
    measured on the same samples.

    Parameters
    ----------
    count
        Number of samples.
    validation, test
        Shares of all samples; together less than 1.
    groups
        One label or client per sample: each group is split in these proportions, as nearly as its
        size allows.
    seed
        Seed of the shuffle inside each group.

    Returns
    -------
    tuple of ndarray
        Three sorted index arrays without a common element, which together hold every sample.

    Raises
    ------
    TaskError
        If no training sample would be left, or a split with a positive share would be empty.
    """
    rng = np.random.default_rng(seed)
    keys = np.zeros(count, dtype=np.int64) if groups is None else np.asarray(groups)
    if len(keys) != count:
        raise TaskError(f"{len(keys)} group labels were given for {count} samples")
    ordered = np.lexsort((rng.random(count), keys))
    chosen = _evenly(test, count)
    test_, rest = ordered[chosen], ordered[~chosen]
    chosen = _evenly(validation / (1 - test), len(rest))
    train_, validation_, test_ = map(np.sort, (rest[~chosen], rest[chosen], test_))
    for name, share, part in (("validation", validation, validation_), ("test", test, test_)):
        if share > 0 and len(part) == 0:
            raise TaskError(f"{count} samples are too few to set {share:g} of them aside as {name}")
    if len(train_) == 0:
        raise TaskError(f"of {count} samples none is left to train on")
    return train_, validation_, test_


def _evenly(share: float, count: int) -> npt.NDArray[np.bool_]:
    """Mark a share of `count` positions, evenly spaced, so that every run of them has its part."""
    due = np.floor(share * np.arange(count + 1) + 0.5)
    marks: npt.NDArray[np.bool_] = np.diff(due) > 0
    return marks
