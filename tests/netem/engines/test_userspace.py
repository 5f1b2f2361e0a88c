from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import logging
import os
import random
import select
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netem import tun
from netem.engines.forwarder import EARLY_S
from netem.engines.userspace import UserspaceEngine
from netem.errors import EngineError
from netem.namespaces import inside, new_namespace
from netem.plan import Link, Plan

PATIENCE_S = 30.0
PORT = 4000
NOBODY = 65534

needs_tun = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(tun.DEVICE, os.R_OK | os.W_OK),
    reason=f"needs root and {tun.DEVICE}",
)


class Sites:
    """An engine that runs in a thread, between namespaces of this process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.engine = UserspaceEngine(plan, "test")
        self.namespaces: dict[int, int] = {}
        self._wake, self._woken = socket.socketpair()
        self._calls: list[Callable[[], None]] = []
        for src, dst in plan.pairs():
            self.engine.set_link(src, dst, plan.link(src, dst))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self, site: int) -> None:
        """Give a site a new namespace and device; the former namespace stays for what is in it."""
        namespace = new_namespace()
        with inside(namespace):
            fd = tun.open_tun("eth0", self.plan.address(site), self.plan.netmask)
        if site in self.namespaces:
            os.close(self.namespaces[site])
        self.namespaces[site] = namespace
        self.call(lambda: self.engine.attach(site, fd))

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called by the thread that owns the engine."""
        done = threading.Event()
        self._calls.append(lambda: (function(), done.set())[0])
        self._wake.send(b"x")
        assert done.wait(PATIENCE_S)

    def socket(self, site: int, kind: socket.SocketKind) -> socket.socket:
        with inside(self.namespaces[site]):
            made = socket.socket(socket.AF_INET, kind)
        made.settimeout(PATIENCE_S)
        return made

    def stream(self, src: int, dst: int) -> tuple[socket.socket, socket.socket]:
        """Connect two sites by TCP."""
        address = (self.plan.address(dst), PORT)
        with self.socket(dst, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            out = self.socket(src, socket.SOCK_STREAM)
            out.connect(address)
            back, _ = listener.accept()
            back.settimeout(PATIENCE_S)
            return out, back

    def close(self) -> None:
        self._wake.close()
        self._thread.join(PATIENCE_S)
        self.engine.close()
        self._woken.close()
        for namespace in self.namespaces.values():
            os.close(namespace)

    def _run(self) -> None:
        while True:
            wait_s = self.engine.next_timeout_s()
            readable, _, _ = select.select([self._woken, self.engine.fileno()], [], [], wait_s)
            if self._woken in readable:
                if not self._woken.recv(1):
                    return
                self._calls.pop(0)()
            self.engine.process()


@contextlib.contextmanager
def joined(link: Link, count: int = 2) -> Iterator[Sites]:
    sites = Sites(Plan(sites=tuple("abc"[:count]), default=link))
    try:
        for site in range(count):
            sites.join(site)
        yield sites
    finally:
        sites.close()


def round_trips_s(sites: Sites, count: int = 10) -> list[float]:
    address = (sites.plan.address(1), PORT)
    trips_s = []
    with sites.socket(0, socket.SOCK_DGRAM) as here, sites.socket(1, socket.SOCK_DGRAM) as there:
        there.bind(address)
        for number in range(count):
            begin_s = time.monotonic()
            here.sendto(b"%d" % number, address)
            data, sender = there.recvfrom(100)
            there.sendto(data, sender)
            here.recv(100)
            trips_s.append(time.monotonic() - begin_s)
    return trips_s


def receive_all(stream: socket.socket) -> bytes:
    parts = []
    while part := stream.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


@needs_tun
def test_a_round_trip_takes_both_delays() -> None:
    with joined(Link(delay_s=0.05)) as sites:
        trips_s = round_trips_s(sites)
    assert min(trips_s) >= 0.1 - 2 * EARLY_S
    assert sorted(trips_s)[5] < 0.11


@needs_tun
@pytest.mark.parametrize("rate_bps", [20e6, 200e6])
def test_a_stream_gets_the_rate_of_the_link(rate_bps: float) -> None:
    with joined(Link(delay_s=0.002, rate_bps=rate_bps)) as sites:
        out, back = sites.stream(0, 1)
        with out, back:
            data = bytes(int(rate_bps / 8))
            sender = threading.Thread(target=lambda: (out.sendall(data), out.close()))
            begin_s = time.monotonic()
            sender.start()
            assert len(receive_all(back)) == len(data)
            taken_s = time.monotonic() - begin_s
            sender.join()
        counts = sites.engine.stats()[0, 1]
    # A second at the rate, 3.5 % for headers, and TCP's start.
    assert 1.0 - EARLY_S <= taken_s < 1.5
    assert len(data) <= counts.bytes < 1.06 * len(data)


@needs_tun
def test_a_stream_is_whole_though_segments_are_lost() -> None:
    data = random.Random(1).randbytes(4 << 20)
    with joined(Link(delay_s=0.002, loss=0.02)) as sites:
        out, back = sites.stream(0, 1)
        with out, back:
            sender = threading.Thread(target=lambda: (out.sendall(data), out.close()))
            sender.start()
            got = receive_all(back)
            sender.join()
        counts = sites.engine.stats()[0, 1]
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    share = counts.dropped / (counts.dropped + counts.packets)
    # Of some 3,000 packets; five standard deviations.
    assert counts.packets > 2800
    assert share == pytest.approx(0.02, abs=0.013)


@needs_tun
def test_links_change_under_traffic() -> None:
    with joined(Link()) as sites:
        assert sorted(round_trips_s(sites))[5] < 0.02
        sites.call(lambda: sites.engine.set_link(0, 1, Link(delay_s=0.06)))
        assert 0.06 - 2 * EARLY_S <= sorted(round_trips_s(sites))[5] < 0.08
        out, back = sites.stream(0, 1)
        with out, back:
            sites.call(lambda: sites.engine.set_link(0, 1, Link(up=False)))
            out.sendall(b"x")
            assert not select.select([back], [], [], 0.3)[0]
            sites.call(lambda: sites.engine.set_link(0, 1, Link()))
            assert back.recv(1) == b"x"


@needs_tun
def test_a_detached_site_still_says_goodbye_and_another_can_come() -> None:
    with joined(Link(delay_s=0.01)) as sites:
        out, back = sites.stream(0, 1)
        sites.call(lambda: sites.engine.detach(0))
        out.close()
        assert back.recv(1) == b""
        back.close()
        sites.join(0)
        assert min(round_trips_s(sites, 3)) >= 0.02 - 2 * EARLY_S


@needs_tun
def test_three_sites_reach_each_other_by_their_own_links() -> None:
    with joined(Link(), 3) as sites:
        sites.call(lambda: sites.engine.set_link(2, 1, Link(delay_s=0.1)))
        with sites.socket(1, socket.SOCK_DGRAM) as there:
            there.bind((sites.plan.address(1), PORT))
            for src, delay_s in ((0, 0.0), (2, 0.1)):
                with sites.socket(src, socket.SOCK_DGRAM) as here:
                    begin_s = time.monotonic()
                    here.sendto(b"x", (sites.plan.address(1), PORT))
                    _, sender = there.recvfrom(10)
                assert sender[0] == sites.plan.address(src)
                assert delay_s - EARLY_S <= time.monotonic() - begin_s < delay_s + 0.05


@needs_tun
def test_it_takes_no_device_but_those_it_can_read() -> None:
    plan = Plan(sites=("a", "b"))
    engine = UserspaceEngine(plan)
    namespace = new_namespace()
    try:
        with inside(namespace):
            plain = os.open(tun.DEVICE, os.O_RDWR)
            fcntl.ioctl(plain, 0x400454CA, struct.pack("16sH22x", b"tun0", 0x1001))
            good = tun.open_tun("eth0", plan.address(0), plan.netmask)
            again = os.dup(good)
        with pytest.raises(EngineError, match="flags 0x1001 and lacks some of 0x5001"):
            engine.attach(0, plain)
        engine.attach(0, good)
        with pytest.raises(EngineError, match=r"site 0 \(a\) is attached already"):
            engine.attach(0, again)
        for fd in (plain, again):
            with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
                os.fstat(fd)
    finally:
        engine.close()
        os.close(namespace)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(good)


def test_what_is_no_device_is_refused_and_closed() -> None:
    engine = UserspaceEngine(Plan(sites=("a", "b")))
    reader, writer = os.pipe()
    with pytest.raises(EngineError, match="site 1 handed over is not a TUN device"):
        engine.attach(1, reader)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(reader)
    os.close(writer)
    engine.detach(1)
    assert engine.stats() == {}
    assert engine.next_timeout_s() is None
    engine.close()
    engine.close()


def echo_unprivileged(plan: Plan, site: int, channel: socket.socket) -> None:
    """Be a site in a user namespace: hand over the device, then answer or ask for one echo."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # A process that changed its user may not write its own maps unless it can be dumped.
    libc.prctl(4, 1, 0, 0, 0)
    if libc.unshare(0x10000000 | 0x40000000) != 0:
        channel.send(b"no user namespaces here: " + os.strerror(ctypes.get_errno()).encode())
        return
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{NOBODY} {NOBODY} 1")
    Path("/proc/self/gid_map").write_text(f"{NOBODY} {NOBODY} 1")
    fd = tun.open_tun("eth0", plan.address(site), plan.netmask)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(PATIENCE_S)
        udp.bind((plan.address(site), PORT))
        socket.send_fds(channel, [b"ready"], [fd])
        channel.recv(1)
        if site == 0:
            udp.sendto(b"hello", (plan.address(1), PORT))
            channel.send(udp.recv(100))
        else:
            data, sender = udp.recvfrom(100)
            udp.sendto(data + b" to you", sender)
        channel.recv(1)


@pytest.fixture
def open_device() -> Iterator[Path]:
    """A TUN device that anybody may open, as most distributions have it."""
    with tempfile.TemporaryDirectory(prefix="netem-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        device = folder / "tun"
        try:
            os.mknod(device, stat.S_IFCHR | 0o666, Path(tun.DEVICE).stat().st_rdev)
            device.chmod(0o666)
            os.close(os.open(device, os.O_RDWR))
        except PermissionError as error:
            pytest.skip(f"cannot use a device of one's own: {error}")
        yield device


@needs_tun
def test_sites_without_privileges_are_joined_as_well(
    open_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tun, "DEVICE", str(open_device))
    plan = Plan(sites=("a", "b"))
    channels, children = [], []
    for site in range(2):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = os.fork()
        if child == 0:
            try:
                ours.close()
                echo_unprivileged(plan, site, theirs)
            except BaseException:
                logging.exception("site %d", site)
            finally:
                os._exit(0)
        theirs.close()
        ours.settimeout(PATIENCE_S)
        channels.append(ours)
        children.append(child)
    sites = Sites(plan)
    try:
        for site, channel in enumerate(channels):
            text, fds, _, _ = socket.recv_fds(channel, 1000, 1)
            if text.startswith(b"no user namespaces"):
                pytest.skip(text.decode())
            assert text == b"ready"
            sites.call(lambda site=site, fd=fds[0]: sites.engine.attach(site, fd))
        for channel in channels:
            channel.send(b"x")
        assert channels[0].recv(100) == b"hello to you"
    finally:
        for channel in channels:
            channel.close()
        for child in children:
            os.waitpid(child, 0)
        sites.close()
