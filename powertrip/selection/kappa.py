"""How many members it takes until more of them bring little, estimated while training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from powertrip.selection import checks
from powertrip.selection.checks import FloatArray
from powertrip.selection.decision import MOST
from powertrip.selection.errors import RecordError

LOWEST, HIGHEST = 3.0, 40.0
"""Between these the estimate is clipped; beyond them decisions hardly differ."""

_SPREAD = 1.0  # of the prior, in powers of e
_DEGREES = 3.0  # of freedom of Student's distribution: few, so that an outlier counts for little
_MEMORY = 0.99  # what a measurement still counts for after another one


def prior_h0(momentum: float) -> float:
    """Local steps after which another is worth half: 5 with server momentum, 10 without."""
    return 5.0 if momentum > 0 else 10.0


class KappaEstimator:
    """Learns kappa of ``gain(k) ~ k/(k+kappa)`` from the members' updates, without exploring.

    The average of m of a round's k updates is tried beside that of all of them. Then
    ``r = gain_m/gain_k = m (k+kappa) / (k (m+kappa))``, so that ``kappa = m k (1-r) / (r k - m)``:
    a single r is far too noisy for that, which has a pole where noise alone remains. Instead every
    kappa on a logarithmic grid is weighed by how well it explains all pairs of gains so far, with
    an unknown level of noise; the estimate is the weighted mean of ``ln kappa``.

    A pair counts by its direction, the angle whose tangent is r. Near r = 1 a difference of angles
    is half of one of ``ln r``, and an angle has meaning where a gain is negative: a half whose
    average does harm while that of all helps says that many are needed. Such pairs are most of
    those towards the plateau; without them kappa would be learned from the lucky ones.

    Parameters
    ----------
    prior
        What kappa is taken for before anything is measured.
    """

    def __init__(self, prior: float = 10.0) -> None:
        self._kappa = np.geomspace(0.5, 250.0, 64)
        self._noise = np.geomspace(0.01, 1.0, 10)[:, None]
        far = np.log(self._kappa / prior) / _SPREAD
        self._prior: FloatArray = np.broadcast_to(-0.5 * far**2, (10, 64))
        self._evidence = np.zeros((10, 64))

    def learn(self, members: int, part: float, gain_part: float, gain_all: float) -> bool:
        """Take in one trial.

        Parameters
        ----------
        members, part
            Number k of updates, and m, of how many the average was tried; best are both halves,
            the mean of their numbers, and the mean of their gains.
        gain_part, gain_all
            Decrease of the loss by that average, and by the average of all.

        Returns
        -------
        Whether it said anything: it does not where both gains are 0, where one is no number, or
        where m is not below k.
        """
        size = math.hypot(gain_part, gain_all)
        if not (0 < part < members and 0 < size < math.inf):
            return False
        ratio = part * (members + self._kappa) / (members * (part + self._kappa))
        off = 2 * (math.atan2(gain_part, gain_all) - np.arctan(ratio)) / self._noise
        likely = -(_DEGREES + 1) / 2 * np.log1p(off**2 / _DEGREES) - np.log(self._noise)
        self._evidence = _MEMORY * self._evidence + likely
        return True

    @property
    def kappa(self) -> float:
        """The estimate, from 3 to 40."""
        return float(np.clip(math.exp(self._moments()[0]), LOWEST, HIGHEST))

    @property
    def factor(self) -> float:
        """By what factor the estimate may be off, about two times in three; at least 1."""
        return math.exp(self._moments()[1])

    def to_json(self) -> dict[str, Any]:
        """What was learned, as a strict JSON object."""
        return {"evidence": checks.to_json_list(self._evidence)}

    def load_json(self, obj: object) -> None:
        """Go on from what `to_json` gave; raises `RecordError`."""
        rows = checks.json_object("kappa", obj, ["evidence"])["evidence"]
        shape = self._evidence.shape
        evidence = checks.table("kappa.evidence", checks.from_json_list("kappa.evidence", rows))
        if evidence.shape != shape:
            raise RecordError(f"kappa.evidence: expected shape {shape}, got {evidence.shape}")
        checks.each_within("kappa.evidence", evidence, -MOST, MOST)
        self._evidence = evidence

    def _moments(self) -> tuple[float, float]:
        log_weights = self._prior + self._evidence
        weights = np.exp(log_weights - log_weights.max()).sum(axis=0)
        weights /= weights.sum()
        log_kappa = np.log(self._kappa)
        mean = float(weights @ log_kappa)
        return mean, math.sqrt(float(weights @ (log_kappa - mean) ** 2))
