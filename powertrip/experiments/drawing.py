"""Draws an experiment's figures: curves, lines and bars, each with a band over the seeds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from powertrip.experiments.figures import (
    Band,
    FigureSettings,
    Points,
    caption,
    curves,
    label,
    ratio_name,
    scale,
    summarised,
    words,
)
from powertrip.experiments.table import Key, Row, TableError, Value, matching, replace_file

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's colours, which people with any kind of colour vision tell apart."""

MARKERS = "osD^vP*X"

_LETTERS_HIGH = 48  # of a line of text along a panel's height
_LETTERS_WIDE = 60  # and along its width
_LEVEL = 5  # bars' names up to which these are not written aslant


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
    plots = canvas.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    parts = [
        matching(cells, {figure.panels: panel}) if figure.panels else cells for panel in panels
    ]
    if figure.of_rounds:
        _draw_curves(figure, plots, [curves(figure, axes, part, rounds) for part in parts])
    else:
        _draw_points(figure, plots, [summarised(figure, axes, part) for part in parts])
    for panel, plot in zip(panels, plots, strict=True):
        if figure.panels:
            plot.set_title(f"{words(figure.panels)}: {panel}", fontsize=10)
        _finish(figure, plot)
    canvas.suptitle(figure.title or title, fontsize=12)
    seeds = len({row["seed"] for row in cells})
    text = textwrap.fill(caption(figure, seeds), width=round(18 * canvas.get_figwidth()))
    canvas.supxlabel(text, fontsize=7, color="#666666")
    path = folder / f"{figure.file}.png"
    replace_file(path, lambda part: canvas.savefig(part, format="png", metadata={"Software": None}))
    return path


def _finish(figure: FigureSettings, plot: Axes) -> None:
    plot.grid(visible=True, color="#dddddd", linewidth=0.6)
    plot.set_axisbelow(True)
    if figure.relative_to:
        plot.axhline(1.0, color="#666666", linewidth=0.8, linestyle=":")
    if "x" in figure.log:
        plot.set_xscale("log")
    if "y" in figure.log:
        plot.set_yscale("log")
    if figure.by and plot.get_legend_handles_labels()[0]:
        plot.legend(fontsize=8, frameon=False)


def _draw_points(
    figure: FigureSettings, plots: Sequence[Axes], parts: Sequence[Mapping[Key, Points]]
) -> None:
    """Lines or bars of all panels, in the same unit."""
    together = [points for lines in parts for points in lines.values()]
    middles = [y for points in together for y in points.middle]
    factor, name = (1.0, ratio_name(figure)) if figure.relative_to else scale(figure.y, middles)
    plots[0].set_ylabel(textwrap.fill(name, _LETTERS_HIGH))
    highs = (y for points in together for y in points.high)
    top = 1.1 * max((y for y in (*middles, *highs) if math.isfinite(y)), default=1.0)
    places = _places(parts)
    for plot, lines in zip(plots, parts, strict=True):
        if figure.kind == "line":
            _draw_lines(figure, plot, lines, places, factor, top)
        else:
            _draw_bars(plot, lines, places, factor)


def _places(parts: Sequence[Iterable[Key]]) -> dict[Key, int]:
    """The place of each line among all, by which it has the same colour in all panels."""
    return {
        key: place for place, key in enumerate(dict.fromkeys(k for part in parts for k in part))
    }


def _draw_curves(
    figure: FigureSettings, plots: Sequence[Axes], parts: Sequence[Mapping[Key, Band]]
) -> None:
    factors = []
    for place, column in enumerate((figure.x[0], figure.y)):
        values = (v for bands in parts for band in bands.values() for v in band[place])
        factors.append(scale(column, values))
    (x_factor, x_name), (y_factor, y_name) = factors
    plots[0].set_ylabel(y_name)
    places = _places(parts)
    for plot, bands in zip(plots, parts, strict=True):
        plot.set_xlabel(x_name)
        for by, (x, middle, low, high) in bands.items():
            colour = COLOURS[places[by] % len(COLOURS)]
            plot.plot(x / x_factor, middle / y_factor, color=colour, label=label(by), linewidth=1.6)
            plot.fill_between(
                x / x_factor, low / y_factor, high / y_factor, color=colour, alpha=0.2, linewidth=0
            )


def _draw_lines(
    figure: FigureSettings,
    plot: Axes,
    lines: Mapping[Key, Points],
    places: Mapping[Key, int],
    factor: float,
    top: float,
) -> None:
    for by, points in lines.items():
        colour, marker = COLOURS[places[by] % len(COLOURS)], MARKERS[places[by] % len(MARKERS)]
        varied = sorted(
            (float(x), at) for at, (x,) in enumerate(points.x) if isinstance(x, int | float)
        )
        x = np.array([value for value, _ in varied])
        middle, low, high = (
            np.array([values[at] for _, at in varied])
            for values in (points.middle, points.low, points.high)
        )
        shown = np.isfinite(middle)
        name: str | None = label(by)  # of the first thing that is drawn of it
        if shown.any():
            plot.plot(
                x,
                np.where(shown, middle, np.nan) / factor,
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1.6,
                label=name,
            )
            name = None
            high = np.where(np.isfinite(high), high, top)
            plot.fill_between(
                x, low / factor, high / factor, where=shown, color=colour, alpha=0.2, linewidth=0
            )
        missed = x[np.isposinf(middle)]
        if missed.size:
            edge = np.full(missed.shape, 0.97)
            plot.plot(
                missed, edge, "x", color=colour, transform=plot.get_xaxis_transform(), label=name
            )
            name = None
        for at, (value,) in enumerate(points.x):
            if value is None and math.isfinite(points.middle[at]):
                plot.axhline(points.middle[at] / factor, color=colour, linestyle="--", label=name)
                ceiling = points.high[at] if math.isfinite(points.high[at]) else top
                plot.axhspan(points.low[at] / factor, ceiling / factor, color=colour, alpha=0.1)
                name = None
        if name is not None:
            plot.plot([], [], "x", color=colour, label=name)
    plot.set_xlabel(words(figure.x[0]))


def _draw_bars(
    plot: Axes, lines: Mapping[Key, Points], places: Mapping[Key, int], factor: float
) -> None:
    position = _places([points.x for points in lines.values()])
    width = 0.8 / max(1, len(places))
    for by, points in lines.items():
        colour = COLOURS[places[by] % len(COLOURS)]
        shift = (places[by] - (len(places) - 1) / 2) * width
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
        plot.bar([math.nan], [math.nan], color=colour, label=label(by))
    plot.set_xlim(-0.6, len(position) - 0.4)
    texts = [label(x) for x in position]
    if len(position) > _LEVEL:
        plot.tick_params("x", rotation=30)
    else:
        texts = [textwrap.fill(text, _LETTERS_WIDE // len(position)) for text in texts]
    plot.set_xticks(range(len(position)), texts)
