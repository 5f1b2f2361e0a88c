"""The times of a simulated round: what its members would have taken, had the run been real."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from powertrip.config import Config
from powertrip.coordination import snapshots
from powertrip.coordination.accounts import RoundAccount, RoundTimes
from powertrip.coordination.errors import SitesStalled
from powertrip.coordination.membership import HUB, plan_transfers
from powertrip.coordination.messages import Begin, Report
from powertrip.coordination.round_model import RoundModel
from powertrip.coordination.speed import steps_by_deadline
from powertrip.simulation.errors import AllSitesGone, ModelOutOfReach
from powertrip.simulation.faults import Noise, Outages
from powertrip.world.world import World

_ATTEMPTS = 1000  # at a round before which, or in which, all its members fail


@dataclass(frozen=True)
class SlowedSites:
    """The sites' speeds in one round: those of their power, over how much slower each is in it.

    Parameters
    ----------
    world
        Their power.
    slowdown
        How many times longer each takes, by site.
    """

    world: World
    slowdown: npt.NDArray[np.float64]

    def samples_done(self, site: int, start_s: float, duration_s: float) -> float:
        """See `coordination.speed.SiteSpeed`."""
        return self.world.samples_done(site, start_s, duration_s) / float(self.slowdown[site])

    def seconds_for(self, site: int, start_s: float, samples: float) -> float:
        """See `coordination.speed.SiteSpeed`."""
        return self.world.seconds_for(site, start_s, samples * float(self.slowdown[site]))


@dataclass(frozen=True)
class Play:
    """Who does what in a round, and how long it takes.

    Attributes
    ----------
    members
        The sites whose updates count, in the order of the generation.
    steps, local_s
        Local steps, and seconds of them, of each of these.
    start_s, end_s
        Of the round, on the training clock; where its members were gone, all of them, their
        return is the start.
    rebuild_s
        Of these the seconds that the members wait for the group and newcomers for the model.
    exchange_s
        The exchange, as it is when all have trained at once.
    failed
        Members that are gone by the end of the round: their work is lost.
    newcomers
        Members that receive the model.
    exchanged_s
        When the exchange of each member ends; with overlap that is after the round.
    """

    members: tuple[int, ...]
    steps: tuple[int, ...]
    local_s: tuple[float, ...]
    start_s: float
    end_s: float
    rebuild_s: float
    exchange_s: float
    failed: tuple[int, ...] = ()
    newcomers: tuple[int, ...] = ()
    exchanged_s: tuple[float, ...] = ()

    @property
    def trains_s(self) -> float:
        """When the members begin to train."""
        return self.start_s + self.rebuild_s


class VirtualTime:
    """The clock of a simulated run, which moves by rounds; a `Timekeeper`.

    A round begins with the end of the one before. Its members train, each at its own speed, which
    is integrated over the power trace; none begins the exchange before it has read that the round
    before is committed. A new group is built while the round before it is trained, and delays the
    next one only where it is not ready; newcomers wait for the model.

    With overlap the exchange of a round goes on beside the training of the next one. A round ends
    when all are ready for its exchange, and that of the round before has ended; the last of a run
    is not waited for, as the model that the run ends with does not hold it.

    Parameters
    ----------
    config, world
        Settings and facts.
    model
        How long an exchange takes.
    join_bytes
        Size of what a newcomer receives: the model and the state of the outer step.
    packing_s
        Seconds of every exchange for packing and unpacking.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        model: RoundModel,
        *,
        join_bytes: int,
        packing_s: float = 0.0,
    ) -> None:
        self._config, self._world, self._model = config, world, model
        self._join_bytes, self._packing_s = join_bytes, packing_s
        self._overlap = config.exchange.overlap
        self._timing = config.simulation.timing
        sites, seed = len(world.names), config.seed
        self._noise = Noise(config.simulation.noise, seed=seed, sites=sites)
        self._outages = Outages(config.simulation.dropouts, seed=seed, sites=sites)
        self._star = world.star(HUB)
        self._now_s = 0.0
        self._last_round_s: float | None = None  # the group of the first round is built alone
        self._rebuilds: set[int] = set()
        self._exchanged_s: dict[int, float] = {}  # of the round before, by site
        self._play: Play | None = None

    def start(self) -> None:
        """Nothing to do: this clock moves by rounds."""

    def now_s(self) -> float:
        """Seconds on the training clock."""
        return self._now_s

    def announce(
        self, generation: int, *, rebuild: bool, meanwhile: Begin | None, round_: int
    ) -> float:
        """The clock; what comes before the generation shows on it by itself."""
        if rebuild:
            self._rebuilds.add(generation)
        return self._now_s

    def gone(self) -> npt.NDArray[np.bool_]:
        """Which sites are gone at present ([n])."""
        return self._outages.gone(self._now_s)

    def play(self, begin: Begin, round_: int, holders: Collection[int]) -> Play:
        """Work out the next round; the clock moves with `account`.

        Parameters
        ----------
        begin
            Its generation.
        round_
            Its number.
        holders
            The sites that hold the model.

        Raises
        ------
        SitesStalled
            Members never finish their work.
        AllSitesGone
            Again and again no member has stayed until the end of the round.
        ModelOutOfReach
            A newcomer can never have the model.
        """
        start_s = self._now_s
        for _ in range(_ATTEMPTS):
            while not (present := self._present(begin, start_s)):
                start_s = self._outages.back_s(start_s)
            rebuild_s = self._rebuild_s(begin, round_, present, holders)
            played = self._round(begin, round_, present, start_s, rebuild_s)
            end_s = played.end_s
            fails_s = {site: self._outages.fails_s(site, start_s, end_s) for site in present}
            left = [site for site in present if math.isinf(fails_s[site])]
            if left:
                break
            start_s = max(fails_s.values())  # who comes back first does it all again
        else:
            raise AllSitesGone(round_, start_s)
        if len(left) < len(present):
            again = self._round(begin, round_, left, start_s, rebuild_s)
            # The others have trained to the end, and then noticed.
            end_s = max(played.end_s, again.end_s) + self._config.simulation.dropouts.notice_s
            later_s = end_s - again.end_s
            exchanged_s = tuple(time_s + later_s for time_s in again.exchanged_s)
            played = replace(again, end_s=end_s, exchanged_s=exchanged_s)
        self._play = replace(
            played,
            failed=tuple(site for site in begin.members if site not in left),
            newcomers=tuple(site for site in left if site not in holders),
        )
        return self._play

    def account(self, begin: Begin, reports: Sequence[Report]) -> RoundAccount:
        """Move to the end of the round that was played."""
        play = self._play
        assert play is not None
        before_s, self._now_s = self._now_s, play.end_s
        self._last_round_s = play.end_s - play.trains_s
        longest_s = max(play.local_s)
        exchange_s = play.exchange_s
        if self._overlap or self._model.exchange_model == "star":
            exchange_s = self._last_round_s - longest_s
        self._exchanged_s = dict(zip(play.members, play.exchanged_s, strict=True))
        times = RoundTimes(
            local_s=longest_s, exchange_s=exchange_s, evaluation_s=0.0, rebuild_s=play.rebuild_s
        )
        return RoundAccount(
            before_s,
            play.end_s,
            times,
            play.local_s,
            own_exchange_s=play.exchange_s,
            idle_s=play.start_s - before_s,
        )

    def snapshot(self) -> dict[str, Any]:
        """Between two rounds: the clock, and what the next one needs of the last."""
        return {
            "virtual_s": self._now_s,
            "last_round_s": self._last_round_s,
            "rebuilds": sorted(self._rebuilds),
            "exchanged_s": [[site, end_s] for site, end_s in self._exchanged_s.items()],
        }

    def restore(self, state: object, *, passed_s: float) -> None:
        """Go on from a snapshot; raises `SnapshotUnreadable`."""
        seen = snapshots.fields(
            "clock", state, "virtual_s", "last_round_s", "rebuilds", "exchanged_s"
        )
        self._now_s = snapshots.number("clock.virtual_s", seen["virtual_s"], 0.0)
        last_s = seen["last_round_s"]
        self._last_round_s = (
            None if last_s is None else snapshots.number("clock.last_round_s", last_s, 0.0)
        )
        self._rebuilds = set(snapshots.counts("clock.rebuilds", seen["rebuilds"]))
        self._exchanged_s = {}
        for pair in snapshots.listed("clock.exchanged_s", seen["exchanged_s"]):
            site, end_s = snapshots.listed("clock.exchanged_s", pair, 2)
            name = "clock.exchanged_s"
            self._exchanged_s[snapshots.count(name, site)] = snapshots.number(name, end_s, 0.0)

    def _present(self, begin: Begin, time_s: float) -> list[int]:
        gone = self._outages.gone(time_s)
        return [site for site in begin.members if not gone[site]]

    def _round(
        self, begin: Begin, round_: int, members: Sequence[int], start_s: float, rebuild_s: float
    ) -> Play:
        timing, batch_size = self._timing, self._config.training.batch_size
        trains_s = start_s + rebuild_s
        sites = SlowedSites(self._world, self._noise.slowdown(round_) / timing.speed)
        place_of = {site: place for place, site in enumerate(begin.members)}
        steps: list[int] = []
        for site in members:
            place = place_of[site]
            if begin.steps is not None:
                steps.append(begin.steps[place])
            else:
                assert begin.deadline_s is not None
                deadline_s = begin.deadline_s[place]
                steps.append(steps_by_deadline(sites, site, trains_s, deadline_s, batch_size))
        local_s = [
            sites.seconds_for(site, trains_s, count * batch_size)
            for site, count in zip(members, steps, strict=True)
        ]
        stalled = [
            self._world.names[site]
            for site, seconds in zip(members, local_s, strict=True)
            if not math.isfinite(seconds)
        ]
        if stalled:
            raise SitesStalled(stalled, round_)
        delays_s = self._delays_s(members, round_)
        # The commit is on its way from the end of the round before on.
        waited_s = trains_s - self._now_s
        committed_s = self._committed_s(members) - waited_s if round_ > 1 else 0.0
        ready_s = np.maximum(local_s, committed_s)
        lasts_s, exchanged_s = self._exchanged(members, ready_s, delays_s, trains_s)
        return Play(
            members=tuple(members),
            steps=tuple(steps),
            local_s=tuple(local_s),
            start_s=start_s,
            end_s=trains_s + lasts_s + timing.round_s,
            rebuild_s=rebuild_s,
            exchange_s=float(delays_s.max()),
            exchanged_s=tuple((trains_s + exchanged_s).tolist()),
        )

    def _exchanged(
        self,
        members: Sequence[int],
        ready_s: npt.NDArray[np.float64],
        delays_s: npt.NDArray[np.float64],
        trains_s: float,
    ) -> tuple[float, npt.NDArray[np.float64]]:
        """How long a round lasts, and when each member's exchange ends, from its training on."""
        if not self._overlap:
            ends_s = ready_s + delays_s
            return float(ends_s.max()), ends_s
        last_s = max(self._exchanged_s.values(), default=trains_s)
        lasts_s = max(float(ready_s.max()), last_s - trains_s)
        if self._model.exchange_model != "star":
            return lasts_s, lasts_s + delays_s
        own_s = np.array([self._exchanged_s.get(site, trains_s) for site in members])
        return lasts_s, np.maximum(ready_s, own_s - trains_s) + delays_s

    def _delays_s(self, members: Sequence[int], round_: int) -> npt.NDArray[np.float64]:
        """The exchange of each member, once it has trained."""
        if len(members) == 1 and self._model.exchange_model != "star":
            return np.zeros(1)
        model_s = self._model.exchanges_s(members)
        factor = self._timing.exchange * self._noise.exchange(round_)
        return np.asarray(model_s * factor + self._timing.exchange_s + self._packing_s)

    def _committed_s(self, members: Sequence[int]) -> npt.NDArray[np.float64]:
        """Seconds after the round before until each has read that it is committed."""
        rtt_s = self._star.rtt_s[list(members)]
        return np.asarray(self._timing.commit_round_trips * rtt_s)

    def _rebuild_s(
        self, begin: Begin, round_: int, present: Sequence[int], holders: Collection[int]
    ) -> float:
        """How long the members wait for their group, and newcomers for the model."""
        wait_s = 0.0
        if begin.generation in self._rebuilds and round_ == begin.first_round and len(present) > 1:
            build_s = self._timing.build_round_trips * self._model.farthest_s(present)
            wait_s = max(0.0, build_s - (self._last_round_s or 0.0))
        if self._model.exchange_model == "star":
            return wait_s + self._from_hub_s(set(present).difference(holders))
        busy_s: dict[int, float] = {}
        for way in plan_transfers(present, holders, self._transfer_s):
            sent_s = self._transfer_s(way.donor, way.newcomer)
            if not math.isfinite(sent_s):
                names = self._world.names
                raise ModelOutOfReach(names[way.newcomer], names[way.donor], round_)
            busy_s[way.donor] = busy_s.get(way.donor, 0.0) + sent_s
        return wait_s + max(busy_s.values(), default=0.0)

    def _from_hub_s(self, newcomers: Collection[int]) -> float:
        """How long newcomers wait for the model in a star.

        Not at all where every round holds the way of the model to each member. With overlap the
        others have it from an exchange in which newcomers had no part, and packed, what travels in
        a round is the mean update.
        """
        if not self._overlap and self._config.exchange.codec == "none":
            return 0.0
        sites = list(newcomers)
        ways_s = self._star.rtt_s[sites] + self._join_bytes / self._star.down[sites]
        return float(ways_s.max(initial=0.0))

    def _transfer_s(self, donor: int, newcomer: int) -> float:
        bandwidth = float(self._world.bandwidth[donor, newcomer])
        if bandwidth <= 0:
            return math.inf
        return float(self._world.rtt_s[donor, newcomer]) + self._join_bytes / bandwidth
