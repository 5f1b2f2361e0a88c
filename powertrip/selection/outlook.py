"""The sites as one decision sees them: ranked, with the table of what k of them give and cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from powertrip.selection.checks import BoolArray, FloatArray, IntArray
from powertrip.selection.gain import PROJECTORS, GainProjector
from powertrip.selection.ranking import RANKINGS, ranked
from powertrip.selection.round_time import (
    WORK_RULES,
    RoundTerms,
    WorkRule,
    predicted_round_s,
    round_terms,
)
from powertrip.selection.types import Candidate, Decision, Observation

if TYPE_CHECKING:
    from powertrip.selection.settings import SelectionSettings


@dataclass(frozen=True)
class Outlook:
    """Candidates are the prefixes of `order`.

    Parameters
    ----------
    observation
        What the decision is made from.
    terms
        What a round is made of at each site.
    rule, projector
        How work is shared out, and how progress is projected.
    order
        The sites that may be chosen, best first.
    """

    observation: Observation
    terms: RoundTerms
    rule: WorkRule
    projector: GainProjector
    order: IntArray

    def switch_s(self, counts: IntArray) -> FloatArray:
        """Cost of changing to the first k sites, shape [c], seconds.

        That is the rebuild, and nothing where the members stay the same. The model's download by
        newcomers is not added: in the star every round already holds it.
        """
        o = self.observation
        current = o.member_sites
        kept = np.array_equal(np.sort(self.order[: current.size]), np.sort(current))
        return np.where((counts == current.size) & kept, 0.0, o.rebuild_s)

    def table(self, counts: IntArray, current: int) -> tuple[Candidate, ...]:
        """Weigh taking the first k sites: ``eta_k = R gain_k / (R tau_k + switch_k)``.

        Parameters
        ----------
        counts
            The numbers k to weigh, shape [c].
        current
            The number of members with which the recent gains were measured.
        """
        rounds = self.observation.interval_rounds
        times = self.rule.prefix_times(self.terms, self.order[: counts.max()])
        gain = self.projector.project(self.observation, current, counts)
        compute_s = times.compute_s[counts - 1]
        communication_s = times.communication_s[counts - 1]
        round_s = compute_s + communication_s
        switch_s = self.switch_s(counts)
        efficiency = rounds * gain / (rounds * round_s + switch_s)
        return tuple(
            Candidate(
                k=int(k),
                gain=float(gain[i]),
                compute_s=float(compute_s[i]),
                communication_s=float(communication_s[i]),
                round_s=float(round_s[i]),
                switch_s=float(switch_s[i]),
                efficiency=float(efficiency[i]),
            )
            for i, k in enumerate(counts)
        )

    def decision(
        self, policy: str, k: int, table: Iterable[Candidate], reason: str, streak: int = 0
    ) -> Decision:
        """Return the decision for the first k sites."""
        members = self.order[:k]
        work = self.rule.work(self.terms, members)
        return Decision(
            generation=self.observation.generation,
            policy=policy,
            members=tuple(members.tolist()),
            work=work,
            rounds=self.observation.interval_rounds,
            predicted_round_s=predicted_round_s(self.terms, members, work),
            candidates=tuple(replace(line, chosen=line.k == k) for line in table),
            reason=reason,
            streak=streak,
        )


def look(
    observation: Observation,
    settings: SelectionSettings,
    *,
    among: BoolArray | None = None,
    keep_seats: bool = False,
) -> Outlook:
    """Rank the usable sites.

    Parameters
    ----------
    observation, settings
        What is seen, and which ranking, work rule and projector to see it with.
    among
        Rank only these sites, shape [n]; at least one of them must be usable.
    keep_seats
        Whether current members keep their places unless outranked by `settings.seat_margin`.

    Raises
    ------
    NoUsableSite
        If no site has both power and a link.
    """
    terms = round_terms(observation, settings.min_delay_s)
    order = ranked(
        RANKINGS[settings.ranking](terms),
        terms.usable if among is None else terms.usable & among,
        observation.member_sites if keep_seats else None,
        settings.seat_margin,
    )
    return Outlook(
        observation, terms, WORK_RULES[settings.work], PROJECTORS[settings.projector], order
    )
