"""Network namespaces that play machines on one network."""

import contextlib
import os
from collections.abc import Iterator

from pyroute2 import IPRoute

from netem import namespaces
from netem.underlay import Underlay


def underlay(number: int, count: int, vni: int) -> Underlay:
    """How the machine of a number reaches the others."""
    addresses = [f"192.0.2.{each + 1}" for each in range(count)]
    return Underlay(local=addresses.pop(number), peers=tuple(addresses), vni=vni)


@contextlib.contextmanager
def machines(count: int, mtu_bytes: int = 1500) -> Iterator[list[int]]:
    """Yield descriptors of namespaces whose interfaces `up0`, `up1`, ... share a switch."""
    with contextlib.ExitStack() as stack:
        fds = []
        for _ in range(count + 1):
            fds.append(namespaces.new_namespace())
            stack.callback(os.close, fds[-1])
        switch, *nodes = fds
        with namespaces.inside(switch):
            netlink = stack.enter_context(IPRoute(groups=0))
        netlink.link("add", ifname="switch", kind="bridge", mtu=mtu_bytes)
        (bridge,) = netlink.link_lookup(ifname="switch")
        netlink.link("set", index=bridge, state="up")
        for number, node in enumerate(nodes):
            name, inner = f"port{number}", f"up{number}"
            peer = {"ifname": inner, "mtu": mtu_bytes, "net_ns_fd": node}
            netlink.link("add", ifname=name, kind="veth", mtu=mtu_bytes, peer=peer)
            (port,) = netlink.link_lookup(ifname=name)
            netlink.link("set", index=port, state="up", master=bridge)
            with namespaces.inside(node), IPRoute(groups=0) as machine:
                (index,) = machine.link_lookup(ifname=inner)
                machine.addr("add", index=index, address=f"192.0.2.{number + 1}", prefixlen=24)
                machine.link("set", index=index, state="up")
                machine.link("set", index=1, state="up")
        yield nodes
