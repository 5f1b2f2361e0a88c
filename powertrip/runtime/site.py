"""One site of the run: it follows the coordinator's log and trains when it is a member."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from powertrip.coordination.messages import (
    Begin,
    Commit,
    Failure,
    Finished,
    Ready,
    Report,
    Stop,
)
from powertrip.coordination.round_model import RoundModel
from powertrip.coordination.setup import Setup, data_folder
from powertrip.exchange.collective import WeightedMean
from powertrip.exchange.errors import ExchangeError
from powertrip.exchange.group import Group, choose_algorithm, choose_backend
from powertrip.runtime.checkpoint import CheckpointUnwritable, save_checkpoint
from powertrip.runtime.clock import TrainingClock
from powertrip.runtime.control import LogReader, Outbox, StoreFactory
from powertrip.runtime.evaluator import Evaluator
from powertrip.runtime.groups import GroupBuilder
from powertrip.runtime.pacing import Pacer
from powertrip.runtime.probing import Probing
from powertrip.runtime.trial import HalfTrial
from powertrip.training.device import prepare_torch
from powertrip.training.digest import digest
from powertrip.training.flat import initial_model
from powertrip.training.local import LocalResult, LocalTrainer
from powertrip.training.outer import build_outer
from powertrip.training.partition import partition
from powertrip.training.task import load_task
from powertrip.world.world import World


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
    connect
        Makes a store client; the site uses one for the control plane, one in the thread that
        builds groups, and one in the thread that follows the log.
    local_rank, local_processes
        This process's place among those of its machine, to choose a device.
    probe_address
        The site's own address, at which it answers measurements of its links; None for a site
        that takes no part in them.
    """

    def __init__(
        self,
        setup: Setup,
        world: World,
        index: int,
        connect: StoreFactory,
        *,
        local_rank: int = 0,
        local_processes: int = 1,
        probe_address: str | None = None,
    ) -> None:
        config = setup.config
        self.index, self.name = index, world.names[index]
        self._setup, self._config, self._world = setup, config, world
        self._connect = connect
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
        self._committed = self._model.vector.clone()
        self._outer = build_outer(
            config.outer,
            size=self._committed.numel(),
            parameters_size=self._model.parameters_size,
            device=self._device,
        )
        self._evaluator = Evaluator(self._task, self._model, config)
        self._mean = WeightedMean(self._committed.numel(), self._device)
        self._round_model = RoundModel(
            world, config, update_bytes=self._mean.nbytes, backend=self._backend
        )
        self._clock = TrainingClock()
        self._modelled_clock = config.selection.clock == "modelled"

        self._probe_address = probe_address
        self._probing: Probing | None = None
        self._group: Group | None = None
        self._trial: HalfTrial | None = None
        self._upcoming: Begin | None = None
        self._last_round = 0
        self._stop: Stop | None = None

    def run(self) -> None:
        """Take part until the log says stop.

        Raises
        ------
        PowerTripError
            The exchange, the control plane or the task failed; the coordinator has been told
            where it could still be reached.
        """
        config = self._config
        self._outbox = Outbox(self._connect())
        self._groups = GroupBuilder(
            self._connect,
            site=self.index,
            name=self.name,
            backend=self._backend,
            algorithm=choose_algorithm(config.exchange.algorithm, self._backend),
            timeout_s=config.exchange.timeout_s,
        )
        self._log = LogReader(
            self._connect,
            site=self.name,
            silence_limit_s=config.runtime.silence_limit_s,
            on_begin=self._announced,
        )
        try:
            if self._probe_address is not None:
                self._probing = Probing(
                    self._connect, self._world, self.index, self._probe_address, config.exchange
                )
            self._outbox.send(self._ready())
            failed: ExchangeError | None = None
            told = False
            while self._stop is None:
                if self._upcoming is None:
                    self._read()
                    continue
                begin, self._upcoming = self._upcoming, None
                if not self._concerns(begin):
                    self._leave_group()
                elif failed is None:
                    try:
                        self._serve(begin)
                    except ExchangeError as error:  # this site still holds the last commit
                        failed = error
                        self._leave_group()  # so that the others learn of it at once
                        # Where the run ends anyway, the others have left for that reason.
                        told = not self._log.stop_seen.is_set()
                        if told:
                            self._outbox.send(Failure.of(error, self.index, survives=True))
            self._finish(self._stop)
            if failed is not None and told:
                raise failed
        finally:
            self._leave_group()
            if self._probing is not None:
                self._probing.close()
            self._log.close()
            self._groups.close()

    def _announced(self, begin: Begin) -> None:
        """A generation is announced, a round ahead; in the log's own thread."""
        if not self._modelled_clock:
            self._clock.set(begin.clock_s)
        self._groups.announce(begin)

    def _read(self) -> int | None:
        """Read one entry of the log; returns the round if it is a commit."""
        entry = self._log.next()
        if isinstance(entry, Commit):
            self._upcoming = entry.begin or self._upcoming
            return entry.round
        if isinstance(entry, Stop):
            self._stop = entry
        elif isinstance(entry, Begin):
            self._upcoming = entry
        elif self._probing is not None:
            self._probing.start(entry.endpoints)
        return None

    def _ready(self) -> Ready:
        return Ready(
            site=self.index,
            samples=self._samples,
            steps=self._config.training.steps_per_round(self._samples),
            update_bytes=self._mean.nbytes,
            digest=self._digest(),
            backend=self._backend,
            probe=None if self._probing is None else self._probing.endpoint,
        )

    def _digest(self) -> str:
        return digest(self._committed, self._outer.state)

    def _concerns(self, begin: Begin) -> bool:
        return self.index in begin.members or any(t.donor == self.index for t in begin.transfers)

    def _serve(self, begin: Begin) -> None:
        """Take part in one generation: join, then round after round until another begins."""
        self._clock_at_round_s = begin.clock_s
        group, joined = self._join(begin)
        if group is None:
            return
        for round_ in itertools.count(begin.first_round):
            self._mean.expect(group)
            trained = self._train(begin, round_)
            # Who has seen this commit knows the generation of this round's successor.
            self._await_commit(round_ - 1)
            if self._stop is not None:
                return
            self._complete(begin, round_, group, trained, joined)
            if self._upcoming is not None:
                return
            joined = _Joined(0.0, 0)

    def _join(self, begin: Begin) -> tuple[Group | None, _Joined]:
        """Come into the generation's group, and give or take the model; None for a mere donor."""
        started_s = time.monotonic()
        received = 0
        handover = self._groups.handover(begin)
        if handover is not None:
            # Nobody who stays holds the model: one who leaves hands it over in a group apart.
            with handover:
                self._transfer(handover, begin)
                received = handover.bytes_received
        if self.index not in begin.members:
            self._leave_group()
            return None, _Joined(0.0, 0)
        group = self._groups.members(begin)
        if group is not None:
            self._leave_group()
            self._group = group
            if handover is None:
                self._transfer(group, begin)
                received = group.bytes_received
        assert self._group is not None
        self._model.vector.copy_(self._committed)
        return self._group, _Joined(time.monotonic() - started_s, received)

    def _leave_group(self) -> None:
        group, self._group = self._group, None
        self._trial = None
        if group is not None:
            group.close()

    def _transfer(self, group: Group, begin: Begin) -> None:
        for transfer in begin.transfers:
            for tensor in (self._committed, self._outer.state):
                if tensor.numel() == 0:
                    continue
                if transfer.donor == self.index:
                    group.send(tensor, transfer.newcomer)
                elif transfer.newcomer == self.index:
                    # The donor is still busy with the round before.
                    limit_s = self._config.runtime.silence_limit_s
                    group.receive(tensor, transfer.donor, timeout_s=limit_s)

    def _train(self, begin: Begin, round_: int) -> tuple[LocalResult, float, float]:
        """Train locally; returns the result, the seconds it took and how far it lagged behind."""
        place = begin.members.index(self.index)
        started_s = time.monotonic()
        pacer = Pacer(
            self._world,
            self.index,
            self._clock_at_round_s if self._modelled_clock else self._clock.now_s(),
            batch_size=self._config.training.batch_size,
            steps=None if begin.steps is None else begin.steps[place],
            deadline_s=None if begin.deadline_s is None else begin.deadline_s[place],
            paced=self._config.runtime.pacing == "modelled",
            modelled_clock=self._modelled_clock,
            stop=self._log.stop_seen,
        )
        result = self._trainer.train(round_, pacer)
        return result, time.monotonic() - started_s, pacer.lag_s

    def _await_commit(self, round_: int) -> None:
        """Read the log until a round is committed, or the run stops."""
        committed = 0
        while self._stop is None and committed < round_:
            committed = max(committed, self._read() or 0)

    def _complete(
        self,
        begin: Begin,
        round_: int,
        group: Group,
        trained: tuple[LocalResult, float, float],
        joined: _Joined,
    ) -> None:
        """Exchange, take the outer step, evaluate this member's share, report."""
        local, local_s, lag_s = trained
        # The pace always allows a first step.
        assert local.loss is not None
        assert local.loss_rms is not None
        sent_before = group.bytes_sent
        started_s = time.monotonic()
        torch.sub(self._committed, self._model.vector, out=self._mean.update)
        tried, self._trial = self._trial, self._new_trial(begin, round_, group, local.samples)
        if tried is not None:
            tried.forward()
        total = self._mean.over(group, weight=local.samples)
        exchange_s = time.monotonic() - started_s
        if tried is not None:
            tried.finish()
        if self._trial is not None:
            self._trial.begin(self._mean, total)
        self._outer.step(self._committed, self._mean.update)
        self._model.vector.copy_(self._committed)
        self._last_round = round_

        started_s = time.monotonic()
        share = begin.members.index(self.index), len(begin.members)
        validation, test = self._evaluator.after_round(round_, *share)
        trial = None
        if tried is not None:
            trial = tried.evaluate(lambda vector: self._evaluator.validation_of(vector, *share))
        self._model.vector.copy_(self._committed)
        evaluation_s = time.monotonic() - started_s
        self._clock.set_apart(evaluation_s)
        if self._modelled_clock:
            self._clock_at_round_s += self._round_model.round_s(begin, self._clock_at_round_s)
        self._outbox.send(
            Report(
                site=self.index,
                generation=begin.generation,
                round=round_,
                steps=local.steps,
                samples=local.samples,
                loss=local.loss,
                loss_rms=local.loss_rms,
                local_s=local_s,
                lag_s=lag_s,
                exchange_s=exchange_s,
                evaluation_s=evaluation_s,
                bytes_sent=group.bytes_sent - sent_before,
                digest=self._digest(),
                update_norm=float(self._mean.update.norm()),
                layer_norms=self._layer_norms() if begin.members[0] == self.index else (),
                trial=trial,
                validation=validation,
                test=test,
                rebuild_s=joined.seconds,
                joined_bytes=joined.bytes_received,
            )
        )

    def _new_trial(
        self, begin: Begin, round_: int, group: Group, weight: float
    ) -> HalfTrial | None:
        """The trial of this round's updates, where one is due and the next round has this group."""
        if not begin.half or round_ != begin.first_round:
            return None
        if self._upcoming is not None and set(self._upcoming.members) != set(begin.members):
            return None
        return HalfTrial(
            group,
            begin.half,
            site=self.index,
            mean=self._mean,
            weight=weight,
            before=self._committed,
        )

    def _layer_norms(self) -> tuple[float, ...]:
        if self._config.selection.cefl.critical.test != "layers":
            return ()
        return tuple(self._model.norms(self._mean.update))

    def _finish(self, stop: Stop) -> None:
        done = Finished(site=self.index)
        if stop.keeper == self.index:
            self._model.vector.copy_(self._committed)  # drop what was begun beyond it
            path = Path(stop.checkpoint)
            started_s = time.monotonic()
            try:
                size = save_checkpoint(
                    path,
                    model=self._model.module.state_dict(),
                    outer_state=self._outer.state,
                    round_=self._last_round,
                    digest=self._digest(),
                )
                done = Finished(
                    site=self.index,
                    checkpoint=str(path),
                    checkpoint_round=self._last_round,
                    checkpoint_bytes=size,
                    checkpoint_s=time.monotonic() - started_s,
                )
            except CheckpointUnwritable as error:
                done = Finished(site=self.index, checkpoint_error=str(error))
        self._outbox.send(done)
