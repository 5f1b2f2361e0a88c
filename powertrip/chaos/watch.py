"""A run's event log, read while it is written: also what a run that goes on takes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from powertrip.telemetry.eventlog import EVENT_LOG, EventLogError, parse_event
from powertrip.telemetry.events import Event


class EventWatch:
    """Reads the events of the only run in a folder, in the order in which they were written.

    Lines that a resumed run drops from its log have been seen, and stay in `events`.

    Parameters
    ----------
    runs
        The folder that the run makes its own in.
    """

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._offset = 0
        self._last = b""
        self._seen: set[bytes] = set()
        self.events: list[Event] = []
        """All that have been read."""

    @property
    def run_dir(self) -> Path | None:
        """The run's folder; None before there is one with an event log in it."""
        return next((path.parent for path in self._runs.glob(f"*/{EVENT_LOG}")), None)

    def read(self) -> list[Event]:
        """The events that have been written since the last call.

        Raises
        ------
        EventLogError
            A whole line is no event.
        """
        run_dir = self.run_dir
        if run_dir is None:
            return []
        fresh = []
        with (run_dir / EVENT_LOG).open("rb") as file:
            self._find_place(file)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._offset += len(line)
                self._last = line
                if line not in self._seen:
                    self._seen.add(line)
                    fresh.append(_event(line, run_dir))
        self.events += fresh
        return fresh

    def _find_place(self, file: BinaryIO) -> None:
        """Go to what has not been read; to the beginning where the log was cut meanwhile."""
        file.seek(self._offset - len(self._last))
        if file.read(len(self._last)) != self._last:
            self._offset, self._last = 0, b""
            file.seek(0)


def _event(line: bytes, run_dir: Path) -> Event:
    where = f"a line of {run_dir / EVENT_LOG}"
    try:
        return parse_event(json.loads(line), where)
    except ValueError as error:
        raise EventLogError(f"{where} is not JSON: {error}") from error
