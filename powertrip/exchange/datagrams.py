"""UDP with the kernel's own times, and many datagrams by one call."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time
from typing import NamedTuple

_SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)  # Linux's number; Python 3.11 lacks it
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_TIMESPEC = struct.Struct("@ll")
_BUFFER_BYTES = 1 << 20

MAX_BYTES = 2048
"""What is received of a datagram; the rest of a longer one is cut off."""


class Arrival(NamedTuple):
    """A datagram that came."""

    data: bytes
    sender: tuple[str, int]
    time_ns: int
    """When the kernel took it in, Unix nanoseconds; where it does not say, when it was read."""


def open_socket(address: str) -> socket.socket:
    """Bind a UDP socket at an IPv4 address and a free port, with room for a burst.

    A call that sends from it is given up after half a second.

    Raises
    ------
    OSError
        If the address is not this machine's.
    """
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMESPEC.pack(0, 500_000))
        udp.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        for option, force in (
            (socket.SO_SNDBUF, _SO_SNDBUFFORCE),
            (socket.SO_RCVBUF, _SO_RCVBUFFORCE),
        ):
            udp.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
            with contextlib.suppress(PermissionError):  # beyond the machine's limit: root only
                udp.setsockopt(socket.SOL_SOCKET, force, _BUFFER_BYTES)
        udp.bind((address, 0))
    except BaseException:
        udp.close()
        raise
    return udp


def receive(udp: socket.socket) -> Arrival:
    """Take a datagram that is there.

    Raises
    ------
    BlockingIOError
        If there is none.
    OSError
        What the kernel has to say about an earlier datagram, such as that it was refused.
    """
    data, ancillary, _, sender = udp.recvmsg(
        MAX_BYTES, socket.CMSG_SPACE(_TIMESPEC.size), socket.MSG_DONTWAIT
    )
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(value) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(value)
            return Arrival(data, sender, seconds * 1_000_000_000 + nanoseconds)
    return Arrival(data, sender, time.time_ns())


class _Address(ctypes.Structure):
    _fields_ = (
        ("family", ctypes.c_ushort),
        ("port", ctypes.c_ubyte * 2),
        ("host", ctypes.c_ubyte * 4),
        ("zero", ctypes.c_ubyte * 8),
    )


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.POINTER(_Address)),
        ("name_length", ctypes.c_uint),
        ("vector", ctypes.POINTER(_Vector)),
        ("vector_length", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    _fields_ = (("header", _Header), ("sent_bytes", ctypes.c_uint))


_LIBC = ctypes.CDLL(None, use_errno=True)


def send_train(
    udp: socket.socket, data: bytes, count: int, last: bytes, address: tuple[str, int]
) -> int:
    """Send the same datagram `count` times back to back, and another one behind them.

    One call of the kernel sends them all: threads that hold Python's lock do not come in between.

    Returns
    -------
    int
        How many were sent, the last one included: fewer where there was no room for half a second.

    Raises
    ------
    OSError
        If none could be sent.
    """
    to = _Address(
        socket.AF_INET,
        (ctypes.c_ubyte * 2)(*address[1].to_bytes(2, "big")),
        (ctypes.c_ubyte * 4)(*socket.inet_aton(address[0])),
    )
    body, end = _Vector(data, len(data)), _Vector(last, len(last))
    messages = (_Message * (count + 1))()
    for i, message in enumerate(messages):
        header = message.header
        header.name, header.name_length = ctypes.pointer(to), ctypes.sizeof(to)
        header.vector = ctypes.pointer(body if i < count else end)
        header.vector_length = 1
    sent: int = _LIBC.sendmmsg(udp.fileno(), messages, len(messages), 0)
    if sent < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return sent
