"""Who is who: ranks and sites, and who gives the model to whom when a generation begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from powertrip.coordination.messages import Transfer
from powertrip.errors import ConfigError

HUB = 0
"""The site beside which the coordinator runs: the star model is centred on it."""


def site_of_rank(rank: int) -> int:
    """The site that a rank works for: one rank is one site."""
    return rank


def check_world_size(processes: int, sites: int) -> None:
    """See that torchrun has started as many processes as the scenario has sites.

    Raises
    ------
    ConfigError
        It has not; the message says both ways out.
    """
    if processes != sites:
        fewer = f", or use the first {processes} of them (sites.count={processes})"
        raise ConfigError(
            [
                f"sites: there are {sites} of them, but {processes} processes were started; "
                f"start {sites} (--nproc_per_node={sites} on one machine)"
                + (fewer if processes < sites else "")
            ],
            "the scenario",
        )


def plan_transfers(
    members: Sequence[int],
    holders: Collection[int],
    seconds: Callable[[int, int], float] | None = None,
) -> tuple[Transfer, ...]:
    """Pair every newcomer with a site that holds the current model.

    Parameters
    ----------
    members
        The new generation, in order.
    holders
        Sites that hold the current model, members or not.
    seconds
        What a transfer from a donor to a newcomer takes; None where that is not to count.

    Returns
    -------
    tuple of Transfer
        Each newcomer, in order, with the member from which it has the model first, after what that
        one has to give to others already; without `seconds` they are spread evenly. Where no member
        holds the model, one holder gives it to all: the nearest to them, or the first.

    Raises
    ------
    ValueError
        Nobody holds the model.
    """
    if not holders:
        raise ValueError("no site holds the current model")
    newcomers = [site for site in members if site not in holders]
    donors = [site for site in members if site in holders]
    cost = seconds or (lambda donor, newcomer: 1.0)
    if not donors:
        donors = [min(sorted(holders), key=lambda donor: sum(cost(donor, n) for n in newcomers))]
    busy_s = dict.fromkeys(donors, 0.0)
    transfers = []
    for newcomer in newcomers:
        ready_s = {donor: busy_s[donor] + cost(donor, newcomer) for donor in donors}
        donor = min(donors, key=lambda donor: ready_s[donor])
        busy_s[donor] = ready_s[donor]
        transfers.append(Transfer(donor=donor, newcomer=newcomer))
    return tuple(transfers)
