"""A TUN device as a site's `eth0`: opened and configured from inside its namespace."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct

from netem.errors import Unsupported

DEVICE = "/dev/net/tun"
MTU_BYTES = 1500

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000
_TUNSETOFFLOAD = 0x400454D0
_TUN_F_CSUM = 0x01
_TUN_F_TSO4 = 0x02
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_SIOCSIFMTU = 0x8922
_SIOCSIFTXQLEN = 0x8943
_IFF_UP = 0x1
_QUEUE_PACKETS = 10_000


def open_tun(name: str, address: str, netmask: str, mtu_bytes: int = MTU_BYTES) -> int:
    """Make a TUN device in the calling thread's network namespace and bring it up.

    Parameters
    ----------
    name
        Of the interface, such as `eth0`.
    address, netmask
        IPv4, dotted.
    mtu_bytes
        Largest IP packet.

    Returns
    -------
    int
        The descriptor: each read is one packet that the site sent, each write one that it
        receives, both after a `struct virtio_net_hdr` of 10 bytes and up to 64 KiB of one TCP flow
        at once (checksums and segmentation are left to the reader). Not blocking, closed on exec.

    Raises
    ------
    netem.errors.Unsupported
        Where /dev/net/tun is missing or may not be opened.
    """
    try:
        fd = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unsupported(
            f"cannot open {DEVICE}: {error.strerror}; load it with `modprobe tun` and allow it "
            f"with `chmod 0666 {DEVICE}`, as root"
        ) from error
    try:
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        # Moving segments whole saves most of the emulator's work, which is per packet.
        fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
        _configure(name, address, netmask, mtu_bytes)
    except OSError as error:
        os.close(fd)
        raise Unsupported(
            f"cannot make the TUN device {name}: {error.strerror}; it needs CAP_NET_ADMIN in its "
            "network namespace (root, or a user namespace of its own)"
        ) from error
    return fd


def bring_up(name: str) -> None:
    """Set an interface of the calling thread's network namespace up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _bring_up(control, name)


def _configure(name: str, address: str, netmask: str, mtu_bytes: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", name.encode(), mtu_bytes))
        # The default queue of 500 packets is less than a window of 1 Gbit/s.
        with contextlib.suppress(PermissionError):
            fcntl.ioctl(
                control, _SIOCSIFTXQLEN, struct.pack("16si20x", name.encode(), _QUEUE_PACKETS)
            )
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, netmask)):
            inet = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(control, request, struct.pack("16s16s8x", name.encode(), inet))
        _bring_up(control, name)


def _bring_up(control: socket.socket, name: str) -> None:
    reply = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
    flags = struct.unpack("16sH22x", reply)[1] | _IFF_UP
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), flags))
