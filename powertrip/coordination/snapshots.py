"""What is written down of a run's state, so that a coordinator of another process goes on from it.

Strict JSON: floats as their shortest decimal, which reads back to the same bits, and the texts
"nan", "inf" and "-inf" in place of what JSON has no numbers for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from powertrip.errors import InputError
from powertrip.selection import checks
from powertrip.selection.decision import MOST
from powertrip.selection.errors import RecordError
from powertrip.telemetry.events import EVENT_ADAPTER, Event

_Model = TypeVar("_Model", bound=BaseModel)
_Read = TypeVar("_Read")

_LARGEST = 2**62


class SnapshotUnreadable(InputError):
    """A snapshot is malformed, of another version or of another run; the message names what."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the coordinator's state cannot be restored: {problem}")


def of_model(model: BaseModel) -> dict[str, Any]:
    """An event or a message as plain JSON values."""
    values: dict[str, Any] = json.loads(model.model_dump_json())
    return values


def to_model(kind: type[_Model], name: str, value: object) -> _Model:
    """Undo `of_model` for a message; raises `SnapshotUnreadable`."""
    return _validated(kind.model_validate, name, value)


def to_event(name: str, value: object) -> Event:
    """Undo `of_model` for an event; raises `SnapshotUnreadable`."""
    return _validated(EVENT_ADAPTER.validate_python, name, value)


def _validated(validate: Callable[[Any], _Model], name: str, value: object) -> _Model:
    try:
        return validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SnapshotUnreadable(f"{name}: {place}: {first['msg']}") from error


def fields(name: str, value: object, *keys: str) -> dict[str, Any]:
    """The JSON object `value`; raises `SnapshotUnreadable` unless it has exactly these keys."""
    return checked(lambda: checks.json_object(name, value, keys))


def versioned(value: object, version: int, keys: Iterable[str]) -> dict[str, Any]:
    """The JSON object `value` with these keys, of a version; raises `SnapshotUnreadable`."""
    found = value.get("version") if isinstance(value, dict) else None
    if isinstance(value, dict) and found != version:
        raise SnapshotUnreadable(
            f"it has version {found!r}, and this PowerTrip knows version {version}: go on with "
            "the PowerTrip that wrote it"
        )
    return fields("it", value, *keys)


def floats(name: str, value: object, *shape: int) -> NDArray[np.float64]:
    """An array of a shape of one dimension or two; raises `SnapshotUnreadable`."""

    def read() -> NDArray[np.float64]:
        numbers = checks.from_json_list(name, value)
        if len(shape) == 1:
            return checks.floats(name, numbers, shape[0])
        found = checks.table(name, numbers, shape[1])
        if len(found) != shape[0]:
            raise RecordError(f"{name}: expected {shape[0]} rows, got {len(found)}")
        return found

    return checked(read).copy()


def finite(name: str, value: object, size: int) -> NDArray[np.float64]:
    """A vector of finite numbers; raises `SnapshotUnreadable`."""
    numbers = floats(name, value, size)
    checked(lambda: checks.each_within(name, numbers, -MOST, MOST))
    return numbers


def whole_numbers(name: str, value: object, size: int) -> NDArray[np.int64]:
    """A vector of whole numbers from 0 up; raises `SnapshotUnreadable`."""

    def read() -> NDArray[np.int64]:
        numbers = checks.whole_numbers(name, checks.from_json_list(name, value), size)
        checks.each_within(name, numbers, 0)
        return numbers

    return checked(read).copy()


def booleans(name: str, value: object, size: int) -> NDArray[np.bool_]:
    """A vector of true and false; raises `SnapshotUnreadable`."""
    return checked(lambda: checks.booleans(name, checks.from_json_list(name, value), size)).copy()


def listed(name: str, value: object, size: int | None = None) -> list[Any]:
    """A list of anything, of a size or of any; raises `SnapshotUnreadable`."""
    if not isinstance(value, list):
        raise SnapshotUnreadable(f"{name}: expected a list, got {type(value).__name__}")
    if size is not None and len(value) != size:
        raise SnapshotUnreadable(f"{name}: expected {size} entries, got {len(value)}")
    return value


def series(name: str, value: object) -> list[float]:
    """A list of numbers, of any length; raises `SnapshotUnreadable`."""
    numbers = listed(name, value)
    return [float(number) for number in finite(name, numbers, len(numbers))]


def number(name: str, value: object, low: float = -MOST) -> float:
    """A finite number of at least `low`; raises `SnapshotUnreadable`."""
    return checked(lambda: checks.real(name, value, low, MOST))


def count(name: str, value: object) -> int:
    """A whole number from 0 up; raises `SnapshotUnreadable`."""
    found = checked(lambda: checks.whole(name, value, 0))
    if found > _LARGEST:
        raise SnapshotUnreadable(f"{name}: it is too large")
    return found


def flag(name: str, value: object) -> bool:
    """True or false; raises `SnapshotUnreadable`."""
    if not isinstance(value, bool):
        raise SnapshotUnreadable(f"{name}: expected true or false, got {value!r}")
    return value


def text(name: str, value: object) -> str:
    """A text; raises `SnapshotUnreadable`."""
    if not isinstance(value, str):
        raise SnapshotUnreadable(f"{name}: expected a text, got {value!r}")
    return value


def counts(name: str, value: object) -> list[int]:
    """A list of whole numbers from 0 up; raises `SnapshotUnreadable`."""
    return [count(name, each) for each in listed(name, value)]


def checked(read: Callable[[], _Read]) -> _Read:
    """What `read` returns; a record that it finds malformed is a `SnapshotUnreadable`."""
    try:
        return read()
    except (RecordError, OverflowError) as error:
        raise SnapshotUnreadable(str(error)) from error
