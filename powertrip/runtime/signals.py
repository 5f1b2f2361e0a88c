"""Requests to stop, taken from SIGINT and SIGTERM while the main thread may be in a collective."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Calls back once, from a thread of its own, at the first SIGINT or SIGTERM.

    A Python handler runs only between the main thread's bytecodes, so not before a collective
    returns; the wake-up descriptor is written at once. Signals that were blocked are let through
    until `close`: one that came before is not lost, and one that comes after does no harm.

    Parameters
    ----------
    callback
        Called with the signal's number.
    """

    def __init__(self, callback: Callable[[int], None]) -> None:
        self._callback = callback
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous = {number: signal.signal(number, _noted) for number in STOP_SIGNALS}
        self._previous_descriptor = signal.set_wakeup_fd(
            self._writer.fileno(), warn_on_full_buffer=False
        )
        self._thread = threading.Thread(target=self._watch, name="stop-signals", daemon=True)
        self._thread.start()
        self._previous_mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _watch(self) -> None:
        called = False
        while data := self._reader.recv(64):
            for number in data:
                if number == 0:
                    return
                if number in STOP_SIGNALS and not called:
                    called = True
                    self._callback(number)

    def close(self) -> None:
        """Restore the previous mask and handlers, and end the thread."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._previous_mask)
        signal.set_wakeup_fd(self._previous_descriptor)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._writer.send(b"\0")
        self._thread.join(timeout=5)
        self._writer.close()
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _noted(number: int, frame: FrameType | None) -> None:
    """Keeps the default action from happening; the wake-up descriptor does the work."""
