import io
import subprocess
import sys

import pytest

from powertrip.telemetry.console import (
    PlainConsole,
    QuietConsole,
    build_console,
    main,
    wants_live,
)
from powertrip.telemetry.eventlog import EventWriter
from powertrip.telemetry.events import SiteReturned
from powertrip.telemetry.report import summarise


class Screen(io.StringIO):
    def isatty(self):
        return True


def shown(told):
    stream = io.StringIO()
    console = PlainConsole(stream)
    for event in told:
        console.show(event)
    console.finish(summarise(told))
    console.close()
    return stream.getvalue().splitlines()


def test_the_lines_of_a_run(told):
    lines = shown(told)
    assert lines[:8] == [
        "PowerTrip 0.1.0: eight-clouds, run 20260101-120000-5f2c",
        "  8 sites, policy powertrip, seed 0",
        "  deadline pacing, measured clock, gloo, torch 2.13.0",
        "  links: not recorded",
        "  target: test accuracy of 95.0 %",
        "decision 1: 4 of 8 sites (us-west1, us-east1, us-central1, europe-west4) "
        "for 2 rounds of about 1.50 s: 4 sites give the most progress per second",
        "round  gen  members                       step exchange  valid.    test    clock",
        "    1    1   4 us-west1 us-east1 +2    62.5 ms   250 ms  50.0 %  50.0 %   1.00 s",
    ]
    assert "warning at europe-west4: slower than predicted" in lines
    assert (
        "failure at asia-east1 (exchange, generation 2, round 4): the exchange was aborted "
        "after 5 s" in lines
    )
    assert lines[-1] == "  checkpoint      runs/x/last.pt"


def test_a_run_that_goes_on(story):
    alive = story.resumed(4, lost_rounds=0, checkpoint=None, reason="it was killed")
    lines = shown([story.start(), story.resumed(4), alive])
    assert lines[5:7] == [
        "resumed after round 4 from runs/x/checkpoints/round-00000004 (asked for with --resume); "
        "2 rounds done again",
        "resumed after round 4 (it was killed)",
    ]
    assert "  resumed         2 times, 2 rounds done again" in lines
    assert lines[-1] == "  checkpoint      runs/x/checkpoints/round-00000004"


def test_a_site_that_is_back_is_told_of(story):
    back = SiteReturned(time_s=3.0, site=story.sites[0], incarnation=1)
    assert "us-west1 is back" in shown([story.start(), back])


def test_of_what_was_before_only_the_start_is_shown(told, story):
    stream = io.StringIO()
    console = PlainConsole(stream)
    for event in [*told, story.links()]:
        console.recall(event)
    assert stream.getvalue().splitlines()[0].startswith("PowerTrip 0.1.0: eight-clouds")
    assert len(stream.getvalue().splitlines()) == 5
    console.show(story.round(7, 3, 5))
    assert "us-west1" in stream.getvalue().splitlines()[-1]


def test_the_links_and_what_they_measure(story):
    start = story.start(links="userspace: as asked", bandwidth_scale=0.02)
    later = story.changed_links(1, rtt_s=None, bandwidth=None)
    lines = shown([start, story.links(), story.links(first=False), later])
    assert lines[3] == "  links: userspace: as asked; bandwidths x 0.02"
    assert [line.split(":")[0] for line in lines[5:8]] == [
        "links",
        "  median 1.02 of the model's RTT, 1.02 of its bandwidth",
        "links have changed",
    ]


def test_every_round_has_one_line_of_80_columns_and_values_stand_under_their_heads(story):
    told = [story.start(), *(story.round(n, 1, 8) for n in range(1, 46))]
    lines = shown(told)
    heads = [line for line in lines if line.startswith("round ")]
    rounds = [line for line in lines if line.endswith(" s") and line[:5].strip().isdigit()]
    assert len(heads) == 3
    assert len(rounds) == 45
    assert {len(line) for line in heads + rounds} == {80}


def test_what_was_not_measured_is_a_dash(story):
    bare = story.round(1, 1, 2, test_accuracy=None, validation_accuracy=None, sites=())
    line = shown([story.start(), bare])[6]
    assert " ".join(line.split()) == "1 1 2 us-west1 us-east1 - 250 ms - - 1.00 s"


def test_a_stream_that_lacks_letters_gets_question_marks(story):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    PlainConsole(stream).show(story.start(name="Zürich"))
    stream.flush()
    assert b"Z?rich" in raw.getvalue()


def test_quiet_shows_trouble_only(told):
    stream = io.StringIO()
    console = QuietConsole(stream)
    for event in told:
        console.show(event)
    console.finish(summarise(told))
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["warning", "failure"]


@pytest.mark.parametrize(
    ("stream", "environment", "live"),
    [
        (Screen(), {"TERM": "xterm-256color"}, True),
        (Screen(), {"TERM": "xterm", "CI": "false"}, True),
        (Screen(), {"TERM": "xterm", "CI": "true"}, False),
        (Screen(), {"TERM": "dumb"}, False),
        (Screen(), {}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_auto_is_live_on_a_terminal_only(stream, environment, live):
    assert wants_live(stream, environment) is live
    kind = type(build_console("auto", stream, environment)).__name__
    assert kind == ("LiveConsole" if live else "PlainConsole")


def test_the_kind_can_be_forced():
    assert type(build_console("plain", Screen(), {"TERM": "xterm"})) is PlainConsole
    assert type(build_console("live", io.StringIO(), {})).__name__ == "LiveConsole"
    assert type(build_console("none", io.StringIO(), {})) is QuietConsole


@pytest.fixture
def log(tmp_path, told):
    path = tmp_path / "events.jsonl"
    writer = EventWriter(path)
    for event in told:
        writer.write(event)
    writer.close()
    return path


def test_a_recorded_run_can_be_shown_again(log, told, capsys):
    assert main([str(log), "--console", "plain"]) == 0
    assert capsys.readouterr().out.splitlines() == shown(told)


def test_a_log_that_is_not_there_is_an_error_without_a_traceback(tmp_path, capsys):
    assert main([str(tmp_path / "none.jsonl")]) == 2
    assert capsys.readouterr().err.startswith("cannot read the event log")


def test_a_reader_that_has_seen_enough_is_no_error(log):
    command = f"{sys.executable} -m powertrip.telemetry.console {log} --speed 1 | head -1"
    answer = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("PowerTrip 0.1.0")
