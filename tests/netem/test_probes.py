"""Probes over the loopback, and through a relay that delays and drops what the test says."""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from netem.probes import (
    ProbeFailed,
    Responder,
    measure_loss,
    measure_rtt,
    measure_throughput,
)

LOOPBACK = "127.0.0.1"


@pytest.fixture
def responder() -> Iterator[Responder]:
    with Responder(LOOPBACK) as answering:
        yield answering


@contextlib.contextmanager
def relay(port: int, *, drop_every: int = 0, delay_s: float = 0.0) -> Iterator[int]:
    """Forward datagrams to a port and the answers back; yields the port to send to."""
    outside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    outside.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    outside.bind((LOOPBACK, 0))
    inside.connect((LOOPBACK, port))
    stop, stopped = socket.socketpair()

    def forward() -> None:
        waiting: list[tuple[float, bytes]] = []
        client, seen = ("", 0), 0
        with selectors.DefaultSelector() as selector:
            for end in (outside, inside, stopped):
                selector.register(end, selectors.EVENT_READ)
            while True:
                wait_s = waiting[0][0] - time.monotonic() if waiting else None
                for key, _ in selector.select(None if wait_s is None else max(wait_s, 0)):
                    if key.fileobj is stopped:
                        return
                    if key.fileobj is outside:
                        data, client = outside.recvfrom(2048)
                        seen += 1
                        if not drop_every or seen % drop_every:
                            waiting.append((time.monotonic() + delay_s, data))
                    else:
                        outside.sendto(inside.recv(2048), client)
                while waiting and waiting[0][0] <= time.monotonic():
                    inside.send(waiting.pop(0)[1])

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield outside.getsockname()[1]
    finally:
        stop.send(b"x")
        thread.join(5)
        for end in (outside, inside, stop, stopped):
            end.close()


def test_rtt_of_a_delayed_path_is_the_delay(responder: Responder) -> None:
    with relay(responder.port, delay_s=0.03) as port:
        result = measure_rtt(LOOPBACK, port, count=10, interval_s=0.005)
    assert (result.sent, result.received) == (10, 10)
    assert 0.03 <= result.min_s <= result.median_s <= result.max_s
    assert result.min_s < 0.04


def test_rtt_counts_what_did_not_come_back(responder: Responder) -> None:
    begin_s = time.monotonic()
    with relay(responder.port, drop_every=5) as port:
        result = measure_rtt(LOOPBACK, port, count=20, interval_s=0.001, timeout_s=30)
    assert result.received == 16
    assert time.monotonic() - begin_s < 10


def test_loss_is_the_share_that_was_dropped(responder: Responder) -> None:
    with relay(responder.port, drop_every=20) as port:
        result = measure_loss(LOOPBACK, port, count=1000, packets_per_s=20_000)
    assert (result.sent, result.received) == (1000, 950)
    assert result.loss == pytest.approx(0.05)


def test_loss_keeps_to_its_pace(responder: Responder) -> None:
    begin_s = time.monotonic()
    result = measure_loss(LOOPBACK, responder.port, count=300, packets_per_s=1000)
    assert result.loss == 0
    assert time.monotonic() - begin_s >= 0.29


def test_throughput_of_the_loopback(responder: Responder) -> None:
    result = measure_throughput(LOOPBACK, responder.port, window_s=0.1, warmup_s=0.02)
    assert 0.1 <= result.seconds < 1
    assert result.rate_bps > 50e6


def test_one_responder_serves_several_at_once(responder: Responder) -> None:
    results: list[float] = []

    def measure() -> None:
        result = measure_throughput(LOOPBACK, responder.port, window_s=0.2, warmup_s=0.0)
        results.append(result.rate_bps)

    threads = [threading.Thread(target=measure) for _ in range(3)]
    for thread in threads:
        thread.start()
    rtt = measure_rtt(LOOPBACK, responder.port, count=5)
    for thread in threads:
        thread.join(20)
    assert rtt.received == 5
    assert len(results) == 3
    assert min(results) > 0


def test_a_silent_end_is_told_within_the_time() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((LOOPBACK, 0))
        port = silent.getsockname()[1]
        begin_s = time.monotonic()
        with pytest.raises(ProbeFailed, match=r"none of 3 datagrams came back from 127\.0\.0\.1"):
            measure_rtt(LOOPBACK, port, count=3, timeout_s=0.2)
        with pytest.raises(ProbeFailed, match="did not tell"):
            measure_loss(LOOPBACK, port, count=3, timeout_s=0.2)
        with pytest.raises(ProbeFailed, match="the stream to"):
            measure_throughput(LOOPBACK, port, timeout_s=0.5)
        assert time.monotonic() - begin_s < 3


def test_a_listener_that_never_reads_is_given_up() -> None:
    with socket.create_server((LOOPBACK, 0)) as deaf:
        begin_s = time.monotonic()
        with pytest.raises(ProbeFailed, match="not measured in time"):
            measure_throughput(
                LOOPBACK, deaf.getsockname()[1], window_s=0.1, warmup_s=0.1, timeout_s=0.2
            )
        assert time.monotonic() - begin_s < 2


def test_a_stranger_is_not_taken_for_a_responder() -> None:
    with socket.create_server((LOOPBACK, 0)) as stranger:

        def greet() -> None:
            with stranger.accept()[0] as stream:
                stream.sendall(b"220 hello\n")
                stream.recv(1)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(ProbeFailed, match="not a netem responder"):
            measure_throughput(LOOPBACK, stranger.getsockname()[1])
        thread.join(5)


def test_nonsense_does_not_stop_a_responder(responder: Responder) -> None:
    with socket.create_connection((LOOPBACK, responder.port), 5) as stream:
        stream.sendall(b'{"window_s": "soon"}\n')
        stream.settimeout(5)
        assert stream.recv(1) == b""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(b"?", (LOOPBACK, responder.port))
        udp.sendto(b"x" * 100, (LOOPBACK, responder.port))
    assert measure_rtt(LOOPBACK, responder.port, count=2).received == 2


def test_a_port_in_use_or_a_foreign_address_is_told(responder: Responder) -> None:
    with pytest.raises(ProbeFailed, match="Address already in use"):
        Responder(LOOPBACK, responder.port)
    with pytest.raises(ProbeFailed, match="cannot listen at 192"):
        Responder("192.0.2.1")


def test_closing_ends_the_thread_and_frees_the_port() -> None:
    first = Responder(LOOPBACK)
    first.close()
    first.close()
    with Responder(LOOPBACK, first.port) as second:
        assert second.port == first.port
    assert not [t for t in threading.enumerate() if t.name == "netem-responder"]
