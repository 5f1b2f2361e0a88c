"""Oort: sites whose data is worth most and that are fast enough, with room for unseen ones.

Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from powertrip.selection.checks import FloatArray, IntArray
from powertrip.selection.outlook import look
from powertrip.selection.round_time import RoundTerms, round_terms
from powertrip.selection.types import Decision, Observation
from powertrip.selection.utility import draw, statistical_utility, take_all, trained
from powertrip.settings import Settings

if TYPE_CHECKING:
    from powertrip.selection.settings import SelectionSettings


class OortSettings(Settings):
    """The publication's defaults, and where it names none, those of the authors'
    own FedScale (start, pacer_step)."""

    alpha: float = Field(default=2.0, ge=0, le=100)
    """Exponent of the penalty for sites that are slower than preferred."""

    confidence: float = Field(default=0.1, ge=0)
    """Weight of the confidence term, which favours sites not seen for long."""

    clip: float = Field(default=0.95, gt=0, le=1)
    """Quantile of the utilities above which all sites count the same."""

    cutoff: float = Field(default=0.95, ge=0, le=1)
    """Share of the utility of the last site needed, down to which others are drawn from too."""

    exploration: float = Field(default=0.9, ge=0, le=1)
    """Share of unseen sites among the members, at the start."""

    exploration_decay: float = Field(default=0.98, gt=0, le=1)
    """What a round leaves of that share."""

    exploration_min: float = Field(default=0.2, ge=0, le=1)
    """Smallest share of unseen sites, as long as there are any."""

    start: float = Field(default=30.0, ge=0, le=100)
    """Percentile of the sites' round times that is the preferred one at the start."""

    pacer_window: int = Field(default=20, ge=1)
    """Rounds over which utility is summed, to see whether slower sites are needed."""

    pacer_step: float = Field(default=5.0, ge=0, le=100)
    """Percentile points by which the preferred round time then rises."""


def exploration(settings: OortSettings, round_: int) -> float:
    """Return the share of unseen sites in a round, counted from 1: 0.9, decaying to 0.2."""
    share = settings.exploration * settings.exploration_decay ** max(round_ - 1, 0)
    return max(share, settings.exploration_min)


def preferred_percentile(settings: OortSettings, update_norms: FloatArray) -> float:
    """Return the pacer's percentile of the round times, at most 100.

    It rises by a step whenever the utility of a window of rounds is below that of the window
    before it: the fast sites have little left to give. A round's utility is the norm of its update
    here. Oort's own is the members' losses, which stand in for the gradient norm because that is
    dear to know on phones; update norms are known anyway, and with all of them in the observation
    the pacer needs no memory.

    Parameters
    ----------
    update_norms
        One a round, from the first round on, shape [r].
    """
    windows = update_norms.size // settings.pacer_window
    sums = (
        update_norms[: windows * settings.pacer_window]
        .reshape(-1, settings.pacer_window)
        .sum(axis=1)
    )
    falls = int(np.count_nonzero(np.diff(sums) < 0))
    return min(settings.start + falls * settings.pacer_step, 100.0)


@dataclass(frozen=True)
class Oort:
    """k sites: a share of unseen ones by speed, the others by utility; drawn at each decision."""

    settings: SelectionSettings
    name: ClassVar[str] = "oort"

    def decide(self, observation: Observation) -> Decision:
        """Choose the members until the next decision.

        Raises
        ------
        NoUsableSite
            If no site has both power and a link.
        """
        o, s = observation, self.settings.oort
        terms = round_terms(o, self.settings.min_delay_s)
        seen = trained(o)
        unseen = np.flatnonzero(terms.usable & ~seen)
        known = np.flatnonzero(terms.usable & seen)
        k = min(self.settings.k, unseen.size + known.size)
        share = exploration(s, o.round)
        exploit = min(k - min(int(share * k), unseen.size), known.size)

        duration_s = np.maximum(np.where(np.isnan(o.own_round_s), terms.own_s, o.own_round_s), 1e-9)
        percentile = preferred_percentile(s, o.update_norms)
        preferred_s = _at_percentile(duration_s[terms.usable], percentile)
        score = self._score(o, terms, duration_s, preferred_s)[known]

        rng = np.random.default_rng([o.seed % 2**64, o.generation])
        chosen = np.zeros(o.sites, dtype=np.bool_)
        chosen[known[_within_cutoff(score, exploit, s.cutoff, rng)]] = True
        chosen[unseen[draw(1 / duration_s[unseen], k - exploit, rng)]] = True

        outlook = look(o, self.settings, among=chosen)
        reason = (
            f"{exploit} of {known.size} seen sites by utility, {k - exploit} of {unseen.size} "
            f"unseen by speed; preferred round {preferred_s:.6g} s (percentile {percentile:g})"
        )
        return take_all(self.name, outlook, reason)

    def _score(
        self, o: Observation, terms: RoundTerms, duration_s: FloatArray, preferred_s: float
    ) -> FloatArray:
        """Return ``(U_i + sqrt(0.1 ln R / L_i)) (T / t_i)^alpha``, where the site has trained.

        The last factor counts only where t_i is above T. U is relative to its clip, so that the
        confidence term means the same for every size of data and scale of loss.
        """
        s, seen = self.settings.oort, trained(o)
        utility = statistical_utility(o.samples, o.loss_rms, terms.usable & seen, s.clip)
        uncertain = s.confidence * math.log(max(o.round, 1)) / np.maximum(o.last_seen, 1)
        penalty = np.minimum(preferred_s / duration_s, 1.0) ** s.alpha
        return np.asarray((utility + np.sqrt(uncertain)) * penalty)


def _at_percentile(duration_s: FloatArray, percentile: float) -> float:
    """Return the preferred round time; infinite, which no site exceeds, at 100."""
    if percentile >= 100:
        return math.inf
    return float(np.quantile(duration_s, percentile / 100, method="higher"))


def _within_cutoff(
    score: FloatArray, count: int, cutoff: float, rng: np.random.Generator
) -> IntArray:
    """Draw `count` of those not below the cut-off, by score; indices into `score`."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    lowest = cutoff * np.partition(score, score.size - count)[score.size - count]
    pool = np.flatnonzero(score >= lowest)
    return pool[draw(score[pool], count, rng)]
