"""What the link daemon does: it answers requests, changes links in time and drives the engine."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from netem.engines.base import Engine
from netem.errors import EnterError, NetemError, ProtocolError
from netem.plan import Change, Plan, parse_change
from netem.protocol import CHUNK_BYTES, MAX_FDS, MAX_LINE_BYTES, LineBuffer, encode, error_reply
from netem.schedule import Schedule, in_words
from netem.sockets import hung_up, listen, process_of

LINGER_S = 30.0

_log = logging.getLogger("netem.server")


@dataclass(eq=False)
class _Peer:
    sock: socket.socket
    lines: LineBuffer = field(default_factory=LineBuffer)
    out: bytearray = field(default_factory=bytearray)
    fds: list[int] = field(default_factory=list)
    site: int | None = None


class Daemon:
    """Serves requests, runs the schedule and drives the engine, in one thread.

    Parameters
    ----------
    plan
        The links and their schedule, which begins with `run`.
    engine
        What shapes them; the daemon closes it.
    socket_path
        Where to listen. A socket that nobody listens at any more is replaced.
    owner
        A connection whose end is the daemon's end, if any.
    linger_s
        Without an owner: how long the daemon waits for the first site with nobody connected.
        Once there has been a site, it ends as soon as nobody is connected any more.
    reason
        Why this backend, for those who ask.

    Raises
    ------
    netem.errors.AddressInUse
        If another daemon listens there.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        socket_path: Path,
        owner: socket.socket | None = None,
        linger_s: float = LINGER_S,
        reason: str = "",
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._path = socket_path
        self._owner = owner
        self._linger_s = linger_s
        self._reason = reason
        self._used = False
        self._peers: dict[int, _Peer] = {}
        self._sites: dict[int, _Peer] = {}
        self._stopping = False
        self._alone_since_s = time.monotonic()
        self._schedule = Schedule(plan, time.monotonic())
        self._listener = listen(socket_path)
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._epoll = select.epoll()
        self._engine_fd = engine.fileno()
        for fd in (self._listener.fileno(), self._woken.fileno(), self._engine_fd):
            if fd is not None:
                self._epoll.register(fd, select.EPOLLIN)
        if owner is not None:
            self._epoll.register(owner.fileno(), select.EPOLLIN)
        self._requests: dict[str, Callable[[_Peer, dict[str, Any]], dict[str, Any]]] = {
            "describe": self._describe,
            "attach": self._attach,
            "change": self._change,
            "begin": self._begin,
            "links": self._links,
            "stats": self._stats,
            "stop": self._stop,
        }

    def stop(self) -> None:
        """Let `run` return soon; from any thread or signal handler."""
        self._stopping = True
        # Closed already, or full of earlier calls: it ends anyway.
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def run(self) -> None:
        """Serve until the end, then close.

        Raises
        ------
        netem.errors.NetemError
            When the engine fails: links that are not as asked would be worse than none.
        """
        try:
            self._begin_links()
            while not self._stopping:
                self._turn()
        finally:
            self.close()

    def close(self) -> None:
        """Remove the links, the connections and the socket; a second call does nothing."""
        if self._epoll.closed:
            return
        try:
            self._engine.close()
        finally:
            self._path.unlink(missing_ok=True)
            for peer in list(self._peers.values()):
                self._flush(peer)
                self._close_peer(peer)
            self._listener.close()
            self._epoll.close()
            self._wake.close()
            self._woken.close()

    def _turn(self) -> None:
        now_s = time.monotonic()
        wait_s = self._engine.next_timeout_s()
        engine_due_s = None if wait_s is None else now_s + wait_s
        dues_s = [due_s for due_s in (engine_due_s, self._schedule.next_s) if due_s is not None]
        if self._owner is None and not self._peers:
            dues_s.append(self._alone_since_s + self._linger_s)
        timeout_s = max(0.0, min(dues_s) - now_s) if dues_s else None
        moved = False
        for fd, events in self._epoll.poll(timeout_s):
            if fd == self._engine_fd:
                moved = True
                self._engine.process()
            else:
                self._serve(fd, events)
        now_s = time.monotonic()
        if engine_due_s is not None and now_s >= engine_due_s and not moved:
            self._engine.process()
        while (change := self._schedule.pop_due(now_s)) is not None:
            self._set(change)
            _log.info("at %g s, as the plan says: %s", change.at_s, in_words(change))
        if self._owner is None and not self._peers:
            alone_s = now_s - self._alone_since_s
            if self._used or alone_s >= self._linger_s:
                _log.info("nobody is connected, for %.1f s: ending", alone_s)
                self._stopping = True

    def _serve(self, fd: int, events: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
        elif fd == self._woken.fileno():
            self._woken.recv(CHUNK_BYTES)
        elif self._owner is not None and fd == self._owner.fileno():
            _log.info("the process that the links belong to has gone: ending")
            self._stopping = True
        elif (peer := self._peers.get(fd)) is not None:
            if events & select.EPOLLOUT:
                self._flush(peer)
            if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._read(peer)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            self._peers[sock.fileno()] = _Peer(sock)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, peer: _Peer) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(
                peer.sock, CHUNK_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        peer.fds += fds
        if not data:
            self._close_peer(peer)
            return
        try:
            for message in peer.lines.feed(data):
                self._answer(peer, message)
        except ProtocolError as error:
            _log.warning("a client is dropped: it sent %s", error)
            self._close_peer(peer)

    def _answer(self, peer: _Peer, message: dict[str, Any]) -> None:
        name = message.get("request")
        handler = self._requests.get(name) if isinstance(name, str) else None
        try:
            if handler is None:
                known = ", ".join(self._requests)
                raise ProtocolError(f"there is no request {name!r}; the requests are {known}")
            reply = {"ok": True, **handler(peer, message)}
        except NetemError as error:
            _log.warning("%s is refused: %s", name, error)
            reply = error_reply(error)
        peer.out += encode(reply)
        if len(peer.out) > 2 * MAX_LINE_BYTES:
            raise ProtocolError("requests without reading the replies")
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.out:
                del peer.out[: peer.sock.send(peer.out)]
        except BlockingIOError:
            pass
        except OSError:
            # The end of the connection is served when it is read.
            peer.out.clear()
        want = select.EPOLLIN | (select.EPOLLOUT if peer.out else 0)
        self._epoll.modify(peer.sock.fileno(), want)

    def _close_peer(self, peer: _Peer) -> None:
        fd = peer.sock.fileno()
        if self._peers.pop(fd, None) is None:
            return
        self._epoll.unregister(fd)
        peer.sock.close()
        while peer.fds:
            os.close(peer.fds.pop())
        if not self._peers:
            self._alone_since_s = time.monotonic()
        if peer.site is not None:
            del self._sites[peer.site]
            if not self._stopping:
                self._engine.detach(peer.site)
            _log.info("site %d (%s) has gone", peer.site, self._plan.sites[peer.site])

    def _describe(self, peer: _Peer, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "plan": self._plan.to_json(),
            "backend": self._engine.name,
            "reason": self._reason,
            "pid": os.getpid(),
            "attached": sorted(self._sites),
        }

    def _attach(self, peer: _Peer, message: dict[str, Any]) -> dict[str, Any]:
        fds, peer.fds = peer.fds, []
        try:
            site = self._free_site(peer, message)
            if len(fds) != 1:
                raise ProtocolError(f"`attach` comes with one descriptor, not with {len(fds)}")
            self._engine.attach(site, fds.pop())
        finally:
            for fd in fds:
                os.close(fd)
        peer.site = site
        self._sites[site] = peer
        self._used = True
        pid = process_of(peer.sock)
        _log.info("site %d (%s) is attached: process %d", site, self._plan.sites[site], pid)
        return {"address": self._plan.address(site)}

    def _free_site(self, peer: _Peer, message: dict[str, Any]) -> int:
        kind = message.get("kind")
        if kind != self._engine.name:
            raise EnterError(f"this daemon's backend is {self._engine.name}, not {kind}")
        site = self._plan.index(message.get("site", ""))
        if peer.site is not None:
            raise EnterError(f"this connection has attached site {peer.site} already")
        holder = self._sites.get(site)
        if holder is not None:
            if not hung_up(holder.sock):
                raise EnterError(
                    f"site {site} ({self._plan.sites[site]}) is attached already, by process "
                    f"{process_of(holder.sock)}; each process needs a site of its own"
                )
            self._close_peer(holder)
        return site

    def _change(self, peer: _Peer, message: dict[str, Any]) -> dict[str, Any]:
        change = parse_change(message.get("change"))
        pairs = self._set(change)
        _log.info("as process %d asks: %s", process_of(peer.sock), in_words(change))
        return {"pairs": pairs}

    def _begin(self, peer: _Peer, message: dict[str, Any]) -> dict[str, Any]:
        self._begin_links()
        _log.info("the schedule begins, as process %d asks", process_of(peer.sock))
        return {}

    def _links(self, peer: _Peer, message: dict[str, Any]) -> dict[str, Any]:
        links = self._schedule.links()
        return {"links": [[src, dst, link.model_dump(mode="json")] for src, dst, link in links]}

    def _stats(self, peer: _Peer, message: dict[str, Any]) -> dict[str, Any]:
        stats = sorted(self._engine.stats().items())
        return {"pairs": [[*pair, *astuple(counts)] for pair, counts in stats]}

    def _stop(self, peer: _Peer, message: dict[str, Any]) -> dict[str, Any]:
        _log.info("ending, as process %d asks", process_of(peer.sock))
        self._stopping = True
        return {}

    def _begin_links(self) -> None:
        self._schedule = Schedule(self._plan, time.monotonic())
        for src, dst, link in self._schedule.links():
            self._engine.set_link(src, dst, link)

    def _set(self, change: Change) -> int:
        links = self._schedule.preview(change)
        for src, dst, link in links:
            self._engine.set_link(src, dst, link)
        self._schedule.commit(change)
        return len(links)
