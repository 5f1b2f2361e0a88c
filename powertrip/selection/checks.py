"""Checks and JSON encoding of the fields of observations and decisions.

Strict JSON has no infinities and no NaN; they are written as the texts "inf", "-inf" and "nan".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powertrip.selection.errors import RecordError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def whole(name: str, value: object, low: int | None = None) -> int:
    """Return `value` as int, or raise `RecordError` if it is no whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RecordError(f"{name}: expected a whole number, got {value!r}")
    if low is not None and value < low:
        raise RecordError(f"{name}: expected at least {low}, got {value}")
    return int(value)


def real(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """Return `value` as float, or raise `RecordError` unless finite and from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RecordError(f"{name}: expected a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise RecordError(f"{name}: expected a finite number, got {number}")
    if not low <= number <= high:
        raise RecordError(f"{name}: expected {low:g} to {high:g}, got {number:g}")
    return number


def vector(name: str, value: object, size: int | None = None, kinds: str = "fiu") -> NDArray[Any]:
    """Return `value` as a one-dimensional array whose dtype kind is one of `kinds`.

    Raises
    ------
    RecordError
        If it is not a vector of such values, or `size` is given and the length differs.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise RecordError(f"{name}: expected one value per site, got a ragged list") from error
    if array.size and array.dtype.kind not in kinds:
        raise RecordError(f"{name}: unexpected values of type {array.dtype}")
    if array.ndim != 1 or (size is not None and array.size != size):
        wanted = "a vector" if size is None else f"shape ({size},)"
        raise RecordError(f"{name}: expected {wanted}, got shape {array.shape}")
    return array


def floats(name: str, value: object, size: int | None = None) -> FloatArray:
    """Return a read-only float64 copy of the vector `value`."""
    return _sealed(vector(name, value, size).astype(np.float64))


def whole_numbers(name: str, value: object, size: int) -> IntArray:
    """Return a read-only int64 copy of the vector `value`."""
    return _sealed(vector(name, value, size, "iu").astype(np.int64))


def table(name: str, value: object, columns: int | None = None) -> FloatArray:
    """Return a read-only float64 copy of the two-dimensional `value`; an empty one has 0 rows.

    Raises
    ------
    RecordError
        If it is not two-dimensional, or `columns` is given and their number differs.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise RecordError(f"{name}: expected rows of equal length, got a ragged list") from error
    if array.size == 0:
        return _sealed(np.empty((0, columns or 0)))
    if array.dtype.kind not in "fiu":
        raise RecordError(f"{name}: unexpected values of type {array.dtype}")
    if array.ndim != 2 or (columns is not None and array.shape[1] != columns):
        wanted = "rows" if columns is None else f"rows of {columns}"
        raise RecordError(f"{name}: expected {wanted}, got shape {array.shape}")
    return _sealed(array.astype(np.float64))


def booleans(name: str, value: object, size: int) -> BoolArray:
    """Return a read-only copy of the vector of booleans `value`."""
    return _sealed(vector(name, value, size, "b").astype(np.bool_))


def site_numbers(name: str, value: object, sites: int | None = None) -> tuple[int, ...]:
    """Return distinct site numbers from 0 up, below `sites` where that is given."""
    array = vector(name, value, kinds="iu")
    if array.size == 0:
        return ()
    if array.min() < 0 or (sites is not None and array.max() >= sites):
        end = "" if sites is None else f" to {sites - 1}"
        raise RecordError(f"{name}: expected site numbers from 0{end}")
    if (np.diff(np.sort(array)) == 0).any():
        raise RecordError(f"{name}: a site appears more than once")
    return tuple(array.tolist())


def each_within(name: str, array: NDArray[Any], low: float, high: float = math.inf) -> None:
    """Raise `RecordError` naming the first entry that is NaN, below `low` or above `high`."""
    wrong = ~((array >= low) & (array <= high))
    if wrong.any():
        place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        where = ", ".join(str(int(i)) for i in place)
        raise RecordError(f"{name}[{where}]: expected {low:g} to {high:g}, got {array[place]}")


def json_object(name: str, value: object, keys: Iterable[str]) -> dict[str, Any]:
    """Return the JSON object `value`, or raise `RecordError` unless it has exactly `keys`."""
    if not isinstance(value, Mapping):
        raise RecordError(f"{name}: expected an object, got {type(value).__name__}")
    wanted = set(keys)
    problems = [f"missing {key!r}" for key in sorted(wanted - value.keys())]
    problems += [f"unknown {key!r}" for key in sorted(map(str, value.keys() - wanted))]
    if problems:
        raise RecordError(f"{name}: {', '.join(problems)}")
    return dict(value)


def to_json_list(array: NDArray[Any]) -> list[Any]:
    """Return the array, of one dimension or two, as a list that strict JSON can hold."""
    values: list[Any] = array.tolist()
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return values
    if array.ndim > 1:
        return [to_json_list(row) for row in array]
    return [v if math.isfinite(v) else str(v) for v in values]


def from_json_list(name: str, value: object) -> list[Any]:
    """Undo `to_json_list`; raises `RecordError` for a text that is no number."""
    if not isinstance(value, list):
        raise RecordError(f"{name}: expected a list, got {type(value).__name__}")
    return [from_json_list(name, v) if isinstance(v, list) else _number(name, v) for v in value]


def field_names(cls: type[Any]) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, in order."""
    return tuple(field.name for field in dataclasses.fields(cls))


def _number(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in _NOT_FINITE:
        raise RecordError(f"{name}: {value!r} is not a number")
    return _NOT_FINITE[value]


def _sealed(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array
