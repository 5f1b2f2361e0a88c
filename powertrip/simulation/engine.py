"""A run in virtual time: its sites really learn, and its clock is worked out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from powertrip.coordination.course import Course
from powertrip.coordination.membership import HUB
from powertrip.coordination.messages import Begin, Ready, Report, Tally, Trial
from powertrip.coordination.observer import Observer
from powertrip.coordination.setup import Setup
from powertrip.errors import PowerTripError
from powertrip.exchange.codec import packed_bytes, packing_s
from powertrip.selection.types import Observation
from powertrip.simulation.averaging import Averaging, Parts
from powertrip.simulation.learner import Learner, Trained, build_learner
from powertrip.simulation.oracle import PrefixGains
from powertrip.simulation.timing import Play, VirtualTime
from powertrip.telemetry import events
from powertrip.telemetry.events import Outcome
from powertrip.telemetry.report import Summary
from powertrip.telemetry.telemetry import Telemetry
from powertrip.training.digest import digest
from powertrip.training.errors import TrainingDiverged
from powertrip.training.evaluation import Counts
from powertrip.training.outer import OuterOptimizer, build_outer
from powertrip.training.settings import OuterSettings
from powertrip.world.world import World

_NEAR = 2.0  # standard deviations of an accuracy; nearer to its target than that, all is evaluated
_NEAR_LOSS = 1.1
_ADDED_UP = OuterSettings(kind="fedavg")  # of a curve, which has no model
_LINKS = "simulated: links are the scenario's network, and no packet is sent"


def simulate(
    setup: Setup,
    telemetry: Telemetry,
    *,
    stopped: Callable[[], int | None] = lambda: None,
) -> Summary:
    """Run a scenario in virtual time.

    Parameters
    ----------
    setup
        The resolved scenario.
    telemetry
        Is handed every event, as in a real run; owned by the caller.
    stopped
        Asked after every round: the number of the signal by which the run is to end, if any.

    Returns
    -------
    Summary
        As of a real run, with the exit code in it.

    Raises
    ------
    PowerTripError
        The scenario cannot be run at all. What ends a run that has begun is in its summary.
    """
    world = setup.build_world()
    with build_learner(setup) as learner:
        return Simulation(setup, world, learner, telemetry, stopped).run()


@dataclass(frozen=True)
class _Halves:
    """What is left of a round to try the halves of its updates with."""

    members: frozenset[int]
    part: float
    before: Tensor
    validated: Counts | None
    all: Tensor
    half_a: Tensor
    half_b: Tensor


class Simulation:
    """The coordinator and all sites of a run, in one process.

    Parameters
    ----------
    setup, world
        The resolved scenario and its facts.
    learner
        Trains the members; owned by the caller.
    telemetry
        Is handed every event; owned by the caller.
    stopped
        Asked after every round: the number of a signal to end by, if any.
    """

    def __init__(
        self,
        setup: Setup,
        world: World,
        learner: Learner,
        telemetry: Telemetry,
        stopped: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._config, self._world = setup.config, world
        self._learner, self._telemetry, self._stopped = learner, telemetry, stopped
        self._vector = learner.initial()
        self._outer = self._new_outer()
        self._mean = torch.zeros_like(self._vector)
        self._overlap = self._config.exchange.overlap
        self._late = torch.zeros_like(self._vector)  # with overlap: the mean that is on its way
        self._averaging = Averaging(
            self._config.exchange,
            learner,
            self._vector,
            lr=self._config.outer.learning_rate,
        )
        self._float_bytes = self._config.simulation.update_bytes or learner.update_bytes
        ready = self._ready()
        self._update_bytes = ready[HUB].update_bytes
        self._observer = Observer(world, self._config, ready)
        star = self._observer.round_model.exchange_model == "star"
        self._clock = VirtualTime(
            self._config,
            world,
            self._observer.round_model,
            # In a star the hub keeps the rest.
            join_bytes=self._float_bytes if star else self._join_bytes(),
            packing_s=packing_s(self._config.exchange.codec, self._float_bytes),
        )
        self._course = Course(self._config, world, self._observer, self._clock, telemetry)
        if self._config.selection.projector == "oracle":
            self._observer.measure_gains = self._measure_gains
        self._holders = set(range(len(world.names)))
        self._halves: _Halves | None = None
        self._validated: Counts | None = None

    def run(self) -> Summary:
        """Run to the end.

        Returns
        -------
        Summary
            With the exit code in it.
        """
        self._course.announce(backend="gloo", pacing="virtual", links=_LINKS)
        try:
            outcome, exit_code = self._train()
        except PowerTripError as error:
            outcome, exit_code = self._fail(error)
        return self._telemetry.end(outcome, exit_code, time_s=self._clock.now_s())

    def _train(self) -> tuple[Outcome, int]:
        course = self._course
        course.start(self._holders)
        course.record()
        while True:
            begin, round_ = course.begin, course.round + 1
            play = self._clock.play(begin, round_, self._holders)
            course.account(self._play(begin, round_, play))
            self._holders = set(play.members)
            end = course.end()
            number = self._stopped()
            if number is not None and (end is None or end[0] != "reached"):
                end = "interrupted", 128 + number
            if end is None:
                gone = self._clock.gone()
                # Where all are gone the round to come waits for them, and nobody else can be had.
                self._observer.miss(gone & ~gone.all())
                course.ahead()
            course.record()
            for site in play.failed:
                self._tell_gone(site, begin, round_)
            if end is not None:
                return end

    def _play(self, begin: Begin, round_: int, play: Play) -> list[Report]:
        """Train, average, take the outer step, evaluate; the members' reports."""
        tried = self._try_halves(begin)
        trained, parts = self._average(begin, round_, play)
        if self._overlap:
            self._mean, self._late = self._late, self._mean
        elif parts is not None:
            self._halves = self._halved(play, self._mean, parts)
        self._outer.step(self._vector, self._mean)
        validation, test = self._evaluate(round_, play.end_s)
        self._validated = validation
        if self._overlap and parts is not None:  # tried where the mean will be applied
            self._halves = self._halved(play, self._late, parts)
        state = digest(self._vector, self._outer.state)
        norm = float(self._mean.norm())
        first = play.members[0]
        layers = self._config.selection.cefl.critical.test == "layers"
        return [
            Report(
                site=done.site,
                generation=begin.generation,
                round=round_,
                steps=done.steps,
                samples=done.samples,
                loss=done.loss,
                loss_rms=done.loss_rms,
                local_s=local_s,
                lag_s=0.0,
                exchange_s=max(0.0, play.end_s - play.trains_s - local_s),
                evaluation_s=0.0,
                bytes_sent=self._bytes_sent(len(play.members)),
                digest=state,
                update_norm=norm,
                layer_norms=(
                    tuple(self._learner.norms(self._mean)) if layers and done.site == first else ()
                ),
                # One member tells of the whole evaluation, which the others share in a real run.
                trial=tried if done.site == first else None,
                validation=_tally(validation) if done.site == first else None,
                test=_tally(test) if done.site == first else None,
                rebuild_s=play.rebuild_s,
                joined_bytes=self._join_bytes() if done.site in play.newcomers else 0,
            )
            for done, local_s in zip(trained, play.local_s, strict=True)
        ]

    def _average(self, begin: Begin, round_: int, play: Play) -> tuple[list[Trained], Parts | None]:
        """Leave the mean update in `_mean`; the means of halves, too, where these are tried."""
        half = frozenset(begin.half) & frozenset(play.members)
        tries = round_ == begin.first_round and 0 < len(half) < len(play.members)
        return self._averaging.average(
            self._vector,
            round_,
            list(zip(play.members, play.steps, strict=True)),
            out=self._mean,
            half=half if tries and self._learner.size > 1 else (),
            alone=len(play.members) == 1 and self._observer.round_model.exchange_model != "star",
        )

    def _halved(self, play: Play, mean: Tensor, parts: Parts) -> _Halves:
        """What a mean and its halves make of the model as it is."""
        before = self._vector.clone()
        return _Halves(
            members=frozenset(play.members),
            part=len(play.members) / 2,
            before=before,
            validated=self._validated,
            all=before - mean,
            half_a=before - parts.half,
            half_b=before - parts.rest,
        )

    def _try_halves(self, begin: Begin) -> Trial | None:
        """Evaluate the halves of the round before, where its group is still together."""
        halves, self._halves = self._halves, None
        if halves is None or halves.members != frozenset(begin.members):
            return None
        before = halves.validated or self._validate(halves.before)
        return Trial(
            part=halves.part,
            before=_tally(before),
            all=_tally(self._validate(halves.all)),
            half_a=_tally(self._validate(halves.half_a)),
            half_b=_tally(self._validate(halves.half_b)),
        )

    def _validate(self, vector: Tensor) -> Counts:
        limit = self._config.simulation.evaluate_samples
        return self._learner.evaluate(vector, "validation", limit)

    def _evaluate(self, round_: int, end_s: float) -> tuple[Counts | None, Counts | None]:
        """Validation and test after a round: on some samples, or on all where it matters."""
        limit = self._config.simulation.evaluate_samples
        last = self._config.goal.is_spent(round_, end_s)
        if round_ % self._config.runtime.evaluate_every and not last:
            return None, None
        validation = self._validate(self._vector)
        test = self._learner.evaluate(self._vector, "test", None if last else limit)
        if not last and limit is not None and self._is_near(test):
            test = self._learner.evaluate(self._vector, "test")
        if not (math.isfinite(validation.loss_sum) and math.isfinite(test.loss_sum)):
            raise TrainingDiverged(
                f"after round {round_} the validation or test loss is no longer a number; lower "
                f"training.lr ({self._config.training.lr:g}) or outer.lr "
                f"({self._config.outer.learning_rate:g})"
            )
        return validation, test

    def _is_near(self, test: Counts) -> bool:
        target = self._config.goal.target
        if target.metric == "test_loss":
            return test.loss <= target.value * _NEAR_LOSS
        if target.metric != "test_accuracy":
            return False
        deviation = math.sqrt(target.value * (1 - target.value) / test.count)
        return test.accuracy >= target.value - _NEAR * deviation

    def _measure_gains(self, seen: Observation) -> Mapping[int, float]:
        gains = PrefixGains(self._config, self._learner, self._copied_outer)
        return gains.measure(seen, self._vector, self._course.round + 1)

    def _new_outer(self) -> OuterOptimizer:
        return build_outer(
            self._config.outer if self._learner.size > 1 else _ADDED_UP,
            size=self._vector.numel(),
            parameters_size=self._learner.parameters_size,
            device=self._vector.device,
        )

    def _copied_outer(self) -> OuterOptimizer:
        copied = self._new_outer()
        copied.state = self._outer.state.clone()
        return copied

    def _ready(self) -> list[Ready]:
        config, learner = self._config, self._learner
        return [
            Ready(
                site=site,
                samples=samples,
                steps=config.training.steps_per_round(samples),
                update_bytes=packed_bytes(config.exchange.codec, self._float_bytes),
                digest="",
                backend="nccl" if config.exchange.backend == "nccl" else "gloo",
            )
            for site, samples in enumerate(learner.samples)
        ]

    def _join_bytes(self) -> int:
        """What a newcomer receives, never packed, in proportion to the model.

        That is the model and the state of the outer step, and with overlap the mean that is on its
        way, which in a star comes from the hub a round later.
        """
        share = 1 + self._outer.state.numel() / self._vector.numel()
        late = self._overlap and self._observer.round_model.exchange_model != "star"
        return round(self._float_bytes * (share + late))

    def _bytes_sent(self, members: int) -> int:
        """What each member sends in an exchange."""
        if self._observer.round_model.exchange_model == "star":
            return self._update_bytes
        return round(2 * (members - 1) / members * self._update_bytes)

    def _tell_gone(self, site: int, begin: Begin, round_: int) -> None:
        name = self._world.names[site]
        self._telemetry.emit(
            events.Failure(
                time_s=self._clock.now_s(),
                kind="SiteGone",
                site=name,
                text=f"site {name} was gone in round {round_}, and its work with it",
                generation=begin.generation,
                round=round_,
            )
        )

    def _fail(self, error: PowerTripError) -> tuple[Outcome, int]:
        self._course.record()
        self._telemetry.emit(
            events.Failure(
                time_s=self._clock.now_s(),
                kind=type(error).__name__,
                text=str(error),
                generation=self._course.generation,
                round=self._course.round + 1,
            )
        )
        return "failed", error.exit_code


def _tally(counts: Counts | None) -> Tally | None:
    if counts is None:
        return None
    return Tally(correct=counts.correct, loss_sum=counts.loss_sum, count=counts.count)
