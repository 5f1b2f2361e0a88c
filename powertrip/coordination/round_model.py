"""How long a round takes by the model: what `selection.clock: modelled` counts as time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from powertrip.config import Config
from powertrip.coordination.membership import HUB
from powertrip.coordination.messages import Begin
from powertrip.selection.exchange_time import Exchange
from powertrip.selection.round_parts import round_of
from powertrip.selection.types import ExchangeModel
from powertrip.world.network import Star
from powertrip.world.world import World


def exchange_model(config: Config, backend: str) -> ExchangeModel:
    """Return the model of the exchange that decisions use; `backend` is what the sites run."""
    if config.selection.exchange_model != "auto":
        return config.selection.exchange_model
    if config.exchange.algorithm != "auto":
        return config.exchange.algorithm
    return "ring" if backend == "nccl" else "mesh"


class RoundModel:
    """Durations from the world's facts alone; equal for every process of a run.

    Parameters
    ----------
    world
        Power and links.
    config
        The batch size, and how an exchange is modelled.
    update_bytes
        Size of one update.
    backend
        Library of the collectives, which the model of the exchange may follow.
    """

    def __init__(
        self, world: World, config: Config, *, update_bytes: int, backend: str = "gloo"
    ) -> None:
        self._world = world
        self._batch_size = config.training.batch_size
        self._update_bytes = update_bytes
        self._min_delay_s = config.selection.min_delay_s
        self._overlap = config.exchange.overlap
        self.exchange_model = exchange_model(config, backend)
        self._star = world.star(HUB)
        alone = self.exchange_model == "star"
        between = None if alone else (world.rtt_s, world.bandwidth)
        self._exchange = self.exchange(self._star, between)

    def exchange(
        self, star: Star, between: tuple[NDArray[np.float64], NDArray[np.float64]] | None
    ) -> Exchange:
        """The exchange over given links.

        Parameters
        ----------
        star
            To and from the hub.
        between
            Round-trip times and bandwidths, [n, n]; None where the model is the star.
        """
        return Exchange.of(
            self.exchange_model,
            (star.rtt_s, star.up, star.down),
            between,
            update_bytes=self._update_bytes,
            min_delay_s=self._min_delay_s,
        )

    def exchanges_s(self, members: Sequence[int]) -> NDArray[np.float64]:
        """Seconds of the exchange of each member, once it has trained; ``[k]``."""
        return self._exchange.delays_s(members)

    def farthest_s(self, members: Sequence[int]) -> float:
        """The longest round trip between members in seconds; in a star, to the hub."""
        sites = list(members)
        if self.exchange_model == "star":
            return float(self._star.rtt_s[sites].max())
        return float(self._world.rtt_s[np.ix_(sites, sites)].max())

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
        """Seconds of one round, by the members in their order.

        In the star each member trains and then reaches the hub, and the last one counts; around a
        ring or through a mesh the exchange begins when the slowest member has trained. With overlap
        it goes on beside the next training; rounds that are alike are as long as the longer of the
        two.
        """
        local_s = np.array([self.local_s(begin, site, start_s) for site in begin.members])
        exchanges_s = self.exchanges_s(begin.members)
        return float(round_of(local_s, exchanges_s, overlap=self._overlap).max())
