"""How long a round takes by the model: what `selection.clock: modelled` counts as time."""

from __future__ import annotations

import math

from powertrip.config import Config
from powertrip.runtime.membership import HUB
from powertrip.runtime.messages import Begin
from powertrip.selection.round_time import star_delays_s
from powertrip.world.world import World


class RoundModel:
    """Durations from the world's facts alone; equal for every process of a run.

    Parameters
    ----------
    world
        Power and links.
    config
        The batch size, and the shortest delay of an exchange.
    update_bytes
        Size of one update.
    """

    def __init__(self, world: World, config: Config, *, update_bytes: int) -> None:
        self._world = world
        self._batch_size = config.training.batch_size
        star = world.star(HUB)
        self._delay_s = star_delays_s(
            star.rtt_s,
            star.up,
            star.down,
            update_bytes=update_bytes,
            min_delay_s=config.selection.min_delay_s,
        )

    def local_s(self, begin: Begin, site: int, start_s: float) -> float:
        """Seconds of local training of one member in a round that starts at `start_s`."""
        place = begin.members.index(site)
        if begin.steps is not None:
            return self._world.seconds_for(site, start_s, begin.steps[place] * self._batch_size)
        assert begin.deadline_s is not None
        return begin.deadline_s[place]

    def stalled(self, begin: Begin, start_s: float) -> list[str]:
        """Names of the members that never finish a round that starts at `start_s`."""
        return [
            self._world.names[site]
            for site in begin.members
            if not math.isfinite(self.local_s(begin, site, start_s))
        ]

    def round_s(self, begin: Begin, start_s: float) -> float:
        """Seconds of one round: the slowest member's training, then the exchange."""
        return max(
            self.local_s(begin, site, start_s) + float(self._delay_s[site])
            for site in begin.members
        )
