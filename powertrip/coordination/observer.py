"""What the policies are shown: the world's facts, corrected by what the run has measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powertrip.config import Config
from powertrip.coordination import snapshots
from powertrip.coordination.estimates import Correction, LinkEstimates
from powertrip.coordination.membership import HUB
from powertrip.coordination.messages import Begin, Probed, Ready, Report, Tally, Trial
from powertrip.coordination.round_model import RoundModel
from powertrip.selection.checks import to_json_list
from powertrip.selection.decision import MOST
from powertrip.selection.kappa import KappaEstimator, prior_h0
from powertrip.selection.lookahead import HISTORY_ROWS, SAMPLES_A_SEASON
from powertrip.selection.round_parts import round_of
from powertrip.selection.types import Decision, Observation
from powertrip.world.world import World

_SHORTEST_REBUILD_S = 1e-3  # one that training hides takes no time; its ratio to another needs some


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
        self._ready = tuple(ready)
        self._update_bytes = ready[HUB].update_bytes
        self._samples = np.array([r.samples for r in ready])
        self._base_steps = np.array([r.steps for r in ready])
        self._distance_m = world.distance_m(HUB)
        self.round_model = RoundModel(
            world, config, update_bytes=self._update_bytes, backend=ready[HUB].backend
        )

        sites = len(world.names)
        self._learns = config.selection.clock == "measured"
        self._links = LinkEstimates(world, interval_s=config.exchange.probe.interval_s)
        self._exchange = Correction(model_off=1.5)
        self._speed = Correction(sites, model_off=1.3)
        self._rebuild = Correction(model_off=3.0)
        self._last_seen = np.zeros(sites, dtype=np.int64)
        self._own_round_s = np.full(sites, np.nan)

        self._gains: list[float] = []
        self._last_loss: tuple[int, float] | None = None
        self._loss_rms = np.full(sites, np.nan)
        self._update_norms: list[float] = []
        self._layer_norms: list[tuple[float, ...]] = []
        self._kappa = KappaEstimator(config.selection.kappa)
        self._trials = 0
        self._missing = np.zeros(sites, dtype=np.bool_)
        self.measure_gains: Callable[[Observation], Mapping[int, float]] | None = None
        """Says what a round of other numbers of members would bring, where that can be tried."""
        outer = config.outer
        momentum = outer.momentum if outer.kind == "nesterov" else 0.0
        self._h0 = config.selection.h0 or prior_h0(momentum)

    @property
    def rebuild_s(self) -> float:
        """What a change of the members costs by the settings."""
        return self._config.runtime.rebuild_s

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
        star = self._links.star(HUB, time_s)
        pair_rtt_s, pair_bandwidth = self._between(time_s) or (None, None)
        power_history, history_step_s = self._power_history(time_s)
        return Observation(
            time_s=time_s,
            round=next_round,
            generation=generation,
            hub=HUB,
            power_w=self._world.power_w(time_s),
            throughput=self._world.throughput(time_s) * self._speed.factors(time_s),
            full_speed=self._world.full_speed,
            samples=self._samples,
            rtt_s=star.rtt_s,
            up=star.up,
            down=star.down,
            reachable=star.reachable & (self._samples > 0) & ~self._missing,
            distance_m=self._distance_m,
            communication_correction=float(self._exchange.factors(time_s)[0]),
            update_bytes=self._update_bytes,
            batch_size=self._config.training.batch_size,
            base_steps=self._base_steps,
            interval_rounds=self._config.selection.adjustment_interval,
            members=members,
            previous=previous,
            gains=np.array(self._gains, dtype=float),
            rebuild_s=self._expected_rebuild_s(time_s),
            seed=self._config.seed,
            names=self._world.names,
            loss_rms=self._loss_rms,
            last_seen=self._last_seen,
            own_round_s=self._own_round_s,
            update_norms=np.array(self._update_norms, dtype=float),
            layer_norms=np.array(self._layer_norms, dtype=float),
            kappa=self._kappa.kappa if self._trials else self._config.selection.kappa,
            h0=self._h0,
            used_power_w=self._world.used_power_w(time_s),
            carbon_g_per_j=self._world.carbon_g_per_j(time_s),
            price_per_j=self._world.price_per_j(time_s),
            power_history=power_history,
            history_step_s=history_step_s,
            exchange_model=self.round_model.exchange_model,
            pair_rtt_s=pair_rtt_s,
            pair_bandwidth=pair_bandwidth,
            overlap=self._config.exchange.overlap,
        )

    def measured(self, seen: Observation) -> Observation:
        """What is seen, with the gains of other numbers of members where these can be tried."""
        if self.measure_gains is None:
            return seen
        return seen.replace(measured_gains=self.measure_gains(seen))

    def miss(self, missing: NDArray[np.bool_]) -> None:
        """Take note of which sites are gone at present ([n])."""
        self._missing = missing

    def spreads(self, time_s: float) -> tuple[float, NDArray[np.float64]]:
        """By what factor the exchange and each site's speed may be off, two times in three."""
        return float(self._exchange.spread(time_s)[0]), self._speed.spread(time_s)

    def learn_round(
        self,
        start_s: float,
        reports: Sequence[Report],
        exchange_s: float,
        validation_loss: float | None,
        *,
        time_s: float,
    ) -> None:
        """Take in a committed round: its progress, its speeds and its exchange.

        Parameters
        ----------
        start_s
            When the members began to train.
        reports
            One per member, in the members' order.
        exchange_s
            How long the exchange itself took.
        validation_loss
            After it; None where it was not evaluated.
        time_s
            When it ended.
        """
        self._learn_progress(reports, validation_loss)
        if not self._learns:
            return
        members = [report.site for report in reports]
        if len(members) > 1:
            model = self.round_model.exchange(self._links.star(HUB, time_s), self._between(time_s))
            self._exchange.learn(0, exchange_s, model.set_s(members), time_s)
        modelled = [self._world.samples_done(r.site, start_s, r.local_s) for r in reports]
        self._speed.learn(members, [r.samples for r in reports], modelled, time_s)
        local_s = np.array([r.local_s for r in reports])
        overlap = self._config.exchange.overlap
        self._own_round_s[members] = round_of(local_s, exchange_s, overlap=overlap)

    def learn_links(self, probed: Probed, *, time_s: float) -> None:
        """Take in what a site has measured of its links."""
        if self._learns:
            self._links.learn(probed.site, probed.rtt_s, probed.bandwidth, time_s)

    def learn_rebuild(self, seconds: float, *, time_s: float) -> None:
        """Take in what a change of the members has really cost."""
        if self._learns:
            measured_s = max(seconds, _SHORTEST_REBUILD_S)
            self._rebuild.learn(0, measured_s, self._rebuild_prior_s, time_s)

    @property
    def _rebuild_prior_s(self) -> float:
        return max(self.rebuild_s, _SHORTEST_REBUILD_S)

    def _expected_rebuild_s(self, time_s: float) -> float:
        if not self._learns:
            return self.rebuild_s
        return self._rebuild_prior_s * float(self._rebuild.factors(time_s)[0])

    def transfer_s(self, time_s: float) -> Callable[[int, int], float]:
        """What giving the model and the outer state takes, from a site to another, as it is known.

        Infinite where there is no link.
        """
        rtt_s, bandwidth = self._links.pairs(time_s)
        sent_bytes = 2 * self._update_bytes

        def seconds(donor: int, newcomer: int) -> float:
            speed = float(bandwidth[donor, newcomer])
            return float(rtt_s[donor, newcomer]) + sent_bytes / speed if speed > 0 else math.inf

        return seconds

    def join_s(self, begin: Begin, time_s: float) -> tuple[float, float]:
        """Expected seconds of building a generation's group, and of its transfers in turn."""
        seconds = self.transfer_s(time_s)
        transfers_s = sum(seconds(t.donor, t.newcomer) for t in begin.transfers)
        return self._expected_rebuild_s(time_s), transfers_s

    def _between(self, time_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Links between all sites; None where the star needs none of them."""
        return None if self.round_model.exchange_model == "star" else self._links.pairs(time_s)

    def _power_history(self, time_s: float) -> tuple[NDArray[np.float64], float]:
        """Watts up to the present, and their step, where the policy reads them."""
        settings = self._config.selection
        if settings.policy != "lookahead":
            return np.empty(0), 0.0
        step_s = settings.lookahead.season_s / SAMPLES_A_SEASON
        times_s = time_s - step_s * np.arange(HISTORY_ROWS)[::-1]
        power_w = np.stack([self._world.power_w(float(t_s)) for t_s in times_s])
        return np.round(power_w, 2), step_s  # to keep the event log short

    def _learn_progress(self, reports: Sequence[Report], validation_loss: float | None) -> None:
        round_ = reports[0].round
        if validation_loss is not None and _says_something(validation_loss):
            if self._last_loss is not None:
                since, loss = self._last_loss
                rounds = round_ - since
                self._gains += [(loss - validation_loss) / rounds] * rounds
            self._last_loss = (round_, validation_loss)
        for report in reports:
            self._last_seen[report.site] = round_
            if report.rejected is None and _says_something(report.loss_rms):
                self._loss_rms[report.site] = report.loss_rms
        norm = reports[0].update_norm
        if not _says_something(norm):
            norm = self._update_norms[-1] if self._update_norms else 0.0
        self._update_norms.append(norm)
        critical = self._config.selection.cefl.critical
        layers = next((r.layer_norms for r in reports if r.layer_norms), ())
        known = self._layer_norms[-1] if self._layer_norms else layers
        usable = len(layers) == len(known) and all(map(_says_something, layers))
        if layers and usable and critical.test == "layers":
            self._layer_norms = [*self._layer_norms, layers][-2 * critical.window :]
        self._learn_kappa([report.trial for report in reports])

    def snapshot(self) -> dict[str, Any]:
        """All that was learned, as strict JSON, with the sites' first reports."""
        return {
            "ready": [snapshots.of_model(ready) for ready in self._ready],
            "links": self._links.snapshot(),
            "exchange": self._exchange.snapshot(),
            "speed": self._speed.snapshot(),
            "rebuild": self._rebuild.snapshot(),
            "last_seen": to_json_list(self._last_seen),
            "own_round_s": to_json_list(self._own_round_s),
            "gains": list(self._gains),
            "last_loss": None if self._last_loss is None else list(self._last_loss),
            "loss_rms": to_json_list(self._loss_rms),
            "update_norms": list(self._update_norms),
            "layer_norms": [list(norms) for norms in self._layer_norms],
            "kappa": self._kappa.to_json(),
            "trials": self._trials,
            "missing": to_json_list(self._missing),
        }

    def restore(self, state: object) -> None:
        """Go on from a snapshot of a run with the same sites.

        Raises
        ------
        SnapshotUnreadable
            It is malformed, or the sites hold other samples or another model. What was taken over
            until then stays: the observer is of no more use.
        """
        seen = snapshots.fields("observer", state, *_REMEMBERED)
        ready, sites = ready_in(state), len(self._ready)
        if [_held(r) for r in ready] != [_held(r) for r in self._ready]:
            raise snapshots.SnapshotUnreadable(
                "its sites, their samples or their model are not those of this scenario"
            )
        self._links.restore("links", seen["links"])
        self._exchange.restore("exchange", seen["exchange"])
        self._speed.restore("speed", seen["speed"])
        self._rebuild.restore("rebuild", seen["rebuild"])
        self._last_seen = snapshots.whole_numbers("last_seen", seen["last_seen"], sites)
        self._own_round_s = snapshots.floats("own_round_s", seen["own_round_s"], sites)
        self._gains = snapshots.series("gains", seen["gains"])
        self._last_loss = None
        if seen["last_loss"] is not None:
            round_, loss = snapshots.listed("last_loss", seen["last_loss"], 2)
            self._last_loss = (
                snapshots.count("last_loss", round_), snapshots.number("last_loss", loss)
            )  # fmt: skip
        self._loss_rms = snapshots.floats("loss_rms", seen["loss_rms"], sites)
        self._update_norms = snapshots.series("update_norms", seen["update_norms"])
        self._layer_norms = [
            tuple(snapshots.series("layer_norms", norms))
            for norms in snapshots.listed("layer_norms", seen["layer_norms"])
        ]
        snapshots.checked(lambda: self._kappa.load_json(seen["kappa"]))
        self._trials = snapshots.count("trials", seen["trials"])
        self._missing = snapshots.booleans("missing", seen["missing"], sites)

    def _learn_kappa(self, trials: Sequence[Trial | None]) -> None:
        told = [trial for trial in trials if trial is not None]
        if not told or not self._config.selection.learn_kappa:
            return
        before = _mean_loss([trial.before for trial in told])
        halves = [_mean_loss([t.half_a for t in told]), _mean_loss([t.half_b for t in told])]
        self._trials += self._kappa.learn(
            members=round(2 * told[0].part),
            part=told[0].part,
            gain_part=before - sum(halves) / 2,
            gain_all=before - _mean_loss([trial.all for trial in told]),
        )


_REMEMBERED = (
    "ready", "links", "exchange", "speed", "rebuild", "last_seen", "own_round_s", "gains",
    "last_loss", "loss_rms", "update_norms", "layer_norms", "kappa", "trials", "missing",
)  # fmt: skip


def ready_in(state: object) -> list[Ready]:
    """The sites' first reports, of which a snapshot of an observer knows.

    Raises
    ------
    SnapshotUnreadable
        It is malformed.
    """
    told = snapshots.listed("ready", snapshots.fields("observer", state, *_REMEMBERED)["ready"])
    return [snapshots.to_model(Ready, "ready", report) for report in told]


def _says_something(measure: float) -> bool:
    """Whether a measure of the model is one: not of a model that has left all bounds."""
    return abs(measure) < MOST / 2


def _held(ready: Ready) -> tuple[int, int, int, int]:
    return ready.site, ready.samples, ready.steps, ready.update_bytes


def _mean_loss(shares: Sequence[Tally]) -> float:
    """Mean loss over all members' shares of the samples; not a number where there are none."""
    count = sum(share.count for share in shares)
    return sum(share.loss_sum for share in shares) / count if count else math.nan
