"""One site of the run: it follows the coordinator's log and trains when it is a member."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from powertrip.coordination.messages import (
    Begin,
    Broken,
    Finished,
    Probe,
    Ready,
    Report,
    Stop,
)
from powertrip.coordination.round_model import RoundModel
from powertrip.coordination.setup import Setup, data_folder
from powertrip.exchange.collective import WeightedMean
from powertrip.exchange.errors import ExchangeError, NobodyTrained
from powertrip.exchange.group import Group, choose_algorithm, choose_backend
from powertrip.runtime.aside import Aside, LeftBehind
from powertrip.runtime.attendance import Attendance
from powertrip.runtime.checkpoint import latest, load_model, load_site
from powertrip.runtime.clock import TrainingClock
from powertrip.runtime.control import ControlPlane
from powertrip.runtime.evaluator import Evaluator
from powertrip.runtime.faults import SiteFaults
from powertrip.runtime.groups import GroupBuilder
from powertrip.runtime.guard import UpdateGuard
from powertrip.runtime.orders import Orders
from powertrip.runtime.pacing import Pacer
from powertrip.runtime.probing import Probing
from powertrip.runtime.replica import Replica, Trained
from powertrip.runtime.saving import Saving
from powertrip.runtime.trial import HalfTrial
from powertrip.training.device import prepare_torch
from powertrip.training.errors import TrainingDiverged
from powertrip.training.flat import initial_model
from powertrip.training.local import LocalResult, LocalTrainer
from powertrip.training.outer import build_outer
from powertrip.training.partition import partition
from powertrip.training.task import load_task
from powertrip.world.world import World

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Joined:
    """What the beginning of a generation has cost."""

    seconds: float
    bytes_received: int


class Site:
    """One site's share of a run, from its first report to its last.

    Parameters
    ----------
    setup
        The resolved scenario.
    world
        Its facts.
    index
        Which site this is.
    plane
        The control plane; every thread that uses it has a store client of its own.
    local_rank, local_processes
        This process's place among those of its machine, to choose a device.
    incarnation
        How many processes this site has had before.
    attendance
        Its presence, which says where in the log to begin, and whether the coordinator is away;
        None where nobody watches.
    log_start
        Entry of the log to begin with; None leaves that to the attendance.
    probe_address
        The site's own address, at which it answers measurements of its links; None for a site
        that takes no part in them.
    """

    def __init__(
        self,
        setup: Setup,
        world: World,
        index: int,
        plane: ControlPlane,
        *,
        local_rank: int = 0,
        local_processes: int = 1,
        incarnation: int = 0,
        log_start: int | None = None,
        attendance: Attendance | None = None,
        probe_address: str | None = None,
    ) -> None:
        config = setup.config
        self.index, self.name = index, world.names[index]
        self._setup, self._config, self._world = setup, config, world
        self._plane = plane
        self.incarnation, self._attendance = incarnation, attendance
        self._log_start = 0 if attendance is None else attendance.granted
        if log_start is not None:
            self._log_start = log_start
        self._device = prepare_torch(config.training, local_rank=local_rank)
        self._backend = choose_backend(
            config.exchange.backend,
            self._device,
            own_gpu=local_processes <= torch.cuda.device_count(),
            own_host="NCCL_HOSTID" in os.environ,
        )
        self._task = load_task(
            config.task, data_dir=data_folder(), base_dir=setup.base_dir, seed=config.seed
        )
        shares = partition(config.partition, self._task, len(world.names), config.seed)
        self._model = initial_model(self._task, seed=config.seed, device=self._device)
        self._trainer = LocalTrainer(
            self._task, shares[index], config.training, config.seed, index, self._model
        )
        self._samples = len(shares[index])
        vector = self._model.vector.clone()
        outer = build_outer(
            config.outer,
            size=vector.numel(),
            parameters_size=self._model.parameters_size,
            device=self._device,
        )
        self._replica = Replica(self.name, vector, outer)
        if setup.resume is not None and incarnation == 0:
            self._load(Path(setup.resume))
        self._guard = UpdateGuard()
        self._evaluator = Evaluator(self._task, self._model, config)
        self._mean = WeightedMean(vector.numel(), self._device)
        self._round_model = RoundModel(
            world, config, update_bytes=self._mean.nbytes, backend=self._backend
        )
        self._clock = TrainingClock()
        self._modelled_clock = config.selection.clock == "modelled"

        self._probe_address = probe_address
        self._probing: Probing | None = None
        self._group: Group | None = None
        self._aside = Aside()
        self._trial: HalfTrial | None = None
        self._round = 0
        self._lock = threading.Lock()
        self._unheard: list[Report | Broken] = []
        self._round_start_s = 0.0
        self._joins_s = 0.0
        self._faults = SiteFaults.of(os.environ, index)

    def _load(self, run_dir: Path) -> None:
        """Go on from the last checkpoint of a run."""
        folder = latest(run_dir).folder
        saved = load_model(folder)
        saved.copy_into(self._replica.vector, self._replica.outer_state)
        self._replica.received(saved.round)
        self._trainer.load_inner_state(load_site(folder, self.index))

    def run(self) -> None:
        """Take part until the log says stop.

        Raises
        ------
        PowerTripError
            The control plane or the task failed; an exchange that fails is the coordinator's to
            mend.
        """
        config = self._config
        self._outbox = self._plane.outbox()
        self._groups = GroupBuilder(
            self._plane.connect,
            site=self.index,
            name=self.name,
            backend=self._backend,
            algorithm=choose_algorithm(config.exchange.algorithm, self._backend),
            timeout_s=config.exchange.timeout_s,
        )
        self._saving = Saving(
            self._plane,
            site=self.index,
            replica=self._replica,
            model=self._model,
            trainer=self._trainer,
        )
        self._orders = Orders(
            self._plane,
            site=self.index,
            name=self.name,
            silence_limit_s=config.runtime.silence_limit_s,
            start=self._log_start,
            on_begin=self._announced,
            on_commit=self._confirmed,
            on_probe=self._probe,
            on_save=self._saving.save,
            on_recall=self._repeat,
            on_change=self._aside.look_up,
            alone=lambda: self._attendance is not None and self._attendance.away.is_set(),
        )
        if self._attendance is not None:
            self._attendance.on_away = self._orders.look_up
        try:
            if self._probe_address is not None:
                self._probing = Probing(
                    self._plane, self._world, self.index, self._probe_address, config.exchange
                )
            self._ready = self._account()
            self._outbox.send(self._ready)
            while (begin := self._orders.next_generation()) is not None:
                if not self._concerns(begin):
                    self._leave_group()
                    continue
                self._round = begin.first_round
                try:
                    self._serve(begin)
                except ExchangeError as error:
                    self._break_off(begin, error)
                except LeftBehind:
                    self._leave_group()
            assert self._orders.stop is not None
            self._finish(self._orders.stop)
        finally:
            self._leave_group()
            self._aside.close()
            if self._probing is not None:
                self._probing.close()
            self._orders.close()
            self._groups.close()

    def _break_off(self, begin: Begin, error: ExchangeError) -> None:
        """An exchange has failed: wait for another generation, with the last commit at hand."""
        self._leave_group()  # so that the others learn of it at once
        if self._orders.relieved_of(begin):
            return
        self._orders.forget_upcoming()
        self._say(
            Broken(
                site=self.index,
                generation=begin.generation,
                round=self._round,
                awaited=error.awaited,
                adds=error.adds,
                digest=self._replica.digest_after(self._round - 1),
                text=str(error),
            )
        )

    def _announced(self, begin: Begin) -> None:
        """A generation is announced, a round ahead; in the log's own thread."""
        if not self._modelled_clock:
            self._clock.set(begin.clock_s)
        self._groups.announce(begin)

    def _probe(self, probe: Probe) -> None:
        if self._probing is not None:
            self._probing.start(probe.endpoints)

    def _say(self, mail: Report | Broken) -> None:
        """Tell the coordinator, and keep it in mind until the round is committed."""
        with self._lock:
            self._unheard.append(mail)
        self._outbox.send(mail)

    def _confirmed(self, round_: int) -> None:
        self._replica.confirm(round_)
        with self._lock:
            self._unheard = [mail for mail in self._unheard if mail.round > round_]

    def _repeat(self) -> None:
        """Tell another process of the coordinator what the one before may not have taken in."""
        with self._lock:
            unheard = list(self._unheard)
        outbox = self._plane.outbox()
        for mail in (self._ready, *unheard):
            outbox.send(mail)

    def _account(self) -> Ready:
        return Ready(
            site=self.index,
            samples=self._samples,
            steps=self._config.training.steps_per_round(self._samples),
            update_bytes=self._mean.nbytes,
            digest=self._replica.digest(),
            round=self._replica.round,
            backend=self._backend,
            incarnation=self.incarnation,
            probe=None if self._probing is None else self._probing.endpoint,
        )

    def _concerns(self, begin: Begin) -> bool:
        return self.index in begin.members or any(t.donor == self.index for t in begin.transfers)

    def _serve(self, begin: Begin) -> None:
        """Take part in one generation: join, then round after round until another begins."""
        self._clock_at_round_s = begin.clock_s
        newcomer = any(t.newcomer == self.index for t in begin.transfers)
        if begin.redo and not newcomer:
            self._replica.back_to(begin.first_round - 1)
        elif not newcomer and self._replica.round != begin.first_round - 1:
            # Another process of this site did that round, which this one has replaced since.
            raise ExchangeError(
                "joining",
                site=self.name,
                generation=begin.generation,
                reason=f"it holds round {self._replica.round}, not {begin.first_round - 1}",
            )
        group, joined = self._join(begin)
        if group is None:
            return
        self._round_start_s = time.monotonic()
        for round_ in itertools.count(begin.first_round):
            # Who has seen the commit of the round before the last one knows whose this round is,
            # which only the first round after an interval without the coordinator waits for.
            known = self._orders.await_commit(round_ - 2, begin, doing=round_)
            if not known or (round_ > begin.first_round and self._orders.relieved):
                return
            self._round = round_
            self._mean.expect(group)
            trained = self._replica.kept(round_) or self._train(begin, round_)
            if trained is None or not self._orders.await_commit(round_ - 1, begin, doing=round_):
                return
            self._groups.drop_standbys(before=group.generation)
            self._complete(begin, round_, group, trained, joined)
            joined, self._joins_s = _Joined(0.0, 0), 0.0

    def _join(self, begin: Begin) -> tuple[Group | None, _Joined]:
        """Come into the generation's group, and give or take the model; None for a mere donor."""
        started_s = time.monotonic()
        ceiling_s = self._config.exchange.timeout_s
        limit_s = ceiling_s if begin.join_limit_s is None else begin.join_limit_s
        received = 0
        handover = self._groups.handover(begin, limit_s)
        if handover is not None:
            # Nobody who stays holds the model: one who leaves hands it over in a group apart.
            self._transfer(handover, begin, limit_s)
            received = handover.bytes_received
            handover.close()
        if self.index not in begin.members:
            self._leave_group()
            return None, _Joined(0.0, 0)
        group = self._groups.members(begin, limit_s)
        if group is not None:
            self._leave_group()
            self._group = group
            if handover is None:
                self._transfer(group, begin, limit_s)
                received = group.bytes_received
        assert self._group is not None
        # Who waits for a member that is still joining must not take that for its fault.
        self._joins_s = limit_s if group is not None and begin.standby is None else 0.0
        self._model.vector.copy_(self._replica.vector)
        return self._group, _Joined(time.monotonic() - started_s, received)

    def _leave_group(self) -> None:
        group, self._group = self._group, None
        self._trial = None
        if group is not None:
            group.close()

    def _transfer(self, group: Group, begin: Begin, limit_s: float) -> None:
        """Give the model to newcomers, or get it."""
        held = [self._replica.vector, self._replica.outer_state]
        # What is left behind may still arrive, and must not find the model.
        arrived = [torch.empty_like(tensor) for tensor in held]

        def move() -> bool:
            received = False
            for transfer in begin.transfers:
                for tensor, place in zip(held, arrived, strict=True):
                    if tensor.numel() == 0:
                        continue
                    if transfer.donor == self.index:
                        group.send(tensor, transfer.newcomer, timeout_s=limit_s)
                    elif transfer.newcomer == self.index:
                        group.receive(place, transfer.donor, timeout_s=limit_s)
                received |= transfer.newcomer == self.index
            return received

        if not begin.transfers:
            return
        try:
            received = self._in_exchange(begin, group, move)
        except ExchangeError:
            group.close()
            raise
        if received:
            for tensor, place in zip(held, arrived, strict=True):
                tensor.copy_(place)
            self._replica.received(begin.first_round - 1)

    def _in_exchange(self, begin: Begin, group: Group, work: Callable[[], _T]) -> _T:
        """Do what waits for other members, for as long as the generation stands."""
        try:
            return self._aside.call(work, lambda: self._orders.pointless(begin), group.close)
        except LeftBehind:
            # What is still on its way may come into the buffers yet.
            self._mean = WeightedMean(self._replica.vector.numel(), self._device)
            if self._group is group:
                self._group = None
            raise

    def _train(self, begin: Begin, round_: int) -> Trained | None:
        """Train locally; None where the log has made it pointless meanwhile."""
        if not self._orders.train(round_, begin):
            return None
        place = begin.members.index(self.index)
        started_s = time.monotonic()
        if self._faults is not None:
            self._faults.await_power(self._orders.cut)
        pacer = Pacer(
            self._world,
            self.index,
            self._clock_at_round_s if self._modelled_clock else self._clock.now_s(),
            batch_size=self._config.training.batch_size,
            steps=None if begin.steps is None else begin.steps[place],
            deadline_s=None if begin.deadline_s is None else begin.deadline_s[place],
            paced=self._config.runtime.pacing == "modelled",
            modelled_clock=self._modelled_clock,
            stop=self._orders.cut,
        )
        rejected = None
        try:
            result = self._trainer.train(round_, pacer)
        except TrainingDiverged as error:
            result, rejected = LocalResult(0, 0, None, None, 0.0), str(error)
        if not self._orders.trained(begin):
            return None
        if self._faults is not None:
            self._faults.spoil(self._model.vector, self._replica.vector)
        update = self._replica.vector - self._model.vector
        rejected = rejected or self._guard.reason_against(update)
        if rejected is not None:
            update.zero_()
            self._trainer.load_inner_state({})  # what has spoilt the update may be in there
        trained = Trained(
            update,
            0 if rejected else result.samples,
            result,
            time.monotonic() - started_s,
            pacer.lag_s,
            rejected,
        )
        self._replica.keep(round_, trained)
        return trained

    def _complete(
        self, begin: Begin, round_: int, group: Group, trained: Trained, joined: _Joined
    ) -> None:
        """Exchange, take the outer step, evaluate this member's share, report."""
        local = trained.result
        sent_before = group.bytes_sent
        started_s = time.monotonic()
        self._mean.update.copy_(trained.update)
        tried, self._trial = self._trial, self._new_trial(begin, round_, group, trained.weight)
        exchange_s = self._in_exchange(
            begin, group, partial(self._exchange, group, self._mean, trained, tried, self._trial)
        )
        self._replica.step(round_, self._mean.update)
        self._model.vector.copy_(self._replica.vector)

        started_s = time.monotonic()
        share = begin.members.index(self.index), len(begin.members)
        validation, test = self._evaluator.after_round(round_, *share)
        trial = None
        if tried is not None:
            trial = tried.evaluate(lambda vector: self._evaluator.validation_of(vector, *share))
        self._model.vector.copy_(self._replica.vector)
        evaluation_s = time.monotonic() - started_s
        self._clock.set_apart(evaluation_s)
        if self._modelled_clock:
            self._clock_at_round_s += self._round_model.round_s(begin, self._clock_at_round_s)
        self._say(
            Report(
                site=self.index,
                generation=begin.generation,
                round=round_,
                steps=local.steps,
                samples=trained.weight,
                loss=local.loss if local.loss is not None else 0.0,
                loss_rms=local.loss_rms if local.loss_rms is not None else 0.0,
                local_s=trained.local_s,
                lag_s=trained.lag_s,
                exchange_s=exchange_s,
                evaluation_s=evaluation_s,
                bytes_sent=group.bytes_sent - sent_before,
                digest=self._replica.digest(),
                update_norm=float(self._mean.update.norm()),
                layer_norms=self._layer_norms() if begin.members[0] == self.index else (),
                trial=trial,
                validation=validation,
                test=test,
                rebuild_s=joined.seconds,
                joined_bytes=joined.bytes_received,
                standby=self._groups.standby,
                rejected=trained.rejected,
            )
        )
        self._round_start_s = time.monotonic()

    def _exchange(
        self,
        group: Group,
        mean: WeightedMean,
        trained: Trained,
        tried: HalfTrial | None,
        trial: HalfTrial | None,
    ) -> float:
        """Average the members' updates, which they may wait for until the round's limit.

        Returns the seconds that it took, without what the trials of halves add. It may be left
        behind before it has begun: what it changes is its own.
        """
        started_s = time.monotonic()
        if tried is not None:
            tried.forward()
        limit_s = self._orders.limit_s
        if limit_s is not None:
            passed_s = time.monotonic() - self._round_start_s
            limit_s = max(limit_s, self._joins_s) - passed_s
            limit_s = max(limit_s, self._config.runtime.shortest_limit_s)
        try:
            total = mean.over(group, trained.weight, limit_s)
        except NobodyTrained as error:
            reason = f"{trained.rejected or error}, and so at every member"
            raise TrainingDiverged(reason) from error
        exchange_s = time.monotonic() - started_s
        if tried is not None:
            tried.finish()
        if trial is not None:
            trial.begin(mean, total)
        return exchange_s

    def _new_trial(
        self, begin: Begin, round_: int, group: Group, weight: float
    ) -> HalfTrial | None:
        """The trial of this round's updates, where one is due and the next round has this group."""
        if not begin.half or round_ != begin.first_round:
            return None
        if self._orders.next_members not in (None, frozenset(begin.members)):
            return None
        return HalfTrial(
            group,
            begin.half,
            site=self.index,
            mean=self._mean,
            weight=weight,
            before=self._replica.vector,
        )

    def _layer_norms(self) -> tuple[float, ...]:
        if self._config.selection.cefl.critical.test != "layers":
            return ()
        return tuple(self._model.norms(self._mean.update))

    def _finish(self, stop: Stop) -> None:
        if stop.save is not None:
            if stop.save.keeper == self.index:
                self._replica.back_to(stop.after_round)
            self._saving.save(stop.save)
        self._saving.close(self._config.runtime.stop_grace_s)
        self._outbox.send(Finished(site=self.index))
