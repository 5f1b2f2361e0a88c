from __future__ import annotations

from powertrip.chaos.watch import EventWatch
from powertrip.telemetry.eventlog import line_of


def test_what_a_resumed_run_takes_back_has_been_seen(tmp_path, log):
    watch = EventWatch(tmp_path)
    assert watch.read() == []
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "events.jsonl"
    told = log.decide(1).rounds(1, 6).events
    lines = [line_of(event) for event in told]

    path.write_bytes(b"".join(lines[:6]) + lines[6][:20])
    assert watch.read() == told[:6]
    path.write_bytes(b"".join(lines))
    assert watch.read() == told[6:]
    assert watch.read() == []

    log.resumed(3).rounds(4, 9, generation=2)
    again = [line_of(event) for event in log.events[8:]]
    path.write_bytes(b"".join([*lines[:5], *again]))
    assert watch.read() == log.events[8:]
    assert watch.events == log.events
    assert watch.run_dir == tmp_path / "run"
