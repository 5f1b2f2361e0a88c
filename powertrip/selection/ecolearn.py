"""EcoLearn: useful sites with clean electricity, more at the start, and spares that are cheap.

A reconstruction of the second version of arXiv 2310.17972, whose formulas are not public: from its
description (high utility and low carbon, more participants in the first rounds, over-provisioning
against stragglers that accounts for carbon), not from its text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from powertrip.selection.cefl import by_value
from powertrip.selection.checks import FloatArray, IntArray
from powertrip.selection.critical import participants
from powertrip.selection.outlook import look
from powertrip.selection.round_time import RoundTerms, round_terms
from powertrip.selection.types import Decision, Observation
from powertrip.selection.utility import round_cost, take_all
from powertrip.settings import Settings

if TYPE_CHECKING:
    from powertrip.selection.settings import SelectionSettings


class EcoLearnSettings(Settings):
    """How much carbon counts, how long the start is, and how many spares there are."""

    beta: float = Field(default=1.0, ge=0, le=10)
    """Exponent of the carbon of a round: 0 looks at utility alone."""

    clip: float = Field(default=0.95, gt=0, le=1)
    """Quantile of the utilities above which all sites count the same."""

    early_rounds: int = Field(default=20, ge=0)
    """Number of rounds at the start in which more sites take part."""

    enlarge: float = Field(default=2.0, ge=1, le=1e6)
    """How many times more sites take part in these rounds."""

    spares: float = Field(default=0.3, ge=0, le=1e6)
    """Share of further sites that take part in case others fail or fall behind, at most."""

    spare_carbon: float = Field(default=1.0, ge=0)
    """Most carbon of a spare's round, in means of those of the sites chosen first."""


@dataclass(frozen=True)
class EcoLearn:
    """The k sites with the highest ``U_i / carbon_i^beta``, more at first, and clean spares."""

    settings: SelectionSettings
    name: ClassVar[str] = "ecolearn"

    def decide(self, observation: Observation) -> Decision:
        """Choose the members until the next decision.

        Raises
        ------
        NoUsableSite
            If no site has both power and a link.
        """
        s = self.settings.ecolearn
        terms = round_terms(observation, self.settings.min_delay_s)
        early = observation.round <= s.early_rounds
        order = by_value(observation, terms, "carbon", s.beta, s.clip)
        k = min(participants(self.settings.k, early, s.enlarge), order.size)
        carbon = round_cost(observation, terms, "carbon")
        spares = self._spares(terms, carbon, order, k)
        chosen = np.zeros(observation.sites, dtype=np.bool_)
        chosen[order[:k]] = True
        chosen[spares] = True
        outlook = look(observation, self.settings, among=chosen)
        phase = f"the first {s.early_rounds} rounds" if early else "after the start"
        reason = (
            f"{k} of {order.size} usable sites by utility over carbon ({phase}), and "
            f"{spares.size} spares"
        )
        return take_all(self.name, outlook, reason)

    def _spares(self, terms: RoundTerms, carbon: FloatArray, order: IntArray, k: int) -> IntArray:
        """Return the cleanest of the sites left that would not make the round longer.

        Spares over the limit of carbon are left out: what they would do is likely to be in vain.
        """
        s = self.settings.ecolearn
        chosen, left = order[:k], order[k:]
        in_time = terms.own_s[left] <= terms.own_s[chosen].max()
        clean = carbon[left] <= s.spare_carbon * carbon[chosen].mean()
        fit = left[in_time & clean]
        cleanest = np.lexsort((terms.own_s[fit], carbon[fit]))
        spares: IntArray = fit[cleanest[: math.ceil(s.spares * k)]]
        return spares
