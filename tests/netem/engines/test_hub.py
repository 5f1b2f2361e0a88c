import ipaddress
import os
import threading
from collections.abc import Iterator

import pytest
from pyroute2 import IPRoute

from netem import namespaces
from netem.cleanup import Owner
from netem.engines import hub
from netem.engines.hub import configure_hub, refuse_overlap, turn
from netem.errors import AddressInUse, EngineError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

WANTED = ipaddress.IPv4Network("10.77.0.0/16")


@pytest.fixture
def machine() -> Iterator[IPRoute]:
    """Netlink in a namespace that plays the machine's own network, with interfaces `a` and `b`."""
    fd = namespaces.new_namespace()
    try:
        with namespaces.inside(fd), IPRoute(groups=0) as netlink:
            for name in ("a", "b"):
                netlink.link("add", ifname=name, kind="bridge")
            yield netlink
    finally:
        os.close(fd)


def index_of(machine: IPRoute, name: str) -> int:
    (index,) = machine.link_lookup(ifname=name)
    return int(index)


def give(machine: IPRoute, name: str, address: str, length: int) -> None:
    index = index_of(machine, name)
    machine.addr("add", index=index, address=address, prefixlen=length)
    machine.link("set", index=index, state="up")


@pytest.mark.parametrize(("address", "length"), [("10.77.3.4", 32), ("10.1.1.1", 8)])
def test_addresses_within_and_around_are_seen(machine: IPRoute, address: str, length: int) -> None:
    give(machine, "a", address, length)
    with pytest.raises(AddressInUse, match="interface a") as caught:
        refuse_overlap(machine, WANTED)
    suggested = ipaddress.IPv4Network(str(caught.value).rpartition("`subnet: ")[2].rstrip("`"))
    assert suggested.is_private
    refuse_overlap(machine, suggested)


def test_routes_are_seen(machine: IPRoute) -> None:
    give(machine, "a", "192.168.5.1", 24)
    machine.route("add", dst="10.77.128.0/17", oif=index_of(machine, "a"))
    with pytest.raises(AddressInUse, match=r"10\.77\.128\.0/17"):
        refuse_overlap(machine, WANTED)


def test_a_default_route_and_other_addresses_are_no_matter(machine: IPRoute) -> None:
    give(machine, "a", "10.78.0.1", 16)
    machine.route("add", dst="default", gateway="10.78.0.2", oif=index_of(machine, "a"))
    refuse_overlap(machine, WANTED)


def test_where_all_suggestions_are_taken_none_is_made(machine: IPRoute) -> None:
    for address, length in (("10.1.1.1", 8), ("172.16.0.1", 12), ("198.18.0.1", 15)):
        give(machine, "a", address, length)
    with pytest.raises(AddressInUse, match="write another `subnet` in the plan"):
        refuse_overlap(machine, WANTED)


def test_a_configured_hub_names_its_owner(machine: IPRoute) -> None:
    interface = ipaddress.IPv4Interface("10.77.0.1/16")
    owner = Owner.of_this_process("a job")
    configure_hub(machine, "a", interface, owner)
    (message,) = machine.get_links(index_of(machine, "a"))
    assert Owner.from_text(message.get_attr("IFLA_IFALIAS")) == owner
    (address,) = machine.get_addr(family=2)
    assert address.get_attr("IFA_ADDRESS") == "10.77.0.1"
    with pytest.raises(AddressInUse, match=f"a, of the netem job a job of process {os.getpid()}"):
        refuse_overlap(machine, WANTED)


def test_engines_take_turns(machine: IPRoute, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = namespaces.own_namespace(), namespaces.own_namespace()
    order = []
    try:
        with turn(first):
            thread = threading.Thread(target=lambda: take(second, order))
            thread.start()
            thread.join(0.1)
            order.append("first")
        thread.join(10)
        assert order == ["first", "second"]
        monkeypatch.setattr(hub, "_PATIENCE_S", 0.05)
        with turn(first), pytest.raises(EngineError, match="another link daemon"):
            take(second, order)
    finally:
        os.close(first)
        os.close(second)


def take(namespace: int, order: list[str]) -> None:
    with turn(namespace):
        order.append("second")
