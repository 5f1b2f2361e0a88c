from __future__ import annotations

import random
import socket

import pytest

from powertrip.runtime.handshake import BEAT_BYTES, Beats
from powertrip.runtime.line import Line, LineEnded, least_limit_s

KEY = b"key of a connection"


def beats(speaker: bytes) -> Beats:
    return Beats(KEY, speaker)


@pytest.fixture
def ends():
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield Line(near, beats(b"near"), beats(b"far"), 100.0), far


def test_beats_are_heard_whole_or_in_parts(ends):
    line, far = ends
    assert not line.listen(101.0)
    theirs = beats(b"far")
    far.sendall(theirs.next() + theirs.next() + (third := theirs.next())[:5])
    assert line.listen(102.0)
    far.sendall(third[5:9])
    assert not line.listen(103.0)
    assert line.heard_s == 102.0
    far.sendall(third[9:])
    assert line.listen(104.0)
    assert line.heard_s == 104.0


def test_beats_are_sent_in_order(ends):
    line, far = ends
    ours = beats(b"near")
    for _ in range(3):
        line.beat()
    assert far.recv(4096) == ours.next() + ours.next() + ours.next()


@pytest.mark.parametrize("kind", ["random", "own", "again", "left out"])
def test_what_is_no_beat_of_the_other_end_ends_the_line(ends, kind):
    line, far = ends
    theirs = beats(b"far")
    first, second = theirs.next(), theirs.next()
    said = {
        "random": random.Random(1).randbytes(BEAT_BYTES),
        "own": beats(b"near").next(),
        "again": first + first,
        "left out": second,
    }
    far.sendall(said[kind])
    with pytest.raises(LineEnded, match="no beat"):
        line.listen(101.0)


def test_the_end_of_the_other_end_ends_the_line(ends):
    line, far = ends
    far.close()
    with pytest.raises(LineEnded, match="closed"):
        line.listen(101.0)
    with pytest.raises(LineEnded):
        line.beat()


def test_a_link_that_takes_nothing_holds_nobody_up_and_loses_no_part_of_a_beat(ends):
    line, far = ends
    line.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    for _ in range(5000):
        line.beat()
    taken, ours = drained(far), beats(b"near")
    assert BEAT_BYTES < len(taken) < 5000 * BEAT_BYTES
    line.beat()
    line.beat()
    taken += drained(far)
    assert taken == b"".join(ours.next() for _ in range(len(taken) // BEAT_BYTES))


def drained(sock: socket.socket) -> bytes:
    sock.setblocking(False)
    taken = b""
    try:
        while data := sock.recv(1 << 16):
            taken += data
    except BlockingIOError:
        return taken
    return taken


def test_time_that_is_forgiven_never_lies_ahead(ends):
    line, _ = ends
    line.forgive(3.0, 110.0)
    assert line.heard_s == 103.0
    line.forgive(30.0, 110.0)
    assert line.heard_s == 110.0


def test_no_limit_is_under_three_beats():
    assert least_limit_s(2.0, 0.25) == 2.0
    assert least_limit_s(0.1, 0.25) == 0.75
