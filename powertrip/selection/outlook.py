"""The sites as one decision sees them: ranked, with the table of what k of them give and cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from powertrip.selection.checks import BoolArray, FloatArray, IntArray
from powertrip.selection.gain import PROJECTORS, GainProjector
from powertrip.selection.objective import Objective
from powertrip.selection.ranking import RANKINGS, ranked
from powertrip.selection.round_time import RoundTerms, predicted_round_s, round_terms
from powertrip.selection.types import Candidate, Decision, Observation
from powertrip.selection.work_rules import WORK_RULES, WorkRule

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
    rule, projector, objective
        How work is shared out, how progress is projected, and what a round costs.
    order
        The sites that may be chosen, best first.
    """

    observation: Observation
    terms: RoundTerms
    rule: WorkRule
    projector: GainProjector
    objective: Objective
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

        Under another objective than the time, the price of R rounds stands in the place of their
        length; a member draws its power in the computing part of a round.

        Parameters
        ----------
        counts
            The numbers k to weigh, shape [c].
        current
            The number of members with which the recent gains were measured.
        """
        rounds = self.observation.interval_rounds
        considered = self.order[: max(int(counts.max()), current)]
        times = self.rule.prefix_times(self.terms, considered)
        gain = self.projector.project(self.observation, current, counts)
        if times.worth is not None:
            # The gains were measured with the work of the current round.
            now = times.worth[min(current, considered.size) - 1]
            gain = gain * (times.worth[counts - 1] / now)
        compute_s = times.compute_s[counts - 1]
        communication_s = times.communication_s[counts - 1]
        round_s = compute_s + communication_s
        switch_s = self.switch_s(counts)
        per_s = np.cumsum(self.objective.per_s[:, considered], axis=1)[:, counts - 1]
        price = self.objective.price(rounds * round_s + switch_s, rounds * compute_s * per_s)
        efficiency = rounds * gain / price
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
        observation=observation,
        terms=terms,
        rule=WORK_RULES[settings.work],
        projector=PROJECTORS[settings.projector],
        objective=Objective.of(settings.objective, observation),
        order=order if terms.pairs is None else terms.pairs.connected(order),
    )
