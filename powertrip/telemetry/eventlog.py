"""The event log: one JSON object a line, appended as events happen."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from powertrip.errors import InputError
from powertrip.telemetry.events import EVENT_ADAPTER, EVENT_TYPES, VERSION, Event

EVENT_LOG = "events.jsonl"
"""Name of the event log in a run's folder."""


class EventLogError(InputError):
    """An event log cannot be opened or read; the message names the file and the line."""


class CutLineError(EventLogError):
    """The last line of an event log was cut short: the run was killed while it wrote."""


class EventVersionError(EventLogError):
    """An event was written in a version of the format that this PowerTrip does not know."""


def line_of(event: Event) -> bytes:
    """An event as its line in the log."""
    return event.model_dump_json().encode() + b"\n"


class EventWriter:
    """Appends events to a file, each line in one write, so that a killed run leaves whole lines.

    A last line that an earlier process left incomplete is removed; `cut_bytes` says how much.

    Parameters
    ----------
    path
        The file; made if it does not exist.

    Raises
    ------
    EventLogError
        The file cannot be opened for writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._debris = 0  # bytes of a line that could neither be written whole nor taken back
        try:
            self._file = path.open("ab", buffering=0)
            self.cut_bytes = _cut_incomplete_line(path)
        except OSError as error:
            raise EventLogError(
                f"cannot write the event log {path}: {error.strerror}; choose another run folder"
            ) from error

    def write(self, event: Event) -> None:
        """Append one event.

        Raises
        ------
        OSError
            The line could not be written whole; what was written of it is taken back.
        """
        self.write_line(line_of(event))

    def write_line(self, line: bytes) -> None:
        """Append the line of an event; raises as `write` does."""
        self._take_back()
        try:
            while self._debris < len(line):
                self._debris += self._file.write(line[self._debris :])
        except OSError:
            self._take_back()
            raise
        self._debris = 0

    def _take_back(self) -> None:
        if self._debris:
            size = os.fstat(self._file.fileno()).st_size
            os.ftruncate(self._file.fileno(), size - self._debris)
            self._debris = 0

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def _cut_incomplete_line(path: Path) -> int:
    """Truncate a regular file after its last newline; return the bytes removed."""
    if not path.is_file():
        return 0
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)
        return size - end


def read_events(path: Path, *, tolerate_cut: bool = False) -> Iterator[Event]:
    """Read an event log.

    Parameters
    ----------
    path
        The file.
    tolerate_cut
        Whether to leave out a last line that was cut short instead of raising.

    Yields
    ------
    Event
        The events, in the order in which they were written.

    Raises
    ------
    CutLineError
        The last line is incomplete.
    EventVersionError
        A line is of another version of the format.
    EventLogError
        The file cannot be read, or a line is not an event.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise EventLogError(f"cannot read the event log {path}: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, start=1):
            where = f"line {number} of {path}"
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError) as error:
                if line.endswith(b"\n"):
                    raise EventLogError(f"{where} is not JSON: {error}") from error
                if tolerate_cut:
                    return
                raise CutLineError(
                    f"{where}, the last, was cut short: the run was killed while it wrote; "
                    "remove that line"
                ) from error
            yield parse_event(fields, where)


def parse_event(fields: object, where: str) -> Event:
    """The event that a line's JSON holds; `where` names the line in errors.

    Raises
    ------
    EventVersionError
        It is of another version of the format.
    EventLogError
        It is no event.
    """
    if not isinstance(fields, dict) or "v" not in fields or "event" not in fields:
        raise EventLogError(f"{where} is not an event: it needs the fields v and event")
    if fields["v"] != VERSION:
        raise EventVersionError(
            f"{where} has version {fields['v']!r}; this PowerTrip knows version {VERSION}: "
            "read the log with the PowerTrip that wrote it"
        )
    try:
        return EVENT_ADAPTER.validate_python(fields)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "union_tag_invalid":
            known = ", ".join(str(kind.model_fields["event"].default) for kind in EVENT_TYPES)
            raise EventLogError(
                f"{where} is an event of an unknown kind, {fields['event']!r}; known are {known}"
            ) from error
        place = ".".join(str(part) for part in first["loc"])
        raise EventLogError(f"{where}: {place}: {first['msg']}") from error
