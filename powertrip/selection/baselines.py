"""Policies to compare with: a fixed count, chance, all, the strongest one, and a radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from powertrip.selection.outlook import Outlook, look
from powertrip.selection.round_time import round_terms
from powertrip.selection.types import Decision, Observation

if TYPE_CHECKING:
    from powertrip.selection.settings import SelectionSettings


def _take(policy: str, outlook: Outlook, k: int, reason: str) -> Decision:
    table = outlook.table(np.array([k]), current=k)
    return outlook.decision(policy, k, table, reason)


@dataclass(frozen=True)
class StaticK:
    """The best k sites of the ranking; members keep their seats as under `powertrip`."""

    settings: SelectionSettings
    name: ClassVar[str] = "static-k"

    def decide(self, observation: Observation) -> Decision:
        """Choose the first k usable sites, or all of them where there are fewer."""
        outlook = look(observation, self.settings, keep_seats=True)
        k = min(self.settings.k, outlook.order.size)
        return _take(self.name, outlook, k, f"the best {k} of {outlook.order.size} usable sites")


@dataclass(frozen=True)
class RandomK:
    """k usable sites by chance, drawn afresh at every decision from (seed, generation)."""

    settings: SelectionSettings
    name: ClassVar[str] = "random-k"

    def decide(self, observation: Observation) -> Decision:
        """Draw k usable sites, or take all of them where there are fewer."""
        usable = round_terms(observation, self.settings.min_delay_s).usable
        sites = np.flatnonzero(usable)
        k = min(self.settings.k, sites.size)
        # A seed sequence takes no negative numbers, a run's seed may be one.
        rng = np.random.default_rng([observation.seed % 2**64, observation.generation])
        drawn = np.zeros_like(usable)
        drawn[rng.choice(sites, k, replace=False)] = True
        outlook = look(observation, self.settings, among=drawn)
        k = outlook.order.size  # fewer where one of them lacks a link to another
        return _take(self.name, outlook, k, f"{k} of {sites.size} usable sites by chance")


@dataclass(frozen=True)
class All:
    """Every usable site."""

    settings: SelectionSettings
    name: ClassVar[str] = "all"

    def decide(self, observation: Observation) -> Decision:
        """Choose every usable site."""
        outlook = look(observation, self.settings)
        k = outlook.order.size
        return _take(self.name, outlook, k, f"all {k} usable sites of {observation.sites}")


@dataclass(frozen=True)
class Centralized:
    """The one usable site with most power."""

    settings: SelectionSettings
    name: ClassVar[str] = "centralized"

    def decide(self, observation: Observation) -> Decision:
        """Choose the usable site with most power; of equals the one of lowest number."""
        usable = round_terms(observation, self.settings.min_delay_s).usable
        site = int(np.argmax(np.where(usable, observation.power_w, -np.inf)))
        outlook = look(observation, self.settings, among=np.arange(observation.sites) == site)
        power_w = observation.power_w[site]
        reason = f"{observation.listed([site])} has most power ({power_w:.6g} W)"
        return _take(self.name, outlook, 1, reason)


@dataclass(frozen=True)
class FixedRadius:
    """Every usable site within a distance of the hub, whose own site is always within it."""

    settings: SelectionSettings
    name: ClassVar[str] = "fixed-radius"

    def decide(self, observation: Observation) -> Decision:
        """Choose the sites within the radius; where none is usable, the nearest that is."""
        usable = round_terms(observation, self.settings.min_delay_s).usable
        distance_m = np.where(np.isnan(observation.distance_m), np.inf, observation.distance_m)
        distance_m[observation.hub] = 0.0
        radius_m = self.settings.radius_m
        within = usable & (distance_m <= radius_m)
        reason = f"{int(within.sum())} usable sites within {radius_m / 1000:.6g} km of the hub"
        if not within.any():
            site = int(np.argmin(np.where(usable, distance_m, np.inf)))
            if not usable[site]:
                site = int(np.argmax(usable))
            within = np.arange(observation.sites) == site
            reason = f"{reason}; {observation.listed([site])} is the nearest that is usable"
        outlook = look(observation, self.settings, among=within)
        return _take(self.name, outlook, outlook.order.size, reason)
