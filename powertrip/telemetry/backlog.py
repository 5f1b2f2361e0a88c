"""What the event log does not take at once: held until there is room, or counted as lost."""

from __future__ import annotations

import time
from collections import deque

from powertrip.telemetry.eventlog import EventWriter, line_of
from powertrip.telemetry.events import Event

MOST_BYTES = 32 * 2**20
"""Of lines that wait; beyond that the oldest are lost."""

AGAIN_S = 60.0
"""Seconds after which trouble that lasts is told again."""


class Backlog:
    """Writes events in their order, the ones that had to wait first.

    Parameters
    ----------
    writer
        The log; owned by the caller.
    most_bytes
        Of lines that wait.

    Attributes
    ----------
    lost : int
        Events that will never be in the log.
    """

    def __init__(self, writer: EventWriter, *, most_bytes: int = MOST_BYTES) -> None:
        self._writer, self._most_bytes = writer, most_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._error: OSError | None = None
        self._since_s = self._told_s = 0.0
        self.lost = self._lost_before = 0

    @property
    def waiting(self) -> int:
        """Events that are not in the log yet."""
        return len(self._lines)

    def add(self, event: Event) -> str | None:
        """Write an event, now or later.

        Returns
        -------
        str or None
            What a person must be told: that the log cannot be written, again every minute while
            that lasts, and that it can be written again.
        """
        line = line_of(event)
        self._lines.append(line)
        self._bytes += len(line)
        self.flush()
        while self._bytes > self._most_bytes and self._lines:
            self._drop()
        return self._news(time.monotonic())

    def flush(self) -> None:
        """Write what waits, as far as the log takes it."""
        try:
            while self._lines:
                self._writer.write_line(self._lines[0])
                self._bytes -= len(self._lines.popleft())
        except OSError as error:
            if self._error is None:
                self._since_s = time.monotonic()
                self._told_s = self._since_s - AGAIN_S
                self._lost_before = self.lost
            self._error = error

    def give_up(self) -> None:
        """Try once more, and count what still waits as lost."""
        self.flush()
        while self._lines:
            self._drop()

    def _drop(self) -> None:
        self._bytes -= len(self._lines.popleft())
        self.lost += 1

    def _news(self, now_s: float) -> str | None:
        if self._error is None:
            return None
        if not self._lines:
            lost = self.lost - self._lost_before
            self._error = None
            return (
                f"the event log {self._writer.path} is written again, after "
                f"{now_s - self._since_s:.0f} s" + (f"; {lost} events are lost" if lost else "")
            )
        if now_s - self._told_s < AGAIN_S:
            return None
        self._told_s = now_s
        return (
            f"WARNING: cannot write the event log {self._writer.path}: "
            f"{self._error.strerror or self._error}; training goes on; {self.waiting} events wait "
            f"until there is room, {self.lost} are lost"
        )
