"""Joins the bridges of a job's machines by VXLAN, so that its sites are one network."""

from __future__ import annotations

import errno
import time

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netem.errors import AddressInUse, EngineError, Unsupported
from netem.underlay import Underlay

# Outer IPv4, UDP and VXLAN headers, and the Ethernet header inside.
OVERHEAD_BYTES = 20 + 8 + 8 + 14
_USUAL_MTU_BYTES = 1500
_LEAST_MTU_BYTES = 576
_FLOOD = "00:00:00:00:00:00"
# How long the tunnel of an engine that was killed may take to vanish with its namespace.
_PATIENCE_S = 5.0
_PAUSE_S = 0.05


def tunnel_mtu(machine: IPRoute, underlay: Underlay) -> int:
    """Return the largest IP packet, in bytes, that crosses the tunnel without being cut.

    It is the same on machines of the usual MTU of 1,500 bytes or more, and less on others.

    Parameters
    ----------
    machine
        Netlink in the machine's network namespace.
    underlay
        How the others are reached.

    Raises
    ------
    netem.errors.EngineError
        If the machine does not have its address, or an interface with too small an MTU.
    """
    for message in machine.get_addr(family=2):
        if message.get_attr("IFA_LOCAL") == underlay.local:
            (link,) = machine.get_links(message["index"])
            name, mtu = link.get_attr("IFLA_IFNAME"), link.get_attr("IFLA_MTU")
            inner = int(min(mtu, _USUAL_MTU_BYTES)) - OVERHEAD_BYTES
            if inner < _LEAST_MTU_BYTES:
                raise EngineError(
                    f"the MTU of {name}, {mtu}, is too small for a tunnel: it needs "
                    f"{_LEAST_MTU_BYTES + OVERHEAD_BYTES}"
                )
            return inner
    raise EngineError(
        f"this machine has no interface with the address {underlay.local}; name the one by which "
        "the job's other machines reach it"
    )


def add_tunnel(
    machine: IPRoute,
    bridges: IPRoute,
    namespace: int,
    name: str,
    bridge: int,
    underlay: Underlay,
) -> None:
    """Make a VXLAN device to the job's other machines as a port of a bridge.

    It stands in the namespace that is given from its beginning, while its packets use the
    machine's network. It ends with either.

    Parameters
    ----------
    machine
        Netlink in the machine's network namespace.
    bridges
        Netlink in the namespace of the bridge.
    namespace
        Descriptor of that namespace.
    name
        Of the device.
    bridge
        Index of the bridge.
    underlay
        How the others are reached.

    Raises
    ------
    netem.errors.Unsupported
        Where the kernel has no VXLAN.
    netem.errors.AddressInUse
        If the network identifier or the port has another use on this machine.
    netem.errors.EngineError
        If the kernel refuses something else.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            machine.link(
                "add",
                ifname=name,
                kind="vxlan",
                net_ns_fd=namespace,
                mtu=tunnel_mtu(machine, underlay),
                vxlan_id=underlay.vni,
                vxlan_local=underlay.local,
                vxlan_port=underlay.port,
                vxlan_learning=1,
            )
            break
        except NetlinkError as error:
            if error.code != errno.EEXIST or time.monotonic() > deadline_s:
                raise _refusal(error, underlay) from error
            # There is no event to wait for: it is in another namespace.
            time.sleep(_PAUSE_S)
    (index,) = bridges.link_lookup(ifname=name)
    # What has no known place yet (and ARP's questions) goes to all other machines.
    for peer in underlay.peers:
        bridges.fdb("append", ifindex=index, lladdr=_FLOOD, dst=peer)
    try:
        bridges.link("set", index=index, state="up", master=bridge)
    except NetlinkError as error:
        raise _refusal(error, underlay) from error


def _refusal(error: NetlinkError, underlay: Underlay) -> Exception:
    if error.code == errno.EOPNOTSUPP:
        return Unsupported(
            "links between several machines need VXLAN, which the kernel lacks; `modprobe vxlan`"
        )
    if error.code == errno.EEXIST:
        return AddressInUse(
            f"the VXLAN network identifier {underlay.vni} is in use on this machine, by another "
            "job or program; take another for all machines of this job"
        )
    if error.code == errno.EADDRINUSE:
        return AddressInUse(
            f"the UDP port {underlay.port} is in use on this machine, by something else than "
            "VXLAN; take another for all machines of this job"
        )
    return EngineError(f"cannot make the tunnel to the other machines: {error.args[1]}")
