"""Figures of an experiment: what they show, and the numbers behind them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from powertrip.experiments.table import (
    CONFIDENCE,
    Key,
    Row,
    TableError,
    falls,
    group,
    hindsight,
    matching,
    number,
    relative,
    spread,
)
from powertrip.settings import Settings

BEST_BY = "time_to_target_s"
"""What a setting is best by in hindsight, where the figure shows rounds."""

SAMPLES = 200
"""Points of a curve."""

Floats: TypeAlias = npt.NDArray[np.float64]
Band: TypeAlias = tuple[Floats, Floats, Floats, Floats]
"""x, median, 10th and 90th percentile of a curve."""


class FigureSettings(Settings):
    """One figure, drawn from the table of cells or, as a curve, from that of rounds."""

    kind: Literal["curve", "line", "bar"]
    """curve (rounds of the runs, over time or rounds), line (over a number that is varied) or
    bar."""

    x: tuple[str, ...]
    """Column along the axis; of bars perhaps several."""

    y: str
    """Column that is shown."""

    by: tuple[str, ...] = ()
    """Columns that lines and bars differ in."""

    panels: str | None = None
    """Column that the parts of the figure, side by side, differ in."""

    where: dict[str, Any] = Field(default_factory=dict)
    """Which cells: columns with the value, or the list of values, that they hold."""

    best: tuple[str, ...] = ()
    """Columns, such as k, of which only the best in hindsight is shown: the value with the smallest
    median over the seeds of y (of the time to the target in a curve)."""

    relative_to: dict[str, Any] = Field(default_factory=dict)
    """Columns and what they hold in the reference, such as {policy: static}: y is then divided by
    the reference's, seed by seed."""

    inverse: bool = False
    """Divide the reference's y by the own one: a speed-up."""

    log: tuple[Literal["x", "y"], ...] = ()
    """Axes with a logarithmic scale."""

    title: str | None = None
    """Title; null for the experiment's."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the file, without its ending; null makes one of what is shown."""

    @field_validator("x", "by", "best", "log", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if not self.x or (self.kind != "bar" and len(self.x) > 1):
            raise ValueError(f"a {self.kind} has one column x")
        if self.kind == "curve" and self.relative_to:
            raise ValueError("a curve cannot be relative to another; use line or bar")
        if self.inverse and not self.relative_to:
            raise ValueError("inverse needs relative_to")
        return self

    @property
    def of_rounds(self) -> bool:
        """Whether it is drawn from the table of rounds."""
        return self.kind == "curve"

    @property
    def file(self) -> str:
        """Name of its file, without the ending."""
        return self.name or f"{self.y}-against-{'-'.join(self.x)}"

    @property
    def shown(self) -> tuple[str, ...]:
        """Columns that a reader of the figure tells cells apart by."""
        return (*self.x, *self.by, *((self.panels,) if self.panels else ()))

    def problems(
        self, where: str, axes: Sequence[str], measured: Sequence[str], cells: Sequence[Row]
    ) -> list[str]:
        """What keeps it from being drawn, found out before anything is run.

        Parameters
        ----------
        where
            Its place in the file.
        axes, measured
            Columns that tell cells apart, and columns that they yield.
        cells
            What the axes hold in each combination.
        """
        known = {"y": measured, "x": (*axes, *(measured if self.kind == "curve" else ()))}
        found = [
            f"{where}.{name}: there is no column {column}; write one of {', '.join(known[name])}"
            for name, columns in (("y", (self.y,)), ("x", self.x))
            for column in columns
            if column not in known[name]
        ]
        named = (*self.by, *self.where, *self.best, *self.relative_to)
        for column in (*named, *((self.panels,) if self.panels else ())):
            if column not in axes:
                found.append(f"{where}: {column} is no axis; write one of {', '.join(axes)}")
        if found:
            return found
        rows = matching(cells, self.where)
        if not rows:
            return [f"{where}.where: no cell is like that"]
        for members in group(rows, self.shown).values():
            for column in axes:
                values = {row.get(column) for row in members}
                if column not in (*self.shown, *self.best) and len(values) > 1:
                    return [
                        f"{where}: cells that differ in {column} would be shown as one; name it in "
                        "x, by or panels, choose in where, or let best choose"
                    ]
        if self.relative_to:
            try:
                trial = [{**row, "seed": 0, self.y: 1.0} for row in rows]
                relative(trial, axes, self.y, self.relative_to, self.best)
            except TableError as error:
                return [f"{where}.relative_to: {error}"]
        return []


class Points:
    """The numbers behind one line or one colour of bars: a median and a band for each x."""

    def __init__(self) -> None:
        self.x: list[Key] = []
        self.middle: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, x: Key, middle: float, low: float, high: float) -> None:
        """Add a point."""
        self.x.append(x)
        self.middle.append(middle)
        self.low.append(min(low, high))
        self.high.append(max(low, high))


def summarised(
    figure: FigureSettings, axes: Sequence[str], cells: Sequence[Row]
) -> dict[Key, Points]:
    """What a figure of cells shows: the points of each line, or of each colour of bars."""
    lines: dict[Key, Points] = {}
    if figure.relative_to:
        for ratio in relative(cells, axes, figure.y, figure.relative_to, figure.best):
            values = (ratio.median, ratio.low, ratio.high)
            if figure.inverse:
                values = tuple(1 / value if value else math.inf for value in values)  # type: ignore[assignment]
            points = lines.setdefault(tuple(ratio.at[column] for column in figure.by), Points())
            points.add(tuple(ratio.at[column] for column in figure.x), *values)
        return lines
    rows = hindsight(cells, axes, figure.y, figure.best) if figure.best else cells
    for by, members in group(rows, figure.by).items():
        points = lines[by] = Points()
        for x, same in group(members, figure.x).items():
            found = spread(number(row, figure.y) for row in same)
            points.add(x, found.median, found.low, found.high)
    return lines


def curves(
    figure: FigureSettings, axes: Sequence[str], cells: Sequence[Row], rounds: Sequence[Row]
) -> dict[Key, Band]:
    """What a figure of rounds shows of some cells: the band of each line that has values."""
    kept = hindsight(cells, axes, BEST_BY, figure.best) if figure.best else cells
    at = (*axes, "seed")
    wanted = set(group(kept, at))
    bands = {}
    shown = [row for row in rounds if tuple(row.get(axis) for axis in at) in wanted]
    for by, rows in group(shown, figure.by).items():
        band = curve_band(list(group(rows, ["seed"]).values()), figure.x[0], figure.y)
        if band is not None:
            bands[by] = band
    return bands


def curve_band(seeds: Sequence[Sequence[Row]], x: str, y: str) -> Band | None:
    """Median and band of several runs' curves.

    Between two rounds a curve is interpolated. A run that has ended keeps its last value; the
    median run's end is where the curve ends.

    Parameters
    ----------
    seeds
        The rounds of each run.
    x, y
        Columns.

    Returns
    -------
    Band or None
        None where no run has values.
    """
    series = []
    for rows in seeds:
        points = [(number(row, x), number(row, y)) for row in rows]
        known = np.array([point for point in points if np.isfinite(point).all()])
        if known.size:
            series.append(known)
    if not series:
        return None
    start = max(float(points[0, 0]) for points in series)
    ends = sorted(float(points[-1, 0]) for points in series)
    end = ends[len(ends) // 2]
    if x == "round":
        at = np.unique(np.concatenate([points[:, 0] for points in series]))
        at = at[(at >= start) & (at <= max(start, end))]
    else:
        at = np.linspace(start, max(start, end), SAMPLES)
    values = np.array([np.interp(at, points[:, 0], points[:, 1]) for points in series])
    low, high = np.quantile(values, (0.1, 0.9), axis=0, method="inverted_cdf")
    return at, np.median(values, axis=0), low, high


_UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "_s": ((1, "s"), (60, "min"), (3600, "h"), (86400, "days")),
    "_j": ((1, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ")),
    "_g": ((1, "g CO2e"), (1e3, "kg CO2e"), (1e6, "t CO2e")),
    "bytes_sent": ((1, "bytes"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")),
}


def scale(column: str, values: Iterable[float]) -> tuple[float, str]:
    """What to divide a column's values by for an axis, and the axis's label with the unit."""
    for ending, units in _UNITS.items():
        if column.endswith(ending):
            largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
            factor, unit = max(
                (u for u in units if largest >= 2 * u[0]), default=units[0], key=lambda u: u[0]
            )
            name = column.removesuffix(ending) if ending.startswith("_") else column
            return factor, f"{words(name)} ({unit})"
    return 1.0, words(column)


def ratio_name(figure: FigureSettings) -> str:
    """What a ratio is of, and to what."""
    name = words(_plain(figure.y))
    reference = " ".join(f"{value}" for value in figure.relative_to.values())
    best = f" at its best {' and '.join(map(words, figure.best))}" if figure.best else ""
    if figure.inverse:
        return f"speed-up in {name} over {reference}{best}"
    return f"{name} relative to {reference}{best}"


def _plain(column: str) -> str:
    """A column's name without its unit."""
    return column.removesuffix("_s").removesuffix("_j").removesuffix("_g")


def words(column: str) -> str:
    """A column's name to be read."""
    return column.replace("_", " ")


def label(key: Key) -> str:
    """What some columns hold, without what is empty."""
    return ", ".join(str(value) for value in key if value is not None)


def caption(figure: FigureSettings, seeds: int) -> str:
    """What its numbers are, over how many seeds."""
    counted = f"{seeds} seeds" if seeds > 1 else "1 seed"
    if figure.relative_to:
        text = f"median over {counted} of paired ratios, {CONFIDENCE:.0%} bootstrap interval"
    else:
        text = f"median of {counted}, band from the 10th to the 90th percentile"
    if figure.best:
        by = BEST_BY if figure.of_rounds else figure.y
        best = f"{'smallest' if falls(by) else 'largest'} median {words(_plain(by))}"
        text += f"; {' and '.join(figure.best)} of the {best} in hindsight"
    return text
