"""Shaping of one interface by the kernel: HTB sorts by destination, a netem leaf makes the link.

Inside HTB's root each destination has a class, to which a u32 filter on the IP destination leads.
The class itself does not limit: rate, delay, jitter and loss are all netem's, because netem keeps
the order of packets when the rate is its own, also with jitter. What no filter takes (ARP) leaves
unshaped. A link without any property needs no leaf, so plain links work where the kernel lacks
sch_netem.
"""

from __future__ import annotations

import errno
import math
import socket
from dataclasses import replace
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import common, sched_netem

from netem.capabilities import HTB_REMEDY, NETEM_REMEDY
from netem.engines.base import PairStats
from netem.errors import EngineError, Unsupported
from netem.plan import Link

_ROOT = 1 << 16
_ETH_P_IP = 0x0800
_ETHERNET_HEADER_BYTES = 14
# More than any veth moves; the burst is what a class may send at once, so of no effect either.
_UNLIMITED = {"rate": 125_000_000_000, "burst": 125_000_000, "cburst": 125_000_000}
_LARGEST_RATE = (1 << 32) - 1  # bytes/s, the width of netem's field
_LARGEST_LOSS = (1 << 32) - 1
# netem counts its queue in packets, and those on their way belong to it.
_TYPICAL_PACKET_BYTES = 1500
_QUEUE_S = 0.05
_LEAST_QUEUE_PACKETS = 64
_UNLIMITED_QUEUE_RATE = 5e9  # bytes/s

# pyroute2 would send a netem rate also as TCA_RATE, a rate estimator, which the kernel refuses.
if not hasattr(sched_netem, "fix_request"):
    sched_netem.fix_request = lambda request: request.pop("rate", None)


def needs_netem(link: Link) -> bool:
    """Return whether a link differs from a plain one."""
    return link != Link()


def netem_options(link: Link) -> dict[str, int | float]:
    """Return a link as pyroute2's netem takes it: microseconds, percent, bytes per second, packets.

    Raises
    ------
    netem.errors.Unsupported
        For a rate that netem cannot hold.
    """
    rate = 0
    if link.rate_bps is not None:
        rate = max(round(link.rate_bps / 8), 1)
        if rate >= _LARGEST_RATE:
            raise Unsupported(
                f"a rate of {link.rate_bps:g} bit/s is more than netem's 34e9; "
                "leave it out (unlimited), or lower the plan's rate_scale"
            )
    elif link.jitter_s > 0:
        # Without any rate netem would send packets of one flow in the order of their jitter.
        rate = _LARGEST_RATE
    return {
        "delay": round(link.delay_s * 1e6),
        "jitter": round(link.jitter_s * 1e6),
        "loss": 100.0 * link.loss if link.up else 100.0,
        "rate": rate,
        "limit": queue_packets(link),
    }


def queue_packets(link: Link) -> int:
    """Return how many packets a link holds, those under way included.

    Two bandwidth-delay products and 50 ms, of packets of 1,500 bytes.
    """
    rate = _UNLIMITED_QUEUE_RATE if link.rate_bps is None else link.rate_bps / 8
    held_bytes = rate * (2 * (link.delay_s + link.jitter_s) + _QUEUE_S)
    return min(max(math.ceil(held_bytes / _TYPICAL_PACKET_BYTES), _LEAST_QUEUE_PACKETS), 1 << 30)


def link_of(options: Any) -> Link:
    """Return the link that netem's options, as the kernel reports them, amount to.

    A loss of everything is a cut, whose earlier loss the kernel does not know.
    """
    rate = options.get_attr("TCA_NETEM_RATE")
    rate_bytes = rate["rate"] if rate else 0
    ticks_per_s = common.tick_in_usec * 1e6
    cut = options["loss"] == _LARGEST_LOSS
    return Link(
        delay_s=options["delay"] / ticks_per_s,
        jitter_s=options["jitter"] / ticks_per_s,
        loss=0.0 if cut else options["loss"] / _LARGEST_LOSS,
        rate_bps=None if rate_bytes in (0, _LARGEST_RATE) else 8.0 * rate_bytes,
        up=not cut,
    )


class Shaper:
    """The queueing disciplines of one interface; a link per destination.

    Parameters
    ----------
    netlink
        In the interface's namespace; stays the caller's.
    index
        Of the interface, which has no discipline of its own yet.

    Raises
    ------
    netem.errors.Unsupported
        Where the kernel has no HTB.
    """

    def __init__(self, netlink: IPRoute, index: int) -> None:
        self._netlink = netlink
        self._index = index
        self._leaves: set[int] = set()
        self._tc("make the root", HTB_REMEDY, "add", "htb", handle=_ROOT, default=0)

    def add(self, dst: int, address: str, link: Link) -> None:
        """Shape what goes to the site `dst` at `address`.

        Raises
        ------
        netem.errors.Unsupported
            Where the kernel lacks what is needed.
        netem.errors.EngineError
            If the kernel refuses.
        """
        # The quantum only shares bandwidth out between classes that lack it, which none does.
        options: dict[str, Any] = _UNLIMITED | {
            "quantum": 1 << 16,
            "handle": _class(dst),
            "parent": _ROOT,
        }
        self._tc(f"make the class for {address}", HTB_REMEDY, "add-class", "htb", **options)
        self.set_link(dst, link)
        destination = int.from_bytes(socket.inet_aton(address))
        options = {
            "parent": _ROOT,
            "prio": 1,
            "protocol": _ETH_P_IP,
            "target": _class(dst),
            "keys": [f"0x{destination:08x}/0xffffffff+16"],
        }
        self._tc(f"make the filter for {address}", HTB_REMEDY, "add-filter", "u32", **options)

    def set_link(self, dst: int, link: Link) -> None:
        """Change a link in place; packets under way keep their time of arrival.

        Raises
        ------
        netem.errors.Unsupported
            Where the kernel lacks netem, or for a rate that it cannot hold.
        netem.errors.EngineError
            If the kernel refuses.
        """
        if dst not in self._leaves and not needs_netem(link):
            return
        self._tc(
            f"shape the link to site {dst}",
            NETEM_REMEDY,
            "change" if dst in self._leaves else "add",
            "netem",
            handle=_leaf(dst),
            parent=_class(dst),
            **netem_options(link),
        )
        self._leaves.add(dst)

    def read_links(self) -> dict[int, Link]:
        """Return what the kernel holds, by destination.

        Raises
        ------
        netem.errors.EngineError
            If it cannot be read.
        """
        held = {_site(m["handle"]): Link() for m in self._dump("get_classes", "htb")}
        for message in self._dump("get_qdiscs", "netem"):
            held[_site(message["parent"])] = link_of(message.get_attr("TCA_OPTIONS"))
        return held

    def stats(self) -> dict[int, PairStats]:
        """Return what was sent and dropped, by destination, since the shaper was made.

        Raises
        ------
        netem.errors.EngineError
            If it cannot be read.
        """
        counted = {_site(m["handle"]): _counts(m) for m in self._dump("get_classes", "htb")}
        for message in self._dump("get_qdiscs", "netem"):
            # A class does not see what its leaf loses on purpose.
            dst = _site(message["parent"])
            counted[dst] = replace(counted[dst], dropped=_counts(message).dropped)
        return counted

    def _dump(self, method: str, kind: str) -> list[Any]:
        try:
            messages = list(getattr(self._netlink, method)(index=self._index))
        except (NetlinkError, OSError) as error:
            raise EngineError(f"cannot read what the kernel holds: {reason_of(error)}") from error
        return [message for message in messages if message.get_attr("TCA_KIND") == kind]

    def _tc(self, what: str, remedy: str, command: str, kind: str, **options: Any) -> None:
        try:
            self._netlink.tc(command, kind, self._index, **options)
        except (NetlinkError, OSError) as error:
            code = error.code if isinstance(error, NetlinkError) else error.errno
            if code == errno.ENOENT and command.startswith("add"):
                raise Unsupported(
                    f"cannot {what}: the kernel lacks what it needs; {remedy}"
                ) from error
            raise EngineError(f"cannot {what}: the kernel says {reason_of(error)}") from error


def _class(dst: int) -> int:
    return _ROOT + dst + 1


def _site(handle: int) -> int:
    return handle - _ROOT - 1


def _leaf(dst: int) -> int:
    return (dst + 2) << 16


def _counts(message: Any) -> PairStats:
    stats = message.get_attr("TCA_STATS2")
    basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
    frames = basic["packets"]
    return PairStats(basic["bytes"] - frames * _ETHERNET_HEADER_BYTES, frames, queue["drops"])


def reason_of(error: Exception) -> str:
    """Return what the kernel says, without its number."""
    return str(error.args[1]) if len(error.args) > 1 else str(error)
