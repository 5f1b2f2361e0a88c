"""A floor on how much of the data is seen: which sites must take part now."""

from __future__ import annotations

import numpy as np

from powertrip.selection.checks import BoolArray, FloatArray
from powertrip.selection.types import Observation


def due_sites(
    observation: Observation, usable: BoolArray, own_s: FloatArray, coverage: int | None
) -> BoolArray:
    """Return the sites that must be members now, so that none stays out for too long, shape [n].

    A site may stay out for `coverage` decisions of `interval_rounds` rounds each. Sites whose time
    would come at once are spread over the decisions before that, those of a short round first.

    Parameters
    ----------
    usable
        The sites that can take part, shape [n]; those without samples are never due.
    own_s
        Round of each site on its own, shape [n].
    coverage
        The number of decisions; None for any.
    """
    due = np.zeros(observation.sites, dtype=np.bool_)
    sites = np.flatnonzero(usable & (observation.samples > 0))
    if coverage is None or not sites.size:
        return due
    idle_rounds = np.maximum(observation.round - 1 - observation.last_seen[sites], 0)
    left = np.maximum(coverage - idle_rounds // observation.interval_rounds, 0)
    # Whoever has j decisions left must come in within j + 1 of them, this one included.
    waiting = np.cumsum(np.bincount(left))
    needed = int(np.max(-(-waiting // np.arange(1, waiting.size + 1))))
    due[sites[np.lexsort((own_s[sites], left))[:needed]]] = True
    return due
