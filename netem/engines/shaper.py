"""One direction between two sites as a pure model: when does a packet arrive, if it does?

A packet first waits for the bytes before it to leave at the link's rate, then travels for the
delay. Nothing here reads a clock or a device; times are seconds on any clock that never goes back.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import NamedTuple

from netem.plan import Link

# A queue holds what TCP sends before it learns of the rate: up to three times what is under way at
# the rate, one round trip of which the wire holds. The margin is for bursts at short delays.
QUEUE_ROUND_TRIPS = 2
QUEUE_MARGIN_S = 0.05
QUEUE_MARGIN_BYTES = 1 << 18
UNLIMITED_QUEUE_BYTES = 1 << 27
"""What an unlimited link may hold, so that a flood over a long delay does not fill the memory."""


class Held(NamedTuple):
    """A packet on the link."""

    arrives_s: float
    departs_s: float
    """When its last byte has left the queue."""
    size_bytes: int
    """IP bytes on the wire."""
    packets: int
    """How many packets the frame stands for on the wire."""
    frame: bytes


class Shaper:
    """Delay, jitter, loss, rate and a bounded queue; packets never overtake each other.

    Parameters
    ----------
    link
        What to be like at first.
    seed
        Of the losses and the jitter.

    Attributes
    ----------
    held
        The packets on the link in the order of their arrival; the owner takes them by `arrived`.
    until_loss
        How many more packets pass before one is lost. The owner lowers it by the packets that it
        offers and asks `survivors` when it would fall below 0.
    """

    __slots__ = (
        "_delay_s", "_free_s", "_held_bytes", "_jitter_s", "_last_s", "_loss", "_queue_s",
        "_random", "_s_per_byte", "_up", "bytes", "dropped", "held", "packets", "until_loss",
    )  # fmt: skip

    def __init__(self, link: Link, seed: int | str) -> None:
        self._random = random.Random(seed)
        self.held: deque[Held] = deque()
        self.bytes = 0
        self.packets = 0
        self.dropped = 0
        self._free_s = -math.inf
        self._last_s = -math.inf
        self._held_bytes = 0
        self._loss = -1.0
        self.until_loss: float = math.inf
        self._set(link)

    def _set(self, link: Link) -> None:
        self._up = link.up
        self._delay_s = link.delay_s
        self._jitter_s = link.jitter_s
        self._s_per_byte = 0.0 if link.rate_bps is None else 8 / link.rate_bps
        self.size_queue(2 * self.longest_s)
        if link.loss != self._loss:
            self._loss = link.loss
            self.until_loss = self._draw()

    @property
    def longest_s(self) -> float:
        """The longest time that a packet travels."""
        return self._delay_s + self._jitter_s

    def size_queue(self, round_trip_s: float) -> None:
        """Let the queue hold what TCP needs over this round trip; twice the own way at first.

        To be called again after a `change`.
        """
        self._queue_s = max(
            QUEUE_ROUND_TRIPS * round_trip_s + QUEUE_MARGIN_S,
            QUEUE_MARGIN_BYTES * self._s_per_byte,
        )

    def change(self, link: Link, now_s: float) -> None:
        """Be like `link` from now on.

        What waits in the queue leaves at the new rate and travels for the new delay; what is on its
        way arrives as it would have. A cut loses both.
        """
        self._set(link)
        if not link.up:
            self.dropped += sum(one.packets for one in self.held)
            self.held.clear()
            self._held_bytes = 0
            self._free_s = self._last_s = -math.inf
            return
        travelling = [one for one in self.held if one.departs_s <= now_s]
        waiting = [one for one in self.held if one.departs_s > now_s]
        self.held.clear()
        self.held.extend(travelling)
        self._last_s = travelling[-1].arrives_s if travelling else -math.inf
        self._free_s = now_s
        for one in waiting:
            self._append(one.frame, one.size_bytes, one.packets, now_s)

    def offer(self, frame: bytes, size_bytes: int, packets: int, now_s: float) -> bool:
        """Take a packet, or drop it: the link is cut or its queue is full.

        Returns
        -------
        bool
            Whether it is the only one on the link, so that its arrival is the next.
        """
        if not self._up:
            self.dropped += packets
            return False
        if self._s_per_byte:
            if self._free_s - now_s > self._queue_s:
                self.dropped += packets
                return False
        elif self._held_bytes > UNLIMITED_QUEUE_BYTES:
            self.dropped += packets
            return False
        self._held_bytes += size_bytes
        self._append(frame, size_bytes, packets, now_s)
        return len(self.held) == 1

    def _append(self, frame: bytes, size_bytes: int, packets: int, now_s: float) -> None:
        free_s = self._free_s
        departs_s = (free_s if free_s > now_s else now_s) + size_bytes * self._s_per_byte
        self._free_s = departs_s
        arrives_s = departs_s + self._delay_s
        if self._jitter_s:
            shift_s = self._random.uniform(-self._jitter_s, self._jitter_s)
            arrives_s = max(departs_s, arrives_s + shift_s)
        if arrives_s < self._last_s:
            arrives_s = self._last_s
        self._last_s = arrives_s
        self.held.append(Held(arrives_s, departs_s, size_bytes, packets, frame))

    def arrived(self, one: Held) -> None:
        """Count a packet that the owner has taken from the front of `held` and delivered."""
        self._held_bytes -= one.size_bytes
        self.bytes += one.size_bytes
        self.packets += one.packets

    def lost(self, one: Held) -> None:
        """Count a packet that the owner has taken from the front of `held` but not delivered."""
        self._held_bytes -= one.size_bytes
        self.dropped += one.packets

    def survivors(self, packets: int) -> list[tuple[int, int]]:
        """Decide which of the next `packets` packets are lost, each by itself.

        Returns
        -------
        list of (int, int)
            The runs that pass: number of the first, and how many.
        """
        runs = []
        first = 0
        while self.until_loss < packets - first:
            count = int(self.until_loss)
            if count:
                runs.append((first, count))
            first += count + 1
            self.dropped += 1
            self.until_loss = self._draw()
        if first < packets:
            runs.append((first, packets - first))
            self.until_loss -= packets - first
        return runs

    def _draw(self) -> float:
        """Draw how many packets pass before the next loss: geometric, one number per loss."""
        if self._loss <= 0:
            return math.inf
        if self._loss >= 1:
            return 0
        return math.floor(math.log(1.0 - self._random.random()) / math.log1p(-self._loss))
