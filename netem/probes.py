"""Measures a link from its two ends: round trip, loss in one direction, TCP throughput.

One end runs a `Responder`, the other calls `measure_rtt`, `measure_loss` or `measure_throughput`.
Only the standard library is used, and every call ends within the time that it is given.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import statistics
import struct
import time
from dataclasses import dataclass

from netem.responder import (
    CHUNK_BYTES,
    COUNT,
    DATAGRAM,
    ECHO,
    QUESTION,
    ProbeFailed,
    Responder,
    enlarge,
)

__all__ = [
    "DATAGRAM_BYTES",
    "LossResult",
    "ProbeFailed",
    "Responder",
    "RttResult",
    "ThroughputResult",
    "measure_loss",
    "measure_rtt",
    "measure_throughput",
]

# A datagram as the link carries it, with the headers of IP and UDP.
DATAGRAM_BYTES = DATAGRAM.size + 28
_TICK_S = 0.002


@dataclass(frozen=True)
class RttResult:
    """Round trips of small datagrams, in seconds; `received` of the `sent` came back."""

    sent: int
    received: int
    min_s: float
    median_s: float
    max_s: float


@dataclass(frozen=True)
class LossResult:
    """How many datagrams arrived of those sent, in one direction."""

    sent: int
    received: int

    @property
    def loss(self) -> float:
        """Share that was lost, from 0 to 1."""
        return 1 - self.received / self.sent


@dataclass(frozen=True)
class ThroughputResult:
    """Bytes of a TCP stream's content that arrived within a time, as the receiver saw it."""

    received_bytes: int
    seconds: float

    @property
    def rate_bps(self) -> float:
        """Bits per second."""
        return self.received_bytes * 8 / self.seconds


def measure_rtt(
    address: str, port: int, *, count: int = 20, interval_s: float = 0.02, timeout_s: float = 3.0
) -> RttResult:
    """Send datagrams at an even pace to a `Responder`, and time those that come back.

    Parameters
    ----------
    address, port
        Where it listens.
    count, interval_s
        How many, and the time between them.
    timeout_s
        How long to wait for the first answer after the last was sent; once there was one, the
        wait for the rest is three of the longest round trips.

    Raises
    ------
    ProbeFailed
        If none came back.
    """
    run = _new_run()
    sent_s: list[float] = []
    trips_s: dict[int, float] = {}
    with _datagram_socket() as udp:
        begin_s = time.monotonic()
        while len(trips_s) < count:
            time_s = time.monotonic()
            if len(sent_s) < count and time_s >= begin_s + len(sent_s) * interval_s:
                sent_s.append(time_s)
                _send(udp, DATAGRAM.pack(ECHO, run, len(sent_s) - 1), address, port)
                continue
            if len(sent_s) < count:
                wait_s = begin_s + len(sent_s) * interval_s - time_s
            else:
                longest_s = 3 * max(trips_s.values()) + 0.05 if trips_s else timeout_s
                wait_s = sent_s[-1] + min(timeout_s, longest_s) - time_s
                if wait_s <= 0:
                    break
            for number in _receive(udp, ECHO, run, wait_s):
                trips_s.setdefault(number, time.monotonic() - sent_s[number])
    if not trips_s:
        raise ProbeFailed(
            f"none of {count} datagrams came back from {address} within {timeout_s} s"
        )
    values = sorted(trips_s.values())
    return RttResult(count, len(values), values[0], statistics.median(values), values[-1])


def measure_loss(
    address: str,
    port: int,
    *,
    count: int = 1000,
    packets_per_s: float = 5000.0,
    timeout_s: float = 3.0,
) -> LossResult:
    """Send numbered datagrams to a `Responder`, then ask how many it has got.

    Parameters
    ----------
    address, port
        Where it listens.
    count, packets_per_s
        How many and how fast; times `DATAGRAM_BYTES` it must be less than the link's rate.
    timeout_s
        How long to wait for the answer, which is asked for repeatedly as it may be lost too.

    Raises
    ------
    ProbeFailed
        If no answer came.
    """
    run = _new_run()
    with _datagram_socket() as udp:
        # A sender that was held up goes on at its pace: catching up would fill the link's queue.
        at_once = max(1, int(packets_per_s * _TICK_S))
        for sent in range(0, count, at_once):
            for number in range(sent, min(count, sent + at_once)):
                _send(udp, DATAGRAM.pack(COUNT, run, number), address, port)
            time.sleep(at_once / packets_per_s)
        # Jitter may let the question overtake: it counts when it is the same twice, a while apart.
        deadline_s = time.monotonic() + timeout_s
        previous, asked_s = -1, 0.0
        while True:
            time_s = time.monotonic()
            if time_s >= deadline_s:
                break
            if time_s >= asked_s + 0.1:
                asked_s = time_s
                _send(udp, DATAGRAM.pack(QUESTION, run, 0), address, port)
            wait_s = min(asked_s + 0.1, deadline_s) - time_s
            for received in _receive(udp, QUESTION, run, wait_s):
                if received == previous:
                    return LossResult(count, received)
                previous = received
    if previous < 0:
        raise ProbeFailed(f"{address} did not tell within {timeout_s} s how many datagrams it got")
    return LossResult(count, previous)


def measure_throughput(
    address: str,
    port: int,
    *,
    window_s: float = 1.0,
    warmup_s: float = 1.0,
    timeout_s: float = 10.0,
) -> ThroughputResult:
    """Send a TCP stream to a `Responder`, which counts what arrives.

    Parameters
    ----------
    address, port
        Where it listens.
    window_s, warmup_s
        The receiver counts for `window_s` after `warmup_s`; TCP needs about 12 round trips to
        reach the rate of a link.
    timeout_s
        Bound on all of it, beyond the two.

    Raises
    ------
    ProbeFailed
        If there was no connection or no answer.
    """
    deadline_s = time.monotonic() + timeout_s + window_s + warmup_s
    chunk = bytes(CHUNK_BYTES)
    reply = b""
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as stream:
            # What is still queued at the end is discarded, not sent.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request = {"window_s": window_s, "warmup_s": warmup_s}
            stream.sendall(json.dumps(request).encode() + b"\n")
            stream.setblocking(False)
            while b"\n" not in reply:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise ProbeFailed(f"the stream to {address} was not measured in time")
                events = _wait(stream, select.POLLIN | select.POLLOUT, left_s)
                if events & ~select.POLLOUT:
                    data = stream.recv(4096)
                    if not data:
                        raise ProbeFailed(f"{address} ended the stream before it had measured it")
                    reply += data
                elif events:
                    with contextlib.suppress(BlockingIOError):
                        stream.send(chunk)
        result = json.loads(reply)
        return ThroughputResult(int(result["received_bytes"]), float(result["seconds"]))
    except OSError as error:
        raise ProbeFailed(f"the stream to {address}:{port} failed: {error}") from error
    except (ValueError, KeyError) as error:
        raise ProbeFailed(f"{address}:{port} answers, but is not a netem responder") from error


def _new_run() -> int:
    return int.from_bytes(os.urandom(8), "big")


def _wait(end: socket.socket, events: int, wait_s: float) -> int:
    """Return the events that are there within a time, 0 for none; any descriptor number will do."""
    poll = select.poll()
    poll.register(end, events)
    found = poll.poll(max(wait_s, 0) * 1000)
    return found[0][1] if found else 0


def _datagram_socket() -> socket.socket:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    enlarge(udp)
    udp.setblocking(False)
    return udp


def _send(udp: socket.socket, data: bytes, address: str, port: int) -> None:
    try:
        udp.sendto(data, (address, port))
    except (BlockingIOError, ConnectionRefusedError):
        # A full queue here is a lost datagram; a refusal is about an earlier one.
        return
    except OSError as error:
        if error.errno == errno.ENOBUFS:
            return
        raise ProbeFailed(f"cannot send to {address}:{port}: {error.strerror}") from error


def _receive(udp: socket.socket, kind: bytes, run: int, wait_s: float) -> list[int]:
    """Return the numbers in the datagrams that came within a time, as soon as there is one."""
    if not _wait(udp, select.POLLIN, wait_s):
        return []
    try:
        data = udp.recv(2048)
    except (BlockingIOError, ConnectionRefusedError):
        return []
    if len(data) < DATAGRAM.size:
        return []
    got_kind, got_run, number = DATAGRAM.unpack_from(data)
    return [number] if (got_kind, got_run) == (kind, run) else []
