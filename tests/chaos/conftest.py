"""A run that never happened, of three sites, a round a second."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from powertrip.telemetry import events
from tests.telemetry.conftest import Story

NAMES = ("iowa", "tokyo", "sydney")


class Log:
    """Grows a log event by event; a round is committed at the second of its number from 1000 on."""

    def __init__(self) -> None:
        self._story = Story(NAMES)
        self._shift_s = 0.0
        self.events: list[events.Event] = [self._story.start()]

    def decide(self, generation: int, members: Sequence[str] = NAMES) -> Log:
        self.events.append(self._story.decision(generation, 3, members=tuple(members)))
        return self

    def rounds(self, first: int, last: int, generation: int = 1, count: int = 3) -> Log:
        for number in range(first, last + 1):
            at = 1000.0 + number + self._shift_s
            self.events.append(self._story.round(number, generation, count, wall_time=at))
        return self

    def stall(self, seconds: float) -> Log:
        self._shift_s += seconds
        return self

    def add(self, *told: events.Event) -> Log:
        self.events += told
        return self

    def saved(self, round_: int) -> Log:
        return self.add(events.Checkpoint(time_s=0.0, path="x", bytes=1, seconds=0.1, round=round_))

    def resumed(self, round_: int, **changes: object) -> Log:
        return self.add(self._story.resumed(round_, **changes))

    def site(self, kind: str, name: str, at: float) -> Log:
        if kind == "back":
            return self.add(events.SiteReturned(time_s=0.0, wall_time=at, site=name, incarnation=1))
        return self.add(
            events.Failure(
                time_s=0.0, wall_time=at, kind=kind, site=name, text="", generation=1, round=1
            )
        )

    def end(self, **changes: object) -> Log:
        last = next(e for e in reversed(self.events) if isinstance(e, events.Round))
        fields: dict[str, object] = {
            "time_s": 0.0,
            "wall_time": last.wall_time + 1,
            "outcome": "interrupted",
            "exit_code": 130,
            "reached": False,
            "time_to_target_s": None,
            "rounds": last.round,
            "generations": 1,
            "decisions": 1,
            "energy_j": 0.0,
            "bytes_sent": 0,
            "evaluation_s": 0.0,
            "validation_accuracy": None,
            "test_accuracy": None,
            "digest": last.digest,
            "run_dir": "x",
        }
        return self.add(events.RunEnded(**fields | changes))


@pytest.fixture
def log() -> Log:
    return Log()
