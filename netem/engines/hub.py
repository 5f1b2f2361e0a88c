"""The machine's own end of a job's links: an interface beside the machine's others."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import time
from collections.abc import Iterator

from pyroute2 import IPRoute

from netem import cleanup
from netem.errors import AddressInUse, EngineError

_ROUTE_TABLE_MAIN = 254
_PATIENCE_S = 10.0
_CANDIDATES = ("10.77.0.0", "10.88.0.0", "10.99.0.0", "172.29.0.0", "192.168.77.0", "198.18.0.0")


@contextlib.contextmanager
def turn(namespace: int) -> Iterator[None]:
    """Have the machine's network to oneself, among engines, for the body of a `with`.

    Parameters
    ----------
    namespace
        Descriptor of the machine's network namespace.

    Raises
    ------
    netem.errors.EngineError
        If another engine keeps it for longer than it can have need of.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(namespace, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if time.monotonic() > deadline_s:
                raise EngineError(
                    f"another link daemon has been starting for {_PATIENCE_S:g} s; "
                    "end it if it hangs"
                ) from error
            # A lock that comes free is no event that could be waited for within a time.
            time.sleep(0.01)
    try:
        yield
    finally:
        fcntl.flock(namespace, fcntl.LOCK_UN)


def configure_hub(
    machine: IPRoute, name: str, interface: ipaddress.IPv4Interface, owner: cleanup.Owner
) -> None:
    """Give the hub's interface its owner and its address, and bring it up.

    Parameters
    ----------
    machine
        Netlink in the machine's network namespace.
    name
        Of the interface, which exists.
    interface
        Its address with the subnet of the job.
    owner
        Who is responsible for it.
    """
    (index,) = machine.link_lookup(ifname=name)
    machine.link("set", index=index, ifalias=owner.to_text(), state="up")
    length = interface.network.prefixlen
    machine.addr("add", index=index, address=str(interface.ip), prefixlen=length)


def refuse_overlap(machine: IPRoute, network: ipaddress.IPv4Network) -> None:
    """Raise if the machine uses addresses of a network.

    Parameters
    ----------
    machine
        Netlink in the machine's network namespace.
    network
        The addresses that a job wants.

    Raises
    ------
    netem.errors.AddressInUse
        With who uses them, and a subnet that is free.
    """
    used = dict(_used(machine))
    for taken, index in used.items():
        if taken.overlaps(network):
            raise AddressInUse(
                f"the machine uses {taken} already ({_whose(machine, index)}), which overlaps "
                f"the plan's subnet {network}; {_suggestion(network, used)}"
            )


def _used(machine: IPRoute) -> Iterator[tuple[ipaddress.IPv4Network, int]]:
    for message in machine.get_addr(family=2):
        address = f"{message.get_attr('IFA_ADDRESS')}/{message['prefixlen']}"
        yield ipaddress.IPv4Network(address, strict=False), message["index"]
    for message in machine.get_routes(family=2, table=_ROUTE_TABLE_MAIN):
        destination, index = message.get_attr("RTA_DST"), message.get_attr("RTA_OIF")
        if destination is not None and index is not None:
            yield ipaddress.IPv4Network(f"{destination}/{message['dst_len']}", strict=False), index


def _whose(machine: IPRoute, index: int) -> str:
    for message in machine.get_links(index):
        name = message.get_attr("IFLA_IFNAME")
        with contextlib.suppress(ValueError):
            owner = cleanup.Owner.from_text(message.get_attr("IFLA_IFALIAS") or "")
            return f"{name}, of the netem job {owner.job} of process {owner.pid}"
        return f"interface {name}"
    return f"interface {index}"


def _suggestion(network: ipaddress.IPv4Network, used: dict[ipaddress.IPv4Network, int]) -> str:
    for base in _CANDIDATES:
        other = ipaddress.IPv4Network(f"{base}/{max(network.prefixlen, 16)}", strict=False)
        if base == "192.168.77.0" and network.prefixlen < 24:
            continue
        if not any(taken.overlaps(other) for taken in used):
            return f"write another in the plan, such as `subnet: {other}`"
    return "write another `subnet` in the plan"
