"""The plan of the emulated links: those of the scenario's network."""

from __future__ import annotations

import math
from typing import Any

from netem.errors import PlanError
from netem.plan import Plan
from powertrip.errors import ConfigError
from powertrip.runtime.settings import EmulationSettings
from powertrip.world.world import World

_FASTEST_BPS = 30e9  # beyond which sch_netem has no number, and no machine emulates a difference


def link_plan(settings: EmulationSettings, world: World) -> Plan:
    """Plan a link for every ordered pair of sites.

    The delay each way is half of that direction's round-trip time, so a pair whose two entries
    differ gets their mean.

    Parameters
    ----------
    settings
        Jitter, loss, schedule and addresses.
    world
        Its network, the scale of the bandwidths in it.

    Raises
    ------
    ConfigError
        The emulator cannot play such links, or the schedule does not fit the sites.
    """
    count = len(world.names)
    links: list[dict[str, Any]] = []
    for src in range(count):
        for dst in range(count):
            rtt_s, rate_bps = float(world.rtt_s[src, dst]), 8 * float(world.bandwidth[src, dst])
            if src == dst:
                continue
            link: dict[str, Any] = {"src": src, "dst": dst, "both": False}
            if rate_bps > 0 and math.isfinite(rtt_s):
                link["delay_s"] = rtt_s / 2
                link["jitter_s"] = min(settings.jitter_s, rtt_s / 2)
                link["loss"] = settings.loss
                link["rate_bps"] = rate_bps if rate_bps <= _FASTEST_BPS else None
            else:
                link["up"] = False
            links.append(link)
    plan = {
        "sites": world.names,
        "links": links,
        "schedule": settings.schedule,
        "subnet": settings.subnet,
    }
    try:
        return Plan.parse(plan, "the emulated links")
    except PlanError as error:
        raise ConfigError(error.problems, "the emulated links (network, emulation)") from error
