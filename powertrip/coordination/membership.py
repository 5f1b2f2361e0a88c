"""Who is who: ranks and sites, and who gives the model to whom when a generation begins."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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


def plan_transfers(members: Sequence[int], holders: Collection[int]) -> tuple[Transfer, ...]:
    """Pair every newcomer with a site that holds the current model.

    Parameters
    ----------
    members
        The new generation, in order.
    holders
        Sites that hold the current model, members or not.

    Returns
    -------
    tuple of Transfer
        Newcomers spread evenly over the members that hold the model; where no member does, over
        the first holder alone.

    Raises
    ------
    ValueError
        Nobody holds the model.
    """
    if not holders:
        raise ValueError("no site holds the current model")
    donors = [site for site in members if site in holders] or [min(holders)]
    newcomers = [site for site in members if site not in holders]
    return tuple(
        Transfer(donor=donors[i % len(donors)], newcomer=site) for i, site in enumerate(newcomers)
    )
