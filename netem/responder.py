"""The answering end of the probes, and what the two ends say to each other."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import struct
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from netem.errors import NetemError

# Datagrams: kind, run, sequence number; the answer to a question holds a count in its place.
DATAGRAM = struct.Struct("!4sQQ")
ECHO, COUNT, QUESTION = b"nmE1", b"nmC1", b"nmQ1"
CHUNK_BYTES = 1 << 20
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 1 << 23
_RUNS_KEPT = 64
_REQUEST_BYTES = 256


class ProbeFailed(NetemError):
    """The other end did not answer within the time, or is not a `Responder`."""


@dataclass
class _Stream:
    """A TCP stream under measurement at its receiver."""

    request: bytearray = field(default_factory=bytearray)
    warmup_s: float | None = None
    window_s: float = 0.0
    begin_s: float = 0.0
    counted_from_s: float = 0.0
    received_bytes: int = 0


class Responder:
    """Answers the probes of others, in a thread of its own, until it is closed.

    Parameters
    ----------
    address
        IPv4 address to listen at, UDP and TCP.
    port
        The same for both; 0 takes one that is free and leaves it in `port`.

    Raises
    ------
    ProbeFailed
        If the address is not this machine's, or the port is taken.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        self.address = address
        self._runs: OrderedDict[int, int] = OrderedDict()
        self._selector = selectors.DefaultSelector()
        self._buffer = bytearray(CHUNK_BYTES)
        self._tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._tcp.bind((address, port))
            self.port = int(self._tcp.getsockname()[1])
            self._udp.bind((address, self.port))
        except OSError as error:
            self._tcp.close()
            self._udp.close()
            raise ProbeFailed(f"cannot listen at {address}:{port}: {error.strerror}") from error
        enlarge(self._udp)
        self._tcp.listen(64)
        self._wake, self._woken = socket.socketpair()
        for listener in (self._tcp, self._udp, self._woken):
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="netem-responder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering; a second call does nothing."""
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._wake.close()
        self._thread.join(5)

    def __enter__(self) -> Responder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._udp:
                        self._datagrams()
                    elif key.fileobj is self._tcp:
                        self._accept()
                    else:
                        self._stream(key)
        finally:
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self._selector.close()

    def _datagrams(self) -> None:
        # Bounded, so that streams have their turn.
        for _ in range(1000):
            try:
                data, sender = self._udp.recvfrom(2048)
            except BlockingIOError:
                return
            except OSError:
                continue
            if len(data) < DATAGRAM.size:
                continue
            kind, run, _number = DATAGRAM.unpack_from(data)
            if kind == COUNT:
                self._runs[run] = self._runs.get(run, 0) + 1
                if len(self._runs) > _RUNS_KEPT:
                    self._runs.popitem(last=False)
                continue
            if kind == QUESTION:
                data = DATAGRAM.pack(QUESTION, run, self._runs.get(run, 0))
            elif kind != ECHO:
                continue
            with contextlib.suppress(OSError):
                self._udp.sendto(data, sender)

    def _accept(self) -> None:
        try:
            stream, _ = self._tcp.accept()
        except OSError:
            return
        stream.setblocking(False)
        self._selector.register(stream, selectors.EVENT_READ, _Stream())

    def _stream(self, key: selectors.SelectorKey) -> None:
        stream, state = key.fileobj, key.data
        assert isinstance(stream, socket.socket)
        try:
            if state.warmup_s is None:
                done = self._request(stream, state)
            else:
                done = self._count(stream, state)
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            done = True
        if done:
            self._selector.unregister(stream)
            stream.close()

    def _request(self, stream: socket.socket, state: _Stream) -> bool:
        data = stream.recv(1)
        state.request += data
        if data == b"\n":
            request = json.loads(state.request)
            state.window_s = float(request["window_s"])
            state.warmup_s = float(request["warmup_s"])
            state.begin_s = time.monotonic()
        return not data or len(state.request) > _REQUEST_BYTES

    def _count(self, stream: socket.socket, state: _Stream) -> bool:
        size = stream.recv_into(self._buffer)
        time_s = time.monotonic()
        if size == 0:
            return True
        if not state.counted_from_s:
            if time_s - state.begin_s >= (state.warmup_s or 0):
                state.counted_from_s = time_s
            return False
        state.received_bytes += size
        seconds = time_s - state.counted_from_s
        if seconds < state.window_s:
            return False
        reply = {"received_bytes": state.received_bytes, "seconds": seconds}
        stream.send(json.dumps(reply).encode() + b"\n")
        # The sender closes once it has read this; closing first would discard it by a reset.
        state.window_s = float("inf")
        return False


def enlarge(udp: socket.socket) -> None:
    """Give a socket room for a burst of datagrams, as much as is allowed."""
    try:
        udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    except PermissionError:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
