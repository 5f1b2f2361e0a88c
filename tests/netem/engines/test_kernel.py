"""The backend `kernel` with plain links, which need no sch_netem; real_netem.py has the others."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from netem import namespaces
from netem.engines import kernel
from netem.engines.kernel import KernelEngine
from netem.errors import EngineError, Unsupported
from netem.plan import Link, Plan

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")


@pytest.fixture(autouse=True)
def _machine() -> Iterator[None]:
    """A namespace that plays the machine's own network, so that the real one is left alone."""
    fd = namespaces.new_namespace()
    try:
        with namespaces.inside(fd):
            yield
    finally:
        os.close(fd)


def plan(count: int = 2, **fields: object) -> Plan:
    return Plan.parse({"sites": [f"s{number}" for number in range(count)], **fields})


class Sites:
    """An engine with sites in this process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.engine = KernelEngine(plan)
        self.fds = [namespaces.new_namespace() for _ in plan.sites]
        for site in range(len(plan.sites)):
            self.attach(site)

    def __enter__(self) -> "Sites":
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.close()
        for fd in self.fds:
            os.close(fd)

    def attach(self, site: int) -> None:
        self.engine.attach(site, os.dup(self.fds[site]))

    def connector(self, site: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        with namespaces.inside(self.fds[site]):
            made = socket.socket(socket.AF_INET, kind)
        made.settimeout(5)
        return made

    def server(self, site: int) -> socket.socket:
        listener = self.connector(site)
        listener.bind((self.plan.address(site), 0))
        listener.listen()
        return listener


def interfaces() -> set[str]:
    with IPRoute(groups=0) as netlink:
        return {message.get_attr("IFLA_IFNAME") for message in netlink.get_links()}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_every_site_reaches_every_other() -> None:
    with Sites(plan(3)) as up:
        for src, dst in up.plan.pairs():
            with up.server(dst) as listener, up.connector(src) as client:
                client.connect(listener.getsockname())
                accepted, (peer, _) = listener.accept()
                accepted.close()
                assert peer == up.plan.address(src)


def test_a_site_has_its_address_and_no_way_out() -> None:
    with Sites(plan(2)) as up, namespaces.inside(up.fds[1]), IPRoute(groups=0) as netlink:
        (index,) = netlink.link_lookup(ifname="eth0")
        (address,) = netlink.get_addr(family=2, index=index)
        assert address.get_attr("IFA_ADDRESS") == up.plan.address(1)
        routes = list(netlink.get_routes(family=2, table=254))
        assert [(r.get_attr("RTA_DST"), r["dst_len"]) for r in routes] == [("10.77.0.0", 16)]


def test_the_kernel_holds_plain_links_for_all_pairs() -> None:
    with Sites(plan(3)) as up:
        assert up.engine.read_links() == {pair: Link() for pair in up.plan.pairs()}


def test_bytes_are_counted_per_ordered_pair() -> None:
    with Sites(plan(3)) as up, up.connector(1, socket.SOCK_DGRAM) as receiver:
        receiver.bind((up.plan.address(1), 0))
        with up.connector(0, socket.SOCK_DGRAM) as sender:
            for _ in range(10):
                sender.sendto(bytes(1000), receiver.getsockname())
        for _ in range(10):
            assert len(receiver.recv(2000)) == 1000
        stats = up.engine.stats()
        # 20 bytes of IP and 8 of UDP header each.
        assert (stats[0, 1].bytes, stats[0, 1].packets, stats[0, 1].dropped) == (10280, 10, 0)
        assert stats[1, 0].packets == stats[0, 2].packets == 0
        up.engine.detach(0)
        up.attach(0)
        assert up.engine.stats()[0, 1].bytes == 10280


def test_one_that_leaves_still_says_goodbye() -> None:
    with Sites(plan(2)) as up, up.server(0) as listener:
        leaver = up.connector(1)
        leaver.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(5)
            up.engine.detach(1)
            os.close(up.fds.pop())
            leaver.close()
            assert accepted.recv(1) == b""
        due_s = up.engine.next_timeout_s()
        assert due_s is not None
        assert 0 < due_s <= 1
        up.engine.process()
        assert up.engine.next_timeout_s() is not None
        time.sleep(due_s)
        up.engine.process()
        assert up.engine.next_timeout_s() is None


def test_a_site_that_comes_back_is_reached_soon() -> None:
    with Sites(plan(2)) as up:
        for again in (False, True):
            if again:
                up.engine.detach(1)
                os.close(up.fds[1])
                up.fds[1] = namespaces.new_namespace()
                up.attach(1)
            with up.server(1) as listener, up.connector(0) as client:
                # Neighbours that had to find out that an address has moved would take 8 s.
                client.settimeout(3)
                client.connect(listener.getsockname())
        assert up.engine.next_timeout_s() is None


def test_the_interface_of_a_dead_engine_is_replaced() -> None:
    with Sites(plan(2)) as up:
        up.engine.detach(0)
        os.close(up.fds[0])
        up.fds[0] = namespaces.new_namespace()
        with namespaces.inside(up.fds[0]), IPRoute(groups=0) as netlink:
            netlink.link("add", ifname="eth0", kind="bridge")
        up.attach(0)
        with up.server(1) as listener, up.connector(0) as client:
            client.connect(listener.getsockname())


def test_the_machine_sees_nothing_and_close_leaves_nothing() -> None:
    before, files = interfaces(), open_files()
    with Sites(plan(2)) as up:
        assert interfaces() == before
        up.engine.detach(1)
        up.engine.close()
        assert interfaces() == before
    assert open_files() == files


def test_a_refused_site_leaves_nothing() -> None:
    with Sites(plan(2)) as up:
        files = open_files()
        with pytest.raises(EngineError, match="attached already"):
            up.attach(0)
        up.engine.detach(1)
        no_namespace = os.open("/dev/null", os.O_RDONLY)
        with pytest.raises(EngineError, match=r"site 1.*network namespace"):
            up.engine.attach(1, no_namespace)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(no_namespace)
        up.attach(1)
        assert open_files() == files


def test_a_plan_of_one_site() -> None:
    with Sites(plan(1)) as up:
        assert up.engine.read_links() == {}
        assert up.engine.stats() == {}


def test_jobs_of_the_same_addresses_do_not_meet() -> None:
    with Sites(plan(2)) as first, Sites(plan(2)) as second:
        with first.server(0) as listener, second.server(0) as other:
            for up, server in ((first, listener), (second, other)):
                with up.connector(1) as client:
                    client.connect(server.getsockname())
                    server.accept()[0].close()
            listener.settimeout(0)
            other.settimeout(0)
            for server in (listener, other):
                with pytest.raises(BlockingIOError):
                    server.accept()
        first.engine.close()
        with second.server(0) as listener, second.connector(1) as client:
            client.connect(listener.getsockname())


def test_a_subnet_that_the_machine_uses_itself() -> None:
    with IPRoute(groups=0) as netlink:
        netlink.link("add", ifname="office", kind="bridge")
        (index,) = netlink.link_lookup(ifname="office")
        up = plan(2)
        netlink.addr("add", index=index, address=up.address(0), prefixlen=16)
        netlink.link("set", index=index, state="up")
        netlink.link("set", index=1, state="up")
    with socket.create_server((up.address(0), 0)) as own, Sites(up) as sites:
        own.settimeout(5)
        with sites.server(0) as listener, sites.connector(1) as client:
            client.connect(listener.getsockname())
            listener.accept()[0].close()
        with socket.create_connection(own.getsockname(), 5):
            own.accept()[0].close()


@pytest.mark.parametrize("kind", ["htb", "netem"])
def test_a_kernel_without_the_disciplines(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "has_qdisc", lambda asked: asked != kind)
    delayed = {"default": {"delay_s": 0.01}}
    cut = {"schedule": [{"at_s": 1, "src": 0, "dst": 1, "up": False}]}
    for fields in (delayed, cut):
        with pytest.raises(Unsupported, match=rf"no sch_{kind}; `modprobe sch_{kind}"):
            KernelEngine(plan(2, **fields))
    assert interfaces() == {"lo"}


def test_a_rate_that_netem_cannot_hold() -> None:
    with pytest.raises(Unsupported, match="34e9"):
        KernelEngine(plan(2, default={"rate_bps": 1e11}))


def test_a_link_that_is_not_in_the_plan() -> None:
    with Sites(plan(2)) as up, pytest.raises(EngineError, match="no link from site 0 to site 2"):
        up.engine.set_link(0, 2, Link())
