"""Round trips and bandwidths of the links from one site to the others, by few UDP datagrams.

Every site has a `Prober`, which answers the others' and measures by itself. A round trip is the
least of a few echoes, without the time that the other end has held them. A bandwidth is how far a
train of back-to-back datagrams is drawn out on its way, as C. Dovrolis et al. describe it in
"Packet-dispersion techniques and a capacity-estimation methodology" (2004).
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from powertrip.exchange.datagrams import Arrival, open_socket, receive, send_train
from powertrip.exchange.errors import ProbeError
from powertrip.exchange.trains import (
    HEADER_BYTES,
    MAGIC,
    MESSAGE,
    TOKEN_BYTES,
    Kind,
    Peer,
    Report,
    Train,
    parse_peer,
    train_shape,
)

ECHOES = 5
ECHO_EVERY_S = 0.02
FIRST_ANSWER_S = 1.5
"""How long after the last echo a site may stay silent before its link is passed over."""

TRAINS = 3
"""How many are sent over a link where the first one was disturbed or is a surprise."""

ASK_AGAIN_S = 0.25
_SLICE_S = 0.05
TRAINS_KEPT = 256


@dataclass(frozen=True)
class LinkMeasurement:
    """What was measured of the link from this site to another.

    Attributes
    ----------
    dst
        The other site's number.
    rtt_s
        Round trip, seconds; None: no answer came.
    bandwidth
        From this site to the other, bytes per second with the headers of IP; None: not measured,
        or more than can be measured.
    """

    dst: int
    rtt_s: float | None
    bandwidth: float | None


class Prober:
    """Measures the links from here to the other sites, and answers the others' measurements.

    A daemon thread answers and collects; it sleeps while nothing comes. Datagrams without the
    token of the endpoint are ignored, and no datagram is answered by more than one of its length.

    Parameters
    ----------
    address
        IPv4 address of this site, to which the others can send.

    Attributes
    ----------
    endpoint
        What the others need to reach it.

    Raises
    ------
    ProbeError
        The address is not this machine's.
    """

    def __init__(self, address: str) -> None:
        try:
            self._udp = open_socket(address)
        except OSError as error:
            raise ProbeError(
                f"measuring the links: cannot listen on {address}: {error.strerror or error}; "
                "set exchange.probe.enabled=false to do without"
            ) from error
        self._token = secrets.token_bytes(TOKEN_BYTES)
        host, port = self._udp.getsockname()
        self.endpoint = f"{host}:{port}/{self._token.hex()}"
        self._changed = threading.Condition()
        self._asking: dict[bytes, Peer] = {}
        self._trains: OrderedDict[tuple[tuple[str, int], bytes, int], Train] = OrderedDict()
        self._known: dict[int, float] = {}
        self._closed = False
        self._error: Exception | None = None
        # Held while a descriptor is in use by its number, so that it is not closed meanwhile.
        self._sending = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="prober", daemon=True)
        self._thread.start()

    def sweep(
        self,
        me: int,
        endpoints: Sequence[str | None],
        expected_bandwidth: Sequence[float],
        *,
        limit_s: float,
        stop: threading.Event | None = None,
    ) -> tuple[LinkMeasurement, ...]:
        """Measure the links to all other sites; one call at a time.

        Parameters
        ----------
        me
            This site's number.
        endpoints
            In the order of the sites; None for those that do not answer.
        expected_bandwidth
            From here to each site, bytes per second: how much is sent depends on it, and later on
            what was measured before.
        limit_s
            Seconds after which what has not come counts as not measured.
        stop
            Ends the sweep early when it is set.

        Returns
        -------
        tuple of LinkMeasurement
            One for each other site with an endpoint, in the order of the sites.

        Raises
        ------
        ProbeError
            An endpoint is not one, or the thread that collects the answers has broken.
        """
        others = [(me + step) % len(endpoints) for step in range(1, len(endpoints))]
        peers = [
            parse_peer(dst, endpoint, self._known.get(dst, expected_bandwidth[dst]))
            for dst in others
            if (endpoint := endpoints[dst]) is not None
        ]
        until_s = time.monotonic() + limit_s
        stop = stop or threading.Event()
        with self._changed:
            self._asking = {peer.nonce: peer for peer in peers}
        try:
            self._echo(peers, 0, until_s, stop)
            alive = [peer for peer in peers if peer.rtt_ns is not None]
            self._send_trains(alive, until_s, stop)
            # The others' trains may have delayed all the echoes of the first time.
            self._echo(alive, ECHOES, until_s, stop)
        finally:
            with self._changed:
                self._asking = {}
        if self._error is not None:
            raise ProbeError(
                f"measuring the links has broken: {type(self._error).__name__}: {self._error}; "
                "set exchange.probe.enabled=false to do without"
            ) from self._error
        found = [
            LinkMeasurement(peer.dst, peer.rtt_s, peer.bandwidth())
            for peer in sorted(peers, key=lambda peer: peer.dst)
        ]
        for peer in peers:
            bandwidth = peer.bandwidth()
            if bandwidth is not None:
                self._known[peer.dst] = bandwidth
            elif peer.missing:
                # The link may be far slower than expected, and still be busy with the train.
                self._known[peer.dst] = peer.expected / 8
        return tuple(found)

    def close(self) -> None:
        """End the thread and close the socket; a sweep that is under way ends as well."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        os.eventfd_write(self._wake, 1)
        self._thread.join(timeout=5)
        with self._sending:
            self._udp.close()
        os.close(self._wake)

    def _echo(
        self, peers: Sequence[Peer], first: int, until_s: float, stop: threading.Event
    ) -> None:
        """Send echoes to all, numbered from `first`, and wait for the answers."""
        begin_s = time.monotonic()
        for number in range(first, first + ECHOES):
            for peer in peers:
                with self._sending:
                    peer.sent_ns[number] = time.time_ns()
                    self._send(peer.message(Kind.ECHO, number), peer.address)
            begin_s += ECHO_EVERY_S
            if not self._wait(lambda: False, min(begin_s, until_s), stop):
                return
        last_s = time.monotonic()

        def answered() -> bool:
            if not any(peer.sent_ns for peer in peers):
                return True
            if any(peer.rtt_ns is None for peer in peers):
                return False
            # The round trips that are known tell when the last answers are due.
            due_s = max((peer.rtt_ns or 0) for peer in peers) / 1e9 + ECHO_EVERY_S
            return time.monotonic() > last_s + due_s

        self._wait(answered, min(until_s, last_s + FIRST_ANSWER_S), stop)

    def _send_trains(self, peers: Sequence[Peer], until_s: float, stop: threading.Event) -> None:
        """Measure one bandwidth after the other; late reports are waited for at the end."""
        for i, peer in enumerate(peers):
            time_s = time.monotonic()
            if time_s >= until_s:
                return
            slot_until_s = time_s + (until_s - time_s) / (len(peers) - i)
            for number in range(TRAINS):
                self._send_train(peer, number)
                if not self._await_reports([peer], slot_until_s, stop):
                    return
                if peer.settled:
                    break
        self._await_reports(peers, until_s, stop)

    def _await_reports(self, peers: Sequence[Peer], until_s: float, stop: threading.Event) -> bool:
        """Wait for the reports of all trains, and ask for them again; False to end the sweep."""

        def complete() -> bool:
            return all(not peer.missing for peer in peers)

        while not complete() and time.monotonic() < until_s:
            for peer in peers:
                time_s = time.monotonic()
                patience_s = ASK_AGAIN_S + 2 * (peer.rtt_s or 0)
                if peer.missing and time_s >= (peer.asked_s or 0) + patience_s:
                    peer.asked_s = time_s
                    with self._sending:
                        self._send(peer.message(Kind.ASK, peer.train), peer.address)
            if not self._wait(complete, min(until_s, time.monotonic() + _SLICE_S), stop):
                return False
        return not (stop.is_set() or self._ended)

    def _send_train(self, peer: Peer, number: int) -> None:
        with self._changed:
            peer.train, peer.report = number, None
        # A link that is slower than expected is not kept busy by another train of that length.
        count, payload = train_shape(peer.bandwidth() or peer.expected)
        train = peer.message(Kind.TRAIN, number).ljust(payload, b"\0")
        ask = peer.message(Kind.ASK, number)
        with self._sending:
            begin_s = time.thread_time()
            try:
                sent = send_train(self._udp, train, count, ask, peer.address)
            except OSError:
                sent = 0  # a link that takes nothing
            peer.cpu_s = time.thread_time() - begin_s
            if sent <= count:
                self._send(ask, peer.address)
        peer.asked_s = time.monotonic()

    def _wait(self, ready: Callable[[], bool], until_s: float, stop: threading.Event) -> bool:
        """Wait until it is so or time is up; False if the sweep is to end."""
        with self._changed:
            while not (stop.is_set() or self._ended):
                left_s = until_s - time.monotonic()
                if left_s <= 0 or ready():
                    return True
                self._changed.wait(min(left_s, _SLICE_S))
            return False

    @property
    def _ended(self) -> bool:
        return self._closed or self._error is not None

    def _send(self, data: bytes, address: tuple[str, int]) -> None:
        try:
            self._udp.sendto(data, socket.MSG_DONTWAIT, address)
        except OSError:
            return  # no way there, or no room: as good as lost on its way

    def _serve(self) -> None:
        try:
            poll = select.poll()
            poll.register(self._udp, select.POLLIN)
            poll.register(self._wake, select.POLLIN)
            while not self._closed:
                poll.poll()
                self._take_all()
        except Exception as error:  # noqa: BLE001 (raised by `sweep`, as nobody hears a thread)
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _take_all(self) -> None:
        while not self._closed:
            try:
                arrival = receive(self._udp)
            except BlockingIOError:
                return
            except OSError:
                continue  # news of an earlier datagram that did not arrive
            self._take(arrival)

    def _take(self, arrival: Arrival) -> None:
        if len(arrival.data) < MESSAGE.size:
            return
        magic, kind, token, nonce, number, packets, size, time_ns, whole_ns = MESSAGE.unpack_from(
            arrival.data
        )
        if magic != MAGIC:
            return
        if kind in (Kind.ECHOED, Kind.REPORT):
            with self._changed:
                peer = self._asking.get(nonce)
                if peer is None:
                    return
                if kind == Kind.ECHOED:
                    peer.take_echo(number, arrival.time_ns, time_ns)
                else:
                    peer.take_report(number, Report(packets, size, time_ns, whole_ns))
                self._changed.notify_all()
        elif token != self._token:
            return
        elif kind == Kind.ECHO:
            held_ns = max(0, time.time_ns() - arrival.time_ns)
            reply = MESSAGE.pack(
                MAGIC, Kind.ECHOED, bytes(TOKEN_BYTES), nonce, number, 0, 0, held_ns, 0
            )
            self._send(reply, arrival.sender)
        elif kind == Kind.TRAIN:
            self._train((arrival.sender, nonce, number)).add(
                len(arrival.data) + HEADER_BYTES, arrival.time_ns
            )
        elif kind == Kind.ASK:
            report = self._train((arrival.sender, nonce, number)).report()
            reply = MESSAGE.pack(
                MAGIC,
                Kind.REPORT,
                bytes(TOKEN_BYTES),
                nonce,
                number,
                report.packets,
                report.bytes,
                report.spread_ns,
                report.whole_ns,
            )
            self._send(reply, arrival.sender)

    def _train(self, key: tuple[tuple[str, int], bytes, int]) -> Train:
        train = self._trains.get(key)
        if train is None:
            train = self._trains[key] = Train()
            if len(self._trains) > TRAINS_KEPT:
                self._trains.popitem(last=False)
        return train
