"""The backend `kernel` on a kernel that has sch_netem; run by test_kernel_uml.py.

Bounds on what must not be exceeded are tight, those on what takes time loose: inside User-Mode
Linux one processor carries the sender, the receiver and the kernel.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from netem import namespaces
from netem.check import ProbeSites, Tolerance, check
from netem.client import Control
from netem.engines.kernel import KernelEngine
from netem.launch import start_daemon
from netem.plan import Change, Link, Plan
from netem.probes import (
    ProbeFailed,
    Responder,
    measure_loss,
    measure_rtt,
    measure_throughput,
)

BUFFERS = "4096 131072 67108864"


class Sites:
    """Sites of this process: a namespace each, attached to an engine, with a responder in it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.engine = KernelEngine(plan, "real-netem-test")
        self.namespaces: list[int] = []
        self.responders: list[Responder] = []
        try:
            for site in range(len(plan.sites)):
                fd = namespaces.new_namespace()
                self.namespaces.append(fd)
                self.engine.attach(site, os.dup(fd))
                with namespaces.inside(fd):
                    for name in ("tcp_rmem", "tcp_wmem"):
                        Path("/proc/sys/net/ipv4", name).write_text(BUFFERS)
                    self.responders.append(Responder(plan.address(site)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for responder in self.responders:
            responder.close()
        self.engine.close()
        for fd in self.namespaces:
            os.close(fd)

    def rtt_s(self, src: int, dst: int, **options: float) -> float:
        with namespaces.inside(self.namespaces[src]):
            return measure_rtt(*self.where(dst), **options).min_s  # type: ignore[arg-type]

    def rate_bps(self, src: int, dst: int, warmup_s: float = 1.0, window_s: float = 1.5) -> float:
        with namespaces.inside(self.namespaces[src]):
            result = measure_throughput(*self.where(dst), warmup_s=warmup_s, window_s=window_s)
        return result.rate_bps

    def loss(self, src: int, dst: int, count: int = 5000) -> float:
        with namespaces.inside(self.namespaces[src]):
            return measure_loss(*self.where(dst), count=count, packets_per_s=4000).loss

    def where(self, site: int) -> tuple[str, int]:
        return self.plan.address(site), self.responders[site].port


@contextlib.contextmanager
def sites(count: int = 2, links: Mapping[tuple[int, int], Link] | None = None) -> Iterator[Sites]:
    """Bring up sites with the links that are given per ordered pair, plain ones elsewhere."""
    entries = [
        {"src": src, "dst": dst, "both": False, **link.model_dump(exclude_unset=True)}
        for (src, dst), link in (links or {}).items()
    ]
    names = [f"s{number}" for number in range(count)]
    up = Sites(Plan.parse({"sites": names, "links": entries}))
    try:
        yield up
    finally:
        up.close()


def both(link: Link) -> dict[tuple[int, int], Link]:
    return {(0, 1): link, (1, 0): link}


def test_delay_is_the_sum_of_both_directions() -> None:
    with sites(2, {(0, 1): Link(delay_s=0.005), (1, 0): Link(delay_s=0.045)}) as up:
        for src, dst in ((0, 1), (1, 0)):
            rtt_s = up.rtt_s(src, dst)
            print(f"asked 50 ms, RTT {rtt_s * 1e3:.2f} ms")
            assert 0.050 <= rtt_s <= 0.052


def test_each_ordered_pair_has_its_own_delay() -> None:
    delays_s = {(0, 1): 0.01, (0, 2): 0.02, (1, 2): 0.04}
    links = {pair: Link(delay_s=delay_s) for pair, delay_s in delays_s.items()}
    with sites(3, links) as up:
        for (src, dst), delay_s in delays_s.items():
            rtt_s = up.rtt_s(src, dst)
            print(f"asked {delay_s * 1e3:.0f} ms, RTT {rtt_s * 1e3:.2f} ms")
            assert delay_s <= rtt_s <= delay_s + 0.002


@pytest.mark.parametrize("rate_bps", [10e6, 50e6, 100e6])
def test_rate_limits_a_tcp_stream(rate_bps: float) -> None:
    with sites(2, both(Link(delay_s=0.01, rate_bps=rate_bps))) as up:
        measured_bps = up.rate_bps(0, 1)
    print(f"asked {rate_bps / 1e6:.0f} Mbit/s, TCP {measured_bps / 1e6:.1f} Mbit/s")
    assert 0.8 * rate_bps <= measured_bps <= 1.01 * rate_bps


def test_rates_differ_by_direction() -> None:
    links = {(0, 1): Link(rate_bps=10e6), (1, 0): Link(rate_bps=40e6)}
    with sites(2, links) as up:
        assert 8e6 <= up.rate_bps(0, 1, 0.3, 0.7) <= 10.1e6
        assert 32e6 <= up.rate_bps(1, 0, 0.3, 0.7) <= 40.4e6


@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_loss_is_what_was_asked_and_one_way(loss: float) -> None:
    with sites(2, {(0, 1): Link(loss=loss)}) as up:
        measured = up.loss(0, 1, 23_000 if loss < 0.02 else 6000)
        print(f"asked {loss:.0%}, lost {measured:.2%}")
        assert 0.8 * loss <= measured <= 1.2 * loss
        assert up.loss(1, 0, 1000) == 0


def test_jitter_spreads_but_does_not_reorder_when_a_rate_is_set() -> None:
    link = Link(delay_s=0.03, jitter_s=0.01, rate_bps=50e6)
    with sites(2, {(0, 1): link}) as up:
        with namespaces.inside(up.namespaces[1]):
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with namespaces.inside(up.namespaces[0]):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with receiver, sender:
            receiver.bind((up.plan.address(1), 0))
            receiver.settimeout(3)
            arrived: list[tuple[int, float]] = []

            def receive() -> None:
                while len(arrived) < 400:
                    number = struct.unpack("!I", receiver.recv(64))[0]
                    arrived.append((number, time.monotonic()))

            thread = threading.Thread(target=receive)
            thread.start()
            sent_s = []
            for number in range(400):
                sent_s.append(time.monotonic())
                sender.sendto(struct.pack("!I", number), receiver.getsockname())
                time.sleep(0.002)
            thread.join(10)
    assert [number for number, _ in arrived] == list(range(400))
    delays_s = sorted(time_s - sent_s[number] for number, time_s in arrived)
    assert delays_s[360] - delays_s[40] > 0.005
    assert 0.02 < delays_s[200] < 0.07


def test_a_link_changes_in_place_while_in_use() -> None:
    with sites(2, both(Link(delay_s=0.005, rate_bps=40e6))) as up:
        assert 0.010 <= up.rtt_s(0, 1) <= 0.012
        for pair in ((0, 1), (1, 0)):
            up.engine.set_link(*pair, Link(delay_s=0.03, rate_bps=10e6))
        assert 0.060 <= up.rtt_s(0, 1) <= 0.062
        assert 8e6 <= up.rate_bps(0, 1) <= 10.1e6
        up.engine.set_link(0, 1, Link(up=False))
        with pytest.raises(ProbeFailed):
            up.rtt_s(0, 1, timeout_s=0.5)
        for pair in ((0, 1), (1, 0)):
            up.engine.set_link(*pair, Link(delay_s=0.01))
        assert 0.020 <= up.rtt_s(0, 1) <= 0.022


def test_the_kernel_holds_what_was_asked() -> None:
    link = Link(delay_s=0.025, jitter_s=0.002, loss=0.03, rate_bps=80e6)
    with sites(3, {(0, 1): link, (2, 0): Link(delay_s=0.1)}) as up:
        held = up.engine.read_links()
        assert sorted(held) == sorted(up.plan.pairs())
        for name in ("delay_s", "jitter_s", "loss", "rate_bps"):
            assert getattr(held[0, 1], name) == pytest.approx(getattr(link, name), rel=1e-4)
        assert held[2, 0].delay_s == pytest.approx(0.1, rel=1e-4)
        assert held[2, 0].rate_bps is None
        assert held[1, 2] == Link()
        up.engine.set_link(0, 1, Link(delay_s=0.05))
        changed = up.engine.read_links()[0, 1]
        assert changed.delay_s == pytest.approx(0.05, rel=1e-4)
        assert (changed.jitter_s, changed.loss, changed.rate_bps) == (0, 0, None)
        up.engine.set_link(0, 1, Link(up=False))
        assert not up.engine.read_links()[0, 1].up


def test_bytes_are_counted_per_pair() -> None:
    with sites(3, {(0, 1): Link(delay_s=0.001)}) as up:
        before = up.engine.stats()
        with namespaces.inside(up.namespaces[0]):
            result = measure_loss(*up.where(1), count=1000, packets_per_s=4000)
        after = up.engine.stats()
    assert result.received == 1000
    # 1,000 datagrams of 20 bytes with 28 of headers, and a few questions.
    sent = after[0, 1].bytes - (before[0, 1].bytes if (0, 1) in before else 0)
    assert 48_000 <= sent <= 49_000
    assert (0, 2) not in after or after[0, 2].packets == 0


def test_a_daemon_follows_its_schedule() -> None:
    plan = Plan.parse(
        {
            "sites": ["a", "b"],
            "default": {"delay_s": 0.01, "rate_bps": 40e6},
            "schedule": [
                {"at_s": 3, "src": "a", "dst": "b", "delay_s": 0.05},
                {"at_s": 6, "src": "a", "dst": "b", "up": False},
                {"at_s": 9, "src": "a", "dst": "b", "up": True, "delay_s": 0.02},
            ],
        }
    )
    with (
        start_daemon(plan, "kernel") as daemon,
        ProbeSites(daemon.socket_path, plan) as up,
        Control(daemon.socket_path) as control,
    ):
        control.begin()
        begun_s = time.monotonic()
        for at_s, expected_s in ((0.5, 0.02), (3.5, 0.1), (6.5, None), (9.5, 0.04)):
            time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
            rtt_s = up.rtt_s(0, 1, timeout_s=1.0)
            print(f"after {at_s} s: {rtt_s}, expected {expected_s}")
            if expected_s is None:
                assert rtt_s is None
            else:
                assert rtt_s == pytest.approx(expected_s, abs=0.006)
        control.change(Change(src="a", dst="b", delay_s=0.005))
        assert up.rtt_s(0, 1, timeout_s=1.0) == pytest.approx(0.01, abs=0.006)


def test_check_finds_four_sites_as_asked() -> None:
    plan = Plan.parse(
        {
            "sites": ["a", "b", "c", "d"],
            "default": {"delay_s": 0.01, "rate_bps": 20e6},
            "links": [{"src": "a", "dst": "d", "delay_s": 0.03}],
        }
    )
    with start_daemon(plan, "kernel") as daemon, ProbeSites(daemon.socket_path, plan) as up:
        reports = check(up, plan, Tolerance(rate=0.15, rtt_floor_s=0.003), print)
    assert len(reports) == 12
    assert [(r.src, r.dst, r.problems) for r in reports if r.problems] == []
