"""The data path of the userspace backend: frames from one device to another, when they are due.

It works on any descriptors whose reads and writes are single frames (see `netem.engines.segments`).
Nothing is done per packet but one read, one write and the arithmetic between.
"""

from __future__ import annotations

import heapq
import os
import select
import time
from collections.abc import Sequence

from netem.engines.base import PairStats
from netem.engines.segments import DESTINATION, FRAME_BYTES, extract, measure
from netem.engines.shaper import Shaper
from netem.engines.timer import Timer
from netem.plan import Link

# How long one device is read, and one call of `process` goes on, before others have their turn.
BATCH_FRAMES = 16
BUDGET_S = 0.004
EARLY_S = 0.00015
"""By how much frames are delivered before they are due.

That makes up for the time that a sleeping process takes to wake: this one when a frame is sent and
when one is due, and the receiver.
"""
LINGER_S = 2.0
"""For how long the packets of a disconnected site still pass.

A machine whose process is killed says so to its peers: the last packets of a site, which close its
connections, leave after the process has been found gone.
"""


class _Port:
    """A site's device."""

    __slots__ = ("fd", "polled", "routes", "site", "until_s")

    def __init__(self, site: int, fd: int, routes: dict[bytes, int]) -> None:
        self.site = site
        self.fd = fd
        self.routes = routes
        """Number of the link by the destination's address."""
        self.polled = True
        self.until_s: float | None = None
        """When the device is closed; None while the site is connected."""


class Forwarder:
    """Links between sites, each direction with its own shape.

    Parameters
    ----------
    addresses
        The IPv4 address of each site, four bytes.
    """

    def __init__(self, addresses: Sequence[bytes]) -> None:
        count = len(addresses)
        pairs = [(src, dst) for src in range(count) for dst in range(count) if src != dst]
        self._pairs = pairs
        self._number = {pair: number for number, pair in enumerate(pairs)}
        self._shapers = [Shaper(Link(), seed=f"{src} {dst}") for src, dst in pairs]
        self._routes: list[dict[bytes, int]] = [{} for _ in addresses]
        for number, (src, dst) in enumerate(pairs):
            self._routes[src][addresses[dst]] = number
        self._ports: list[_Port | None] = [None] * count
        self._by_fd: dict[int, _Port] = {}
        self._leaving: list[_Port] = []
        # One entry per link that holds packets: when its first one arrives, its number.
        self._due: list[tuple[float, int]] = []
        self._closed = False
        self._timer = Timer()
        try:
            self._epoll = select.epoll()
        except OSError:
            self._timer.close()
            raise
        self._epoll.register(self._timer.fileno(), select.EPOLLIN)

    def connected(self, site: int) -> bool:
        """Whether a site has a device and has not been disconnected."""
        port = self._ports[site]
        return port is not None and port.until_s is None

    def connect(self, site: int, fd: int) -> None:
        """Let a site send and receive by `fd`, which does not block and is owned from here on."""
        port = _Port(site, fd, self._routes[site])
        self._epoll.register(fd, select.EPOLLIN)
        self._by_fd[fd] = port
        self._ports[site] = port

    def disconnect(self, site: int) -> None:
        """Close a site's device after `LINGER_S`; no error if there is none."""
        port = self._ports[site]
        if port is not None and port.until_s is None:
            port.until_s = time.monotonic() + LINGER_S
            self._leaving.append(port)

    def set_link(self, src: int, dst: int, link: Link) -> None:
        """Shape what one site sends to another from now on."""
        number = self._number[src, dst]
        shaper = self._shapers[number]
        back = self._shapers[self._number[dst, src]]
        waited = bool(shaper.held)
        shaper.change(link, time.monotonic())
        for one in (shaper, back):
            one.size_queue(shaper.longest_s + back.longest_s)
        if not waited:
            return
        self._due = [entry for entry in self._due if entry[1] != number]
        if shaper.held:
            self._due.append((shaper.held[0].arrives_s, number))
        heapq.heapify(self._due)
        self._arm()

    def stats(self) -> dict[tuple[int, int], PairStats]:
        """Count what arrived and what was dropped, for the pairs that had any packet."""
        return {
            pair: PairStats(bytes=shaper.bytes, packets=shaper.packets, dropped=shaper.dropped)
            for pair, shaper in zip(self._pairs, self._shapers, strict=True)
            if shaper.packets or shaper.dropped
        }

    def fileno(self) -> int:
        """Return the descriptor that is readable when `process` has work."""
        return self._epoll.fileno()

    def next_timeout_s(self) -> float | None:
        """Return in how many seconds `process` has to close a device, whatever is readable."""
        if not self._leaving:
            return None
        until_s = min(port.until_s for port in self._leaving if port.until_s is not None)
        return max(0.0, until_s - time.monotonic())

    def process(self) -> None:
        """Read what was sent and deliver what is due, for at most about `BUDGET_S`."""
        now_s = time.monotonic()
        if self._leaving:
            self._close_left(now_s)
        end_s = now_s + BUDGET_S
        timer_fd = self._timer.fileno()
        again = True
        while again and now_s < end_s:
            again = False
            for fd, _ in self._epoll.poll(0):
                if fd != timer_fd and self._receive(self._by_fd[fd]):
                    again = True
            now_s = time.monotonic()
            if self._due and self._due[0][0] <= now_s + EARLY_S:
                self._deliver(now_s + EARLY_S)
                # The receiving kernel has answered by now.
                again = True
        self._arm()

    def close(self) -> None:
        """Close all devices at once; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for fd in self._by_fd:
            os.close(fd)
        self._by_fd.clear()
        self._leaving.clear()
        self._ports = [None] * len(self._ports)
        self._timer.close()
        self._epoll.close()

    def _receive(self, port: _Port) -> bool:
        """Read a batch of frames onto their links; return whether there may be more."""
        fd, routes, shapers = port.fd, port.routes, self._shapers
        read, monotonic = os.read, time.monotonic
        for _ in range(BATCH_FRAMES):
            try:
                frame = read(fd, FRAME_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                # The device has gone with its namespace, and would be reported again and again.
                self._ignore(port)
                return False
            if not frame:
                self._ignore(port)
                return False
            number = routes.get(frame[DESTINATION])
            if number is None:
                continue
            shaper = shapers[number]
            size_bytes, packets = measure(frame)
            if shaper.until_loss < packets:
                self._offer_survivors(number, frame, packets)
                continue
            shaper.until_loss -= packets
            if shaper.offer(frame, size_bytes, packets, monotonic()):
                heapq.heappush(self._due, (shaper.held[0].arrives_s, number))
        return True

    def _offer_survivors(self, number: int, frame: bytes, packets: int) -> None:
        shaper = self._shapers[number]
        for first, count in shaper.survivors(packets):
            part = extract(frame, first, count)
            if shaper.offer(part, *measure(part), time.monotonic()):
                heapq.heappush(self._due, (shaper.held[0].arrives_s, number))

    def _deliver(self, until_s: float) -> None:
        """Write the frames that are due until then."""
        due, write = self._due, os.write
        while due and due[0][0] <= until_s:
            number = due[0][1]
            shaper = self._shapers[number]
            held = shaper.held
            port = self._ports[self._pairs[number][1]]
            while held and held[0].arrives_s <= until_s:
                one = held.popleft()
                if port is None:
                    shaper.lost(one)
                    continue
                try:
                    write(port.fd, one.frame)
                except OSError:
                    # A site that is down or drowning does not take it: lost, as on any wire.
                    shaper.lost(one)
                else:
                    shaper.arrived(one)
            if held:
                heapq.heapreplace(due, (held[0].arrives_s, number))
            else:
                heapq.heappop(due)

    def _arm(self) -> None:
        self._timer.arm(self._due[0][0] - EARLY_S if self._due else None)

    def _ignore(self, port: _Port) -> None:
        if port.polled:
            port.polled = False
            self._epoll.unregister(port.fd)

    def _close_left(self, now_s: float) -> None:
        staying = []
        for port in self._leaving:
            if port.until_s is not None and port.until_s > now_s:
                staying.append(port)
                continue
            self._ignore(port)
            del self._by_fd[port.fd]
            if self._ports[port.site] is port:
                self._ports[port.site] = None
            os.close(port.fd)
        self._leaving = staying
