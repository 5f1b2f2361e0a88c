"""One cell of an experiment: a simulated run, and what is kept of it."""

from __future__ import annotations

import gzip
import math
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from powertrip.coordination.setup import Setup
from powertrip.errors import PowerTripError
from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EVENT_LOG
from powertrip.telemetry.events import Event
from powertrip.telemetry.report import Summary
from powertrip.telemetry.telemetry import Telemetry

Simulate = Callable[[Setup, Telemetry], Summary]

_SELDOM_WANTED = {
    "name",
    "run_id",
    "run_dir",
    "seed",
    "target",
    "exit_code",
    "wall_s",
    "evaluation_s",
    "checkpoint",
}
"""Fields of a summary that a table leaves out: names and paths, and times of a clock on the wall,
which differ between two runs of the same cell."""

SUMMARY_COLUMNS: tuple[str, ...] = (
    "status",
    *(name for name in Summary.model_fields if name not in _SELDOM_WANTED),
    "believed_to_target_s",
    "target_metric",
    "target",
    "error",
)
"""What the table of cells says of each, in this order. `believed_to_target_s` is what the
formula of the round's length, which a work rule may have of its own, says of the rounds up to the
target."""

ROUND_COLUMNS = (
    "round",
    "time_s",
    "duration_s",
    "predicted_round_s",
    "local_s",
    "exchange_s",
    "members",
    "mean_steps",
    "train_loss",
    "validation_accuracy",
    "validation_loss",
    "test_accuracy",
    "test_loss",
    "projected_gain",
    "measured_gain",
    "energy_j",
    "carbon_g",
    "money",
    "bytes_sent",
)
"""What the table of rounds says of each, in this order."""


@dataclass(frozen=True)
class CellResult:
    """What a cell came to; its file is this as JSON.

    Attributes
    ----------
    status
        Whether it ended as a run does, or failed.
    summary
        The values of `SUMMARY_COLUMNS`, but for status and error; empty where it failed to begin.
    rounds
        For each of `ROUND_COLUMNS`, one value a round.
    error
        Why it failed; empty if it did not.
    wall_s
        Seconds that it took.
    """

    status: Literal["done", "failed"]
    summary: dict[str, Any]
    rounds: dict[str, list[Any]]
    error: str
    wall_s: float


class RoundRecorder:
    """Keeps a row of `ROUND_COLUMNS` for each round.

    Attributes
    ----------
    rounds
        For each column, one value a round.
    failure
        Why the run failed; empty if it did not.
    believed_to_target_s
        Sum of the believed lengths of the rounds up to the first that met the target; None before.
    """

    def __init__(self) -> None:
        self.rounds: dict[str, list[Any]] = {name: [] for name in ROUND_COLUMNS}
        self._decisions: list[events.Decision] = []
        self._evaluated: tuple[int, float] | None = None
        self.believed_to_target_s: float | None = None
        self._target: events.Target | None = None
        self._believed_s = 0.0
        self._trouble = "the run failed"
        self.failure = ""

    def add(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case events.RunStarted():
                self._target = event.target
            case events.Decision():
                self._decisions.append(event)
            case events.Round():
                self._add_round(event)
            case events.Failure():
                self._trouble = event.text
            case events.RunEnded(outcome="failed"):
                self.failure = self._trouble

    def _add_round(self, event: events.Round) -> None:
        steps = [site.steps for site in event.sites]
        chosen = self._chosen(event.round)
        row = {
            **event.model_dump(include=set(ROUND_COLUMNS)),
            "members": len(event.members),
            "mean_steps": math.fsum(steps) / len(steps) if steps else None,
            "projected_gain": None if chosen is None else chosen.gain,
            "measured_gain": self._measured(event),
        }
        for name, values in self.rounds.items():
            values.append(row[name])
        self._believed_s += event.predicted_round_s if chosen is None else chosen.round_s
        target = self._target
        if self.believed_to_target_s is None and target and target.met(event.value(target.metric)):
            self.believed_to_target_s = self._believed_s

    def _chosen(self, round_: int) -> events.Candidate | None:
        """The candidate that was taken by the decision that governs a round."""
        while len(self._decisions) > 1 and self._decisions[1].round <= round_:
            self._decisions.pop(0)
        if not self._decisions or self._decisions[0].round > round_:
            return None
        return next((c for c in self._decisions[0].candidates if c.chosen), None)

    def _measured(self, event: events.Round) -> float | None:
        """By how much the validation loss fell, per round since it was last evaluated."""
        loss, before = event.validation_loss, self._evaluated
        if loss is None:
            return None
        self._evaluated = (event.round, loss)
        return None if before is None else (before[1] - loss) / (event.round - before[0])


class CellTelemetry(Telemetry):
    """Records rounds beside what any telemetry does."""

    def __init__(self, setup: Setup, run_dir: Path) -> None:
        super().__init__(setup.config.telemetry, run_dir)
        self.recorder = RoundRecorder()

    def emit(self, event: Event) -> None:
        """Pass one event on to all."""
        super().emit(event)
        self.recorder.add(event)


def simulate_with_one_thread(setup: Setup, telemetry: Telemetry) -> Summary:
    """The simulation with a single thread of torch, so that sums are the same on any machine."""
    import torch

    from powertrip.simulation.engine import simulate

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return simulate(setup, telemetry)
    finally:
        torch.set_num_threads(threads)


def run_cell(
    key: str,
    setup: Setup,
    scratch: Path,
    log: Path | None,
    simulate: Simulate = simulate_with_one_thread,
) -> tuple[str, CellResult]:
    """Simulate one cell, and leave nothing behind but its result.

    Parameters
    ----------
    key
        The cell's key, which is handed back.
    setup
        The resolved scenario.
    scratch
        Folder in which the run's folder is made, and removed again.
    log
        Where to keep the event log, compressed; None to drop it.
    simulate
        What runs it.
    """
    began = time.perf_counter()
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=scratch))
    try:
        telemetry = CellTelemetry(setup, folder)
        with telemetry:
            summary = simulate(setup, telemetry)
        recorder = telemetry.recorder
        error, kept, rounds = recorder.failure, _kept(summary, recorder), recorder.rounds
    except PowerTripError as raised:
        error, kept, rounds = str(raised), {}, {}
    finally:
        if log is not None and (folder / EVENT_LOG).exists():
            _compress(folder / EVENT_LOG, log)
        shutil.rmtree(folder, ignore_errors=True)
    status: Literal["done", "failed"] = "failed" if error else "done"
    return key, CellResult(status, kept, rounds, error, time.perf_counter() - began)


def _kept(summary: Summary, recorder: RoundRecorder) -> dict[str, Any]:
    values = {
        **summary.model_dump(),
        "believed_to_target_s": recorder.believed_to_target_s,
        "target_metric": summary.target.metric,
        "target": summary.target.value,
    }
    return {name: values[name] for name in SUMMARY_COLUMNS if name in values}


def _compress(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{secrets.token_hex(6)}.part")
    with source.open("rb") as plain, gzip.open(part, "wb", compresslevel=3) as packed:
        shutil.copyfileobj(plain, packed)
    part.replace(target)
