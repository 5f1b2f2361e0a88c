"""Sites as processes in real namespaces, beside a daemon whose engine hands packets on."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netem.client import Control, enter
from netem.errors import DaemonLost, EnterError, PlanError
from netem.launch import start_daemon
from netem.plan import Change, Link, LinkFields, Plan
from tests.netem.fakes import REPO, WAIT_S, FakeEngine, Site, needs_root, serving

PLAN = Plan(
    sites=("a", "b", "c"),
    default=Link(delay_s=0.05, rate_bps=1e9),
    links=(LinkFields(src="a", dst="b", loss=0.1),),
    rate_scale=0.1,
    subnet="10.98.0.0/24",
)
TALK = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", 5000))
s.settimeout(20)
show(True)
"""


@needs_root
def test_two_sites_talk(tmp_path: Path):
    engine = FakeEngine(PLAN)
    with serving(PLAN, tmp_path, engine) as path, Site(path, 0) as a, Site(path, 1) as b:
        assert (a.read(), b.read()) == ("10.98.0.10", "10.98.0.11")
        assert a.run(TALK) is True
        assert b.run(TALK) is True
        a.send("s.sendto(b'ping', ('10.98.0.11', 5000))")
        assert b.run("data, peer = s.recvfrom(99); show([data.decode(), *peer])") == [
            "ping",
            "10.98.0.10",
            5000,
        ]
        with Control(path) as control:
            assert control.describe()["attached"] == [0, 1]
            stats = control.stats()
        assert set(stats) == {(0, 1)}
        assert (stats[0, 1].bytes, stats[0, 1].packets) == (20 + 8 + 4, 1)


@needs_root
def test_what_a_site_sees_of_the_network(tmp_path: Path):
    with serving(PLAN, tmp_path, FakeEngine(PLAN)) as path, Site(path, 2) as site:
        site.read()
        seen = site.run(
            "import subprocess as p\n"
            "r = lambda *c: p.run(c, capture_output=True, text=True, timeout=20).stdout\n"
            "show([r('ip', '-o', 'addr'), r('ip', 'route'),"
            " open('/proc/sys/net/ipv4/tcp_rmem').read().split(),"
            " open('/proc/sys/net/ipv4/tcp_wmem').read().split()])"
        )
        addresses, routes, rmem, wmem = seen
        assert "eth0    inet 10.98.0.12/24" in addresses
        assert "lo    inet 127.0.0.1/8" in addresses
        assert "eth0    inet6" not in addresses
        assert routes.split()[:3] == ["10.98.0.0/24", "dev", "eth0"]
        assert routes.count("\n") == 1
        assert rmem == wmem == ["4096", "131072", str(PLAN.buffer_bytes(2))]
        for name, value in (("tcp_slow_start_after_idle", "0"), ("tcp_tso_rtt_log", "18")):
            if Path(f"/proc/sys/net/ipv4/{name}").exists():
                path = f"/proc/sys/net/ipv4/{name}"
                assert site.run(f"show(open({path!r}).read().strip())") == value


@needs_root
def test_the_end_of_a_process_detaches_its_site_which_another_can_take(tmp_path: Path):
    engine = FakeEngine(PLAN)
    with serving(PLAN, tmp_path, engine) as path:
        with Site(path, 0) as first:
            first.read()
            engine.wait(lambda: 0 in engine.fds)
            first.process.kill()
            engine.wait(lambda: 0 not in engine.fds)
        with Site(path, 0) as second:
            assert second.read() == "10.98.0.10"


@needs_root
def test_a_site_that_is_taken_is_refused_by_name(tmp_path: Path):
    engine = FakeEngine(PLAN)
    with serving(PLAN, tmp_path, engine) as path, Site(path, 1) as first:
        first.read()
        with Site(path, 1) as second:
            code, err = second.end()
        assert code == 1
        assert f"site 1 (b) is attached already, by process {first.process.pid}" in err
        assert list(engine.fds) == [1]


@needs_root
def test_closing_detaches_and_the_daemon_s_end_is_noticed(tmp_path: Path):
    engine = FakeEngine(PLAN)
    with serving(PLAN, tmp_path, engine) as path, Site(path, 0) as a, Site(path, 1) as b:
        a.read()
        b.read()
        a.send("site.close()")
        engine.wait(lambda: list(engine.fds) == [1])
        assert b.run("show([site.lost, site.wait_lost(0.01)]); site.check()") == [False, False]
        b.send("show([site.wait_lost(20), site.lost])")
        with Control(path) as control:
            control.stop()
        assert b.read() == [True, True]
        b.send("import select; assert select.select([site], [], [], 20)[0]; site.check()")
        code, err = b.end()
        assert code == 1
        assert "netem.errors.DaemonLost" in err
        assert "the links of site 1 (b) are gone" in err


@needs_root
def test_a_site_reattaches_to_the_next_daemon(tmp_path: Path):
    old, new = FakeEngine(PLAN), FakeEngine(PLAN)
    with Site.__new__(Site) as site:
        with serving(PLAN, tmp_path, old) as path:
            Site.__init__(site, path, 0)
            site.read()
        with serving(PLAN, tmp_path, new) as path:
            site.send(f"site.reattach({str(path)!r}); show(site.lost)")
            assert site.read() is False
            assert list(new.fds) == [0]


@needs_root
def test_a_site_reattaches_as_soon_as_the_device_before_has_gone(tmp_path: Path):
    """A daemon that dies closes its connections before the devices, or a while before."""
    engine = FakeEngine(PLAN)
    with serving(PLAN, tmp_path, engine) as path, Site(path, 0) as site:
        site.read()
        held = os.dup(engine.fds[0])
        site.run(
            "from netem import tun; make = tun.open_tun\n"
            "def told(*a):\n"
            "    try:\n"
            "        return make(*a)\n"
            "    except Exception as error:\n"
            "        show(str(error)); raise\n"
            "tun.open_tun = told; show(0)\n"
        )
        site.send(f"site.reattach({str(path)!r}); show('in')")
        assert "busy" in str(site.read())
        os.close(held)
        while (word := site.read()) != "in":
            assert "busy" in str(word)
        assert list(engine.fds) == [0]


@needs_root
def test_a_signal_comes_when_the_daemon_is_killed_and_again_after_the_next(tmp_path: Path):
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(start_daemon(PLAN, "userspace", log_path=tmp_path / "log"))
            for _ in range(2)
        ]
        site = stack.enter_context(Site(daemons[0].socket_path, 0))
        site.read()
        site.run(
            "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])\n"
            "site.signal_when_lost(signal.SIGIO)\n"
            "show(0)"
        )
        for number, daemon in enumerate(daemons):
            if number:
                site.send(f"site.reattach({str(daemon.socket_path)!r})")
            quiet = "show(signal.sigtimedwait([signal.SIGIO], 0) is None and not site.lost)"
            assert site.run(quiet) is True
            os.kill(daemon.pid, signal.SIGKILL)
            came = "show([signal.sigtimedwait([signal.SIGIO], 20) is not None, site.lost])"
            assert site.run(came) == [True, True]


@needs_root
def test_the_kernel_backend_gets_the_namespace(tmp_path: Path):
    engine = FakeEngine(PLAN, "kernel")
    with serving(PLAN, tmp_path, engine) as path, Site(path, 0) as site:
        site.read()
        namespace = Path(f"/proc/{site.process.pid}/ns/net").stat().st_ino
        assert engine.inodes == {0: namespace}
        assert namespace != Path("/proc/self/ns/net").stat().st_ino


@needs_root
def test_what_the_engine_refuses_arrives_at_the_site(tmp_path: Path):
    engine = FakeEngine(PLAN)
    with serving(PLAN, tmp_path, engine) as path:
        engine.refuse = "there is no room for another link"
        with Site(path, 0) as site:
            code, err = site.end()
        engine.refuse = None
        assert code == 1
        assert "netem.errors.EngineError: there is no room for another link" in err
        with Site(path, 0) as again:
            assert again.read() == "10.98.0.10"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="netem-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@needs_root
@pytest.mark.parametrize("backend", ["kernel", "userspace"])
def test_without_privileges_the_process_gets_a_user_namespace(open_folder: Path, backend: str):
    device = open_folder / "tun"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(10, 200))
    device.chmod(0o666)
    # What such a user cannot read has to be imported before; a process that has changed its user,
    # other than by executing a program, is not dumpable, and cannot map its user.
    drop = (
        "import ctypes, os, netem, netem.tun, yaml\n"
        f"netem.tun.DEVICE = {str(device)!r}\n"
        "os.setgroups([])\n"
        "os.setresgid(65534, 65534, 65534)\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0\n"
    )
    engine = FakeEngine(PLAN, backend)
    with serving(PLAN, open_folder, engine) as path:
        path.chmod(0o777)
        with Site(path, 1, drop + Site.HEAD) as site:
            assert site.read() == "10.98.0.11"
            assert site.run("import os; show([os.getuid(), os.getgid()])") == [65534, 65534]
            own = Path(f"/proc/{site.process.pid}/ns/user").stat().st_ino
            assert own != Path("/proc/self/ns/user").stat().st_ino
            rmem = site.run("show(open('/proc/sys/net/ipv4/tcp_rmem').read().split()[2])")
            assert rmem == str(PLAN.buffer_bytes(1))
            if backend == "kernel":
                namespace = Path(f"/proc/{site.process.pid}/ns/net").stat().st_ino
                assert engine.inodes == {1: namespace}
            else:
                with Site(path, 0) as other:
                    other.read()
                    assert other.run(TALK) is True
                    site.run(TALK)
                    site.send("s.sendto(b'from below', ('10.98.0.10', 5000))")
                    assert other.run("show(s.recvfrom(99)[0].decode())") == "from below"


def test_requests_that_cannot_be_met_leave_the_process_where_it_is(tmp_path: Path):
    before = Path("/proc/self/ns/net").stat().st_ino
    with serving(PLAN, tmp_path, FakeEngine(PLAN)) as path:
        with pytest.raises(PlanError, match="there is no site 9"):
            enter(path, 9)
        with pytest.raises(EnterError, match="runs the backend userspace, not kernel"):
            enter(path, 0, "kernel")
        with pytest.raises(EnterError, match="another plan"):
            enter(path, 0, "userspace", Plan(sites=("a", "b")))
        with pytest.raises(EnterError, match="threads"):
            enter(path, 0, "userspace", PLAN)
    with pytest.raises(DaemonLost, match="no link daemon answers"):
        enter(path, 0)
    assert Path("/proc/self/ns/net").stat().st_ino == before


def test_control(tmp_path: Path):
    engine = FakeEngine(PLAN)
    with serving(PLAN, tmp_path, engine) as path, Control(path, WAIT_S) as control:
        described = control.describe()
        assert Plan.parse(described["plan"]) == PLAN
        assert described["pid"] == os.getpid()
        links = control.links()
        assert links == {pair: PLAN.link(*pair) for pair in PLAN.pairs()}
        assert links == engine.links

        assert control.change(Change(src="c", dst="all", rate_bps=2e8, both=False)) == 2
        assert engine.links[2, 0] == Link(delay_s=0.05, rate_bps=2e7)
        assert control.links() == engine.links
        assert control.change(Change(src="a", dst="b", rate_bps=None)) == 2
        assert control.links()[0, 1] == Link(delay_s=0.05, loss=0.1)

        with pytest.raises(PlanError, match="there is no site 'd'"):
            control.change(Change(src="a", dst="d", up=False))
        control.begin()
        assert control.links() == links == engine.links


def test_two_threads_may_ask_at_once(tmp_path: Path):
    with serving(PLAN, tmp_path, FakeEngine(PLAN)) as path, Control(path, WAIT_S) as control:
        results: list[object] = []

        def ask() -> None:
            results.extend(len(control.links()) for _ in range(20))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [6] * 80


def test_a_process_whose_namespaces_are_forbidden_is_told():
    code = (
        "import ctypes, sys\n"
        "from netem import client\n"
        "class Refusing:\n"
        "    def unshare(self, flags):\n"
        "        ctypes.set_errno(1 if flags == client._CLONE_NEWNET else int(sys.argv[1]))\n"
        "        return -1\n"
        "client.ctypes.CDLL = lambda *a, **k: Refusing()\n"
        "client._unshare()\n"
    )
    for number, remedy in ((1, "kernel.unprivileged_userns_clone"), (28, "max_user_namespaces")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(number)],
            cwd=REPO,
            env=os.environ | {"PYTHONPATH": str(REPO)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "netem.errors.Unsupported: cannot make a user namespace" in done.stderr
        assert remedy in done.stderr
