"""Figures of an experiment: curves, lines and bars, each with a band over the seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pydantic import Field, field_validator, model_validator

from powertrip.settings import Settings
from powertrip.simulation.table import (
    CONFIDENCE,
    Key,
    Row,
    TableError,
    Value,
    falls,
    group,
    hindsight,
    matching,
    number,
    relative,
    replace_file,
    spread,
)

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's colours, which people with any kind of colour vision tell apart."""

MARKERS = "osD^vP*X"

BEST_BY = "time_to_target_s"
"""What a setting is best by in hindsight, where the figure shows rounds."""

SAMPLES = 200
"""Points of a curve."""

Floats: TypeAlias = npt.NDArray[np.float64]


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


def draw(
    figure: FigureSettings,
    title: str,
    axes: Sequence[str],
    cells: Sequence[Row],
    rounds: Sequence[Row],
    folder: Path,
) -> Path:
    """Draw a figure as PNG.

    Parameters
    ----------
    figure
        What to show.
    title
        Title, where the figure has none of its own.
    axes
        Columns that tell cells apart, but for the seed.
    cells, rounds
        The tables.
    folder
        Where to.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    TableError
        The tables lack what the figure shows.
    """
    cells = [row for row in matching(cells, figure.where) if row.get("rounds") is not None]
    if not cells:
        raise TableError(f"{figure.file}: no cell that it shows has run")
    panels: list[Value] = [None]
    if figure.panels:
        panels = list(dict.fromkeys(row.get(figure.panels) for row in cells))
    canvas = Figure(figsize=(1.2 + 4.6 * len(panels), 4.4), layout="constrained", dpi=150)
    FigureCanvasAgg(canvas)
    plots = canvas.subplots(1, len(panels), squeeze=False, sharey=figure.kind != "curve")[0]
    for panel, plot in zip(panels, plots, strict=True):
        chosen = matching(cells, {figure.panels: panel}) if figure.panels else cells
        if figure.panels:
            plot.set_title(f"{_words(figure.panels)}: {panel}", fontsize=10)
        _draw_panel(figure, plot, axes, chosen, rounds)
    for plot in plots[1:]:
        plot.set_ylabel("")
    canvas.suptitle(figure.title or title, fontsize=12)
    seeds = len({row["seed"] for row in cells})
    canvas.supxlabel(caption(figure, seeds), fontsize=7, color="#666666")
    path = folder / f"{figure.file}.png"
    replace_file(path, lambda part: canvas.savefig(part, format="png", metadata={"Software": None}))
    return path


def _draw_panel(
    figure: FigureSettings, plot: Axes, axes: Sequence[str], cells: Sequence[Row], rounds: Any
) -> None:
    plot.grid(visible=True, color="#dddddd", linewidth=0.6)
    plot.set_axisbelow(True)
    if figure.kind == "curve":
        _draw_curves(figure, plot, axes, cells, rounds)
    else:
        lines = summarised(figure, axes, cells)
        if figure.kind == "line":
            _draw_lines(figure, plot, lines)
        else:
            _draw_bars(figure, plot, lines)
    if figure.relative_to:
        plot.axhline(1.0, color="#666666", linewidth=0.8, linestyle=":")
    if "x" in figure.log:
        plot.set_xscale("log")
    if "y" in figure.log:
        plot.set_yscale("log")
    if figure.by:
        plot.legend(fontsize=8, frameon=False)


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


def _draw_curves(
    figure: FigureSettings,
    plot: Axes,
    axes: Sequence[str],
    cells: Sequence[Row],
    rounds: Sequence[Row],
) -> None:
    kept = hindsight(cells, axes, BEST_BY, figure.best) if figure.best else cells
    wanted = {tuple(row.get(axis) for axis in (*axes, "seed")) for row in kept}
    rows = [r for r in rounds if tuple(r.get(axis) for axis in (*axes, "seed")) in wanted]
    lines = {
        by: curve_band(list(group(members, ["seed"]).values()), figure.x[0], figure.y)
        for by, members in group(rows, figure.by).items()
    }
    known = {by: band for by, band in lines.items() if band is not None}
    x_factor, x_name = scale(figure.x[0], (x for band in known.values() for x in band[0]))
    y_factor, y_name = scale(figure.y, (y for band in known.values() for y in band[1]))
    for number_, (by, (x, middle, low, high)) in enumerate(known.items()):
        colour = COLOURS[number_ % len(COLOURS)]
        plot.plot(x / x_factor, middle / y_factor, color=colour, label=_label(by), linewidth=1.6)
        plot.fill_between(
            x / x_factor, low / y_factor, high / y_factor, color=colour, alpha=0.2, linewidth=0
        )
    plot.set_xlabel(x_name)
    plot.set_ylabel(y_name)


def curve_band(
    seeds: Sequence[Sequence[Row]], x: str, y: str
) -> tuple[Floats, Floats, Floats, Floats] | None:
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
    tuple or None
        x, median, 10th and 90th percentile; None where no run has values.
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


def _draw_lines(figure: FigureSettings, plot: Axes, lines: Mapping[Key, Points]) -> None:
    finite = [y for points in lines.values() for y in points.middle if math.isfinite(y)]
    factor, name = (1.0, ratio_name(figure)) if figure.relative_to else scale(figure.y, finite)
    top = 1.1 * max(finite, default=1.0)
    for place, (by, points) in enumerate(lines.items()):
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        varied = sorted(
            (float(x), place) for place, (x,) in enumerate(points.x) if isinstance(x, int | float)
        )
        order = [place for _, place in varied]
        x = np.array([at for at, _ in varied])
        middle, low, high = (
            np.array([values[place] for place in order]) / factor
            for values in (points.middle, points.low, points.high)
        )
        shown = np.isfinite(middle)
        label: str | None = _label(by)
        if shown.any():
            plot.plot(
                x,
                np.where(shown, middle, np.nan),
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1.6,
                label=label,
            )
            ceiling = np.where(np.isfinite(high), high, top / factor)
            plot.fill_between(x, low, ceiling, where=shown, color=colour, alpha=0.2, linewidth=0)
            label = None
        _mark_missed(plot, x[~shown], colour)
        for place_, (value,) in enumerate(points.x):
            if value is None and math.isfinite(points.middle[place_]):
                plot.axhline(
                    points.middle[place_] / factor, color=colour, linestyle="--", label=label
                )
                ceiling_ = points.high[place_] if math.isfinite(points.high[place_]) else top
                plot.axhspan(
                    points.low[place_] / factor, ceiling_ / factor, color=colour, alpha=0.1
                )
    plot.set_xlabel(_words(figure.x[0]))
    plot.set_ylabel(name)


def _mark_missed(plot: Axes, x: Floats, colour: str) -> None:
    """Crosses at the top edge where most seeds have missed the target."""
    if x.size:
        plot.plot(
            x, np.full(x.shape, 0.97), "x", color=colour, transform=plot.get_xaxis_transform()
        )


def _draw_bars(figure: FigureSettings, plot: Axes, lines: Mapping[Key, Points]) -> None:
    places = {x: None for points in lines.values() for x in points.x}
    position = {x: place for place, x in enumerate(places)}
    finite = [y for points in lines.values() for y in points.middle if math.isfinite(y)]
    factor, name = (1.0, ratio_name(figure)) if figure.relative_to else scale(figure.y, finite)
    width = 0.8 / max(1, len(lines))
    for place, (by, points) in enumerate(lines.items()):
        colour = COLOURS[place % len(COLOURS)]
        shift = (place - (len(lines) - 1) / 2) * width
        for x, middle, low, high in zip(
            points.x, points.middle, points.low, points.high, strict=True
        ):
            at = position[x] + shift
            if not math.isfinite(middle):
                text = "never" if middle > 0 else "no data"
                plot.annotate(text, (at, 0), rotation=90, ha="center", va="bottom", fontsize=7)
                continue
            above = high - middle if math.isfinite(high) else middle
            plot.bar(at, middle / factor, width * 0.92, color=colour)
            plot.errorbar(
                at,
                middle / factor,
                yerr=[[(middle - low) / factor], [above / factor]],
                color="#333333",
                capsize=2,
                linewidth=0.9,
            )
            plot.annotate(
                f"{middle / factor:.3g}",
                (at, (middle + above) / factor),
                ha="center",
                va="bottom",
                fontsize=7,
                xytext=(0, 1),
                textcoords="offset points",
            )
        plot.bar([math.nan], [math.nan], color=colour, label=_label(by))
    plot.set_xticks(range(len(position)), [_label(x) for x in position])
    if len(position) > 5:
        plot.tick_params("x", rotation=30)
    plot.set_ylabel(name)


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
            return factor, f"{_words(name)} ({unit})"
    return 1.0, _words(column)


def ratio_name(figure: FigureSettings) -> str:
    """What a ratio is of, and to what."""
    name = _words(_plain(figure.y))
    reference = " ".join(f"{value}" for value in figure.relative_to.values())
    best = f" at its best {' and '.join(map(_words, figure.best))}" if figure.best else ""
    if figure.inverse:
        return f"speed-up in {name} over {reference}{best}"
    return f"{name} relative to {reference}{best}"


def _plain(column: str) -> str:
    """A column's name without its unit."""
    return column.removesuffix("_s").removesuffix("_j").removesuffix("_g")


def _words(column: str) -> str:
    return column.replace("_", " ")


def _label(key: Key) -> str:
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
        best = f"{'smallest' if falls(by) else 'largest'} median {_words(_plain(by))}"
        text += f"; {' and '.join(figure.best)} of the {best} in hindsight"
    return text
