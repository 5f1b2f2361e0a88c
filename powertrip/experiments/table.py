"""Tidy tables of an experiment's cells, and what is read off them."""

from __future__ import annotations

import csv
import importlib.util
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeAlias

import numpy as np
import numpy.typing as npt

from powertrip.errors import InputError

Value: TypeAlias = "bool | int | float | str | None"
Row: TypeAlias = "Mapping[str, Value]"
Key: TypeAlias = "tuple[Value, ...]"

RESAMPLES = 10_000
"""Bootstrap samples of a confidence interval."""

CONFIDENCE = 0.95
"""Share of the bootstrap's medians that a confidence interval holds."""


class TableError(InputError):
    """A table cannot be read, or does not hold what is asked of it."""


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> list[Path]:
    """Write rows as CSV, and as Parquet beside it where pyarrow is installed.

    Numbers are written so that they are read back to the last digit; what is not known is empty.

    Parameters
    ----------
    path
        The CSV file, replaced as a whole.
    columns
        What to write, in this order.
    rows
        The rows; a column that one lacks is empty.

    Returns
    -------
    list of Path
        The files written.
    """
    table = [{column: row.get(column) for column in columns} for row in rows]
    replace_file(path, lambda part: _write_csv(part, columns, table))
    if importlib.util.find_spec("pyarrow") is None:
        return [path]
    parquet = path.with_suffix(".parquet")
    replace_file(parquet, lambda part: _write_parquet(part, table))
    return [path, parquet]


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, then put it in its place in one step.

    Two that do so at once leave the file of one of them, whole.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_table(path: Path) -> list[dict[str, Value]]:
    """Read a table as `write_table` writes it.

    Raises
    ------
    TableError
        There is no such file, or it is not such a table.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return _read_csv(path, file)
    except OSError as error:
        raise TableError(f"cannot read the table {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError(
            f"the table {path} is damaged ({error}); run the experiment again"
        ) from error


def _read_csv(path: Path, file: TextIO) -> list[dict[str, Value]]:
    lines = csv.reader(file)
    header = next(lines, None)
    if header is None:
        raise TableError(f"the table {path} is empty; run the experiment again")
    rows = []
    for fields in lines:
        if len(fields) != len(header):
            raise TableError(
                f"{path}, line {lines.line_num}: {len(fields)} fields where the header has "
                f"{len(header)}"
            )
        rows.append({name: _parsed(text) for name, text in zip(header, fields, strict=True)})
    return rows


def _write_csv(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_written(row[column]) for column in columns] for row in rows)


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)


def _written(value: Value) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(text: str) -> Value:
    if text in ("", "true", "false"):
        return None if not text else text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def falls(column: str) -> bool:
    """Whether smaller is better in a column: in all but accuracies and gains."""
    return not column.endswith(("accuracy", "gain", "reached"))


def number(row: Row, column: str) -> float:
    """A row's value of a column: infinite for a target that was missed, NaN for what is not known.

    Raises
    ------
    TableError
        It is no number.
    """
    value = row.get(column)
    if value is None:
        missed = "to_target" in column and row.get("reached") is False
        return math.inf if missed else math.nan
    if isinstance(value, str):
        raise TableError(f"the column {column} holds {value!r}, which is no number")
    return float(value)


@dataclass(frozen=True)
class Spread:
    """What values over seeds come to.

    Attributes
    ----------
    median
        Their median: for an even number of them the mean of the middle two; infinite where that
        many have missed the target; NaN without values.
    low, high
        Their 10th and 90th percentile, each one of the values.
    count
        How many there are.
    """

    median: float
    low: float
    high: float
    count: int


def spread(values: Iterable[float]) -> Spread:
    """Median and band of the values that are not NaN."""
    known = np.array([value for value in values if not math.isnan(value)])
    if not known.size:
        return Spread(math.nan, math.nan, math.nan, 0)
    low, high = np.quantile(known, (0.1, 0.9), method="inverted_cdf")
    return Spread(_median(known), float(low), float(high), known.size)


def group(rows: Iterable[Row], columns: Sequence[str]) -> dict[Key, list[Row]]:
    """Rows by their values of some columns, in the order in which these first appear."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(column) for column in columns), []).append(row)
    return groups


def matching(rows: Iterable[Row], wanted: Mapping[str, Value | Sequence[Value]]) -> list[Row]:
    """The rows whose columns have a value, or one of several values."""
    lists = {
        column: list(value) if isinstance(value, list | tuple) else [value]
        for column, value in wanted.items()
    }
    return [row for row in rows if all(row.get(c) in values for c, values in lists.items())]


def hindsight(
    rows: Sequence[Row], axes: Sequence[str], value: str, best: Sequence[str]
) -> list[Row]:
    """Keep, of the settings that some columns stand for, the one that was best in hindsight.

    Parameters
    ----------
    rows
        One row a cell, or a round.
    axes
        The columns that tell cells apart, but for the seed.
    value
        What is compared, by its median over the seeds.
    best
        Columns among the axes, such as k. All combinations of them are compared within each
        combination of the other axes: in each regime and policy the best k is another one.
    """
    others = [axis for axis in axes if axis not in best]
    kept: list[Row] = []
    for members in group(rows, others).values():
        choices = group(members, best)
        kept += min(choices.values(), key=lambda choice: _rank(choice, value))
    return kept


def _rank(rows: Iterable[Row], value: str) -> float:
    median = spread(number(row, value) for row in rows).median
    if math.isnan(median):
        return math.inf
    return median if falls(value) else -median


@dataclass(frozen=True)
class Ratio:
    """Values over those of a reference, seed by seed.

    Attributes
    ----------
    at
        The columns that name the values, and what they hold.
    reference
        The columns that name the reference, and what they hold; a best k found in hindsight too.
    pairs
        The ratio of each seed, in the order of the seeds; a seed in which both missed the target,
        or one is not known, is left out.
    median
        Their median; NaN without pairs.
    low, high
        Bootstrap interval of that median over the seeds, `CONFIDENCE` wide, of `RESAMPLES` samples.
    of_medians
        The median of the values over the median of the reference.
    """

    at: Mapping[str, Value]
    reference: Mapping[str, Value]
    pairs: Mapping[Value, float]
    median: float
    low: float
    high: float
    of_medians: float


def relative(
    rows: Sequence[Row],
    axes: Sequence[str],
    value: str,
    reference: Mapping[str, Value],
    best: Sequence[str] = (),
) -> list[Ratio]:
    """Compare every setting with a reference under the same other settings and the same seed.

    Parameters
    ----------
    rows
        One row a cell, with its seed.
    axes
        The columns that tell cells apart, but for the seed.
    value
        What is compared.
    reference
        What the reference's columns hold, such as ``{"policy": "static"}``. The settings that
        are compared with it have all other axes in common with it, but for those in `best`.
    best
        Columns, such as k, of which the best in hindsight is taken first, of the reference and of
        what is compared with it: see `hindsight`.

    Returns
    -------
    list of Ratio
        One for each combination of the axes that is left, the reference's own included (1
        throughout), in the order of the rows.

    Raises
    ------
    TableError
        There is no reference for a setting, or there are several.
    """
    rows = hindsight(rows, axes, value, best)
    shared = [axis for axis in axes if axis not in reference and axis not in best]
    references = group(matching(rows, reference), shared)
    found = []
    for key, members in group(rows, axes).items():
        at = dict(zip(axes, key, strict=True))
        base = references.get(tuple(at[axis] for axis in shared), [])
        names = list(group(base, axes))
        if len(names) != 1:
            wanted = ", ".join(f"{axis} {held}" for axis, held in reference.items())
            raise TableError(
                f"{_named(at)}: there {'is no' if not names else 'are several'} {wanted} to "
                "compare with; name more columns in relative_to, or the ones to optimise in best"
            )
        found.append(_ratio(at, dict(zip(axes, names[0], strict=True)), members, base, value))
    return found


def _named(at: Mapping[str, Value]) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in at.items() if value is not None)


def _ratio(
    at: Mapping[str, Value],
    reference: Mapping[str, Value],
    rows: Sequence[Row],
    base: Sequence[Row],
    value: str,
) -> Ratio:
    bases = {row["seed"]: number(row, value) for row in base}
    pairs = {}
    for row in rows:
        ratio = _quotient(number(row, value), bases.get(row["seed"], math.nan))
        if not math.isnan(ratio):
            pairs[row["seed"]] = ratio
    low, high = interval(list(pairs.values()))
    return Ratio(
        at=at,
        reference=reference,
        pairs=pairs,
        median=spread(pairs.values()).median,
        low=low,
        high=high,
        of_medians=_quotient(
            spread(number(row, value) for row in rows).median, spread(bases.values()).median
        ),
    )


def _quotient(value: float, base: float) -> float:
    if base == 0:
        return math.nan if value == 0 else math.copysign(math.inf, value)
    return value / base


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Bootstrap interval of the median of some values (percentile method); NaN without any.

    The samples are drawn with a fixed seed, so that a table is the same each time it is made.
    """
    if not values:
        return math.nan, math.nan
    known = np.array(values)
    draws = np.random.default_rng(0).integers(len(known), size=(RESAMPLES, len(known)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(_medians(known[draws]), (tail, 1 - tail), method="inverted_cdf")
    return float(low), float(high)


def _median(values: npt.NDArray[np.float64]) -> float:
    return float(_medians(values[None])[0])


def _medians(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Median of each row; numpy's is NaN where both middle values are infinite."""
    ordered = np.sort(values, axis=1)
    size = values.shape[1]
    low, high = ordered[:, (size - 1) // 2], ordered[:, size // 2]
    with np.errstate(invalid="ignore"):  # infinite less infinite, where the two are equal
        result: npt.NDArray[np.float64] = np.where(low == high, low, low + (high - low) / 2)
    return result
