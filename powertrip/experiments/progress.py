"""What an experiment shows on a terminal: its progress, its cells, its results."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich import progress as rich_progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from powertrip.experiments.cell import CellResult
from powertrip.experiments.grid import Cell, Experiment
from powertrip.experiments.table import Row, Value, group, number, spread
from powertrip.telemetry import words


class Progress:
    """A bar on a terminal, or a line a cell where the output is none.

    Parameters
    ----------
    console
        Where to write.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = rich_progress.Progress(
            rich_progress.BarColumn(),
            rich_progress.TextColumn("{task.description}"),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._began = time.monotonic()
        self._total = self._found = self._finished = self._failed = 0

    def start(self, *, total: int, found: int, outdated: int) -> None:
        """Begin: of `total` cells `found` are done, `outdated` of them by another source."""
        self._total, self._found, self._began = total, found, time.monotonic()
        if found:
            self._console.print(f"{found} of {words.count(total, 'cell')} done already")
        if outdated:
            self._console.print(
                f"{words.count(outdated, 'cell')} of these were made by another source of this "
                "version of PowerTrip; --fresh runs them again",
                style="yellow",
                soft_wrap=True,
            )
        self._bar.start()
        self._task = self._bar.add_task("", total=total - found, left="")
        self._update()

    def done(self, cell: Cell, result: CellResult) -> None:
        """A cell has ended."""
        self._finished += 1
        if result.status == "failed":
            self._failed += 1
            self._print(f"{cell.name}: failed: {result.error}", "red")
        elif not self._console.is_terminal:
            self._print(f"{cell.name}: {_outcome(result)}, {words.duration(result.wall_s)}")
        self._update()

    def _print(self, line: str, style: str | None = None) -> None:
        place = f"[{self._found + self._finished}/{self._total}] "
        self._bar.console.print(Text(place + line, style or ""), soft_wrap=True)

    def _update(self) -> None:
        waiting = self._total - self._found - self._finished
        spent_s = time.monotonic() - self._began
        rest = ""
        if self._finished and waiting:
            rest = f"about {words.duration(spent_s / self._finished * waiting)} left"
        done = self._found + self._finished - self._failed
        counts = f"{done} done, {self._failed} failed, {waiting} to go"
        self._bar.update(self._task, completed=self._finished, description=counts, left=rest)

    def close(self) -> None:
        """Leave the bar as it is; a second call does nothing."""
        self._bar.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _outcome(result: CellResult) -> str:
    rounds = words.count(result.summary["rounds"], "round")
    if result.summary["target_metric"] == "rounds":
        return f"{rounds} in {words.duration(result.summary['training_s'])}"
    if not result.summary["reached"]:
        return f"target missed, {rounds}"
    return f"target after {words.duration(result.summary['time_to_target_s'])}, {rounds}"


def show_cells(experiment: Experiment, finished: Sequence[bool], console: Console) -> None:
    """List the cells, and which of them are done."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in (*experiment.columns, "seed", "cell", ""):
        table.add_column(column)
    for cell, done in zip(experiment.cells, finished, strict=True):
        held = [*(cell.at[column] for column in experiment.columns), cell.seed, cell.key]
        table.add_row(*map(_text, held), "done" if done else "to run")
    console.print(table)
    waiting = len({c.key for c, done in zip(experiment.cells, finished, strict=True) if not done})
    console.print(f"{words.count(len(experiment.cells), 'cell')}, {waiting} to run")


def show_results(columns: Sequence[str], rows: Sequence[Row], console: Console) -> None:
    """One line for each combination of the axes: medians over the seeds."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for name in ("reached", "to target", "rounds", "members", "test", "energy"):
        table.add_column(name, justify="right", no_wrap=True)
    for key, cells in group(rows, columns).items():
        table.add_row(
            *map(_text, key),
            f"{sum(row.get('reached') is True for row in cells)}/{len(cells)}",
            words.duration(_known(median(cells, "time_to_target_s"))),
            _text(_known(median(cells, "rounds"))),
            _rounded(median(cells, "mean_members"), ".1f"),
            words.score(_known(median(cells, "test_accuracy")), "accuracy"),
            words.quantity(_known(median(cells, "energy_j")), "J"),
        )
    console.print(table)


def median(rows: Sequence[Row], column: str) -> float:
    """Median of a column over some cells; NaN without values."""
    return spread(number(row, column) for row in rows).median


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _rounded(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _text(value: Value) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
