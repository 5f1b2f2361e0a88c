from __future__ import annotations

import pytest

from powertrip.telemetry import backlog
from powertrip.telemetry.backlog import AGAIN_S, Backlog
from powertrip.telemetry.eventlog import line_of


class Disk:
    """A log that takes lines while there is room."""

    path = "events.jsonl"

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.room = 10**9

    def write_line(self, line: bytes) -> None:
        if self.room < len(line):
            raise OSError(28, "No space left on device")
        self.room -= len(line)
        self.lines.append(line)


@pytest.fixture
def now(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(backlog.time, "monotonic", lambda: now[0])
    return now


def test_lines_are_written_in_their_order_as_soon_as_there_is_room(told, now):
    disk = Disk()
    waits = Backlog(disk)
    assert waits.add(told[0]) is None
    disk.room = 0
    assert "WARNING: cannot write the event log events.jsonl: No space" in waits.add(told[1])
    assert waits.add(told[2]) is None
    assert (waits.waiting, waits.lost) == (2, 0)
    disk.room = len(line_of(told[1])) + 5
    assert waits.add(told[3]) is None  # one of three
    assert waits.waiting == 2
    disk.room = 10**9
    now[0] += 12
    assert waits.add(told[4]) == "the event log events.jsonl is written again, after 12 s"
    assert disk.lines == [line_of(event) for event in told[:5]]
    assert (waits.waiting, waits.lost) == (0, 0)


def test_trouble_that_lasts_is_told_every_minute(told, now):
    disk = Disk()
    disk.room = 0
    waits = Backlog(disk)
    news = []
    for event in told[:13]:
        news.append(waits.add(event))
        now[0] += AGAIN_S / 6
    assert [i for i, text in enumerate(news) if text] == [0, 6, 12]
    assert "13 events wait until there is room, 0 are lost" in news[12]


def test_of_too_many_the_oldest_are_lost_and_counted(told, now):
    disk = Disk()
    disk.room = 0
    sizes = [len(line_of(event)) for event in told]
    waits = Backlog(disk, most_bytes=sum(sizes[-3:]))
    for event in told:
        waits.add(event)
    assert (waits.waiting, waits.lost) == (3, len(told) - 3)
    disk.room = 10**9
    assert f"{len(told) - 3} events are lost" in waits.add(told[0])
    assert disk.lines == [line_of(event) for event in [*told[-3:], told[0]]]


def test_what_waits_at_the_end_is_tried_once_more(told, now):
    disk = Disk()
    disk.room = 0
    waits = Backlog(disk)
    for event in told[:3]:
        waits.add(event)
    disk.room = len(line_of(told[0]))
    waits.give_up()
    assert (disk.lines, waits.waiting, waits.lost) == ([line_of(told[0])], 0, 2)
