"""Fill the tables of docs/reproduction.md from the results of experiments.

A table stands between the lines ``<!-- table: EXPERIMENT/FIGURE -->`` and ``<!-- end -->``, and
holds the numbers behind that figure, a bar or a line, of ``RESULTS/EXPERIMENT``. With ``--check``
nothing is written, and the exit code is 1 where the page is not what the results say.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path

from powertrip.errors import PowerTripError
from powertrip.experiments.experiment import RESOLVED_FILE, SUMMARY_TABLE
from powertrip.experiments.figures import caption, ratio_name, scale, summarised
from powertrip.experiments.grid import read_experiment
from powertrip.experiments.table import TableError, Value, matching, read_table

ROOT = Path(__file__).parents[1]
MARKED = re.compile(
    r"^<!-- table: (?P<experiment>[\w.-]+)/(?P<figure>[\w.-]+) -->\n.*?^<!-- end -->$",
    re.MULTILINE | re.DOTALL,
)


def filled(page: str, results: Path) -> str:
    """A page whose tables say what the results do.

    Raises
    ------
    TableError
        There is no such result or figure.
    """

    def table(found: re.Match[str]) -> str:
        experiment, figure = found["experiment"], found["figure"]
        lines = figure_table(results / experiment, figure)
        return "\n".join([f"<!-- table: {experiment}/{figure} -->", *lines, "<!-- end -->"])

    return MARKED.sub(table, page)


def figure_table(folder: Path, name: str) -> list[str]:
    """The numbers behind a figure as lines of Markdown: a row for each x, a column for each line.

    Parameters
    ----------
    folder
        An experiment's results.
    name
        The figure's file, without its ending.
    """
    rows = read_table(folder / SUMMARY_TABLE)
    figures = {figure.file: figure for figure in read_experiment(folder / RESOLVED_FILE).figures}
    figure = figures.get(name)
    if figure is None or figure.of_rounds:
        raise TableError(
            f"{folder.name} has no bars or lines called {name}; it has {', '.join(figures)}"
        )
    names = list(rows[0])
    axes = names[: names.index("seed")]
    cells = [row for row in matching(rows, figure.where) if row["rounds"] is not None]
    panel = (figure.panels,) if figure.panels else ()
    spread_out = figure.model_copy(update={"x": (*panel, *figure.x), "panels": None})
    lines = summarised(spread_out, axes, cells)
    finite = [y for points in lines.values() for y in points.middle if math.isfinite(y)]
    factor, unit = (1.0, ratio_name(figure)) if figure.relative_to else scale(figure.y, finite)
    texts = {
        (by, x): _number(middle, low, high, factor)
        for by, points in lines.items()
        for x, middle, low, high in zip(
            points.x, points.middle, points.low, points.high, strict=True
        )
    }
    places = dict.fromkeys(x for points in lines.values() for x in points.x)
    heads = [*spread_out.x, *(_shown(by) or unit for by in lines)]
    table = [_line(heads), "|" + "---|" * len(heads)]
    for x in places:
        held = ["" if value is None else str(value) for value in x]
        table.append(_line([*held, *(texts.get((by, x), "") for by in lines)]))
    note = f"{unit}: {caption(figure, len({row['seed'] for row in cells}))}."
    return ["", *table, "", note[0].upper() + note[1:]]


def _number(middle: float, low: float, high: float, factor: float) -> str:
    if math.isnan(middle):
        return "-"
    if math.isinf(middle):
        return "never"
    ends = (f"{low / factor:.3g}", "never" if math.isinf(high) else f"{high / factor:.3g}")
    return f"{middle / factor:.3g} ({' to '.join(ends)})"


def _shown(key: tuple[Value, ...]) -> str:
    return ", ".join(str(value) for value in key if value is not None)


def _line(fields: list[str]) -> str:
    return "| " + " | ".join(fields) + " |"


def main() -> None:
    """Fill or check a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "reproduction.md")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "reproduction")
    parser.add_argument("--check", action="store_true", help="fail where the page is out of date")
    options = parser.parse_args()
    try:
        before = options.page.read_text(encoding="utf-8")
        after = filled(before, options.results)
    except (OSError, PowerTripError) as error:
        sys.exit(f"{options.page}: {error}")
    if options.check and after != before:
        sys.exit(f"{options.page} is out of date; run python -m scripts.reproduction")
    if after != before:
        options.page.write_text(after, encoding="utf-8")
    print(f"{options.page}: {len(MARKED.findall(after))} tables are what the results say")


if __name__ == "__main__":
    main()
