from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netem.engines import forwarder as module
from netem.engines.base import PairStats
from netem.engines.forwarder import EARLY_S, Forwarder
from netem.engines.segments import HEADER_BYTES
from netem.plan import Link

ADDRESSES = [bytes((10, 77, 0, 10 + site)) for site in range(3)]
PATIENCE_S = 20.0


def frame(dst: int, text: bytes = b"") -> bytes:
    """A frame with as much of an IP packet as is looked at."""
    return bytes(HEADER_BYTES + 16) + ADDRESSES[dst] + text


def text_of(received: bytes) -> bytes:
    return received[HEADER_BYTES + 20 :]


class Bench:
    """A forwarder between datagram sockets, which stand for the devices."""

    def __init__(self) -> None:
        self.forwarder = Forwarder(ADDRESSES)
        self.ends: dict[int, socket.socket] = {}
        for site in range(2):
            self.connect(site)

    def connect(self, site: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in (ours, theirs):
            end.setblocking(False)
        self.forwarder.connect(site, theirs.detach())
        if site in self.ends:
            self.ends[site].close()
        self.ends[site] = ours

    def run(self, until: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
        end_s = time.monotonic() + timeout_s
        while not until():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            due_s = self.forwarder.next_timeout_s()
            wait_s = left_s if due_s is None else min(left_s, due_s)
            select.select([self.forwarder.fileno()], [], [], wait_s)
            self.forwarder.process()
        return True

    def receive(self, site: int, count: int = 1) -> list[bytes]:
        got: list[bytes] = []

        def enough() -> bool:
            while select.select([self.ends[site]], [], [], 0)[0]:
                got.append(text_of(self.ends[site].recv(1 << 17)))
            return len(got) >= count

        assert self.run(enough), f"{len(got)} of {count} frames came"
        return got

    def dropped(self, src: int, dst: int) -> int:
        counts = self.forwarder.stats().get((src, dst))
        return 0 if counts is None else counts.dropped


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.forwarder.close()
    for end in bench.ends.values():
        end.close()


def test_frames_go_where_they_are_addressed_to_in_their_order(bench: Bench) -> None:
    bench.connect(2)
    for number in range(200):
        bench.ends[0].send(frame(1 + number % 2, b"%d" % number))
        bench.forwarder.process()
    assert bench.receive(1, 100) == [b"%d" % number for number in range(0, 200, 2)]
    assert bench.receive(2, 100) == [b"%d" % number for number in range(1, 200, 2)]
    assert bench.forwarder.stats()[0, 1].packets == 100


def test_each_direction_has_its_own_delay(bench: Bench) -> None:
    bench.forwarder.set_link(0, 1, Link(delay_s=0.1))
    bench.forwarder.set_link(1, 0, Link(delay_s=0.2))
    for src, delay_s in ((0, 0.1), (1, 0.2)):
        sent_s = time.monotonic()
        bench.ends[src].send(frame(1 - src, b"x"))
        bench.receive(1 - src)
        assert delay_s - EARLY_S <= time.monotonic() - sent_s < delay_s + 1


def test_a_rate_spaces_the_frames(bench: Bench) -> None:
    bench.forwarder.set_link(0, 1, Link(rate_bps=1e6))
    begin_s = time.monotonic()
    for _ in range(5):
        bench.ends[0].send(frame(1, bytes(5000 - 20)))
    bench.receive(1, 5)
    assert 0.2 - EARLY_S <= time.monotonic() - begin_s < 1.2
    assert bench.forwarder.stats() == {(0, 1): PairStats(bytes=25_000, packets=5, dropped=0)}


def test_loss_takes_single_segments_out_of_a_large_frame(bench: Bench) -> None:
    bench.forwarder.set_link(0, 1, Link(loss=0.1))
    tcp = struct.pack("!HHIIBBHHH", 1, 2, 0, 0, 5 << 4, 0x10, 0, 0, 0)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 40 + 6000, 0, 0, 64, 6, 0) + bytes(4) + ADDRESSES[1]
    large = struct.pack("=BBHHHH", 1, 1, 40, 100, 20, 16) + ip + tcp + bytes(6000)
    received_bytes = 0

    def accounted_for() -> int:
        counts = bench.forwarder.stats().get((0, 1))
        return 0 if counts is None else counts.packets + counts.dropped

    for number in range(1, 21):
        bench.ends[0].send(large)
        assert bench.run(lambda offered=number * 60: accounted_for() == offered)
        while select.select([bench.ends[1]], [], [], 0)[0]:
            received_bytes += len(bench.ends[1].recv(1 << 17)) - HEADER_BYTES - 40
    counts = bench.forwarder.stats()[0, 1]
    assert 60 < counts.dropped < 180
    assert received_bytes == counts.packets * 100
    assert counts.bytes == counts.packets * 140


def test_a_cut_link_passes_nothing_until_it_is_back(bench: Bench) -> None:
    bench.forwarder.set_link(0, 1, Link(delay_s=30))
    bench.ends[0].send(frame(1, b"under way"))
    bench.forwarder.process()
    bench.forwarder.set_link(0, 1, Link(up=False))
    bench.ends[0].send(frame(1, b"into the cut"))
    assert bench.run(lambda: bench.dropped(0, 1) == 2)
    bench.forwarder.set_link(0, 1, Link())
    bench.ends[0].send(frame(1, b"back"))
    assert bench.receive(1) == [b"back"]


def test_a_faster_link_hurries_what_waits(bench: Bench) -> None:
    bench.forwarder.set_link(0, 1, Link(rate_bps=1000))
    bench.ends[0].send(frame(1, bytes(10_000)))
    bench.forwarder.process()
    begin_s = time.monotonic()
    bench.forwarder.set_link(0, 1, Link(rate_bps=1e9))
    bench.receive(1)
    assert time.monotonic() - begin_s < 5


def test_a_link_queues_for_the_round_trip_of_the_pair(bench: Bench) -> None:
    # 1,000 bytes take 10 ms; one way without a delay alone would allow for a queue of 0.33 s.
    slow = Link(rate_bps=800e3)
    bench.forwarder.set_link(0, 1, slow)
    bench.forwarder.set_link(1, 0, Link(delay_s=2.0))
    for _ in range(400):
        bench.ends[0].send(frame(1, bytes(980)))
        bench.forwarder.process()
    assert bench.dropped(0, 1) == 0
    bench.forwarder.set_link(1, 0, Link())
    for _ in range(400):
        bench.ends[0].send(frame(1, bytes(980)))
        bench.forwarder.process()
    assert bench.dropped(0, 1) == 400


def test_what_is_for_nobody_is_dropped(bench: Bench) -> None:
    bench.ends[0].send(frame(2))
    bench.ends[0].send(bytes(HEADER_BYTES) + b"not an address")
    bench.ends[0].send(b"short")
    assert bench.run(lambda: bench.dropped(0, 2) == 1)
    assert set(bench.forwarder.stats()) == {(0, 2)}


def test_the_last_packets_of_a_disconnected_site_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.3)
    bench.forwarder.disconnect(0)
    bench.forwarder.disconnect(0)
    assert not bench.forwarder.connected(0)
    bench.ends[0].send(frame(1, b"goodbye"))
    assert bench.receive(1) == [b"goodbye"]
    assert bench.run(lambda: bench.forwarder.next_timeout_s() is None)
    with pytest.raises(OSError, match=r"refused|reset|Broken pipe|connected"):
        bench.ends[0].send(frame(1))
    bench.ends[1].send(frame(0))
    assert bench.run(lambda: bench.dropped(1, 0) == 1)


def test_another_device_takes_a_disconnected_site_at_once(bench: Bench) -> None:
    old = bench.ends.pop(0)
    bench.forwarder.disconnect(0)
    bench.connect(0)
    assert bench.forwarder.connected(0)
    bench.ends[1].send(frame(0, b"to the new one"))
    assert bench.receive(0) == [b"to the new one"]
    old.send(frame(1, b"from the old one"))
    assert bench.receive(1) == [b"from the old one"]
    old.close()


def test_a_device_that_has_ended_does_not_keep_the_process_busy(bench: Bench) -> None:
    # An end of file, which a stream socket gives where a device gives an error.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.setblocking(False)
    bench.forwarder.connect(2, theirs.detach())
    ours.close()
    bench.forwarder.process()
    assert not select.select([bench.forwarder.fileno()], [], [], 0.05)[0]
    bench.ends[0].send(frame(1, b"x"))
    assert bench.receive(1) == [b"x"]


def test_a_site_that_does_not_read_loses_packets_and_nobody_waits(bench: Bench) -> None:
    count = 2000

    def all_sent() -> bool:
        bench.forwarder.process()
        counts = bench.forwarder.stats().get((0, 1))
        return counts is not None and counts.packets + counts.dropped == count

    for _ in range(count):
        bench.ends[0].send(frame(1))
        bench.forwarder.process()
    assert bench.run(all_sent)
    assert bench.dropped(0, 1) > 0


def test_closing_closes_every_device(bench: Bench) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    bench.forwarder.close()
    bench.forwarder.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 4
