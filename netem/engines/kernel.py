"""Backend `kernel`: a veth pair per site into a bridge, shaped by the kernel itself.

The bridge stands in a network namespace of the engine's own, and nothing joins it with the
machine's network. So no firewall rule of the machine touches it (Docker's drop what is bridged), no
name or address in it can collide with another job's or the machine's, and whatever ends the
process, SIGKILL too, ends the namespace and all links with it. With an underlay a VXLAN device
(`netem.engines.tunnel`) joins it with the bridges of the job's other machines. What a site sends is
shaped as it leaves the site, so it does not matter on which machine the other one is.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netem import namespaces
from netem.capabilities import HTB_REMEDY, NETEM_REMEDY, has_qdisc
from netem.engines.base import PairStats
from netem.engines.qdisc import Shaper, needs_netem, netem_options, reason_of
from netem.engines.tunnel import add_tunnel, tunnel_mtu
from netem.errors import EngineError, Unsupported
from netem.plan import Link, LinkTable, Plan
from netem.tun import MTU_BYTES
from netem.underlay import Underlay

BRIDGE = "br0"
INTERFACE = "eth0"
_TUNNEL = "vxlan0"
# How long what a connection sends at once may occupy a link, and the kernel's own limit to it.
_BURST_S = 0.001
_MOST_SEGMENTS = 64
# A FIN may be under way still, and data to a dead site be answered: nobody waits longer for that.
_LONGEST_LINGER_S = 10.0
_SHORTEST_LINGER_S = 1.0


@dataclass
class _Port:
    """A site that is attached, or was until a moment ago."""

    site: int
    namespace: int
    netlink: IPRoute
    index: int
    shaper: Shaper
    segments: int = 0
    gone_at_s: float = 0.0


class KernelEngine:
    """The links of a job, made of veth, HTB and netem; for one thread.

    Parameters
    ----------
    plan
        The sites and, until `set_link` says otherwise, their links.
    underlay
        How the job's other machines are reached, if there are any.

    Raises
    ------
    netem.errors.Unsupported
        Where the kernel or the user's rights do not do, with the remedy.
    netem.errors.AddressInUse
        If the underlay's network identifier or port has another use on this machine.
    netem.errors.EngineError
        If the kernel refuses something else.
    """

    name = "kernel"

    def __init__(self, plan: Plan, underlay: Underlay | None = None) -> None:
        self._plan = plan
        self._links = {pair: plan.link(*pair) for pair in plan.pairs()}
        self._scheduled = tuple(_scheduled(plan))
        self._ports: dict[int, _Port] = {}
        self._leaving: dict[int, _Port] = {}
        self._counted: dict[tuple[int, int], PairStats] = {}
        self._closed = False
        self._require_disciplines()
        with contextlib.ExitStack() as undo, _explained("make the bridge"):
            self._namespace = namespaces.new_namespace()
            undo.callback(os.close, self._namespace)
            with namespaces.inside(self._namespace):
                # Where /proc/sys cannot be written, IPv6's own chatter on the bridge is no harm.
                with contextlib.suppress(OSError):
                    Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
                self._netlink = undo.enter_context(IPRoute(groups=0))
            self._netlink.link("add", ifname=BRIDGE, kind="bridge", mtu=MTU_BYTES)
            self._bridge = _bring_up(self._netlink, BRIDGE)
            self._mtu_bytes = MTU_BYTES if underlay is None else self._join(underlay)
            undo.pop_all()

    @property
    def bridge_namespace(self) -> int:
        """Descriptor of the namespace that holds the bridge `br0`; it stays the engine's."""
        return self._namespace

    def attach(self, site: int, fd: int) -> None:
        """Make `eth0` in the network namespace `fd`, and take ownership of it.

        Raises
        ------
        netem.errors.NetemError
            When it cannot be done; nothing is left of the try then.
        """
        with contextlib.ExitStack() as undo, _explained(f"attach site {site}"):
            undo.callback(os.close, fd)
            address = self._plan.address(site)
            if site in self._ports:
                raise EngineError(f"site {site} is attached already; detach it first")
            if site in self._leaving:
                self._remove(self._leaving.pop(site))
            with namespaces.inside(fd):
                netlink = undo.enter_context(IPRoute(groups=0))
            # The one of an engine that died just now may not have vanished yet.
            _delete(netlink, INTERFACE)
            undo.callback(_delete, self._netlink, _port_name(site))
            # The same hardware address every time: peers need not learn it anew.
            hardware = f"02:6e:74:6d:{site >> 8:02x}:{site & 255:02x}"
            self._make_pair(_port_name(site), INTERFACE, fd, address=hardware)
            index = _index(netlink, INTERFACE)
            port = _Port(site, fd, netlink, index, Shaper(netlink, index))
            for dst in range(len(self._plan.sites)):
                if dst != site:
                    port.shaper.add(dst, self._plan.address(dst), self._links[site, dst])
            self._limit_segments(port)
            length = self._plan.prefix_length
            netlink.addr("add", index=index, address=address, prefixlen=length)
            _bring_up(netlink, INTERFACE)
            _bring_up(self._netlink, _port_name(site), master=self._bridge)
            undo.pop_all()
        self._ports[site] = port

    def detach(self, site: int) -> None:
        """Let a site go; its namespace stays until what it has sent has arrived."""
        port = self._ports.pop(site, None)
        if port is None:
            return
        delays_s = [k.delay_s + k.jitter_s for pair, k in self._links.items() if site in pair]
        linger_s = _SHORTEST_LINGER_S + 4 * max(delays_s, default=0.0)
        port.gone_at_s = time.monotonic() + min(linger_s, _LONGEST_LINGER_S)
        self._leaving[site] = port

    def set_link(self, src: int, dst: int, link: Link) -> None:
        """Shape what `src` sends to `dst`, in place; `link.rate_bps` holds the plan's scale.

        Raises
        ------
        netem.errors.NetemError
            If the kernel cannot; the link is then as it was.
        """
        if (src, dst) not in self._links:
            raise EngineError(f"no link from site {src} to site {dst} in this plan")
        netem_options(link)
        port = self._ports.get(src)
        if port is not None:
            with _explained(f"shape what site {src} sends"):
                port.shaper.set_link(dst, link)
        self._links[src, dst] = link
        if port is not None:
            with _explained(f"shape what site {src} sends"):
                self._limit_segments(port)

    def read_links(self) -> dict[tuple[int, int], Link]:
        """Return what the kernel holds, for every link out of an attached site.

        Times are in netem's units of 64 ns, rates in whole bytes per second; the loss of a link
        that is cut reads 0.

        Raises
        ------
        netem.errors.EngineError
            If it cannot be read.
        """
        return {
            (src, dst): link
            for src, port in self._ports.items()
            for dst, link in port.shaper.read_links().items()
        }

    def stats(self) -> dict[tuple[int, int], PairStats]:
        """Return what each ordered pair has sent, over all times that the sender was attached."""
        total = dict(self._counted)
        for port in (*self._leaving.values(), *self._ports.values()):
            _add(total, port)
        return total

    def fileno(self) -> int | None:
        """Return None: the kernel moves the packets."""
        return None

    def process(self) -> None:
        """Remove those that have left and whose last packets have arrived."""
        now_s = time.monotonic()
        for port in [port for port in self._leaving.values() if port.gone_at_s <= now_s]:
            self._remove(self._leaving.pop(port.site))

    def next_timeout_s(self) -> float | None:
        """Return in how many seconds one that has left is to be removed; None: there is none."""
        due_s = min((port.gone_at_s for port in self._leaving.values()), default=None)
        return None if due_s is None else max(0.0, due_s - time.monotonic())

    def close(self) -> None:
        """Remove all links and the bridge; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as undo, _explained("remove the links"):
            undo.callback(os.close, self._namespace)
            undo.enter_context(self._netlink)
            # The kernel removes what is in a namespace that has ended, but only a while later.
            undo.callback(_delete, self._netlink, _TUNNEL)
            for port in (*self._ports.values(), *self._leaving.values()):
                undo.callback(self._remove, port)
            self._ports.clear()
            self._leaving.clear()

    def _require_disciplines(self) -> None:
        links = [*self._links.values(), *self._scheduled]
        for link in links:
            netem_options(link)
        cannot = "the backend `kernel` cannot work here: the kernel has no"
        if not has_qdisc("htb"):
            raise Unsupported(f"{cannot} sch_htb; {HTB_REMEDY}")
        if any(needs_netem(link) for link in links) and not has_qdisc("netem"):
            raise Unsupported(f"{cannot} sch_netem; {NETEM_REMEDY}")

    def _limit_segments(self, port: _Port) -> None:
        # What a connection sends at once is one packet to the queues, of up to 64 KB, unless told
        # otherwise: loss would hit bursts, and slow links move in jerks. A connection asks at its
        # beginning, so links that the plan has for later count from the start.
        links = [link for (src, _), link in self._links.items() if src == port.site]
        segments = min(map(_segments, (*links, *self._scheduled)), default=_MOST_SEGMENTS)
        if segments != port.segments:
            port.netlink.link("set", index=port.index, gso_max_segs=segments)
            port.segments = segments

    def _join(self, underlay: Underlay) -> int:
        """Join the bridge with the other machines' ones, and return the MTU of the whole."""
        with IPRoute(groups=0) as machine:
            mtu_bytes = tunnel_mtu(machine, underlay)
            add_tunnel(machine, self._netlink, self._namespace, _TUNNEL, self._bridge, underlay)
        return mtu_bytes

    def _make_pair(self, name: str, peer: str, namespace: int, **options: str) -> None:
        mtu = self._mtu_bytes
        inner = {"ifname": peer, "mtu": mtu, "net_ns_fd": namespace, **options}
        self._netlink.link("add", ifname=name, kind="veth", mtu=mtu, peer=inner)

    def _remove(self, port: _Port) -> None:
        with contextlib.ExitStack() as undo, _explained(f"detach site {port.site}"):
            undo.callback(os.close, port.namespace)
            undo.enter_context(port.netlink)
            undo.callback(_delete, self._netlink, _port_name(port.site))
            _add(self._counted, port)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (NetlinkError, OSError) as error:
        raise EngineError(f"cannot {what}: the kernel says {reason_of(error)}") from error


def _port_name(site: int) -> str:
    return f"site{site}"


def _bring_up(netlink: IPRoute, name: str, **options: Any) -> int:
    index = _index(netlink, name)
    netlink.link("set", index=index, state="up", **options)
    return index


def _index(netlink: IPRoute, name: str) -> int:
    for index in netlink.link_lookup(ifname=name):
        return int(index)
    raise EngineError(f"the interface {name} has vanished")


def _delete(netlink: IPRoute, name: str) -> None:
    for index in netlink.link_lookup(ifname=name):
        netlink.link("del", index=index)


def _segments(link: Link) -> int:
    if link.loss > 0:
        return 1
    if link.rate_bps is None:
        return _MOST_SEGMENTS
    return min(max(int(link.rate_bps / 8 * _BURST_S / MTU_BYTES), 1), _MOST_SEGMENTS)


def _scheduled(plan: Plan) -> Iterator[Link]:
    table = LinkTable(plan)
    for change in sorted(plan.schedule, key=lambda change: change.at_s):
        yield from (plan.scaled(link) for _, _, link in table.changed(change))
        table.apply(change)


def _add(total: dict[tuple[int, int], PairStats], port: _Port) -> None:
    for dst, sent in port.shaper.stats().items():
        before = total.get((port.site, dst), PairStats(0, 0, 0))
        total[port.site, dst] = PairStats(
            before.bytes + sent.bytes,
            before.packets + sent.packets,
            before.dropped + sent.dropped,
        )
