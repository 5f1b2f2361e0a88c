"""The simulator's constants, fitted to a recorded real run, and how well the two then agree."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from powertrip.config import Config, load_config
from powertrip.coordination.membership import HUB
from powertrip.coordination.preview import expected_ready
from powertrip.coordination.round_model import RoundModel
from powertrip.coordination.run_dir import recorded_files
from powertrip.coordination.setup import Setup
from powertrip.errors import InputError
from powertrip.simulation.engine import simulate
from powertrip.simulation.settings import TimingSettings
from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from powertrip.telemetry.events import Event
from powertrip.telemetry.settings import MetricsSettings, TelemetrySettings
from powertrip.telemetry.telemetry import Telemetry
from powertrip.world.world import World

Floats = npt.NDArray[np.float64]
_E = TypeVar("_E", bound=Event)

_ALL_ROUNDS = {"accuracy": None, "loss": None, "max_s": None}
_FEWEST_ROUNDS = 5
_ROUND_TRIPS = np.arange(0.0, 6.01, 0.25)
_DISTINCT = 1.2  # by what factor exchanges must differ for a slope to be told from an offset


class CannotCalibrate(InputError):
    """A run says too little, or something else than a real run would."""


@dataclass(frozen=True)
class Recorded:
    """A real run, as far as its times go.

    Attributes
    ----------
    config
        Its scenario.
    base_dir
        Its folder.
    rounds, decisions, rebuilds
        What happened.
    """

    config: Config
    base_dir: Path
    rounds: tuple[events.Round, ...]
    decisions: tuple[events.Decision, ...]
    rebuilds: tuple[events.Rebuild, ...]

    @property
    def setup(self) -> Setup:
        """The scenario, to be run again."""
        return Setup(self.config, self.base_dir)


@dataclass(frozen=True)
class Agreement:
    """A simulated run beside the real one.

    Attributes
    ----------
    real_round_s, simulated_round_s
        Mean length of a round.
    same, decisions
        In how many of the decisions, which both made, the members are the same.
    """

    real_round_s: float
    simulated_round_s: float
    same: int
    decisions: int


def read_run(run: Path) -> Recorded:
    """Read a recorded run.

    Parameters
    ----------
    run
        Its folder, or its event log.

    Raises
    ------
    NoRecordedRun
        It is not there.
    CannotCalibrate
        It is a simulated one, or too short.
    """
    log, settings = recorded_files(run)
    told = list(read_events(log, tolerate_cut=True))
    if any(isinstance(event, events.RunStarted) and event.pacing == "virtual" for event in told):
        raise CannotCalibrate(f"{run} was simulated itself; name the folder of a real run")
    rounds = tuple(event for event in told if isinstance(event, events.Round))
    if len(rounds) < _FEWEST_ROUNDS:
        raise CannotCalibrate(
            f"{run} has {len(rounds)} rounds; at least {_FEWEST_ROUNDS} are needed: run it longer "
            "(goal.max_rounds)"
        )
    return Recorded(
        config=load_config(settings),
        base_dir=log.parent,
        rounds=rounds,
        decisions=tuple(event for event in told if isinstance(event, events.Decision)),
        rebuilds=tuple(event for event in told if isinstance(event, events.Rebuild)),
    )


def fit(recorded: Recorded) -> TimingSettings:
    """Fit the constants by which real times differ from the model's.

    All are medians or least absolute deviations, so that a round in which the machine was busy
    otherwise does not count. What a run cannot tell (the commit's round trips where training is
    always longer; slope and offset where all exchanges are alike) keeps its default.

    Parameters
    ----------
    recorded
        The real run.
    """
    world = recorded.setup.build_world()
    model = RoundModel(
        world, recorded.config, update_bytes=expected_ready(recorded.setup)[HUB].update_bytes
    )
    exchange, exchange_s = _fit_exchange(recorded.rounds, world, model)
    round_trips, round_s = _fit_commit(recorded.rounds, world)
    return TimingSettings(
        speed=_fit_speed(recorded.rounds, world),
        exchange=exchange,
        exchange_s=exchange_s,
        round_s=round_s,
        commit_round_trips=round_trips,
        build_round_trips=_fit_build(recorded.rebuilds, world, model),
    )


def calibrated(recorded: Recorded) -> tuple[TimingSettings, Agreement]:
    """Fit the constants, simulate the run with them, and compare.

    The simulated run ends with the rounds that the real one has done, whatever its goal was.

    Raises
    ------
    PowerTripError
        The scenario cannot be run any more: its task or its files are missing, for example.
    """
    timing = fit(recorded)
    config, rounds = recorded.config, len(recorded.rounds)
    setup = Setup(
        config.model_copy(
            update={
                "goal": config.goal.model_copy(update=_ALL_ROUNDS | {"max_rounds": rounds}),
                "simulation": config.simulation.model_copy(update={"timing": timing}),
                "telemetry": TelemetrySettings(
                    console="none", metrics=MetricsSettings(enabled=False)
                ),
            }
        ),
        recorded.base_dir,
    )
    with (
        tempfile.TemporaryDirectory() as scratch,
        Telemetry(setup.config.telemetry, Path(scratch)) as telemetry,
    ):
        simulate(setup, telemetry)
        simulated = list(read_events(Path(scratch) / EVENT_LOG))
    return timing, agreement((*recorded.rounds, *recorded.decisions), simulated)


def agreement(real: Sequence[Event], simulated: Sequence[Event]) -> Agreement:
    """Compare the rounds that both have done, and the decisions that both have made."""
    rounds = min(len(_of(real, events.Round)), len(_of(simulated, events.Round)))
    pairs = list(zip(_of(real, events.Decision), _of(simulated, events.Decision), strict=False))
    return Agreement(
        real_round_s=_mean_round_s(_of(real, events.Round)[:rounds]),
        simulated_round_s=_mean_round_s(_of(simulated, events.Round)[:rounds]),
        same=sum(set(a.members) == set(b.members) for a, b in pairs),
        decisions=len(pairs),
    )


def _fit_speed(rounds: Iterable[events.Round], world: World) -> float:
    number = {name: site for site, name in enumerate(world.names)}
    ratios = [
        part.samples
        / world.samples_done(number[part.site], event.time_s - event.duration_s, part.local_s)
        for event in rounds
        for part in event.sites
        if part.local_s > 0
    ]
    return statistics.median(ratios)


def _fit_exchange(
    rounds: Iterable[events.Round], world: World, model: RoundModel
) -> tuple[float, float]:
    number = {name: site for site, name in enumerate(world.names)}
    points = [
        (float(model.exchanges_s([number[name] for name in event.members]).max()), event.exchange_s)
        for event in rounds
        if len(event.members) > 1
    ]
    if not points:
        return 1.0, 0.0
    modelled, measured = np.array(points).T
    if modelled.max() < _DISTINCT * modelled.min():
        return float(np.median(measured / modelled)), 0.0
    # Theil-Sen: the median of the slopes between all pairs of exchanges that differ.
    first, second = np.triu_indices(len(points), 1)
    apart = modelled[second] - modelled[first]
    clear = np.abs(apart) > 1e-9
    slope = float(np.median((measured[second] - measured[first])[clear] / apart[clear]))
    slope = min(max(slope, 0.1), 10.0)
    return slope, max(0.0, float(np.median(measured - slope * modelled)))


def _fit_commit(rounds: Sequence[events.Round], world: World) -> tuple[float, float]:
    """Round trips until a commit is read, and what of a round is left then."""
    rtt_s = dict(zip(world.names, world.star(HUB).rtt_s.tolist(), strict=True))
    default = TimingSettings().commit_round_trips
    later = [event for event in rounds if event.round > 1]

    def left_s(round_trips: float) -> Floats:
        waits_s = [
            max(max(part.local_s, round_trips * rtt_s[part.site]) for part in event.sites)
            for event in later
        ]
        durations_s = [event.duration_s - event.exchange_s for event in later]
        return np.asarray(np.array(durations_s) - np.array(waits_s), dtype=np.float64)

    def off_s(round_trips: float) -> float:
        rest_s = left_s(round_trips)
        return float(np.abs(rest_s - max(0.0, float(np.median(rest_s)))).mean())

    best = min(_ROUND_TRIPS.tolist(), key=lambda c: (off_s(c), abs(c - default)))
    if off_s(best) > 0.95 * off_s(default):
        best = default
    return best, max(0.0, float(np.median(left_s(best))))


def _fit_build(rebuilds: Sequence[events.Rebuild], world: World, model: RoundModel) -> float:
    """From the first group, for which nothing else goes on; others hide behind the training."""
    default = TimingSettings().build_round_trips
    if not rebuilds or len(rebuilds[0].members) < 2:
        return default
    number = {name: site for site, name in enumerate(world.names)}
    farthest_s = model.farthest_s([number[name] for name in rebuilds[0].members])
    return rebuilds[0].seconds / farthest_s if farthest_s > 0 else default


def _mean_round_s(rounds: Sequence[events.Round]) -> float:
    return statistics.fmean(event.duration_s for event in rounds)


def _of(told: Sequence[Event], kind: type[_E]) -> list[_E]:
    return [event for event in told if isinstance(event, kind)]
