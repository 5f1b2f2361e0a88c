"""CEFL: useful sites at low cost, and more of them in critical learning periods.

A reconstruction of the first version of arXiv 2310.17972, whose formulas are not public: from its
description (utility-based selection made aware of an arbitrary cost, critical learning periods that
enlarge the number of participants), not from its text. The form U / cost^beta is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from powertrip.selection.checks import FloatArray, IntArray
from powertrip.selection.critical import CriticalSettings, is_critical, participants
from powertrip.selection.outlook import look
from powertrip.selection.round_time import RoundTerms, round_terms
from powertrip.selection.types import Decision, Observation
from powertrip.selection.utility import Cost, round_cost, statistical_utility, take_all, trained
from powertrip.settings import Settings

if TYPE_CHECKING:
    from powertrip.selection.settings import SelectionSettings


class CeflSettings(Settings):
    """What counts as cost, and how much."""

    cost: Cost = "carbon"
    """What a round should cost little of: `carbon`, `energy`, `money` or `time`."""

    beta: float = Field(default=1.0, ge=0, le=10)
    """Exponent of the cost: 0 looks at utility alone."""

    clip: float = Field(default=0.95, gt=0, le=1)
    """Quantile of the utilities above which all sites count the same."""

    critical: CriticalSettings = CriticalSettings()
    """Periods in which more sites take part."""


@dataclass(frozen=True)
class Cefl:
    """The k sites with the highest ``U_i / cost_i^beta``, and more in critical periods."""

    settings: SelectionSettings
    name: ClassVar[str] = "cefl"

    def decide(self, observation: Observation) -> Decision:
        """Choose the members until the next decision.

        Raises
        ------
        NoUsableSite
            If no site has both power and a link.
        """
        s = self.settings.cefl
        terms = round_terms(observation, self.settings.min_delay_s)
        critical = is_critical(observation, s.critical)
        order = by_value(observation, terms, s.cost, s.beta, s.clip)
        k = min(participants(self.settings.k, critical, s.critical.enlarge), order.size)
        chosen = np.zeros(observation.sites, dtype=np.bool_)
        chosen[order[:k]] = True
        outlook = look(observation, self.settings, among=chosen)
        period = "critical learning period" if critical else "no critical learning period"
        reason = f"{k} of {order.size} usable sites by utility over {s.cost}; {period}"
        return take_all(self.name, outlook, reason)


def by_value(
    observation: Observation, terms: RoundTerms, cost: Cost, beta: float, clip: float
) -> IntArray:
    """Order the usable sites by ``U_i / cost_i^beta``, equals by their own round time.

    A site that never trained counts as having the highest loss that is known of any, so that it
    gets its turn; before any is known, all count the same. Where a cost is not known (no site gives
    its carbon intensity, say), it is the same for all.

    Returns
    -------
    Site numbers, best first, shape [number of usable sites].
    """
    value = statistical_utility(
        observation.samples, _hopeful_loss(observation), terms.usable, clip
    ) / (round_cost(observation, terms, cost) ** beta)
    sites = np.flatnonzero(terms.usable)
    return sites[np.lexsort((terms.own_s[sites], -value[sites]))]


def _hopeful_loss(observation: Observation) -> FloatArray:
    known = trained(observation)
    highest = float(observation.loss_rms[known].max()) if known.any() else 1.0
    return np.where(known, observation.loss_rms, highest)
