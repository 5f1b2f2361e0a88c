"""How local training and the exchange make up a round: one after the other, or at the same time.

With overlap the exchange of a round goes on beside the training of the next one, so that a round
which is like the one before it is as long as the longer of the two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from powertrip.selection.checks import FloatArray


def round_of(local_s: ArrayLike, delay_s: ArrayLike, *, overlap: bool) -> FloatArray:
    """Return the seconds of the round of a member that trains, and whose exchange takes so long."""
    if overlap:
        return np.maximum(local_s, delay_s)
    return np.add(local_s, delay_s)


def local_in(round_s: ArrayLike, delay_s: ArrayLike, *, overlap: bool) -> FloatArray:
    """Return the seconds for training in a round of some length; none where these are negative.

    With overlap that is the whole round, and none where the exchange does not fit into it.
    """
    if overlap:
        return np.where(np.less_equal(delay_s, round_s), round_s, 0.0)
    return np.subtract(round_s, delay_s)


def added_s(local_s: ArrayLike, delay_s: ArrayLike, *, overlap: bool) -> FloatArray:
    """Return by how much the exchange makes a member's round longer than its training, seconds."""
    if overlap:
        return np.maximum(np.subtract(delay_s, local_s), 0.0)
    return np.asarray(delay_s)
