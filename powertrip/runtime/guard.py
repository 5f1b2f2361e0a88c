"""Keeps updates that would spoil the mean out of it."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

import torch
from torch import Tensor

_WINDOW = 5  # accepted updates
_FEWEST = 3
EXPLODES = 20.0
"""Times the median norm of a site's last accepted updates."""


class UpdateGuard:
    """Judges a site's own updates before it sends them.

    It stands against failing hardware and diverging training, not against a site that lies.
    """

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=_WINDOW)

    def reason_against(self, update: Tensor) -> str | None:
        """Why an update is to have no weight; None for one that may count, which is remembered.

        Parameters
        ----------
        update
            [size].
        """
        norm = float(torch.linalg.vector_norm(update, dtype=torch.float64))
        if not math.isfinite(norm):
            return "the update is no number"
        usual = median(self._norms) if len(self._norms) >= _FEWEST else math.inf
        if norm > EXPLODES * usual > 0:
            return f"the update's norm is {norm:.3g}, and was {usual:.3g} until now"
        self._norms.append(norm)
        return None
