from __future__ import annotations

import threading
import time

import pytest

from powertrip.runtime.checkpoint_writer import CheckpointSkipped, CheckpointWriter
from powertrip.runtime.durable import CheckpointUnwritable


@pytest.fixture
def writer():
    writer = CheckpointWriter()
    yield writer
    writer.close(5.0)


class Gate:
    """A job that lasts until it is opened."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.go.wait(5)
        return "through"


def test_jobs_are_done_one_after_the_other_in_a_thread_of_their_own(writer):
    told = []
    for name in ("a", "b"):
        writer.submit(threading.current_thread, lambda t, name=name: told.append((name, t)))
        while writer.busy:
            time.sleep(0.001)
    assert [name for name, _ in told] == ["a", "b"]
    assert {thread.name for _, thread in told} == {"checkpoint-writer"}


def test_of_those_that_wait_the_newest_alone_is_done(writer):
    gate, told = Gate(), []
    writer.submit(gate, told.append)
    assert gate.entered.wait(5)
    for number in range(3):
        writer.submit(lambda number=number: number, told.append)
    assert [type(each) for each in told] == [CheckpointSkipped] * 2
    gate.go.set()
    writer.close(5.0)
    assert told[2:] == ["through", 2]


def test_submitting_waits_for_nothing(writer):
    gate = Gate()
    writer.submit(gate, lambda result: None)
    assert gate.entered.wait(5)
    started_s = time.monotonic()
    writer.submit(gate, lambda result: None)
    assert time.monotonic() - started_s < 1
    gate.go.set()


@pytest.mark.parametrize(
    ("error", "text"),
    [(CheckpointUnwritable("the disk is full"), "the disk is full"),
     (KeyError("momentum"), "KeyError: 'momentum'")],
)  # fmt: skip
def test_what_fails_is_told_and_the_next_one_is_done(writer, error, text):
    told = []

    def fail():
        raise error

    writer.submit(fail, told.append)
    while writer.busy:
        time.sleep(0.001)
    writer.submit(lambda: 1, told.append)
    writer.close(5.0)
    assert isinstance(told[0], CheckpointUnwritable)
    assert (str(told[0]), told[1]) == (text, 1)


def test_closing_is_bounded_and_ends_the_thread():
    threads = set(threading.enumerate())
    writer, gate, told = CheckpointWriter(), Gate(), []
    writer.submit(gate, told.append)
    assert gate.entered.wait(5)
    with pytest.raises(CheckpointUnwritable, match=r"not on disk after 0\.05 s"):
        writer.close(0.05)
    writer.submit(gate, told.append)
    assert "closed" in str(told[0])
    gate.go.set()
    writer.close(5.0)
    writer.close(5.0)
    assert told[1] == "through"
    assert set(threading.enumerate()) == threads
