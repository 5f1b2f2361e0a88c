"""Settings of the choice of sites."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from powertrip.selection.policy import POLICIES
from powertrip.settings import Settings


class SelectionSettings(Settings):
    """How the members are chosen.

    Options that the named policy does not read are ignored, so that one file serves every policy.
    """

    policy: str = "powertrip"
    """Which policy chooses the sites."""

    clock: Literal["measured", "modelled"] = "measured"
    """Whether decisions see durations as measured, or as modelled (which makes runs repeatable)."""

    adjustment_interval: int = Field(default=4, ge=1)
    """Rounds between two decisions."""

    work: Literal["straggler", "pooled"] = "straggler"
    """Local work: straggler (the same steps at every site) or pooled (a fixed total, by speed)."""

    ranking: Literal["round-time", "power-to-cost"] = "round-time"
    """Order of the sites: by the round time of each on its own, or by power over delay."""

    projector: Literal["log"] = "log"
    """How the progress of other numbers of sites is projected."""

    k: int = Field(default=4, ge=1)
    """Number of sites (static-k and random-k)."""

    radius_m: float = Field(default=1_609_344.0, gt=0)
    """Distance from the hub in metres within which sites take part (fixed-radius)."""

    window: int = Field(default=2, ge=1)
    """How many sites more or fewer one decision may change to (powertrip)."""

    margin: float = Field(default=0.03, ge=0)
    """How much more efficient another number of sites must be, as a fraction (powertrip)."""

    patience: int = Field(default=2, ge=1)
    """Decisions in a row in which the same move must be better before it is made (powertrip)."""

    seat_margin: float = Field(default=0.1, ge=0)
    """How much better ranked, as a fraction, a newcomer must be (powertrip and static-k)."""

    initial_count: int | None = Field(default=None, ge=1)
    """Number of sites at the start, null for a quarter of them but at least 2 (powertrip)."""

    min_members: int = Field(default=1, ge=1)
    """Smallest number of sites, as far as that many are usable (powertrip)."""

    min_delay_s: float = Field(default=0.01, ge=1e-6, le=1e6)
    """Shortest delay of an exchange in seconds that any site, even the hub's, is charged."""

    @field_validator("policy")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in POLICIES:
            raise ValueError(f"unknown policy {name!r}; write one of: {', '.join(POLICIES)}")
        return name
