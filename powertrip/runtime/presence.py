"""Who is there: the coordinator's end of one connection to every site's process.

A process that is killed is noticed by the end of its connection, at once; one that is frozen or
cut off by its silence. The site's end is `powertrip.runtime.attendance`.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

from powertrip.coordination.messages import Back, Gone
from powertrip.runtime.handshake import (
    HELLO_BYTES,
    REASONS,
    RUN_BYTES,
    Challenger,
    Claim,
    Refused,
    Verdict,
    presence_key,
    refusal,
)
from powertrip.runtime.line import BEAT_S, Line, LineEnded, least_limit_s

HANDSHAKE_S = 5.0
"""Seconds within which a connection must have proved what it is."""

_ACCEPTED_AT_ONCE = 64


class _Pending:
    """A connection that has not proved anything yet."""

    def __init__(self, sock: socket.socket, peer: str, key: bytes, until_s: float) -> None:
        self.sock, self.peer, self.until_s = sock, peer, until_s
        self.challenger = Challenger(key)
        self.received = b""

    def listen(self) -> Claim | None:
        """Take what has come; what it proves to be as soon as that is known.

        Raises
        ------
        Refused
            It proves nothing.
        LineEnded
            It has left before it has said anything.
        """
        try:
            data = self.sock.recv(HELLO_BYTES - len(self.received))
        except BlockingIOError:
            return None
        except OSError as error:
            raise LineEnded(error.strerror or str(error)) from error
        if not data:
            if self.received:
                raise Refused(Verdict.GARBAGE)
            raise LineEnded("the other end has closed")
        self.received += data
        return self.challenger.check(self.received) if len(self.received) == HELLO_BYTES else None


class _Member(Line):
    """The connection of a site's process that has been admitted."""

    claim: Claim
    silent = False


class RollCall:
    """Admits the sites' processes, in a thread, and tells who has gone and who is back.

    Time that the thread itself was late, as the machine was busy or the process stopped, counts
    for no site's silence.

    Parameters
    ----------
    listener
        Where the sites connect to; it stays the caller's, who closes it afterwards.
    secret
        What a site must know to be admitted.
    sites
        How many there are.
    limit_s
        Seconds without a beat after which a site has gone; at least three beats.
    tell
        Called by the thread, once for every loss of a process that was there, and once for its
        return; it should not block for long.
    grant
        Called by the thread when a process that is not its site's first is admitted: the index of
        the log entry that it is to begin with. First processes begin with entry 0.
    run
        A number of the run's own, `RUN_BYTES`, which every admitted site is told.
    warn
        Called by the thread with the first refusal of each kind, in words.
    beat_s
        Seconds between two beats of the coordinator.
    handshake_s
        Seconds within which a connection must have proved what it is.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        secret: bytes,
        sites: int,
        limit_s: float,
        tell: Callable[[Gone | Back], None],
        grant: Callable[[], int],
        run: bytes = bytes(RUN_BYTES),
        warn: Callable[[str], None] | None = None,
        beat_s: float = BEAT_S,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._listener, self._sites, self._run = listener, sites, run
        self._key = presence_key(secret)
        self._tell, self._grant, self._warn = tell, grant, warn
        self._limit_s, self._beat_s, self._handshake_s = limit_s, beat_s, handshake_s
        self._most_pending = 2 * sites + 16
        self._pending: set[_Pending] = set()
        self._members: dict[int, _Member] = {}
        self._newest: dict[int, int] = {}
        self._lost: set[int] = set()
        # What other threads read:
        self._lock = threading.Lock()
        self._present: dict[int, int] = {}
        self._refused: Counter[str] = Counter()

        self._closed, self._accepting = False, True
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="roll-call", daemon=True)
        self._thread.start()

    def set_limit(self, limit_s: float) -> None:
        """Let sites be silent for so long from now on."""
        self._limit_s = limit_s

    def present(self) -> dict[int, int]:
        """The incarnation of every site that is there and not silent."""
        with self._lock:
            return dict(self._present)

    @property
    def refused(self) -> dict[str, int]:
        """How many connections were refused, by the reason."""
        with self._lock:
            return dict(self._refused)

    def close(self) -> None:
        """End the thread and all connections; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._wake.send(b"\0")
            self._thread.join(timeout=5)
            self._wake.close()
            self._woken.close()

    def _serve(self) -> None:
        try:
            turn_s = beat_due_s = time.monotonic()
            while not self._closed:
                limit_s = least_limit_s(self._limit_s, self._beat_s)
                tick_s = min(self._beat_s, limit_s / 8)
                wait_s = turn_s + tick_s - time.monotonic()
                ready = [key for key, _ in self._selector.select(max(0.0, wait_s))]
                now_s = time.monotonic()
                self._forgive(now_s - turn_s - tick_s, now_s)
                turn_s = now_s
                for key in ready:
                    if isinstance(key.data, _Member):
                        self._listen(key.data, now_s)
                    elif isinstance(key.data, _Pending):
                        self._hear(key.data, now_s)
                    elif key.fileobj is self._listener:
                        self._accept(now_s)
                self._judge(now_s, limit_s)
                if now_s >= beat_due_s:
                    beat_due_s = max(beat_due_s + self._beat_s, now_s)
                    self._beat()
        finally:
            for member in self._members.values():
                member.close()
            for pending in self._pending:
                pending.sock.close()
            self._selector.close()
            with self._lock:
                self._present = {}

    def _forgive(self, late_s: float, now_s: float) -> None:
        if late_s > 0:
            for member in self._members.values():
                member.forgive(late_s, now_s)
            for pending in self._pending:
                pending.until_s += late_s

    def _accept(self, now_s: float) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # Most likely there is no descriptor for it: it waits for the next beat.
                self._selector.unregister(self._listener)
                self._accepting = False
                return
            peer = f"{address[0]}:{address[1]}"
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pending = _Pending(sock, peer, self._key, now_s + self._handshake_s)
            self._pending.add(pending)
            self._selector.register(sock, selectors.EVENT_READ, pending)
            try:
                sock.send(pending.challenger.challenge)
            except OSError:
                self._forget(pending)
                sock.close()
                continue
            if len(self._pending) > self._most_pending:
                self._refuse(pending, Verdict.BUSY)

    def _hear(self, pending: _Pending, now_s: float) -> None:
        try:
            claim = pending.listen()
            if claim is not None:
                if claim.site >= self._sites:
                    raise Refused(Verdict.SITE)
                if claim.incarnation < self._newest.get(claim.site, 0):
                    raise Refused(Verdict.INCARNATION)
                self._admit(pending, claim, now_s)
        except Refused as error:
            self._refuse(pending, error.verdict)
        except LineEnded:
            self._forget(pending)
            pending.sock.close()

    def _refuse(self, pending: _Pending, verdict: Verdict) -> None:
        self._forget(pending)
        kind = verdict.name.lower()
        with self._lock:
            self._refused[kind] += 1
            first = self._refused[kind] == 1
        try:
            pending.sock.send(refusal(verdict))
            pending.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has left, and does not want to know
        pending.sock.close()
        if first and self._warn is not None:
            self._warn(
                f"a connection from {pending.peer} to the coordinator was refused: "
                f"{REASONS[verdict]} (said once)"
            )

    def _forget(self, pending: _Pending) -> None:
        self._pending.discard(pending)
        self._selector.unregister(pending.sock)

    def _admit(self, pending: _Pending, claim: Claim, now_s: float) -> None:
        self._forget(pending)
        site = claim.site
        old = self._members.pop(site, None)
        if old is not None:
            # A process that comes again has lost its connection, which is not its own loss.
            self._drop(old, lost=old.claim != claim)
        if claim.incarnation > self._newest.get(site, 0):
            self._lost.discard(site)
        self._newest[site] = claim.incarnation
        granted = self._grant() if claim.incarnation else 0
        answer, sent, heard = pending.challenger.welcome(granted, self._run)
        member = _Member(pending.sock, sent, heard, now_s)
        member.claim = claim
        self._members[site] = member
        self._selector.register(member.sock, selectors.EVENT_READ, member)
        self._see(claim)
        try:
            member.sock.send(answer)
        except OSError:
            self._end(member)

    def _see(self, claim: Claim) -> None:
        with self._lock:
            self._present[claim.site] = claim.incarnation
        if claim.site in self._lost:
            self._lost.discard(claim.site)
            self._tell(Back(site=claim.site, incarnation=claim.incarnation))

    def _listen(self, member: _Member, now_s: float) -> None:
        if self._members.get(member.claim.site) is not member:
            return  # replaced in this very turn
        try:
            heard = member.listen(now_s)
        except LineEnded:
            self._end(member)
            return
        if heard and member.silent:
            member.silent = False
            self._see(member.claim)

    def _judge(self, now_s: float, limit_s: float) -> None:
        for member in self._members.values():
            if not member.silent and now_s - member.heard_s > limit_s:
                member.silent = True
                self._lose(member.claim, "silent")
        for pending in [each for each in self._pending if now_s > each.until_s]:
            self._refuse(pending, Verdict.SLOW)

    def _beat(self) -> None:
        if not self._accepting:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._accepting = True
        for member in list(self._members.values()):
            try:
                member.beat()
            except LineEnded:
                self._end(member)

    def _end(self, member: _Member) -> None:
        del self._members[member.claim.site]
        self._drop(member, lost=True)

    def _drop(self, member: _Member, *, lost: bool) -> None:
        self._selector.unregister(member.sock)
        member.close()
        if lost and not member.silent:
            self._lose(member.claim, "closed")

    def _lose(self, claim: Claim, reason: Literal["closed", "silent"]) -> None:
        self._lost.add(claim.site)
        with self._lock:
            self._present.pop(claim.site, None)
        self._tell(Gone(site=claim.site, incarnation=claim.incarnation, reason=reason))
