from __future__ import annotations

import contextlib
import json
import random

import pytest

from powertrip.telemetry.eventlog import EventLogError, EventVersionError, line_of, read_events
from powertrip.telemetry.events import Event, RunEnded
from powertrip.telemetry.resuming import keep_until


class Log:
    def __init__(self, path) -> None:
        self.path = path
        self.taken: list[Event] = []

    def write(self, *told: Event, more: bytes = b"") -> None:
        self.path.write_bytes(b"".join(line_of(event) for event in told) + more)

    def keep(self, round_: int):
        self.taken.clear()
        kept = keep_until(self.path, round_, self.taken.append)
        assert list(read_events(self.path)) == self.taken if self.path.exists() else True
        assert kept.events == len(self.taken)
        return kept

    def aside(self, number=1) -> list[Event]:
        return list(read_events(self.path.with_name(f"events.jsonl.dropped-{number}")))


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "events.jsonl")


@pytest.fixture
def course(story):
    """With a round come its rebuild and the decision on the next but one."""
    s = story
    return [
        s.start(), s.decision(1, 4, round=1),
        s.rebuild(1, 4), s.round(1, 1, 4), s.decision(2, 5, round=3),
        s.round(2, 1, 4),
        s.rebuild(2, 5), s.round(3, 2, 5), s.decision(3, 6, round=5),
        s.round(4, 2, 5),
        s.rebuild(3, 6), s.round(5, 3, 6),
    ]  # fmt: skip


@pytest.mark.parametrize(("round_", "stand"), [(0, 2), (1, 5), (2, 6), (3, 9), (4, 10), (5, 12)])
def test_what_stands_after_a_round(log, course, round_, stand):
    log.write(*course)
    kept = log.keep(round_)
    assert log.taken == course[:stand]
    assert kept.dropped == len(course) - stand
    assert kept.lost_rounds == 5 - round_
    assert kept.started
    assert (kept.aside is None) == (kept.dropped == 0)
    if kept.dropped:
        assert log.aside() == course[stand:]
    assert line_of(course[stand - 1]) in kept.last


def test_what_is_told_for_its_own_sake_stands_until_the_next_round(log, course, story, told):
    warning, failure = told[5], told[9]
    redo = story.decision(3, 3, round=4)
    end = RunEnded(
        time_s=3.0, outcome="failed", exit_code=1, reached=False, time_to_target_s=None, rounds=3,
        generations=2, decisions=2, energy_j=0.0, bytes_sent=0, evaluation_s=0.0, digest="",
        validation_accuracy=None, test_accuracy=None, run_dir="",
    )  # fmt: skip
    log.write(*course[:9], warning, redo, failure, story.rebuild(3, 3), told[-1], end)
    kept = log.keep(3)
    assert log.taken == [*course[:9], warning, failure, told[-1]]
    assert (kept.dropped, kept.lost_rounds) == (3, 0)
    assert log.aside() == [redo, story.rebuild(3, 3), end]
    log.write(*log.taken, story.resumed(3), warning)
    assert log.keep(3).dropped == 0


def test_of_two_decisions_with_a_round_the_first_is_its_own(log, course, story):
    log.write(*course[:9], story.decision(4, 2, round=5))
    log.keep(3)
    assert log.taken == course[:9]


def test_a_round_that_was_not_written_in_time(log, course):
    """Its rebuild was: who goes on tells of both, and the log holds the one already."""
    log.write(*course[:7], more=line_of(course[7])[:50])
    kept = log.keep(3)
    assert log.taken == course[:7]
    assert line_of(course[6]) in kept.last
    assert (kept.dropped, kept.lost_rounds) == (1, 0)
    assert kept.aside.read_bytes() == line_of(course[7])[:50]


def test_a_round_that_was_lost_to_a_full_disk(log, course):
    log.write(*course[:6], *course[9:])
    log.keep(3)
    assert log.taken == course[:6]


def test_a_last_line_without_its_end_stands_if_it_is_whole(log, course):
    log.write(*course[:3], more=line_of(course[3])[:-1])
    assert log.keep(1).dropped == 0
    assert log.taken == course[:4]


def test_a_line_that_is_no_json_is_put_aside_and_what_follows_stands(log, course):
    log.path.write_bytes(
        b"".join([*map(line_of, course[:3]), b"\x00\x00\n", *map(line_of, course[3:6])])
    )
    kept = log.keep(2)
    assert log.taken == course[:6]
    assert kept.aside.read_bytes() == b"\x00\x00\n"


def test_without_a_log_or_a_start_there_is_nothing(log, course):
    assert log.keep(3).started is False
    log.write(*course[1:])
    assert log.keep(3).started is False


def test_what_is_put_aside_overwrites_nothing(log, course):
    for number in (1, 2):
        log.write(*course)
        assert log.keep(4).aside.name == f"events.jsonl.dropped-{number}"
    assert log.aside(1) == log.aside(2) == course[10:]


def test_where_nothing_can_be_put_aside_it_is_counted(log, course, monkeypatch):
    log.write(*course)
    path = type(log.path)
    opened = path.open

    def full(self, mode="r", *args, **kwargs):
        if "x" in mode:
            raise OSError(28, "No space left on device")
        return opened(self, mode, *args, **kwargs)

    monkeypatch.setattr(path, "open", full)
    kept = log.keep(4)
    assert (kept.dropped, kept.aside) == (2, None)
    assert log.taken == course[:10]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"v":2,"event":"round"}\n', EventVersionError),
        (b'{"v":1,"event":"party"}\n', EventLogError),
        (b"[]\n", EventLogError),
    ],
)
def test_what_is_no_event_ends_it_and_nothing_is_touched(log, course, line, kind):
    log.write(*course[:3], more=line)
    before = log.path.read_bytes()
    with pytest.raises(kind, match="line 4 of"):
        keep_until(log.path, 1, lambda event: None)
    assert log.path.read_bytes() == before


def test_whatever_is_damaged_only_named_errors_come_out(log, course):
    rng = random.Random(0)
    wrong = (None, True, -1, 1.5, 10**400, 1e999, "x", "NaN", [], {}, "\ud800", 2**64)
    for _ in range(300):
        lines = [line_of(event) for event in course]
        place = rng.randrange(len(lines))
        if rng.random() < 0.5:
            fields = json.loads(lines[place])
            fields[rng.choice(list(fields))] = rng.choice(wrong)
            lines[place] = json.dumps(fields).encode() + b"\n"
        else:
            line = bytearray(lines[place])
            line[rng.randrange(len(line))] = rng.randrange(256)
            lines[place] = bytes(line)
        log.path.write_bytes(b"".join(lines))
        for read in (
            lambda: list(read_events(log.path)),
            lambda: keep_until(log.path, rng.randrange(6), lambda event: None),
        ):
            with contextlib.suppress(EventLogError):
                read()
        for aside in log.path.parent.glob("*.dropped-*"):
            aside.unlink()


def test_a_log_that_cannot_be_read_is_named(log):
    log.path.mkdir()
    with pytest.raises(EventLogError, match="cannot go on with the event log"):
        keep_until(log.path, 1, lambda event: None)
