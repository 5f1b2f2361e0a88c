"""Links between machines, which namespaces joined by a cable play."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from netem import namespaces
from netem.engines import build_engine, tunnel
from netem.engines.kernel import KernelEngine
from netem.errors import AddressInUse, EngineError, Unsupported
from netem.plan import Link, Plan
from netem.underlay import Underlay
from tests.netem.machines import machines, underlay

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys
from netem.engines.kernel import KernelEngine
from netem.plan import Plan
from netem.underlay import Underlay
engine = KernelEngine(Plan.parse({"sites": ["a"]}), Underlay.model_validate_json(sys.argv[1]))
print(flush=True)
sys.stdin.read()
"""


def plan(count: int = 2) -> Plan:
    return Plan.parse({"sites": [f"s{number}" for number in range(count)]})


class Spread:
    """A job with a site on each machine."""

    def __init__(self, plan: Plan, nodes: list[int], vni: int = 7) -> None:
        self.plan = plan
        self.engines: list[KernelEngine] = []
        self.fds: list[int] = []
        try:
            for number, node in enumerate(nodes):
                with namespaces.inside(node):
                    self.engines.append(KernelEngine(plan, underlay(number, len(nodes), vni)))
                self.fds.append(namespaces.new_namespace())
                self.engines[-1].attach(number, os.dup(self.fds[-1]))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Spread":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        for fd in self.fds:
            os.close(fd)

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


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def interfaces(node: int) -> set[str]:
    with namespaces.inside(node), IPRoute(groups=0) as netlink:
        return {message.get_attr("IFLA_IFNAME") for message in netlink.get_links()}


def fragments(node: int) -> int:
    """Packets that a machine has cut into pieces."""
    with namespaces.inside(node):
        names, values = (
            line.split() for line in Path("/proc/thread-self/net/snmp").read_text().splitlines()[:2]
        )
    return int(values[names.index("FragCreates")])


def test_sites_of_three_machines_reach_each_other() -> None:
    with machines(3) as nodes, Spread(plan(3), nodes) as up:
        for src, dst in up.plan.pairs():
            with up.server(dst) as listener, up.connector(src) as client:
                client.connect(listener.getsockname())
                accepted, (peer, _) = listener.accept()
                accepted.close()
                assert peer == up.plan.address(src)
        assert up.engines[1].stats()[1, 0].packets > 0
        assert all("vxlan0" not in interfaces(node) for node in nodes)


def test_a_stream_between_machines_is_never_cut_into_fragments() -> None:
    data = os.urandom(1 << 22)
    with machines(2) as nodes, Spread(plan(), nodes) as up, up.server(0) as listener:
        with up.connector(1) as client:
            client.connect(listener.getsockname())
            accepted, _ = listener.accept()
            with accepted:
                accepted.settimeout(5)
                received = bytearray()
                client.settimeout(0)
                view = memoryview(data)
                while len(received) < len(data):
                    with contextlib.suppress(BlockingIOError):
                        view = view[client.send(view) :] if view else view
                    received += accepted.recv(1 << 20)
        assert received == data
        assert [fragments(node) for node in nodes] == [0, 0]
        with (
            up.connector(0, socket.SOCK_DGRAM) as receiver,
            up.connector(1, socket.SOCK_DGRAM) as sender,
        ):
            receiver.bind((up.plan.address(0), 0))
            # The largest that fits: 20 bytes of IP and 8 of UDP header are the site's own.
            sender.sendto(bytes(1450 - 28), receiver.getsockname())
            assert len(receiver.recv(2000)) == 1450 - 28
        assert [fragments(node) for node in nodes] == [0, 0]


def test_jobs_of_other_identifiers_do_not_meet() -> None:
    with (
        machines(2) as nodes,
        Spread(plan(), nodes, 7) as first,
        Spread(plan(), nodes, 8) as second,
        first.server(0) as listener,
        second.server(0) as other,
    ):
        for up, server, silent in ((first, listener, other), (second, other, listener)):
            with up.connector(1) as client:
                client.connect(server.getsockname())
                server.accept()[0].close()
            silent.setblocking(False)
            with pytest.raises(BlockingIOError):
                silent.accept()
            silent.settimeout(5)


def test_an_identifier_that_another_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "_PATIENCE_S", 0.1)
    with machines(2) as nodes, Spread(plan(), nodes), namespaces.inside(nodes[0]):
        with pytest.raises(AddressInUse, match="network identifier 7 is in use"):
            KernelEngine(plan(), underlay(0, 2, 7))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("", 4790))
            other = underlay(0, 2, 9).model_copy(update={"port": 4790})
            engine = None
            with pytest.raises(AddressInUse, match="UDP port 4790 is in use"):
                engine = KernelEngine(plan(), other)
            assert engine is None


def test_the_tunnel_ends_with_its_process() -> None:
    with machines(2) as nodes, namespaces.inside(nodes[0]):
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, underlay(0, 2, 7).model_dump_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"\n"
            holder.send_signal(signal.SIGKILL)
            holder.wait(10)
        KernelEngine(plan(), underlay(0, 2, 7)).close()


def test_an_address_that_is_not_this_machines() -> None:
    elsewhere = Underlay(local="198.51.100.1", peers=("192.0.2.2",), vni=7)
    with machines(2) as nodes, namespaces.inside(nodes[0]):
        files = open_files()
        with pytest.raises(EngineError, match=r"no interface with the address 198\.51\.100\.1"):
            KernelEngine(plan(), elsewhere)
        assert open_files() == files


@pytest.mark.parametrize(("mtu", "inner"), [(9000, 1450), (1460, 1410)])
def test_the_mtu_follows_a_smaller_one_of_the_machine(mtu: int, inner: int) -> None:
    with machines(2, mtu) as nodes, Spread(plan(), nodes) as up:
        with namespaces.inside(up.fds[0]), IPRoute(groups=0) as netlink:
            (index,) = netlink.link_lookup(ifname="eth0")
            (link,) = netlink.get_links(index)
        assert link.get_attr("IFLA_MTU") == inner


def test_an_mtu_that_is_too_small() -> None:
    with (
        machines(2, 600) as nodes,
        namespaces.inside(nodes[0]),
        pytest.raises(EngineError, match="the MTU of up0, 600, is too small"),
    ):
        KernelEngine(plan(), underlay(0, 2, 7))


def test_links_to_other_machines_can_be_read() -> None:
    with machines(2) as nodes, Spread(plan(), nodes) as up:
        assert [engine.read_links() for engine in up.engines] == [
            {(0, 1): Link()},
            {(1, 0): Link()},
        ]


def test_the_emulator_joins_one_machine_only() -> None:
    with pytest.raises(Unsupported, match="needs the backend kernel"):
        build_engine("userspace", plan(), "job", underlay(0, 2, 7))
