"""The sites' measurements of their links, put together to one picture of all links."""

from __future__ import annotations

import math

from powertrip.coordination.membership import HUB
from powertrip.coordination.messages import Probed
from powertrip.telemetry import events
from powertrip.world.world import World


class Surveys:
    """Collects what the sites measure until all of them have measured as many times.

    Parameters
    ----------
    world
        The names, and what the links should be like.
    sites
        How many sites measure.
    """

    def __init__(self, world: World, sites: int) -> None:
        self._world, self._sites = world, sites
        self._open: dict[int, dict[int, Probed]] = {}

    def take(self, probed: Probed, time_s: float) -> events.LinksMeasured | None:
        """Take in one site's measurement.

        Parameters
        ----------
        probed
            What it has measured.
        time_s
            The training clock.

        Returns
        -------
        events.LinksMeasured or None
            All links, when it was the last one to come.
        """
        survey = self._open.setdefault(probed.number, {})
        survey[probed.site] = probed
        if len(survey) < self._sites:
            return None
        for number in [number for number in self._open if number <= probed.number]:
            del self._open[number]
        return self._event(survey, time_s, first=probed.number == 1)

    def _event(
        self, survey: dict[int, Probed], time_s: float, *, first: bool
    ) -> events.LinksMeasured:
        names = self._world.names
        rtt_s, bandwidth = self._world.rtt_s, self._world.bandwidth
        rows = [
            events.LinkRow(
                src=names[src],
                dst=names[dst],
                rtt_s=probed.rtt_s[dst],
                bandwidth=probed.bandwidth[dst],
                model_rtt_s=float(rtt_s[src, dst]),
                model_bandwidth=float(bandwidth[src, dst]),
            )
            for src, probed in sorted(survey.items())
            for dst in range(len(names))
            if dst != src and bandwidth[src, dst] > 0 and math.isfinite(rtt_s[src, dst])
        ]
        return events.LinksMeasured(time_s=time_s, hub=names[HUB], links=tuple(rows), first=first)
