import resource
from pathlib import Path

import pytest

from powertrip.errors import InputError
from powertrip.telemetry.eventlog import (
    CutLineError,
    EventLogError,
    EventVersionError,
    EventWriter,
    read_events,
)


def write(path, told):
    writer = EventWriter(path)
    for event in told:
        writer.write(event)
    writer.close()
    return path


@pytest.fixture
def log(tmp_path, told):
    return write(tmp_path / "events.jsonl", told)


def test_what_is_written_is_read(log, told):
    assert list(read_events(log)) == told


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path, told):
    path = tmp_path / "events.jsonl"
    writer = EventWriter(path)
    for i, event in enumerate(told, start=1):
        writer.write(event)
        assert len(list(read_events(path))) == i
    writer.close()


def test_writing_goes_on_where_an_earlier_process_stopped(log, told):
    write(log, told[:2])
    assert list(read_events(log)) == told + told[:2]


def test_a_cut_last_line_is_named_or_left_out(log, told):
    log.write_bytes(log.read_bytes()[:-20])
    with pytest.raises(CutLineError, match=rf"line {len(told)} of .*events\.jsonl.* cut short"):
        list(read_events(log))
    assert list(read_events(log, tolerate_cut=True)) == told[:-1]


def test_a_line_cut_inside_a_letter_is_a_cut_line(tmp_path, story):
    path = write(tmp_path / "events.jsonl", [story.start(name="Zürich")])
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index("ü".encode()) + 1])
    with pytest.raises(CutLineError):
        list(read_events(path))


def test_opening_removes_what_a_killed_run_left_of_its_last_line(log, told):
    log.write_bytes(log.read_bytes()[:-20])
    left = len(log.read_bytes().rsplit(b"\n", 1)[1])
    writer = EventWriter(log)
    assert writer.cut_bytes == left > 0
    writer.write(told[0])
    writer.close()
    assert list(read_events(log)) == [*told[:-1], told[0]]


def test_opening_removes_a_cut_line_longer_than_a_block_and_a_cut_only_line(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 200_000)
    writer = EventWriter(path)
    writer.close()
    assert (writer.cut_bytes, path.read_bytes()) == (200_000, b"{}\n")
    path.write_bytes(b"xyz")
    writer = EventWriter(path)
    writer.close()
    assert (writer.cut_bytes, path.read_bytes()) == (3, b"")


def test_a_broken_line_in_the_middle_is_an_error_even_when_cuts_are_tolerated(log):
    lines = log.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:30] + b"\n"
    log.write_bytes(b"".join(lines))
    with pytest.raises(EventLogError, match=r"line 3 of .* is not JSON"):
        list(read_events(log, tolerate_cut=True))


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ('{"v":2,"event":"round"}', EventVersionError, "has version 2; .* knows version 1"),
        ('{"v":1,"event":"party","time_s":0}', EventLogError, "'party'; known are run_started, "),
        ('{"event":"round"}', EventLogError, "needs the fields v and event"),
        ("[1, 2]", EventLogError, "needs the fields v and event"),
        ("", EventLogError, "is not JSON"),
        pytest.param("[" * 100_000, EventLogError, "is not JSON", id="deep"),
        pytest.param("9" * 5000, EventLogError, "is not JSON", id="long"),
        (
            '{"v":1,"event":"warning","time_s":"soon","text":"x"}',
            EventLogError,
            r"warning\.time_s: .* valid number",
        ),
    ],
)
def test_a_line_that_is_no_event_is_named(log, told, line, kind, text):
    with log.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(kind, match=f"line {len(told) + 1} of .*{text}") as caught:
        list(read_events(log))
    assert isinstance(caught.value, InputError)


def test_a_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EventLogError, match=r"cannot read the event log .*nothing\.jsonl"):
        list(read_events(tmp_path / "nothing.jsonl"))


def test_a_log_that_cannot_be_made_is_named(tmp_path, story):
    with pytest.raises(EventLogError, match=r"cannot write the event log .* choose another"):
        EventWriter(tmp_path / "no" / "folder" / "events.jsonl")


def test_a_full_disk_raises_for_each_event(story):
    writer = EventWriter(Path("/dev/full"))
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            writer.write(story.start())
    writer.close()


def test_a_line_that_only_fits_in_part_is_taken_back(log, told):
    size = log.stat().st_size
    writer = EventWriter(log)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            writer.write(told[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.stat().st_size == size
    writer.write(told[0])
    writer.close()
    assert list(read_events(log)) == [*told, told[0]]
