"""The daemon's socket: one JSON object a line, and descriptors beside the line that needs them.

Every request is `{"request": NAME, ...}` and has one reply: `{"ok": true, ...}`, or
`{"ok": false, "error": CLASS OF netem.errors, "text": ...}`. A connection that has attached a
site keeps it attached for as long as it is open.

| request    | with              | reply                                                     |
|------------|-------------------|-----------------------------------------------------------|
| `describe` |                   | `plan`, `backend`, `reason`, `pid`, `attached` sites      |
| `attach`   | `site`, `kind`, fd| `address`                                                 |
| `change`   | `change`          | `pairs` that it was about                                 |
| `begin`    |                   | the links are as the plan starts, and its schedule begins |
| `links`    |                   | `links`: [src, dst, fields] as they are, scaled           |
| `stats`    |                   | `pairs`: [src, dst, bytes, packets, dropped]              |
| `stop`     |                   | the daemon then ends                                      |
"""

from __future__ import annotations

import json
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from netem import errors
from netem.errors import DaemonLost, NetemError, PlanError, ProtocolError
from netem.sockets import signal_when_hung_up

MAX_LINE_BYTES = 1 << 24
CHUNK_BYTES = 1 << 16
MAX_FDS = 4
REPLY_TIMEOUT_S = 30.0


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as its line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class LineBuffer:
    """Bytes as they come in, cut into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the messages that `data` completes.

        Raises
        ------
        netem.errors.ProtocolError
            If a line is no JSON object, or does not end.
        """
        self._bytes += data
        while (end := self._bytes.find(b"\n")) >= 0:
            line = bytes(self._bytes[:end])
            del self._bytes[: end + 1]
            try:
                message = json.loads(line)
            except ValueError as error:
                raise ProtocolError(f"a line that is not JSON: {line[:80]!r}") from error
            if not isinstance(message, dict):
                raise ProtocolError(f"a line that is not a JSON object: {line[:80]!r}")
            yield message
        if len(self._bytes) > MAX_LINE_BYTES:
            raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")


def error_reply(error: NetemError) -> dict[str, Any]:
    """Return the reply that makes `raise_for` raise the same error at the other end."""
    reply: dict[str, Any] = {"ok": False, "error": type(error).__name__, "text": str(error)}
    if isinstance(error, PlanError):
        reply |= {"problems": list(error.problems), "source": error.source}
    return reply


def raise_for(reply: Mapping[str, Any]) -> None:
    """Raise the error that a reply holds, as its own class; nothing if it is ok."""
    if reply.get("ok") is True:
        return
    kind = getattr(errors, str(reply.get("error")), None)
    if not (isinstance(kind, type) and issubclass(kind, NetemError)):
        raise ProtocolError(f"a reply that is neither ok nor an error: {str(reply)[:200]}")
    if issubclass(kind, PlanError):
        raise kind(reply.get("problems", [reply.get("text", "")]), reply.get("source", "the plan"))
    raise kind(str(reply.get("text")))


class Channel:
    """The asking end of a connection; every wait is bounded.

    Parameters
    ----------
    sock
        A connected unix stream socket, which the channel owns.
    name
        What errors call the other end.
    """

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.name = name
        self._socket = sock
        self._lines = LineBuffer()

    @classmethod
    def connect(cls, path: Path | str, timeout_s: float = REPLY_TIMEOUT_S) -> Channel:
        """Connect to a daemon.

        Raises
        ------
        netem.errors.DaemonLost
            If none listens there.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
        except OSError as error:
            sock.close()
            reason = error.strerror or str(error)
            raise DaemonLost(f"no link daemon answers at {path}: {reason}") from error
        return cls(sock, f"the link daemon at {path}")

    def request(
        self,
        name: str,
        fds: Sequence[int] = (),
        timeout_s: float = REPLY_TIMEOUT_S,
        **fields: Any,
    ) -> dict[str, Any]:
        """Ask and return the reply.

        Parameters
        ----------
        name
            Of the request.
        fds
            Descriptors to send along; they stay open here.
        timeout_s
            How long to wait for the reply.
        **fields
            Of the request.

        Raises
        ------
        netem.errors.NetemError
            What the daemon answered, or `DaemonLost` if it has ended or does not answer in time.
        """
        deadline_s = time.monotonic() + timeout_s
        line = encode({"request": name, **fields})
        try:
            self._socket.settimeout(timeout_s)
            sent = socket.send_fds(self._socket, [line], list(fds)) if fds else 0
            self._socket.sendall(line[sent:])
            reply = self._receive(deadline_s)
        except TimeoutError as error:
            raise DaemonLost(
                f"{self.name} did not answer `{name}` within {timeout_s:g} s"
            ) from error
        except OSError as error:
            raise DaemonLost(f"{self.name} has ended: {error.strerror}") from error
        raise_for(reply)
        return reply

    def lost(self, timeout_s: float | None = 0.0) -> bool:
        """Wait until the other end has closed; return whether it has. None waits for ever."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000))

    def signal_when_lost(self, number: signal.Signals) -> None:
        """Have the kernel send this process a signal when the other end closes."""
        signal_when_hung_up(self._socket, number)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self, deadline_s: float) -> dict[str, Any]:
        while True:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining_s)
            data = self._socket.recv(CHUNK_BYTES)
            if not data:
                raise DaemonLost(f"{self.name} has ended")
            for message in self._lines.feed(data):
                return message
