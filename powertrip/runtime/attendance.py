"""A site's end of its presence: it is heard by the coordinator, and knows whether that is there."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.handshake import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    PASSING,
    Applicant,
    NotAdmitted,
    Welcome,
    presence_key,
)
from powertrip.runtime.line import BEAT_S, Line, LineEnded, least_limit_s

ATTEMPT_S = 5.0
"""Seconds that one attempt to be admitted may take; the coordinator may be starting."""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_LASTING_S = 5.0  # how long a connection must have held for the next pause to be short again


class _Closed(Exception):
    """The attendance is to end."""


class Attendance:
    """Keeps one site's process known to the coordinator, in a thread, until it is closed.

    Parameters
    ----------
    address
        Host and port that the coordinator's `RollCall` is reached at.
    secret
        What both must know.
    site, incarnation
        Which process this is.
    limit_s
        Seconds without a beat of the coordinator after which it counts as away.
    beat_s
        Seconds between two beats of this site.
    start_limit_s
        Seconds within which this process must have been admitted.
    on_return
        Called by the thread, with the granted index, whenever the coordinator is back.
    on_away
        Called by the thread whenever the coordinator cannot be heard any more.

    Attributes
    ----------
    granted
        Index of the log entry to begin with, as granted at the start.
    run
        The run's number, which the keys of its messages are bound to.
    on_away
        As the parameter.
    away
        Set while the coordinator cannot be heard.
    on_return
        As the parameter.

    Raises
    ------
    NotAdmitted
        The coordinator refuses this process, or is none that it may trust.
    ControlPlaneError
        Nobody has answered within `start_limit_s`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        secret: bytes,
        site: int,
        incarnation: int,
        limit_s: float,
        beat_s: float = BEAT_S,
        start_limit_s: float = 60.0,
        on_return: Callable[[int], None] | None = None,
        on_away: Callable[[], None] | None = None,
    ) -> None:
        self._address, self._key = address, presence_key(secret)
        self._site, self._incarnation = site, incarnation
        self._limit_s, self._beat_s = limit_s, beat_s
        self.on_return, self.on_away = on_return, on_away
        self.away = threading.Event()
        self._refusal: NotAdmitted | None = None
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pause_s = _FIRST_PAUSE_S
        try:
            line, welcome = self._apply(time.monotonic() + start_limit_s)
        except BaseException:
            os.close(self._wake)
            raise
        self.granted, self.run = welcome.granted, welcome.run
        self._thread = threading.Thread(
            target=self._attend, args=(line,), name="attendance", daemon=True
        )
        self._thread.start()

    def set_limit(self, limit_s: float) -> None:
        """Let the coordinator be silent for so long from now on."""
        self._limit_s = limit_s

    def check(self) -> None:
        """See that this process is not refused.

        Raises
        ------
        NotAdmitted
            It was, when it came back; it is to end.
        """
        if self._refusal is not None:
            raise self._refusal

    def close(self) -> None:
        """End the thread and the connection; a second call does nothing."""
        if not self._closed:
            self._closed = True
            os.eventfd_write(self._wake, 1)
            self._thread.join(timeout=5)
            os.close(self._wake)

    def _attend(self, line: Line) -> None:
        try:
            while True:
                begin_s = time.monotonic()
                ended = self._keep(line)
                self.away.set()
                if self.on_away is not None:
                    self.on_away()
                if ended:
                    line.close()
                if time.monotonic() - begin_s >= _LASTING_S:
                    self._pause_s = _FIRST_PAUSE_S
                self._pause()
                silent = line
                line, welcome = self._apply(None)
                # Only now: a coordinator that was held up shall not take this end for a loss.
                silent.close()
                self.away.clear()
                if self.on_return is not None:
                    self.on_return(welcome.granted)
        except _Closed:
            return
        except NotAdmitted as error:
            self._refusal = error
        finally:
            line.close()
            self.away.set()

    def _keep(self, line: Line) -> bool:
        """Beat and listen while the coordinator is there; whether its connection has ended."""
        turn_s = beat_due_s = time.monotonic()
        while True:
            limit_s = least_limit_s(self._limit_s, self._beat_s)
            tick_s = min(self._beat_s, limit_s / 8)
            heard = self._wait(line.sock, select.POLLIN, turn_s + tick_s)
            now_s = time.monotonic()
            late_s = now_s - turn_s - tick_s
            if late_s > 0:
                line.forgive(late_s, now_s)
            turn_s = now_s
            try:
                if heard:
                    line.listen(now_s)
                if now_s >= beat_due_s:
                    beat_due_s = max(beat_due_s + self._beat_s, now_s)
                    line.beat()
            except LineEnded:
                return True
            if now_s - line.heard_s > limit_s:
                return False

    def _apply(self, until_s: float | None) -> tuple[Line, Welcome]:
        """Try to be admitted, again and again."""
        while True:
            attempt_until_s = time.monotonic() + ATTEMPT_S
            if until_s is not None:
                attempt_until_s = min(attempt_until_s, until_s)
            try:
                return self._attempt(attempt_until_s)
            except NotAdmitted as error:
                if error.verdict not in PASSING:
                    raise
                reason = str(error)
            except OSError as error:
                reason = error.strerror or str(error)
            if until_s is not None and time.monotonic() + self._pause_s >= until_s:
                host, port = self._address
                raise ControlPlaneError(
                    f"site {self._site} cannot reach the coordinator at {host}:{port}: {reason}"
                )
            self._pause()

    def _pause(self) -> None:
        """Wait before another attempt, each time longer."""
        if select.select([self._wake], [], [], self._pause_s)[0]:
            raise _Closed
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _attempt(self, until_s: float) -> tuple[Line, Welcome]:
        applicant = Applicant(self._key, self._site, self._incarnation)
        sock = self._connect(until_s)
        try:
            challenge = self._receive(sock, CHALLENGE_BYTES, until_s)
            # Somebody is there, who may only just have begun to answer all who have waited.
            until_s = max(until_s, time.monotonic() + ATTEMPT_S)
            sock.send(applicant.hello(challenge))
            welcome = applicant.welcomed(self._receive(sock, ANSWER_BYTES, until_s))
        except BaseException:
            sock.close()
            raise
        return Line(sock, welcome.sent, welcome.heard, time.monotonic()), welcome

    def _connect(self, until_s: float) -> socket.socket:
        """A connection to the first of the host's addresses that takes one."""
        refused = OSError(errno.EHOSTUNREACH, "the host has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            *self._address, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = sock.connect_ex(address)
                if code == errno.EINPROGRESS:
                    self._await(sock, select.POLLOUT, until_s)
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0:
                    return sock
                refused = OSError(code, os.strerror(code))
            except BaseException:
                sock.close()
                raise
            sock.close()
        raise refused

    def _receive(self, sock: socket.socket, size: int, until_s: float) -> bytes:
        data = b""
        while len(data) < size:
            self._await(sock, select.POLLIN, until_s)
            more = sock.recv(size - len(data))
            if not more:
                raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
            data += more
        return data

    def _await(self, sock: socket.socket, event: int, until_s: float) -> None:
        if not self._wait(sock, event, until_s):
            raise TimeoutError(errno.ETIMEDOUT, "no answer in time")

    def _wait(self, sock: socket.socket, event: int, until_s: float) -> bool:
        """Wait for a socket; False when time is up first."""
        poll = select.poll()
        poll.register(sock, event)
        poll.register(self._wake, select.POLLIN)
        ready = dict(poll.poll(max(0.0, until_s - time.monotonic()) * 1000))
        if self._wake in ready:
            raise _Closed
        return sock.fileno() in ready
