"""What a prober sends, and what it knows of each site that it measures."""

from __future__ import annotations

import math
import secrets
import statistics
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import IPv4Address
from itertools import accumulate

from powertrip.exchange.errors import ProbeError

TRAIN_S = 0.05
"""Seconds of a link's bandwidth that a train should take up."""

TRAIN_PACKETS = 12, 200
"""Least and most datagrams of a train."""

TRAIN_LIMIT_S = 0.3
PAYLOAD_BYTES = 1400
HEADER_BYTES = 28
"""Of IP and UDP."""

LEAST_PACKETS = 4
"""Packets that must come for a train to tell anything."""

LEAST_SPREAD_S = 100e-6
"""Length of a train on its arrival below which it tells of clocks and interrupts."""

UNREST = 0.1
"""Share by which a train may be disturbed."""

SURPRISE = 4 / 3
"""Ratio to the expected bandwidth beyond which it takes several trains to be believed."""

# Magic, kind, token of the one who answers, nonce of the one who asks, number, and the answer:
# packets, IP bytes behind the first one, two times in nanoseconds. It is as long as its question.
MESSAGE = struct.Struct("!4sB3x8s8sIIQQQ")
MAGIC = b"ptp1"
TOKEN_BYTES = 8


class Kind(IntEnum):
    """The kinds of datagrams."""

    ECHO = 1
    ECHOED = 2
    TRAIN = 3
    ASK = 4
    REPORT = 5


@dataclass(frozen=True)
class Report:
    """What a site tells of a train that has come to it."""

    packets: int
    bytes: int
    """IP bytes behind the first packet."""
    spread_ns: int
    """What the link has needed for them, from the median of their gaps."""
    whole_ns: int
    """Time between the first packet and the last."""

    @property
    def unrest(self) -> float:
        """How far the two times are apart, 0 for a train that nothing has disturbed."""
        least, most = sorted((self.spread_ns, self.whole_ns))
        return math.log(most / least) if least > 0 else math.inf


@dataclass
class Peer:
    """A site that is measured, in one sweep."""

    dst: int
    address: tuple[str, int]
    token: bytes
    expected: float
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES))
    sent_ns: dict[int, int] = field(default_factory=dict)
    """Echoes that have not been answered, and when they were sent."""
    rtt_ns: int | None = None
    train: int = 0
    """Number of the train that was sent last."""
    asked_s: float | None = None
    """When its report was last asked for."""
    cpu_s: float = 0.0
    """Work of sending it."""
    report: Report | None = None
    """What is told of it."""
    reports: dict[int, Report] = field(default_factory=dict)
    """What is told of each train in time."""

    def message(self, kind: Kind, number: int = 0) -> bytes:
        """A question to this site."""
        return MESSAGE.pack(MAGIC, kind, self.token, self.nonce, number, 0, 0, 0, 0)

    def take_echo(self, number: int, time_ns: int, held_ns: int) -> None:
        """Take in an answer that came at a time, after the site had held it for another."""
        sent_ns = self.sent_ns.pop(number, None)
        if sent_ns is None:
            return
        rtt_ns = time_ns - sent_ns - held_ns
        if rtt_ns > 0 and (self.rtt_ns is None or rtt_ns < self.rtt_ns):
            self.rtt_ns = rtt_ns

    def take_report(self, number: int, report: Report) -> None:
        """Take in what has come of a train; of earlier ones it is too late."""
        if number != self.train:
            return
        self.report = self.reports[number] = report

    @property
    def missing(self) -> bool:
        """Whether a report is due."""
        return self.asked_s is not None and self.report is None

    @property
    def rtt_s(self) -> float | None:
        """Round trip, seconds; None without an answer."""
        return None if self.rtt_ns is None else self.rtt_ns / 1e9

    @property
    def settled(self) -> bool:
        """Whether the last train tells enough: it was not disturbed, and tells what is expected."""
        rate = self._rate(self.report) if self.report is not None else None
        if self.report is None or rate is None:
            return True
        expected = 1 / SURPRISE < rate / max(self.expected, 1.0) < SURPRISE
        return expected and self.report.unrest < UNREST

    def bandwidth(self) -> float | None:
        """What the trains have told, bytes per second; None if nothing.

        It is the median of those that were not disturbed, or else of all: where a machine is busy,
        a train may also come in one burst after a pause.
        """
        told = [
            (rate, report.unrest)
            for report in self.reports.values()
            if (rate := self._rate(report)) is not None
        ]
        rates = [rate for rate, unrest in told if unrest < UNREST] or [rate for rate, _ in told]
        return statistics.median(rates) if rates else None

    def _rate(self, report: Report) -> float | None:
        if report.packets < LEAST_PACKETS:
            return None
        spread_s = report.spread_ns / 1e9
        # A train that is no longer than the work of sending it tells of this machine, not the link.
        if spread_s < max(LEAST_SPREAD_S, 1.1 * self.cpu_s):
            return None
        return report.bytes / spread_s


class Train:
    """What has arrived of a train."""

    def __init__(self) -> None:
        self._times_ns: list[int] = []
        self._bytes: list[int] = []

    def add(self, size_bytes: int, time_ns: int) -> None:
        """Count a packet in; more than any train has are ignored."""
        if len(self._times_ns) < TRAIN_PACKETS[1]:
            self._times_ns.append(time_ns)
            self._bytes.append(size_bytes)

    def report(self) -> Report:
        """Tell how far the train is drawn out.

        Where the sender or the link was interrupted the train has a gap or a cluster. So its length
        is not its last time minus its first one, but follows from the median of all its eighths.
        """
        count = len(self._times_ns)
        if count < 2:
            return Report(count, 0, 0, 0)
        behind_first = list(accumulate(self._bytes, initial=-self._bytes[0]))[1:]
        times_ns = sorted(self._times_ns)
        part = min(count - 1, max(3, count // 8))
        ns_per_byte = statistics.median(
            (times_ns[i + part] - times_ns[i]) / (behind_first[i + part] - behind_first[i])
            for i in range(count - part)
        )
        return Report(
            count,
            behind_first[-1],
            round(ns_per_byte * behind_first[-1]),
            times_ns[-1] - times_ns[0],
        )


def train_shape(bandwidth: float) -> tuple[int, int]:
    """How many datagrams, of how many bytes, are sent over a link of this many bytes per second.

    They take about `TRAIN_S` within the bounds of their number, and at most `TRAIN_LIMIT_S`.
    """
    full = PAYLOAD_BYTES + HEADER_BYTES
    least, most = TRAIN_PACKETS
    if not bandwidth > 0:
        bandwidth = 0.0
    count = max(least, math.ceil(min(most, TRAIN_S * bandwidth / full)))
    payload = min(PAYLOAD_BYTES, TRAIN_LIMIT_S * bandwidth / count - HEADER_BYTES)
    return count, max(MESSAGE.size, int(payload))


def parse_peer(dst: int, endpoint: str, expected: float) -> Peer:
    """The site that answers at an endpoint, as others tell it.

    Raises
    ------
    ProbeError
        The text is no endpoint.
    """
    try:
        place, text = endpoint.split("/")
        host, port = place.split(":")
        token = bytes.fromhex(text)
        if not (0 < int(port) < 1 << 16 and len(token) == TOKEN_BYTES):
            raise ValueError("a port has 16 bits, and a token 8 bytes")
        return Peer(dst, (str(IPv4Address(host)), int(port)), token, expected)
    except ValueError as error:
        raise ProbeError(
            f"site {dst} is said to answer at {endpoint!r}, which is no host:port/token"
        ) from error
