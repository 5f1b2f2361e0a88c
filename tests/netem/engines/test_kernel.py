"""The backend `kernel`: mostly with plain links, which need no sch_netem.

real_netem.py measures shaped links, in User-Mode Linux where this kernel has no sch_netem.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from netem import cleanup, namespaces
from netem.capabilities import has_qdisc
from netem.engines import kernel
from netem.engines.kernel import KernelEngine
from netem.errors import AddressInUse, EngineError, Unsupported
from netem.plan import Link, Plan

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

with_netem = pytest.mark.skipif(
    os.geteuid() != 0 or not has_qdisc("netem"), reason="this kernel has no sch_netem"
)

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys
from netem.engines.kernel import KernelEngine
from netem.plan import Plan
engine = KernelEngine(Plan.parse({"sites": ["a", "b"]}), "job-of-the-dead")
print(engine.hub_interface, flush=True)
sys.stdin.read()
"""


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

    def __init__(self, plan: Plan, job: str = "test") -> None:
        self.plan = plan
        self.engine = KernelEngine(plan, job)
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


def test_every_site_reaches_every_other_and_the_machine_reaches_all() -> None:
    with Sites(plan(3)) as up:
        for dst in range(3):
            with up.server(dst) as listener:
                for src in range(3):
                    with up.connector(src) if src != dst else socket.socket() as client:
                        client.settimeout(5)
                        client.connect(listener.getsockname())
                        accepted, (peer, _) = listener.accept()
                        accepted.close()
                    expected = up.plan.address(src) if src != dst else up.plan.hub_address
                    assert peer == expected


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


def test_a_site_that_comes_back_is_reached_at_once() -> None:
    with Sites(plan(2)) as up:
        for again in (False, True):
            if again:
                up.engine.detach(1)
                os.close(up.fds[1])
                up.fds[1] = namespaces.new_namespace()
                up.attach(1)
            with up.server(1) as listener, up.connector(0) as client:
                client.settimeout(0.5)
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


@pytest.mark.parametrize("job", ["test", "a job with spaces / and a very long name" * 10])
def test_close_leaves_nothing(job: str) -> None:
    before, files = interfaces(), open_files()
    with Sites(plan(2), job) as up:
        assert up.engine.hub_interface in interfaces() - before
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


def test_a_second_job_is_told_who_uses_its_addresses() -> None:
    with Sites(plan(2), "first"):
        files, before = open_files(), interfaces()
        with pytest.raises(AddressInUse, match=rf"job first of process {os.getpid()}") as caught:
            KernelEngine(plan(2), "second")
        assert (open_files(), interfaces()) == (files, before)
        free = str(caught.value).rpartition("`subnet: ")[2].rstrip("`")
        with (
            Sites(plan(2, subnet=free), "second") as second,
            second.server(0) as listener,
            second.connector(1) as client,
        ):
            client.connect(listener.getsockname())


def test_of_jobs_that_begin_at_once_one_goes_on() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", HOLDER]
    jobs = [subprocess.Popen(command, env=environment, text=True, **pipes) for _ in range(3)]
    firsts = [job.stdout.readline().strip() for job in jobs]
    errors = [job.communicate(timeout=20)[1] for job in jobs]
    assert sorted(bool(first) for first in firsts) == [False, False, True]
    assert sum("AddressInUse" in error for error in errors) == 2


def test_addresses_of_the_machine_are_left_alone() -> None:
    with IPRoute(groups=0) as netlink:
        netlink.link("add", ifname="office", kind="bridge")
        (index,) = netlink.link_lookup(ifname="office")
        netlink.addr("add", index=index, address="10.77.9.1", prefixlen=24)
        with pytest.raises(AddressInUse, match=r"10\.77\.9\.0/24 already \(interface office\)"):
            KernelEngine(plan(2), "test")


def test_after_sigkill_the_next_job_starts() -> None:
    command = [sys.executable, "-c", HOLDER]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as holder:
        assert holder.stdout is not None
        name = holder.stdout.readline().strip()
        assert name in interfaces()
        assert cleanup.find_interfaces() == ()
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
    with Sites(plan(2)) as up:
        assert name not in interfaces()
        assert up.engine.hub_interface in interfaces()


@pytest.mark.parametrize("kind", ["htb", "netem"])
def test_a_kernel_without_the_disciplines(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "has_qdisc", lambda asked: asked != kind)
    delayed = {"default": {"delay_s": 0.01}}
    cut = {"schedule": [{"at_s": 1, "src": 0, "dst": 1, "up": False}]}
    for fields in (delayed, cut):
        with pytest.raises(Unsupported, match=rf"no sch_{kind}; `modprobe sch_{kind}"):
            KernelEngine(plan(2, **fields), "test")
    assert interfaces() == {"lo"}


def test_a_rate_that_netem_cannot_hold() -> None:
    with pytest.raises(Unsupported, match="34e9"):
        KernelEngine(plan(2, default={"rate_bps": 1e11}), "test")


def test_a_link_that_is_not_in_the_plan() -> None:
    with Sites(plan(2)) as up, pytest.raises(EngineError, match="no link from site 0 to site 2"):
        up.engine.set_link(0, 2, Link())


def segments(up: Sites, site: int) -> int:
    with namespaces.inside(up.fds[site]), IPRoute(groups=0) as netlink:
        (index,) = netlink.link_lookup(ifname="eth0")
        (message,) = netlink.get_links(index)
        return int(message.get_attr("IFLA_GSO_MAX_SEGS"))


@with_netem
def test_slow_and_lossy_links_see_single_packets() -> None:
    links = [
        {"src": 0, "dst": "all", "both": False, "loss": 0.01},
        {"src": 1, "dst": "all", "both": False, "rate_bps": 100e6},
        {"src": 2, "dst": 0, "both": False, "rate_bps": 1e6},
    ]
    with Sites(plan(4, links=links)) as up:
        # 1 ms at 100 Mbit/s is 12,500 bytes.
        assert [segments(up, site) for site in range(4)] == [1, 8, 1, 64]
        up.engine.set_link(3, 0, Link(rate_bps=50e6))
        assert segments(up, 3) == 4
    scheduled = [{"at_s": 9, "src": 0, "dst": 1, "loss": 0.1}]
    with Sites(plan(2, schedule=scheduled)) as up:
        assert segments(up, 0) == 1


@with_netem
def test_what_is_lost_and_cut_is_counted() -> None:
    with Sites(plan(2)) as up, up.connector(1, socket.SOCK_DGRAM) as receiver:
        receiver.bind((up.plan.address(1), 0))
        with up.connector(0, socket.SOCK_DGRAM) as sender:
            for link in (Link(), Link(up=False), Link()):
                up.engine.set_link(0, 1, link)
                for _ in range(10):
                    sender.sendto(bytes(100), receiver.getsockname())
        for _ in range(20):
            receiver.recv(200)
        stats = up.engine.stats()[0, 1]
        assert (stats.packets, stats.bytes, stats.dropped) == (20, 2560, 10)


@with_netem
def test_jitter_without_a_rate_keeps_the_order() -> None:
    link = Link(delay_s=0.02, jitter_s=0.01)
    with Sites(plan(2)) as up, up.connector(1, socket.SOCK_DGRAM) as receiver:
        up.engine.set_link(0, 1, link)
        receiver.bind((up.plan.address(1), 0))
        with up.connector(0, socket.SOCK_DGRAM) as sender:
            for number in range(200):
                sender.sendto(number.to_bytes(2), receiver.getsockname())
        assert [int.from_bytes(receiver.recv(2)) for _ in range(200)] == list(range(200))
        read = up.engine.read_links()[0, 1]
        assert (read.rate_bps, read.delay_s) == (None, pytest.approx(0.02))


@with_netem
def test_over_a_long_link_goodbye_arrives_late_but_arrives() -> None:
    with Sites(plan(2, default={"delay_s": 0.3})) as up, up.server(0) as listener:
        leaver = up.connector(1)
        leaver.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(5)
            begun_s = time.monotonic()
            up.engine.detach(1)
            os.close(up.fds.pop())
            leaver.close()
            assert accepted.recv(1) == b""
            assert time.monotonic() - begun_s >= 0.3
