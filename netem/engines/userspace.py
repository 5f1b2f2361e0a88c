"""The backend that needs nothing from the kernel but TUN: this process carries every packet."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from netem.engines.base import PairStats
from netem.engines.forwarder import Forwarder
from netem.errors import EngineError
from netem.plan import Link, Plan

_TUNGETIFF = 0x800454D2
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000
_NEEDED = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR


class UserspaceEngine:
    """Links between TUN devices, one per site, as `netem.tun.open_tun` makes them.

    It serves one thread, and works without any privilege. A site that is detached can send for
    `netem.engines.forwarder.LINGER_S` more, so that its connections end as those of a killed
    process do; another device can be attached for it at once.

    Parameters
    ----------
    plan
        Gives the addresses. The links are what `set_link` says; before that they are unlimited.
    job
        Not used: nothing here has a name on the machine.
    """

    name = "userspace"

    def __init__(self, plan: Plan, job: str = "") -> None:
        self._sites = plan.sites
        self._forwarder = Forwarder(
            [socket.inet_aton(plan.address(site)) for site in range(len(plan.sites))]
        )

    def attach(self, site: int, fd: int) -> None:
        """Connect a site by its TUN device, and take ownership of `fd` (also when this raises).

        Raises
        ------
        netem.errors.EngineError
            If the site is attached already, or `fd` is not a TUN device with `VNET_HDR`.
        """
        try:
            if self._forwarder.connected(site):
                raise EngineError(
                    f"site {site} ({self._sites[site]}) is attached already; each site's process "
                    "enters once, and another may take its place when it has ended"
                )
            _check_tun(site, fd)
            os.set_blocking(fd, False)
            self._forwarder.connect(site, fd)
        except BaseException:
            os.close(fd)
            raise

    def detach(self, site: int) -> None:
        """Disconnect a site; no error if it is not there."""
        self._forwarder.disconnect(site)

    def set_link(self, src: int, dst: int, link: Link) -> None:
        """Shape what `src` sends to `dst`, at any time.

        What waits in the link's queue leaves as the new link says, what has left it arrives as it
        would have; a cut loses both.
        """
        self._forwarder.set_link(src, dst, link)

    def stats(self) -> dict[tuple[int, int], PairStats]:
        """Count per ordered pair what arrived and what was dropped; pairs without packets lack."""
        return self._forwarder.stats()

    def fileno(self) -> int:
        """Return the descriptor that is readable when `process` has work."""
        return self._forwarder.fileno()

    def process(self) -> None:
        """Move what can be moved now, for a few milliseconds at most."""
        self._forwarder.process()

    def next_timeout_s(self) -> float | None:
        """Return in how many seconds `process` must be called at the latest; None: no need."""
        return self._forwarder.next_timeout_s()

    def close(self) -> None:
        """Close every device at once; a second call does nothing."""
        self._forwarder.close()


def _check_tun(site: int, fd: int) -> None:
    try:
        reply = fcntl.ioctl(fd, _TUNGETIFF, bytes(40))
    except OSError as error:
        raise EngineError(
            f"what site {site} handed over is not a TUN device: {error.strerror}; "
            "open it by netem.tun.open_tun"
        ) from error
    flags = struct.unpack_from("16xH", reply)[0]
    if flags & _NEEDED != _NEEDED:
        raise EngineError(
            f"the TUN device of site {site} has flags {flags:#06x} and lacks some of {_NEEDED:#06x}"
            " (IFF_TUN, IFF_NO_PI, IFF_VNET_HDR); open it by netem.tun.open_tun"
        )
