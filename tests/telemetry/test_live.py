import io
import threading
import time

import pytest
from rich.console import Console

from powertrip.telemetry import events, live
from powertrip.telemetry.live import Board, LiveConsole
from powertrip.telemetry.report import summarise


def screen(width=80, height=24):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )


def frame(told, width=80, height=24):
    board = Board()
    for event in told:
        board.add(event)
    console = screen(width, height)
    console.print(board)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_frame_fits_80_by_24_and_shows_all(told):
    lines = frame(told)
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "PowerTrip eight-clouds, powertrip   generation 3   clock 6.00 s   elapsed" in text
    assert lines[1] == "links: not recorded"
    assert lines[2].startswith("test accuracy ━")
    assert lines[2].endswith("98.4 % of 95.0 %")
    assert sum(line.startswith("● ") for line in lines) == 5
    assert sum(line.startswith("○ ") for line in lines) == 3
    assert "● us-west1" in text
    assert "southamerica-east1" in text
    assert lines[-1] == (
        "decision 3, 2 rounds of about 1.50 s: 5 sites give the most progress per second"
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 15), (200, 60), (80, 10)])
@pytest.mark.parametrize("count", [1, 8, 100])
def test_a_frame_fits_its_terminal(story, width, height, count):
    story.sites = tuple(f"site-{i}" for i in range(count))
    members = (count + 1) // 2
    told = [story.start(), story.decision(1, members, reason="because " * 40)]
    told += [story.round(n, 1, members) for n in range(1, 31)]
    lines = frame(told, width, height)
    assert len(lines) < max(height, 13)
    assert max(map(len, lines)) <= width
    if count == 100:
        shown = sum(line.startswith(("● ", "○ ")) for line in lines)
        assert f"  and {100 - shown} more" in lines
        assert not any(line.startswith("○") for line in lines)


def test_measured_links_to_the_hub_are_shown_where_there_is_room(told, story):
    told = [told[0], story.links(), *told[1:]]
    wide, narrow = frame(told, 110, 30), frame(told, 80, 24)
    (row,) = (line for line in wide if "us-central1 " in line and line.startswith("●"))
    assert row.endswith("20 ms    16 Mbit/s")
    assert max(map(len, wide)) <= 110
    assert not any("bit/s" in line for line in narrow)
    (hub,) = (line for line in wide if line.startswith("● us-west1"))
    assert hub.endswith("-            -")


def test_the_bar_shows_the_way_to_the_target(story):
    def bar(accuracy):
        told = [story.start(), story.round(1, 1, 2, test_accuracy=accuracy)]
        return frame(told)[2].count("━")

    assert bar(0.0) == 0
    assert bar(0.475) == pytest.approx(bar(0.95) / 2, abs=1)

    target = events.Target(metric="validation_loss", value=0.5)
    board = Board()
    board.add(story.start(target=target))
    for number, loss, way in ((1, 2.5, 0.0), (2, 1.5, 0.5), (3, float("nan"), 0.0)):
        board.add(story.round(number, 1, 2, validation_loss=loss))
        assert board._way(target) == way


def test_numbers_that_are_no_numbers_do_not_break_the_view(story):
    nan = float("nan")
    told = [
        story.start(),
        story.decision(
            1,
            2,
            predicted_round_s=float("inf"),
            power_w=dict.fromkeys(story.sites, nan),
            throughput=dict.fromkeys(story.sites, nan),
        ),
        story.round(1, 1, 2, train_loss=nan, validation_loss=nan, test_accuracy=nan),
    ]
    assert any("never" in line for line in frame(told))


def test_before_the_first_event_there_is_nothing_to_see():
    assert frame([]) == []


def test_the_last_frame_and_the_summary_stay_and_no_thread_does(told):
    threads = set(threading.enumerate())
    console = screen()
    view = LiveConsole(console)
    view.note("port 9464 is taken")
    for event in told:
        view.show(event)
    view.finish(summarise(told))
    view.close()
    written = console.file.getvalue()
    assert set(threading.enumerate()) - threads == set()
    assert written.startswith("port 9464 is taken\n")
    assert "warning at europe-west4: slower than predicted" in written
    assert "failure at asia-east1" in written
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1
    end = written[written.rindex("PowerTrip eight-clouds") :]
    assert "decision 3" in end
    assert "model digest" in end


def test_closing_early_gives_the_cursor_back(story):
    console = screen()
    view = LiveConsole(console)
    view.show(story.start())
    view.close()
    view.close()
    assert console.file.getvalue().count("\x1b[?25h") == 1


def test_the_view_is_drawn_again_while_nothing_happens(story, monkeypatch):
    monkeypatch.setattr(live, "IDLE_S", 0.01)
    monkeypatch.setattr(live, "BUSY_S", 0.0)
    console = screen()
    view = LiveConsole(console)
    view.show(story.start())
    before = console.file.getvalue().count("PowerTrip eight-clouds")
    deadline = time.monotonic() + 5
    while console.file.getvalue().count("PowerTrip eight-clouds") < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    view.close()
