import io
import json
import os
import socket
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from powertrip.telemetry.eventlog import EVENT_LOG, EventLogError, EventWriter, read_events
from powertrip.telemetry.events import Checkpoint, Round, RunEnded, Warned
from powertrip.telemetry.live import BUSY_S, IDLE_S
from powertrip.telemetry.metrics import MetricsAddressError
from powertrip.telemetry.report import NoRunError, summarise
from powertrip.telemetry.settings import MetricsSettings, TelemetrySettings
from powertrip.telemetry.telemetry import Telemetry

SETTINGS = TelemetrySettings(metrics=MetricsSettings(port=0), console="plain")


def fetch(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def test_every_event_reaches_log_metrics_and_console(tmp_path, told):
    threads = set(threading.enumerate())
    stream = io.StringIO()
    with Telemetry(SETTINGS, tmp_path, stream=stream) as telemetry:
        for event in told:
            telemetry.emit(event)
        assert "powertrip_rounds_total 6.0" in fetch(telemetry.metrics_url)
        summary = telemetry.end("reached", 0, time_s=6.5)
    assert set(threading.enumerate()) - threads == set()
    assert "decision 3: 5 of 8 sites" in stream.getvalue()
    assert "time to target  5.00 s" in stream.getvalue()

    log = list(read_events(tmp_path / EVENT_LOG))
    assert log[:-1] == told
    end = log[-1]
    assert isinstance(end, RunEnded)
    assert (end.outcome, end.exit_code, end.time_s) == ("reached", 0, 6.5)
    assert (end.reached, end.time_to_target_s, end.rounds, end.generations) == (True, 5.0, 6, 3)
    assert (end.energy_j, end.bytes_sent, end.decisions) == (3000.0, 123_000, 3)
    assert (end.test_accuracy, end.evaluation_s) == (1 - 0.5**6, 0.75)
    assert (end.digest, end.run_dir) == (f"{6:032x}", "runs/20260101-120000-5f2c")

    assert summary == summarise(log)
    assert summary.outcome == "reached"
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written == json.loads(summary.model_dump_json())


def test_closing_twice_and_after_an_error_frees_the_port(tmp_path, story):
    with pytest.raises(KeyError), Telemetry(SETTINGS, tmp_path, stream=io.StringIO()) as telemetry:
        raise KeyError("training broke")
    telemetry.close()
    with socket.create_server(("127.0.0.1", int(telemetry.metrics_url.split(":")[2][:-8]))):
        pass


def test_two_jobs_at_once_on_one_machine(tmp_path, story):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = TelemetrySettings(metrics=MetricsSettings(port=port), console="plain")
    streams = io.StringIO(), io.StringIO()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        Telemetry(settings, tmp_path / "a", stream=streams[0]) as first,
        Telemetry(settings, tmp_path / "b", stream=streams[1]) as second,
    ):
        assert first.metrics_url == f"http://127.0.0.1:{port}/metrics"
        assert second.metrics_url != first.metrics_url
        assert "powertrip_members" in fetch(second.metrics_url)
        assert streams[0].getvalue() == ""
        assert streams[1].getvalue() == (
            f"port {port} is taken: metrics are at {second.metrics_url}\n"
        )


def test_metrics_can_be_off(tmp_path, told):
    settings = TelemetrySettings(metrics=MetricsSettings(enabled=False), console="plain")
    threads = set(threading.enumerate())
    with Telemetry(settings, tmp_path, stream=io.StringIO()) as telemetry:
        telemetry.emit(told[0])
        assert telemetry.metrics_url is None
        assert set(threading.enumerate()) == threads


def test_a_full_disk_is_told_once_counted_and_survived(tmp_path, told):
    (tmp_path / EVENT_LOG).symlink_to("/dev/full")
    (tmp_path / "summary.json").mkdir()
    stream = io.StringIO()
    with Telemetry(SETTINGS, tmp_path, stream=stream) as telemetry:
        for event in told:
            telemetry.emit(event)
        assert f"powertrip_waiting_events {len(told)}.0" in fetch(telemetry.metrics_url)
        assert "powertrip_lost_events_total 0.0" in fetch(telemetry.metrics_url)
        summary = telemetry.end("reached", 0, time_s=6.0)
    assert summary.rounds == 6
    assert telemetry.lost_events == len(told) + 1
    warnings = [line for line in stream.getvalue().splitlines() if line.startswith("WARNING")]
    assert [line.partition(":")[2].split(str(tmp_path))[0] for line in warnings] == [
        " cannot write the event log ",
        " cannot write ",
        f" {len(told) + 1} events are missing from ",
    ]
    assert "No space left on device" in warnings[0]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_what_had_to_wait_for_the_disk_is_written_when_it_is_back(tmp_path, told, monkeypatch):
    stream, write = io.StringIO(), EventWriter.write_line
    with Telemetry(SETTINGS, tmp_path, stream=stream) as telemetry:

        def full(writer, line):
            raise OSError(28, "No space left on device")

        telemetry.emit(told[0])
        monkeypatch.setattr(EventWriter, "write_line", full)
        for event in told[1:5]:
            telemetry.emit(event)
        assert telemetry.lost_events == 4
        monkeypatch.setattr(EventWriter, "write_line", write)
        telemetry.emit(told[5])
        assert telemetry.lost_events == 0
        assert "powertrip_waiting_events 0.0" in fetch(telemetry.metrics_url)
    assert list(read_events(tmp_path / EVENT_LOG)) == told[:6]
    notes = [line for line in stream.getvalue().splitlines() if "event log" in line]
    assert len(notes) == 2
    assert "cannot write the event log" in notes[0]
    assert "is written again, after 0 s" in notes[1]


def test_a_run_that_goes_on_counts_on(tmp_path, told, story):
    """Rounds 1 to 4 stand of the six; the rounds after them are done again."""
    with Telemetry(SETTINGS, tmp_path, stream=io.StringIO()) as first:
        for event in told:
            first.emit(event)
        first.end("interrupted", 130, time_s=6.0)
    place = next(i for i, e in enumerate(told) if isinstance(e, Round) and e.round == 4)
    stream = io.StringIO()
    with Telemetry(SETTINGS, tmp_path, 4, stream=stream) as second:
        assert second.kept.lost_rounds == 2
        assert second.kept.dropped == len(told[place + 1 :]) + 1  # and the end
        assert second.summary().rounds == 4
        assert "powertrip_rounds_total 4.0" in fetch(second.metrics_url)
        second.emit(story.resumed(4))
        second.emit(told[place])  # told again, as it was in the snapshot
        for event in told[place + 1 :]:
            if not isinstance(event, Checkpoint):
                second.emit(event)
        summary = second.end("reached", 0, time_s=6.5)
    assert (summary.rounds, summary.resumes, summary.lost_rounds) == (6, 1, 2)
    log = list(read_events(tmp_path / EVENT_LOG))
    assert summary == summarise(log)
    assert [e.round for e in log if isinstance(e, Round)] == [1, 2, 3, 4, 5, 6]
    assert sum(isinstance(e, RunEnded) for e in log) == 1
    aside = list(read_events(tmp_path / f"{EVENT_LOG}.dropped-1"))
    assert [e.round for e in aside if isinstance(e, Round)] == [5, 6]
    assert "events.jsonl.dropped-1" in stream.getvalue()
    assert f"metrics: {second.metrics_url}" in stream.getvalue()


def test_a_log_that_cannot_be_gone_on_with_leaves_no_thread(tmp_path):
    (tmp_path / EVENT_LOG).write_text('{"v":2,"event":"round"}\n')
    threads = set(threading.enumerate())
    with pytest.raises(EventLogError, match="version 2"):
        Telemetry(SETTINGS, tmp_path, 4, stream=io.StringIO())
    assert set(threading.enumerate()) == threads


def test_a_log_that_cannot_be_made_leaves_no_thread(tmp_path):
    threads = set(threading.enumerate())
    with pytest.raises(EventLogError):
        Telemetry(SETTINGS, tmp_path / "missing", stream=io.StringIO())
    elsewhere = TelemetrySettings(metrics=MetricsSettings(address="203.0.113.1", port=0))
    with pytest.raises(MetricsAddressError):
        Telemetry(elsewhere, tmp_path, stream=io.StringIO())
    assert set(threading.enumerate()) == threads


@pytest.mark.parametrize("kind", ["plain", "live"])
def test_a_console_that_goes_away_does_not_end_the_run(tmp_path, told, kind, capsys):
    settings = SETTINGS.model_copy(update={"console": kind})
    threads = set(threading.enumerate())
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        with Telemetry(settings, tmp_path, stream=stream) as telemetry:
            telemetry.emit(told[0])
            os.close(read)
            if kind == "live":
                time.sleep(1.2 * (BUSY_S + IDLE_S))
            for event in told[1:]:
                telemetry.emit(event)
            telemetry.end("reached", 0, time_s=6.0)
        assert set(threading.enumerate()) - threads == set()
        # What the dead pipe did not take must not be tried again when the test closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    log = list(read_events(tmp_path / EVENT_LOG))
    assert [event for event in log if isinstance(event, RunEnded)]
    gone = [event for event in log if isinstance(event, Warned) and "console" in event.text]
    assert [event.text for event in gone] == ["the console is gone: Broken pipe"]
    assert "failure at" in capsys.readouterr().err


def test_a_log_cut_by_a_kill_is_mended_and_told(tmp_path, story):
    (tmp_path / EVENT_LOG).write_bytes(story.start().model_dump_json().encode() + b'\n{"v":1,')
    stream = io.StringIO()
    with Telemetry(SETTINGS, tmp_path, stream=stream) as telemetry:
        telemetry.emit(story.round(1, 1, 2))
    assert "its last line was cut short; removed 7 bytes" in stream.getvalue()
    assert len(list(read_events(tmp_path / EVENT_LOG))) == 2


def test_a_run_that_never_started_has_no_end(tmp_path):
    with (
        Telemetry(SETTINGS, tmp_path, stream=io.StringIO()) as telemetry,
        pytest.raises(NoRunError),
    ):
        telemetry.end("failed", 1, time_s=0.0)


def test_runs_leave_no_descriptors(tmp_path, told):
    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for i in range(3):
        folder = tmp_path / str(i)
        folder.mkdir()
        with Telemetry(SETTINGS, folder, stream=io.StringIO()) as telemetry:
            telemetry.emit(told[0])
    assert descriptors() == before
