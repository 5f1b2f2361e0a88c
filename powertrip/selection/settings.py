"""Settings of the choice of sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from powertrip.selection.cefl import CeflSettings
from powertrip.selection.ecolearn import EcoLearnSettings
from powertrip.selection.lookahead import LookaheadSettings
from powertrip.selection.objective import ObjectiveSettings
from powertrip.selection.oort import OortSettings
from powertrip.selection.policy import POLICIES
from powertrip.settings import Settings

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "policy": "powertrip",
        "work": "mean",
        "ranking": "power-to-cost",
        "projector": "log",
        "exchange_model": "star",
        "initial_count": 2,
        "window": 2,
        "margin": 0.0,
        "patience": 1,
        "seat_margin": 0.0,
        "replan_threshold": None,
    },
}
"""What stands for settings that are not written, by preset."""


class SelectionSettings(Settings):
    """How the members are chosen.

    Options that the named policy does not read are ignored, so that one file serves every policy.
    """

    preset: Literal["default", "paper"] = "default"
    """What stands for settings that are not written: what works best, or the publication as
    literally as it can be read."""

    policy: str = "together"
    """Which policy chooses the sites."""

    clock: Literal["measured", "modelled"] = "measured"
    """Whether decisions see durations as measured, or as modelled (which makes runs repeatable)."""

    adjustment_interval: int = Field(default=4, ge=1)
    """Rounds between two decisions."""

    work: Literal["straggler", "pooled", "together", "mean", "pooled-paper"] = "straggler"
    """Local work: straggler (the same steps at every site), pooled (a fixed total, by speed) or
    together (each until its deadline; the policy together always does that); mean and pooled-paper
    reproduce the publication's times, sites then work as under straggler."""

    ranking: Literal["round-time", "power-to-cost", "power-to-cost-linear"] = "round-time"
    """Order of the sites: by the round time of each on its own, or by power over delay (with
    weights as exponents, or as factors, which cancel)."""

    projector: Literal["saturating", "log", "oracle"] = "saturating"
    """How the progress of other numbers of sites is projected: saturating (k over k + kappa), log
    (the publication's words: logarithmic diminishing returns) or oracle (as measured, in
    simulations)."""

    exchange_model: Literal["auto", "star", "ring", "mesh"] = "auto"
    """How decisions model the exchange: star (each site with the hub), ring or mesh (the members
    with each other), or auto, which is what exchange.algorithm runs."""

    kappa: float = Field(default=10.0, ge=0.01, le=1e6)
    """Number of sites with which a round brings half of what it could at most, before that is
    estimated (saturating and together)."""

    learn_kappa: bool = True
    """Estimate kappa from trials of half the members' updates, else keep it."""

    h0: float | None = Field(default=None, ge=0.01, le=1e6)
    """Local steps after which another step is worth half, null for 5 with server momentum and 10
    without (together)."""

    objective: ObjectiveSettings = ObjectiveSettings()
    """What is to be small: exponents of time, energy, carbon and money (powertrip, together)."""

    coverage: int | None = Field(default=None, ge=1)
    """Decisions that a reachable site with data stays out at most, null for any (together)."""

    replan_threshold: float | None = Field(default=0.3, gt=0)
    """Change of a site's power or link, as a fraction, that brings the next decision forward; null
    to wait for it always."""

    replan_min_rounds: int = Field(default=1, ge=1)
    """Rounds that a decision holds at least, unless a member is lost."""

    k: int = Field(default=4, ge=1)
    """Number of sites (static-k, random-k, oort, cefl, ecolearn and lookahead)."""

    radius_m: float = Field(default=1_609_344.0, gt=0)
    """Distance from the hub in metres within which sites take part (fixed-radius)."""

    window: int | None = Field(default=None, ge=1)
    """How many sites more or fewer one decision may change to; null for anything from half to
    twice the present number, at least 2 more or fewer (powertrip)."""

    margin: float = Field(default=0.03, ge=0)
    """How much more efficient another plan must be, as a fraction (powertrip and together)."""

    patience: int = Field(default=2, ge=1)
    """Decisions in a row in which the same move must be better before it is made (powertrip)."""

    seat_margin: float = Field(default=0.1, ge=0)
    """How much better ranked, as a fraction, a newcomer must be (powertrip, static-k
    and together)."""

    initial_count: int | None = Field(default=None, ge=1)
    """Number of sites at the start, null for a quarter of them but at least 2 (powertrip)."""

    min_members: int = Field(default=1, ge=1)
    """Smallest number of sites, as far as that many are usable (powertrip and together). One alone
    has only its own data, and no halves to learn kappa from: write 2 or more where the hub's own
    link is free and the others are far."""

    min_delay_s: float = Field(default=0.01, ge=1e-6, le=1e6)
    """Shortest delay of an exchange in seconds that any site, even the hub's, is charged."""

    oort: OortSettings = OortSettings()
    """Exploration, penalty and pacer (oort)."""

    cefl: CeflSettings = CeflSettings()
    """Cost, its weight, and critical learning periods (cefl)."""

    ecolearn: EcoLearnSettings = EcoLearnSettings()
    """The weight of carbon, the start, and spares (ecolearn)."""

    lookahead: LookaheadSettings = LookaheadSettings()
    """The forecast of power (lookahead)."""

    @property
    def tries_halves(self) -> bool:
        """Whether the halves' updates are worth trying: decisions depend on an estimated kappa."""
        reads = self.policy == "together" or (
            self.policy == "powertrip" and self.projector == "saturating"
        )
        return self.learn_kappa and reads

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        """Let what is written win over the preset, and the preset over the plain values."""
        preset = given.get("preset") if isinstance(given, Mapping) else None
        if isinstance(preset, str) and preset in PRESETS:
            return PRESETS[preset] | dict(given)
        return given

    @field_validator("policy")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in POLICIES:
            raise ValueError(f"unknown policy {name!r}; write one of: {', '.join(POLICIES)}")
        return name
