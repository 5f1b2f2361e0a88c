"""Whether training is in a critical learning period, in which fewer participants harm for good.

The norm test is that of Yan, Wang and Li ("Seizing Critical Learning Periods in Federated
Learning", AAAI 2022, and CriticalFL, KDD 2023), the layer test that of Agarwal et al.
("Accordion", MLSys 2021). Both look at updates here, where these look at gradients.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from powertrip.selection.checks import FloatArray
from powertrip.selection.types import Observation
from powertrip.settings import Settings

_THRESHOLDS = {"norm": 0.01, "layers": 0.5}


class CriticalSettings(Settings):
    """How critical learning periods are told, and what they change."""

    test: Literal["norm", "layers"] = "norm"
    """`norm`: the norm of the update rises; `layers`: that of any layer rises or falls by much."""

    window: int = Field(default=5, ge=1)
    """Rounds whose norms are averaged, and compared with as many rounds before them."""

    threshold: float | None = Field(default=None, gt=0)
    """Least relative change; null means 0.01 for `norm` and 0.5 for `layers`."""

    enlarge: float = Field(default=2.0, ge=1, le=1e6)
    """How many times more sites take part in a critical period."""


def is_critical(observation: Observation, settings: CriticalSettings) -> bool:
    """Tell whether the run is in a critical learning period.

    It is until two windows of rounds are known: such periods are found at the start of training.
    After that

    - `norm`: ``(new - old) / old >= 0.01`` for the mean norms of the last window and of the one
      before it, so only growing updates count;
    - `layers`: ``|new - old| / old >= 0.5`` for the same of any layer. Where no layer is measured,
      the whole update is the only one.
    """
    layers = settings.test == "layers"
    norms = observation.layer_norms if layers else observation.update_norms[:, np.newaxis]
    if norms.size == 0:
        norms = observation.update_norms[:, np.newaxis]
    if len(norms) < 2 * settings.window:
        return True
    change = _relative_change(norms, settings.window)
    threshold = settings.threshold
    if threshold is None:
        threshold = _THRESHOLDS[settings.test]
    return bool(((np.abs(change) if layers else change) >= threshold).any())


def participants(k: int, critical: bool, enlarge: float) -> int:
    """Return k, or more in a critical period."""
    return math.ceil(k * enlarge) if critical else k


def _relative_change(norms: FloatArray, window: int) -> FloatArray:
    """Return ``(new - old) / old`` of the means over two windows, shape [l]; 0 from 0 to 0."""
    new = norms[-window:].mean(axis=0)
    old = norms[-2 * window : -window].mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(new == old, 0.0, (new - old) / old)
