"""What is to be small in the end: time, energy, carbon, money, or a product of their powers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from powertrip.selection.checks import FloatArray
from powertrip.selection.types import Observation
from powertrip.settings import Settings

_LEAST = 1e-12
"""Where something is free, so that nothing is divided by 0."""


class ObjectiveSettings(Settings):
    """The goal is the smallest ``time^a energy^b carbon^c money^d``."""

    time: float = Field(default=1.0, ge=0, le=10)
    """Exponent a of the time."""
    energy: float = Field(default=0.0, ge=0, le=10)
    """Exponent b of the energy that training draws."""
    carbon: float = Field(default=0.0, ge=0, le=10)
    """Exponent c of the grams CO2e that come with the energy."""
    money: float = Field(default=0.0, ge=0, le=10)
    """Exponent d of what the energy costs."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.time + self.energy + self.carbon + self.money < 1e-3:
            raise ValueError("no exponent is above 0; write 1 for what shall be small, e.g. time")
        return self


@dataclass(frozen=True)
class Objective:
    """Prices rounds for one decision.

    The number of rounds falls as their progress rises, and multiplies time, energy, carbon and
    money alike: the exponents are divided by their sum, so that progress over the price of a round
    orders candidates as the product over the whole training does.

    Parameters
    ----------
    exponents
        Of the time and of each row of `per_s`; their sum is 1.
    per_s
        What a second of training costs at each site, one row for each of energy, carbon and
        money that counts, shape [m, n].
    """

    exponents: FloatArray
    per_s: FloatArray

    @classmethod
    def of(cls, settings: ObjectiveSettings, observation: Observation) -> Objective:
        """Return the objective at the prices of `observation`.

        What costs nothing at any site counts for nothing; if that leaves nothing, time counts.
        """
        o = observation
        given = np.array([settings.time, settings.energy, settings.carbon, settings.money])
        rows = np.stack(
            [o.used_power_w, o.used_power_w * o.carbon_g_per_j, o.used_power_w * o.price_per_j]
        )
        counts = (given[1:] > 0) & rows.any(axis=1)
        exponents = np.r_[given[0], given[1:][counts]]
        if not exponents.any():
            exponents[0] = 1.0
        return cls(exponents / exponents.sum(), rows[counts])

    @property
    def only_time(self) -> bool:
        """Whether nothing but the time counts."""
        return not len(self.per_s)

    def price(self, seconds: FloatArray, drawn: FloatArray) -> FloatArray:
        """Return the price of rounds.

        Parameters
        ----------
        seconds
            Their lengths, shape [c].
        drawn
            What they cost by each row of `per_s`, shape [m, c].

        Returns
        -------
        Positive, shape [c].
        """
        if self.only_time:
            return np.maximum(seconds, _LEAST)
        parts = np.maximum(np.vstack([seconds, drawn]), _LEAST)
        return np.asarray(np.prod(parts ** self.exponents[:, None], axis=0))

    def site_price(self, local_s: FloatArray) -> FloatArray:
        """Return what a site's own part of a round costs beside the time, shape [n]."""
        parts = np.maximum(self.per_s * local_s, _LEAST)
        return np.asarray(np.prod(parts ** self.exponents[1:, None], axis=0))
