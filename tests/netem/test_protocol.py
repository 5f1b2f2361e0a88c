"""Messages over a socket: framing, errors of the other end as one's own, bounded waits."""

import inspect
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem import errors
from netem.errors import DaemonLost, NetemError, PlanError, ProtocolError
from netem.protocol import MAX_LINE_BYTES, Channel, LineBuffer, encode, error_reply, raise_for

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, NetemError) and kind is not PlanError
]


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, "the daemon in the test")
    with theirs:
        theirs.settimeout(10)
        yield channel, theirs
    channel.close()


@given(
    messages=st.lists(st.dictionaries(st.text(), st.integers() | st.text() | st.none())),
    size=st.integers(1, 50),
)
def test_messages_are_the_same_however_the_bytes_are_cut(messages: list[dict], size: int):
    data = b"".join(map(encode, messages))
    buffer = LineBuffer()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert [message for chunk in chunks for message in buffer.feed(chunk)] == messages


@pytest.mark.parametrize("data", [b"{\n", b"[1]\n", b"\xff\n", b"x" * (MAX_LINE_BYTES + 1)])
def test_what_is_no_message_is_refused(data: bytes):
    with pytest.raises(ProtocolError):
        list(LineBuffer().feed(data))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_arrives_as_its_own_class(kind: type[NetemError]):
    with pytest.raises(NetemError, match=r"^because$") as caught:
        raise_for(error_reply(kind("because")))
    assert type(caught.value) is kind


def test_a_plan_error_keeps_its_problems():
    sent = PlanError(["a: is wrong", "b: too"], "x.yaml")
    with pytest.raises(PlanError) as caught:
        raise_for(error_reply(sent))
    assert (caught.value.problems, caught.value.source) == (sent.problems, "x.yaml")
    assert str(caught.value) == str(sent)


@pytest.mark.parametrize("reply", [{}, {"ok": False}, {"ok": False, "error": "annotations"}])
def test_a_reply_without_a_known_error_is_an_error_itself(reply: dict):
    with pytest.raises(ProtocolError):
        raise_for(reply)


def test_descriptors_travel_with_their_request(pair: tuple[Channel, socket.socket]):
    channel, theirs = pair
    read_end, write_end = os.pipe()
    theirs.sendall(encode({"ok": True, "n": 7}))
    assert channel.request("attach", [write_end], site=3)["n"] == 7
    os.close(write_end)
    data, (received,), _, _ = socket.recv_fds(theirs, 1000, 4)
    assert data == b'{"request":"attach","site":3}\n'
    os.write(received, b"through")
    os.close(received)
    assert os.read(read_end, 100) == b"through"
    os.close(read_end)


def test_a_request_larger_than_the_socket_buffers(pair: tuple[Channel, socket.socket]):
    channel, theirs = pair
    lines = LineBuffer()
    got = []

    def answer() -> None:
        while not got:
            got.extend(lines.feed(theirs.recv(65536)))
        theirs.sendall(encode({"ok": True, "text": "y" * 3_000_000}))

    thread = threading.Thread(target=answer)
    thread.start()
    assert len(channel.request("change", text="x" * 3_000_000)["text"]) == 3_000_000
    thread.join()
    assert len(got[0]["text"]) == 3_000_000


def test_silence_is_bounded(pair: tuple[Channel, socket.socket]):
    channel, _ = pair
    begun_s = time.monotonic()
    with pytest.raises(DaemonLost, match=r"the daemon in the test did not answer `stats` within 0"):
        channel.request("stats", timeout_s=0.2)
    assert 0.2 <= time.monotonic() - begun_s < 2


def test_a_half_reply_does_not_extend_the_wait(pair: tuple[Channel, socket.socket]):
    channel, theirs = pair
    theirs.sendall(b'{"ok":')
    with pytest.raises(DaemonLost, match="did not answer"):
        channel.request("stats", timeout_s=0.1)


def test_the_end_of_the_other_side_is_named(pair: tuple[Channel, socket.socket]):
    channel, theirs = pair
    assert not channel.lost()
    theirs.close()
    assert channel.lost()
    assert channel.lost(None)
    with pytest.raises(DaemonLost, match="the daemon in the test has ended"):
        channel.request("stats")


def test_data_is_not_an_end(pair: tuple[Channel, socket.socket]):
    channel, theirs = pair
    theirs.sendall(b"unasked\n")
    assert not channel.lost(0.05)


def test_nobody_listens(tmp_path: Path):
    with pytest.raises(DaemonLost, match=r"no link daemon answers at .*nobody\.sock: No such file"):
        Channel.connect(tmp_path / "nobody.sock")
    with pytest.raises(DaemonLost, match="too long"):
        Channel.connect("/tmp/" + "x" * 200)
