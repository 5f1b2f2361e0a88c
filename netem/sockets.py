"""Unix sockets as a server needs them."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
from pathlib import Path

from netem.errors import AddressInUse

_F_SETSIG = 10  # <fcntl.h>; Python has no name for it


def listen(path: Path) -> socket.socket:
    """Return a listening socket at a path, which replaces one that nobody listens at.

    Raises
    ------
    netem.errors.AddressInUse
        If another process listens there, or the path cannot be one.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(str(path))
        except OSError:
            if not abandoned(path):
                raise
            path.unlink(missing_ok=True)
            listener.bind(str(path))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise AddressInUse(
            f"cannot listen at {path}: {error.strerror or error}; name a free path of at most 107 "
            "bytes in a folder that can be written, or stop the daemon that listens there"
        ) from error
    listener.setblocking(False)
    return listener


def abandoned(path: Path) -> bool:
    """Return whether a path is a socket at which nobody listens any more."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def hung_up(sock: socket.socket) -> bool:
    """Return whether the other end has closed."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))


def signal_when_hung_up(sock: socket.socket, number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the other end closes, or sends something."""
    fd = sock.fileno()
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, _F_SETSIG, number)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def process_of(sock: socket.socket) -> int:
    """Return the process that made the other end."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)
