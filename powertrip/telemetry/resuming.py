"""The event log of a run that goes on: what stands of it is kept, the rest is put aside."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EventLogError, parse_event
from powertrip.telemetry.events import Event

_HELD = 16  # lines; a round's own are three


@dataclass(frozen=True)
class Kept:
    """What has become of a log.

    Attributes
    ----------
    events
        How many stand.
    dropped
        Lines that do not.
    lost_rounds
        Rounds among these.
    aside
        The file that holds them now; None where there are none, or it could not be written.
    started
        Whether the log tells of the start of the run.
    last
        The last lines that stand: who goes on from a snapshot may tell of these events again.
    """

    events: int
    dropped: int
    lost_rounds: int
    aside: Path | None
    started: bool
    last: frozenset[bytes]


def keep_until(path: Path, round_: int, take: Callable[[Event], None]) -> Kept:
    """Cut a log back to a round, and take in what stands.

    What stands is everything up to that round and the decision that was made with it, and then,
    before the next round, what is told for its own sake (warnings, failures, checkpoints, links).
    A last line that was cut short does not stand, nor does a line that is no JSON.

    Parameters
    ----------
    path
        The log; it need not be there.
    round_
        The last round that stands; 0 before the first.
    take
        Is given each event that stands, in order.

    Raises
    ------
    EventLogError
        It cannot be read or written, or holds what is no event of this PowerTrip.
    """
    try:
        return _Cut(path, round_, take).run()
    except OSError as error:
        raise EventLogError(f"cannot go on with the event log {path}: {error.strerror}") from error


class _Cut:
    """One pass over the log; a line is known to stand once the next one was seen."""

    def __init__(self, path: Path, round_: int, take: Callable[[Event], None]) -> None:
        self._path, self._round, self._take = path, round_, take
        self._pending: tuple[bytes, Event] | None = None
        self._complete = False  # the round was seen
        self._decided = False  # so was what was decided with it
        self._beyond = False
        self._last: deque[bytes] = deque(maxlen=_HELD)
        self._dropped: list[bytes] = []
        self._prefix = True  # nothing that was dropped lies before anything that stands
        self._end = self._events = self._lost_rounds = 0
        self._started = False
        self._after: list[bytes] = []  # what stands behind something that was dropped

    def run(self) -> Kept:
        if not self._path.exists():
            return Kept(0, 0, 0, None, False, frozenset())
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                self._see(line, f"line {number} of {self._path}")
        self._settle()
        aside = self._put_aside()
        if self._dropped:
            self._rewrite()
        return Kept(
            self._events, len(self._dropped), self._lost_rounds, aside, self._started,
            frozenset(self._last),
        )  # fmt: skip

    def _see(self, line: bytes, where: str) -> None:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            self._settle()
            self._drop(line)
            return
        event = parse_event(fields, where)
        if not line.endswith(b"\n"):
            line += b"\n"
        if isinstance(event, events.Round) and event.round > self._round and not self._beyond:
            self._beyond = True
            if self._pending is not None and isinstance(self._pending[1], events.Rebuild):
                dropped, self._pending = self._pending, None
                self._drop(dropped[0])
        self._settle()
        if self._stands(event):
            self._pending = line, event
        else:
            self._drop(line)
            self._lost_rounds += isinstance(event, events.Round)

    def _stands(self, event: Event) -> bool:
        if self._beyond:
            return False
        match event:
            case events.Round():
                self._complete = event.round >= self._round
                return True
            case events.Decision():
                return self._decision_stands(event)
            case events.Rebuild():
                return not self._complete
            case events.RunEnded():
                return False
        return True

    def _decision_stands(self, event: events.Decision) -> bool:
        """Decisions are made with the round two before theirs, the first one before any round."""
        if not self._complete:
            stands = event.round <= self._round + 1
            if stands and self._round == 0:
                self._complete = self._decided = True
            return stands
        stands = not self._decided and event.round == self._round + 2
        self._decided |= stands
        return stands

    def _settle(self) -> None:
        """What is pending stands."""
        if self._pending is None:
            return
        (line, event), self._pending = self._pending, None
        if self._dropped:
            self._after.append(line)
        else:
            self._end += len(line)
        self._events += 1
        self._started |= isinstance(event, events.RunStarted)
        self._last.append(line)
        self._take(event)

    def _drop(self, line: bytes) -> None:
        self._dropped.append(line)

    def _put_aside(self) -> Path | None:
        if not self._dropped:
            return None
        number = 1
        while (aside := self._path.with_name(f"{self._path.name}.dropped-{number}")).exists():
            number += 1
        try:
            with aside.open("xb") as file:
                file.writelines(self._dropped)
        except OSError:  # a full disk: how many lines there were is told
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            return None
        return aside

    def _rewrite(self) -> None:
        if not self._after:
            os.truncate(self._path, self._end)
            return
        fresh = self._path.with_name(f"{self._path.name}.partial-{os.getpid()}")
        try:
            with self._path.open("rb") as old, fresh.open("wb") as new:
                left = self._end
                while left and (part := old.read(min(left, 2**20))):
                    left -= len(part)
                    new.write(part)
                new.writelines(self._after)
                new.flush()
                os.fsync(new.fileno())
            fresh.replace(self._path)
        except OSError:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise
