"""Network namespaces without names: made, entered and left by the calling thread."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from netem.errors import Unsupported

# glibc's `os.unshare` and `os.setns` came with Python 3.12.
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_OWN = Path("/proc/thread-self/ns/net")


def own_namespace() -> int:
    """Return a descriptor of the calling thread's network namespace."""
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def unshare_network() -> None:
    """Move the calling thread into a new network namespace, which holds only `lo`, down.

    Raises
    ------
    netem.errors.Unsupported
        Where that is not allowed, or the kernel has no network namespaces.
    """
    if _LIBC.unshare(_CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise Unsupported(
            f"cannot make a network namespace: {reason}; it needs root (CAP_SYS_ADMIN), in a "
            "container such as `docker run --privileged`, and a kernel with CONFIG_NET_NS"
        )


def enter_network(fd: int) -> None:
    """Move the calling thread into the network namespace of `fd`.

    Raises
    ------
    OSError
        If `fd` is no network namespace, or it may not be entered.
    """
    if _LIBC.setns(fd, _CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot enter the network namespace: {os.strerror(error)}")


@contextlib.contextmanager
def inside(fd: int) -> Iterator[None]:
    """Have the calling thread in the network namespace of `fd` for the body of a `with`.

    Sockets made there stay there; other threads are not moved.
    """
    home = own_namespace()
    try:
        enter_network(fd)
        try:
            yield
        finally:
            enter_network(home)
    finally:
        os.close(home)


def new_namespace() -> int:
    """Return a descriptor of a new network namespace, which lives as long as it is open.

    Raises
    ------
    netem.errors.Unsupported
        Where that is not allowed.
    """
    home = own_namespace()
    try:
        unshare_network()
        try:
            return own_namespace()
        finally:
            enter_network(home)
    finally:
        os.close(home)
