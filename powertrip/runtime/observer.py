"""What the policies are shown: the world's facts, corrected by what the run has measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from powertrip.config import Config
from powertrip.runtime.estimates import Correction, LinkEstimates
from powertrip.runtime.membership import HUB
from powertrip.runtime.messages import Begin, Probed, Ready, Report
from powertrip.runtime.round_model import RoundModel
from powertrip.selection.kappa import prior_h0
from powertrip.selection.round_time import star_delays_s
from powertrip.selection.types import Decision, Observation
from powertrip.world.world import World


class Observer:
    """Builds observations and learns from the reports of the rounds.

    Parameters
    ----------
    world, config
        Facts and settings.
    ready
        The sites' first reports, in the order of the sites.
    """

    def __init__(self, world: World, config: Config, ready: Sequence[Ready]) -> None:
        self._world, self._config = world, config
        self._update_bytes = ready[HUB].update_bytes
        self._samples = np.array([r.samples for r in ready])
        self._base_steps = np.array([r.steps for r in ready])
        self._links = LinkEstimates(world)
        self._star = self._links.star(HUB)
        self._distance_m = world.distance_m(HUB)
        self._gains: list[float] = []
        self._last_loss: tuple[int, float] | None = None
        self._exchange = Correction()
        self._speed = Correction(len(world.names))
        self._rebuild_s = config.runtime.rebuild_s
        self._last_seen = np.zeros(len(world.names), dtype=np.int64)
        self._own_round_s = np.full(len(world.names), np.nan)
        outer = config.outer
        momentum = outer.momentum if outer.kind == "nesterov" else 0.0
        self._h0 = config.selection.h0 or prior_h0(momentum)
        self._learns = config.selection.clock == "measured"
        self.round_model = RoundModel(world, config, update_bytes=self._update_bytes)

    @property
    def rebuild_s(self) -> float:
        """What a change of the members is expected to cost."""
        return self._rebuild_s

    def observe(
        self,
        *,
        time_s: float,
        next_round: int,
        generation: int,
        members: tuple[int, ...],
        previous: Decision | None,
    ) -> Observation:
        """Everything a policy may know at this moment of the training clock."""
        return Observation(
            time_s=time_s,
            round=next_round,
            generation=generation,
            hub=HUB,
            power_w=self._world.power_w(time_s),
            throughput=self._world.throughput(time_s) * self._speed.factors,
            full_speed=self._world.full_speed,
            samples=self._samples,
            rtt_s=self._star.rtt_s,
            up=self._star.up,
            down=self._star.down,
            reachable=self._star.reachable & (self._samples > 0),
            distance_m=self._distance_m,
            communication_correction=float(self._exchange.factors[0]),
            update_bytes=self._update_bytes,
            batch_size=self._config.training.batch_size,
            base_steps=self._base_steps,
            interval_rounds=self._config.selection.adjustment_interval,
            members=members,
            previous=previous,
            gains=np.array(self._gains, dtype=float),
            rebuild_s=self._rebuild_s,
            seed=self._config.seed,
            names=self._world.names,
            last_seen=self._last_seen,
            own_round_s=self._own_round_s,
            kappa=self._config.selection.kappa,
            h0=self._h0,
            used_power_w=self._world.used_power_w(time_s),
            carbon_g_per_j=self._world.carbon_g_per_j(time_s),
            price_per_j=self._world.price_per_j(time_s),
        )

    def learn_round(
        self,
        begin: Begin,
        start_s: float,
        reports: Sequence[Report],
        exchange_s: float,
        validation_loss: float | None,
    ) -> None:
        """Take in a committed round: its speeds, its exchange and its progress."""
        round_ = reports[0].round
        if validation_loss is not None and math.isfinite(validation_loss):
            if self._last_loss is not None:
                since, loss = self._last_loss
                rounds = round_ - since
                self._gains += [(loss - validation_loss) / rounds] * rounds
            self._last_loss = (round_, validation_loss)
        for report in reports:
            self._last_seen[report.site] = round_
        if not self._learns:
            return
        if len(begin.members) > 1:
            delay_s = star_delays_s(
                self._star.rtt_s,
                self._star.up,
                self._star.down,
                update_bytes=self._update_bytes,
                min_delay_s=self._config.selection.min_delay_s,
            )
            self._exchange.learn(0, exchange_s, float(delay_s[list(begin.members)].max()))
        for report in reports:
            modelled = self._world.samples_done(report.site, start_s, report.local_s)
            self._speed.learn(report.site, report.samples, modelled)
            self._own_round_s[report.site] = report.local_s + exchange_s

    def learn_links(self, probed: Probed) -> None:
        """Take in what a site has measured of its links."""
        if self._learns:
            self._links.learn(probed.site, probed.rtt_s, probed.bandwidth)
            self._star = self._links.star(HUB)

    def learn_rebuild(self, seconds: float) -> None:
        """Take in what a change of the members has really cost."""
        if self._learns:
            self._rebuild_s += 0.3 * (seconds - self._rebuild_s)
