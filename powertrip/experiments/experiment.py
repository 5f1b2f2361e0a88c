"""Runs the cells of an experiment, and writes its tables and figures."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import joblib
import yaml
from rich.console import Console

from powertrip.errors import PowerTripError
from powertrip.experiments.backends import Backend, known_backend, unordered
from powertrip.experiments.cell import (
    ROUND_COLUMNS,
    SUMMARY_COLUMNS,
    CellResult,
    Simulate,
    run_cell,
    simulate_with_one_thread,
)
from powertrip.experiments.drawing import draw
from powertrip.experiments.grid import Cell, Experiment, plan_experiment
from powertrip.experiments.progress import Progress, show_cells, show_results
from powertrip.experiments.store import Store
from powertrip.experiments.table import Row, replace_file, write_table

SUMMARY_TABLE = "summary.csv"
ROUNDS_TABLE = "rounds.csv"
RESOLVED_FILE = "experiment.yaml"


class CellsFailed(PowerTripError):
    """Some cells ended with an error; the others' results are there."""


class Interrupted(PowerTripError):
    """The experiment was stopped; what is finished is kept."""

    exit_code = 130


@dataclass(frozen=True)
class Results:
    """What an experiment came to.

    Attributes
    ----------
    cells
        A row for each cell, in the order of the axes and then the seeds.
    rounds
        A row for each round of each cell that did not fail, in the same order.
    files
        The files that were written.
    """

    cells: list[Row]
    rounds: list[Row]
    files: list[Path]


def conduct(
    file: Path,
    console: Console,
    *,
    quick: bool,
    overrides: Sequence[str],
    out: Path | None,
    workers: int | None,
    backend: str,
    keep_logs: bool,
    fresh: bool,
    dry_run: bool,
    simulate: Simulate = simulate_with_one_thread,
) -> None:
    """What `powertrip experiment` does: plan, run, write, show.

    Raises
    ------
    CellsFailed
        At the end, where cells have failed.
    Interrupted
        By SIGINT or SIGTERM.
    """
    experiment = plan_experiment(file, quick=quick, overrides=overrides)
    name = experiment.settings.name
    folder = out or Path("runs") / (f"{name}-quick" if quick else name)
    if dry_run:
        store = Store(folder / "cells")
        finished = [not fresh and store.load(cell.key) is not None for cell in experiment.cells]
        show_cells(experiment, finished, console)
        return
    with _stopped_by_sigterm(), Progress(console) as progress:
        try:
            results = run_experiment(
                experiment,
                folder,
                progress,
                workers=workers,
                backend=known_backend(backend),
                fresh=fresh,
                keep_logs=keep_logs,
                simulate=simulate,
            )
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; what is finished is kept, and the same command goes on from there"
            ) from None
    show_results(experiment.columns, results.cells, console)
    console.print("", *(f"wrote {path}" for path in results.files), sep="\n")
    if failed := failures(experiment, results):
        raise failed


@contextmanager
def _stopped_by_sigterm() -> Generator[None]:
    """Let SIGTERM end the block as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_experiment(
    experiment: Experiment,
    out: Path,
    progress: Progress,
    *,
    workers: int | None = None,
    backend: Backend = "processes",
    fresh: bool = False,
    keep_logs: bool = False,
    simulate: Simulate = simulate_with_one_thread,
) -> Results:
    """Run the cells that have not been run, then write tables and figures.

    Where it is interrupted, the finished cells stay so, and the next call goes on from there. The
    tables are the same to the last digit whatever the number of workers.

    Parameters
    ----------
    experiment
        What to run.
    out
        Folder for everything; cells that it holds are not run again.
    progress
        Is told of every cell.
    workers
        Processes; None for one a core.
    backend
        Where the cells run.
    fresh
        Whether to run the cells again that are finished.
    keep_logs
        Whether to keep each cell's event log, compressed.
    simulate
        What runs a cell.

    Raises
    ------
    WorkerDied
        A process was killed.
    TableError
        A figure cannot be drawn.
    """
    store = Store(out / "cells")
    results = run_cells(
        experiment.cells,
        store,
        progress,
        workers=joblib.cpu_count() if workers is None else workers,
        backend=backend,
        fresh=fresh,
        logs=out / "logs" if keep_logs else None,
        simulate=simulate,
    )
    return write_results(experiment, results, out)


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    progress: Progress,
    *,
    workers: int,
    backend: Backend,
    fresh: bool,
    logs: Path | None,
    simulate: Simulate,
) -> dict[str, CellResult]:
    """Run what is not in the store yet, and return the results of all cells by their keys.

    Seed by seed, so that an interrupted experiment has looked at every setting.
    """
    ordered = {cell.key: cell for cell in sorted(cells, key=lambda cell: cell.seed)}
    results: dict[str, CellResult] = {}
    if not fresh:
        found = {key: store.load(key) for key in ordered}
        results = {key: result for key, result in found.items() if result is not None}
    waiting = [cell for key, cell in ordered.items() if key not in results]
    progress.start(total=len(ordered), found=len(results), outdated=len(store.other_source))
    if not waiting:
        return results
    with tempfile.TemporaryDirectory(prefix="powertrip-", ignore_cleanup_errors=True) as scratch:

        def calls() -> Iterator[tuple[Any, ...]]:
            for cell in waiting:
                other = None if fresh else store.load(cell.key)
                if other is None:
                    log = logs / f"{cell.key}.jsonl.gz" if logs else None
                    yield cell.key, cell.setup, Path(scratch), log, simulate
                else:  # Another run of the experiment has done it meanwhile.
                    results[cell.key] = other
                    progress.done(cell, other)

        most = min(workers, len(waiting))
        with unordered(calls(), run_cell, most, backend, Path(scratch)) as finished:
            for key, result in finished:
                store.save(key, result)
                results[key] = result
                progress.done(ordered[key], result)
    return results


def write_results(experiment: Experiment, results: dict[str, CellResult], out: Path) -> Results:
    """Write the tables, the figures, and the experiment as it was run."""
    cells: list[Row] = []
    rounds: list[Row] = []
    for cell in experiment.cells:
        result = results[cell.key]
        at = {**cell.at, "seed": cell.seed}
        ended = {"status": result.status, "error": result.error or None}
        cells.append({**result.summary, **ended, **at})
        for values in zip(*(result.rounds.get(name, ()) for name in ROUND_COLUMNS), strict=True):
            rounds.append({**dict(zip(ROUND_COLUMNS, values, strict=True)), **at})
    heads = [*experiment.columns, "seed"]
    written = [_write_settings(experiment, out / RESOLVED_FILE)]
    written += write_table(out / SUMMARY_TABLE, _columns(heads, SUMMARY_COLUMNS), cells)
    written += write_table(out / ROUNDS_TABLE, _columns(heads, ROUND_COLUMNS), rounds)
    settings = experiment.settings
    if any(row["status"] == "done" for row in cells):
        for figure in settings.figures:
            title = settings.title or settings.name
            written.append(draw(figure, title, experiment.columns, cells, rounds, out))
    return Results(cells, rounds, written)


def _columns(heads: Sequence[str], measured: Sequence[str]) -> list[str]:
    return [*heads, *(name for name in measured if name not in heads)]


def _write_settings(experiment: Experiment, path: Path) -> Path:
    dumped = experiment.settings.model_dump(mode="json", exclude_defaults=True, exclude={"quick"})
    text = yaml.safe_dump(dumped, sort_keys=False, allow_unicode=True, width=100)
    replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))
    return path


def failures(experiment: Experiment, results: Results) -> CellsFailed | None:
    """What to end with where cells have failed: an error that lists them."""
    lines = []
    for cell, row in zip(experiment.cells, results.cells, strict=True):
        if row["status"] == "failed":
            lines.append(f"  {cell.name}: {row['error']}")
    if not lines:
        return None
    return CellsFailed("\n".join([f"{len(lines)} of {len(results.cells)} cells failed:", *lines]))
