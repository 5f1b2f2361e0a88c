"""A connection over which both ends show that they are there."""

from __future__ import annotations

import hmac
import socket

from powertrip.errors import PowerTripError
from powertrip.runtime.handshake import BEAT_BYTES, Beats

BEAT_S = 0.25
"""Seconds between two beats."""
BEATS_IN_LIMIT = 3
"""Beats that must be missing at least before anybody counts as silent."""

_READ_BYTES = 4096


class LineEnded(PowerTripError):
    """The other end has closed, the connection is broken, or what came was no beat of its."""


class Line:
    """One end of a connection, once both have made sure of each other.

    Parameters
    ----------
    sock
        Non-blocking; the line's own from now on.
    sent, heard
        The beats of this end and of the other.
    now_s
        By the monotonic clock.

    Attributes
    ----------
    heard_s
        When the other end was heard last.
    """

    def __init__(self, sock: socket.socket, sent: Beats, heard: Beats, now_s: float) -> None:
        self.sock = sock
        self.heard_s = now_s
        self._sent, self._heard = sent, heard
        self._coming = bytearray()
        self._going = b""

    def listen(self, now_s: float) -> bool:
        """Take what has come, a few kilobytes at most; whether a beat was in it.

        Raises
        ------
        LineEnded
            Nothing more will.
        """
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            raise LineEnded(error.strerror or str(error)) from error
        if not data:
            raise LineEnded("the other end has closed")
        self._coming += data
        heard = len(self._coming) >= BEAT_BYTES
        while len(self._coming) >= BEAT_BYTES:
            beat = bytes(self._coming[:BEAT_BYTES])
            del self._coming[:BEAT_BYTES]
            if not hmac.compare_digest(beat, self._heard.next()):
                raise LineEnded("what came is no beat of the other end")
        if heard:
            self.heard_s = now_s
        return heard

    def beat(self) -> None:
        """Send a beat, unless one is still on its way out.

        Raises
        ------
        LineEnded
            The connection is broken.
        """
        self._going = self._going or self._sent.next()
        try:
            self._going = self._going[self.sock.send(self._going) :]
        except BlockingIOError:
            return  # a link that takes nothing; the other end's silence tells of it
        except OSError as error:
            raise LineEnded(error.strerror or str(error)) from error

    def forgive(self, seconds: float, now_s: float) -> None:
        """Do not count time in which this end could not listen."""
        self.heard_s = min(now_s, self.heard_s + seconds)

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


def least_limit_s(limit_s: float, beat_s: float) -> float:
    """The time after which the other end counts as silent."""
    return max(limit_s, BEATS_IN_LIMIT * beat_s)
