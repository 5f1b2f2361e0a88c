"""Whether the world has changed so much that the next decision should not be waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from powertrip.selection.errors import NoUsableSite
from powertrip.selection.round_time import round_terms
from powertrip.selection.types import Observation

if TYPE_CHECKING:
    from powertrip.selection.settings import SelectionSettings


def reason_to_replan(
    made_from: Observation, now: Observation, settings: SelectionSettings
) -> str | None:
    """Return why a new decision is due, in words; None where it is not.

    It is due when a member has lost power or link; and, once the decision has held for
    `settings.replan_min_rounds`, when a member's speed or delay has changed by more than
    `settings.replan_threshold` either way (in a ring or mesh the exchange among all of them, too),
    or that of another site has improved as much and made its own round shorter than the slowest
    member's.

    Parameters
    ----------
    made_from
        What the standing decision was made from.
    now
        What is seen now, with the members of that decision, and the round to come.
    settings
        The limits.
    """
    if settings.replan_threshold is None or not now.members:
        return None
    try:
        before = round_terms(made_from, settings.min_delay_s)
        after = round_terms(now, settings.min_delay_s)
    except NoUsableSite:
        return None  # no decision can be made
    members = now.member_sites
    lost = members[~after.usable[members]].tolist()
    if lost:
        return f"{now.listed(lost)} lost power or link"
    if now.round - made_from.round < settings.replan_min_rounds:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        faster = np.log(before.step_s / after.step_s)  # of speed; positive is better
        nearer = np.log(before.delay_s / after.delay_s)
    faster, nearer = np.nan_to_num(faster, posinf=np.inf), np.nan_to_num(nearer, posinf=np.inf)
    limit = np.log1p(settings.replan_threshold)
    watched = np.maximum(faster, nearer) > limit
    watched &= after.usable & (after.own_s < after.own_s[members].max())
    watched[members] = np.maximum(np.abs(faster), np.abs(nearer))[members] > limit
    changed = np.flatnonzero(watched).tolist()
    percent = f"{100 * settings.replan_threshold:g} %"
    if changed:
        return f"power or link of {now.listed(changed)} has changed by more than {percent}"
    if before.pairs is not None and after.pairs is not None:
        slower = np.log(after.pairs.set_s(members) / before.pairs.set_s(members))
        if abs(slower) > limit:
            return f"the exchange among the members has changed by more than {percent}"
    return None
