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
from pyroute2 import IPRoute

from netem import namespaces
from netem.check import Probe, ProbeSites, Tolerance, check
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
from tests.netem.machines import machines, underlay

# A round trip may take longer by this, and a stream be slower by a share, since one processor
# carries both ends, and other work may have the machine's.
BUSY_S = 0.009
BUSY_SHARE = 0.6
BUFFERS = "4096 131072 67108864"


class Sites:
    """Sites of this process: a namespace each, attached to an engine, with a responder in it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.engine = KernelEngine(plan)
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

    def bound(self, site: int, kind: socket.SocketKind = socket.SOCK_DGRAM) -> socket.socket:
        """Return a socket in a site's namespace, bound to its address."""
        with namespaces.inside(self.namespaces[site]):
            made = socket.socket(socket.AF_INET, kind)
        made.settimeout(5)
        made.bind((self.plan.address(site), 0))
        return made

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


def near(rtt_s: float | None, asked_s: float) -> bool:
    """Return whether a round trip takes what was asked, and not much more on a busy machine."""
    return rtt_s is not None and asked_s <= rtt_s <= asked_s + BUSY_S


def both(link: Link) -> dict[tuple[int, int], Link]:
    return {(0, 1): link, (1, 0): link}


def test_delay_is_the_sum_of_both_directions() -> None:
    with sites(2, {(0, 1): Link(delay_s=0.005), (1, 0): Link(delay_s=0.045)}) as up:
        for src, dst in ((0, 1), (1, 0)):
            rtt_s = up.rtt_s(src, dst)
            print(f"asked 50 ms, RTT {rtt_s * 1e3:.2f} ms")
            assert near(rtt_s, 0.05)


def test_each_ordered_pair_has_its_own_delay() -> None:
    delays_s = {(0, 1): 0.01, (0, 2): 0.02, (1, 2): 0.04}
    links = {pair: Link(delay_s=delay_s) for pair, delay_s in delays_s.items()}
    with sites(3, links) as up:
        for (src, dst), delay_s in delays_s.items():
            rtt_s = up.rtt_s(src, dst)
            print(f"asked {delay_s * 1e3:.0f} ms, RTT {rtt_s * 1e3:.2f} ms")
            assert near(rtt_s, delay_s)


@pytest.mark.parametrize("rate_bps", [10e6, 50e6, 100e6])
def test_rate_limits_a_tcp_stream(rate_bps: float) -> None:
    with sites(2, both(Link(delay_s=0.01, rate_bps=rate_bps))) as up:
        measured_bps = up.rate_bps(0, 1)
    print(f"asked {rate_bps / 1e6:.0f} Mbit/s, TCP {measured_bps / 1e6:.1f} Mbit/s")
    assert BUSY_SHARE * rate_bps <= measured_bps <= 1.01 * rate_bps


def test_rates_differ_by_direction() -> None:
    links = {(0, 1): Link(rate_bps=10e6), (1, 0): Link(rate_bps=40e6)}
    with sites(2, links) as up:
        assert BUSY_SHARE * 10e6 <= up.rate_bps(0, 1, 0.3, 0.7) <= 10.1e6
        assert BUSY_SHARE * 40e6 <= up.rate_bps(1, 0, 0.3, 0.7) <= 40.4e6


@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_loss_is_what_was_asked_and_one_way(loss: float) -> None:
    with sites(2, {(0, 1): Link(loss=loss)}) as up:
        measured = up.loss(0, 1, 23_000 if loss < 0.02 else 6000)
        print(f"asked {loss:.0%}, lost {measured:.2%}")
        # More than four standard deviations.
        assert 0.7 * loss <= measured <= 1.3 * loss
        assert up.loss(1, 0, 1000) == 0


def test_jitter_spreads_but_does_not_reorder_when_a_rate_is_set() -> None:
    link = Link(delay_s=0.03, jitter_s=0.01, rate_bps=50e6)
    with sites(2, {(0, 1): link}) as up, up.bound(1) as receiver, up.bound(0) as sender:
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


def test_jitter_without_a_rate_keeps_the_order_too() -> None:
    with sites(2, {(0, 1): Link(delay_s=0.02, jitter_s=0.01)}) as up:
        with up.bound(1) as receiver, up.bound(0) as sender:
            for number in range(200):
                sender.sendto(struct.pack("!I", number), receiver.getsockname())
            arrived = [struct.unpack("!I", receiver.recv(64))[0] for _ in range(200)]
        assert arrived == list(range(200))
        assert up.engine.read_links()[0, 1].rate_bps is None


def test_a_link_changes_in_place_while_in_use() -> None:
    with sites(2, both(Link(delay_s=0.005, rate_bps=40e6))) as up:
        assert near(up.rtt_s(0, 1), 0.01)
        for pair in ((0, 1), (1, 0)):
            up.engine.set_link(*pair, Link(delay_s=0.03, rate_bps=10e6))
        assert near(up.rtt_s(0, 1), 0.06)
        assert BUSY_SHARE * 10e6 <= up.rate_bps(0, 1) <= 10.1e6
        up.engine.set_link(0, 1, Link(up=False))
        with pytest.raises(ProbeFailed):
            up.rtt_s(0, 1, timeout_s=0.5)
        for pair in ((0, 1), (1, 0)):
            up.engine.set_link(*pair, Link(delay_s=0.01))
        assert near(up.rtt_s(0, 1), 0.02)


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


def test_what_is_lost_and_cut_is_counted() -> None:
    with sites(2) as up, up.bound(1) as receiver, up.bound(0) as sender:
        for link in (Link(), Link(up=False), Link()):
            up.engine.set_link(0, 1, link)
            for _ in range(10):
                sender.sendto(bytes(100), receiver.getsockname())
        for _ in range(20):
            receiver.recv(200)
        stats = up.engine.stats()[0, 1]
    assert (stats.packets, stats.bytes, stats.dropped) == (20, 2560, 10)


def segments(up: Sites, site: int) -> int:
    with namespaces.inside(up.namespaces[site]), IPRoute(groups=0) as netlink:
        (index,) = netlink.link_lookup(ifname="eth0")
        (message,) = netlink.get_links(index)
        return int(message.get_attr("IFLA_GSO_MAX_SEGS"))


def test_slow_and_lossy_links_see_single_packets() -> None:
    links = {(0, 1): Link(loss=0.01), (1, 2): Link(rate_bps=100e6), (2, 0): Link(rate_bps=1e6)}
    with sites(4, links) as up:
        # 1 ms at 100 Mbit/s is 12,500 bytes.
        assert [segments(up, site) for site in range(4)] == [1, 8, 1, 64]
        up.engine.set_link(3, 0, Link(rate_bps=50e6))
        assert segments(up, 3) == 4
    scheduled = [{"at_s": 9, "src": 0, "dst": 1, "loss": 0.1}]
    plan = Plan.parse({"sites": ["a", "b"], "schedule": scheduled})
    with contextlib.closing(Sites(plan)) as up:
        assert segments(up, 0) == 1


def test_goodbye_arrives_over_a_long_link_but_late() -> None:
    with sites(2, both(Link(delay_s=0.3))) as up:
        with up.bound(0, socket.SOCK_STREAM) as listener:
            listener.listen()
            leaver = up.bound(1, socket.SOCK_STREAM)
            leaver.connect(listener.getsockname())
            accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(5)
            begun_s = time.monotonic()
            up.engine.detach(1)
            leaver.close()
            assert accepted.recv(1) == b""
            assert time.monotonic() - begun_s >= 0.3


def test_links_between_machines_are_shaped_where_they_begin() -> None:
    link = Link(delay_s=0.01, rate_bps=40e6)
    plan = Plan.parse({"sites": ["a", "b"], "default": link.model_dump(exclude_unset=True)})
    with machines(2) as nodes, contextlib.ExitStack() as stack:
        engines, homes, responders = [], [], []
        for number, node in enumerate(nodes):
            with namespaces.inside(node):
                engines.append(KernelEngine(plan, underlay(number, 2, 7)))
            stack.callback(engines[-1].close)
            homes.append(namespaces.new_namespace())
            stack.callback(os.close, homes[-1])
            engines[-1].attach(number, os.dup(homes[-1]))
            with namespaces.inside(homes[-1]):
                responders.append(Responder(plan.address(number)))
            stack.callback(responders[-1].close)
        with namespaces.inside(homes[0]):
            there = (plan.address(1), responders[1].port)
            rtt_s = measure_rtt(*there).min_s
            rate_bps = measure_throughput(*there, warmup_s=1.0, window_s=1.5).rate_bps
    print(f"asked 20 ms and 40 Mbit/s: {rtt_s * 1e3:.2f} ms, {rate_bps / 1e6:.1f} Mbit/s")
    assert near(rtt_s, 0.02)
    assert BUSY_SHARE * 40e6 <= rate_bps <= 1.01 * 40e6


def test_a_daemon_follows_its_schedule() -> None:
    plan = Plan.parse(
        {
            "sites": ["a", "b"],
            "default": {"delay_s": 0.01, "rate_bps": 40e6},
            "schedule": [
                {"at_s": 2, "src": "a", "dst": "b", "rate_bps": 8e6, "delay_s": 0.05},
                {"at_s": 7, "src": "a", "dst": "b", "up": False},
                {"at_s": 10, "src": "a", "dst": "b", "up": True, "rate_bps": 40e6, "delay_s": 0.02},
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

        def wait(at_s: float) -> None:
            time.sleep(max(0.0, begun_s + at_s - time.monotonic()))

        def rtt_s() -> float | None:
            return up.rtt_s(0, 1, timeout_s=1.0)

        def rate_bps() -> float:
            probe = Probe(0, 1, "throughput", {"warmup_s": 1.0, "window_s": 1.0}, 2.0, 0.0)
            ((_, result),) = up.measure([probe])
            assert result is not None
            return float(result["received_bytes"] * 8 / result["seconds"])

        wait(0.2)
        assert near(rtt_s(), 0.02)
        wait(2.2)
        assert near(rtt_s(), 0.1)
        assert BUSY_SHARE * 8e6 <= rate_bps() <= 8.1e6
        wait(7.2)
        assert rtt_s() is None
        wait(10.2)
        assert near(rtt_s(), 0.04)
        assert BUSY_SHARE * 40e6 <= rate_bps() <= 40.5e6
        control.change(Change(src="a", dst="b", delay_s=0.005))
        assert near(rtt_s(), 0.01)


def test_check_finds_four_sites_as_asked() -> None:
    plan = Plan.parse(
        {
            "sites": ["a", "b", "c", "d"],
            "default": {"delay_s": 0.01, "rate_bps": 20e6},
            "links": [{"src": "a", "dst": "d", "delay_s": 0.03}],
        }
    )
    with start_daemon(plan, "kernel") as daemon, ProbeSites(daemon.socket_path, plan) as up:
        reports = check(up, plan, Tolerance(rate=1 - BUSY_SHARE, rtt_floor_s=BUSY_S), print)
    assert len(reports) == 12
    assert all(r.rate_bps is not None and r.rate_bps <= 20.2e6 for r in reports)
    assert all(r.least_rtt_s is not None and r.least_rtt_s >= r.asked_rtt_s for r in reports)
    assert [(r.src, r.dst, r.problems) for r in reports if r.problems] == []
