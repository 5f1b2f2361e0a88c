"""A timer as a file descriptor, to the microsecond: what `select` and `epoll` cannot wait for.

`os.timerfd_create` came with Python 3.13; this is the same by ctypes.
"""

from __future__ import annotations

import ctypes
import os

_CLOCK_MONOTONIC = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """One `timerfd` on the clock of `time.monotonic`; readable from its time on, until set again.

    Raises
    ------
    OSError
        When the process has no descriptor left.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._set = self._libc.timerfd_settime
        self._spec = _Itimerspec()
        self._pointer = ctypes.byref(self._spec)
        self._at_s: float | None = None

    def fileno(self) -> int:
        """Return the descriptor."""
        return int(self._fd)

    def arm(self, at_s: float | None) -> None:
        """Become readable at `at_s` (at once if that has passed), or never for None.

        A call with the time that is set already changes nothing.
        """
        if at_s == self._at_s:
            return
        value = self._spec.value
        if at_s is None:
            value.seconds = value.nanoseconds = 0
        else:
            value.seconds = seconds = int(at_s)
            # All zero would disarm.
            value.nanoseconds = int((at_s - seconds) * 1e9) or 1
        if self._set(self._fd, _TFD_TIMER_ABSTIME, self._pointer, None) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._at_s = at_s

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
