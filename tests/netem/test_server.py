"""The daemon's socket, its schedule and its end."""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from netem.client import Control
from netem.errors import AddressInUse, DaemonLost, EngineError, EnterError, PlanError, ProtocolError
from netem.plan import Change, Link, Plan
from netem.protocol import Channel
from netem.server import Daemon
from tests.netem.fakes import WAIT_S, FakeEngine, serving

PLAN = Plan(
    sites=("a", "b"),
    default=Link(rate_bps=1e6),
    schedule=(
        Change(at_s=0.3, src="a", dst="b", rate_bps=2e6),
        Change(at_s=0.6, src="a", dst="b", up=False, both=False),
    ),
)


def test_the_schedule_runs_on_time(tmp_path: Path):
    engine = FakeEngine(PLAN)
    begun_s = time.monotonic()
    with serving(PLAN, tmp_path, engine) as path:
        engine.wait(lambda: engine.links.get((0, 1)) == Link(rate_bps=1e6))
        engine.wait(lambda: engine.links[0, 1] == Link(rate_bps=2e6))
        assert 0.3 <= time.monotonic() - begun_s < 1.0
        engine.wait(lambda: not engine.links[0, 1].up)
        assert 0.6 <= time.monotonic() - begun_s < 1.5
        assert engine.links[1, 0] == Link(rate_bps=2e6)
        with Control(path) as control:
            assert control.links() == engine.links
            begun_s = time.monotonic()
            control.begin()
            assert engine.links[0, 1] == Link(rate_bps=1e6)
            engine.wait(lambda: not engine.links[0, 1].up)
            assert 0.6 <= time.monotonic() - begun_s < 1.5


def attach(channel: Channel, site: object = 0, kind: str = "kernel", fds: int = 1) -> dict:
    read_ends = [os.open("/proc/self/ns/net", os.O_RDONLY) for _ in range(fds)]
    try:
        return channel.request("attach", read_ends, site=site, kind=kind)
    finally:
        for fd in read_ends:
            os.close(fd)


def test_attach_and_detach(tmp_path: Path):
    engine = FakeEngine(PLAN, "kernel")
    with serving(PLAN, tmp_path, engine) as path:
        channel = Channel.connect(path)
        assert attach(channel, 1)["address"] == "10.77.0.11"
        with pytest.raises(EnterError, match="has attached site 1 already"):
            attach(channel, 0)
        channel.close()
        # A new process of the same site never meets its predecessor's shadow.
        channel = Channel.connect(path)
        attach(channel, 1)
        assert list(engine.fds) == [1]
        channel.close()
        engine.wait(lambda: not engine.fds)


def test_wrong_requests_are_answered_and_harm_nobody(tmp_path: Path):
    engine = FakeEngine(PLAN, "kernel")
    with serving(PLAN, tmp_path, engine) as path:
        with contextlib.closing(Channel.connect(path)) as channel:
            known = "there is no request 'fly'; the requests are describe, attach"
            with pytest.raises(ProtocolError, match=known):
                channel.request("fly")
            for count in (0, 2):
                with pytest.raises(ProtocolError, match=f"one descriptor, not with {count}"):
                    attach(channel, fds=count)
            for site in (7, None, [1], "c"):
                with pytest.raises(PlanError, match="there is no site"):
                    attach(channel, site)
            with pytest.raises(EnterError, match="backend is kernel, not userspace"):
                attach(channel, kind="userspace")
            # What came beside refused requests is gone: it does not count for the next.
            attach(channel)
        engine.wait(lambda: not engine.fds)


@pytest.mark.parametrize("garbage", [b"hello\n", b"[]\n", b"\x00\xff\n", b'{"request": ["a"]}\n'])
def test_garbage_ends_at_most_its_own_connection(tmp_path: Path, garbage: bytes):
    with serving(PLAN, tmp_path, FakeEngine(PLAN)) as path:
        with socket.socket(socket.AF_UNIX) as rude:
            rude.settimeout(WAIT_S)
            rude.connect(str(path))
            rude.sendall(garbage)
            reply = rude.recv(1000)
            assert not reply or json.loads(reply)["error"] == "ProtocolError"
        with Control(path) as control:
            assert len(control.links()) == 2


def test_requests_in_pieces_and_several_at_once(tmp_path: Path):
    with serving(PLAN, tmp_path, FakeEngine(PLAN)) as path, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(str(path))
        sock.sendall(b'{"request":"li')
        with Control(path) as control:
            control.stats()
        sock.sendall(b'nks"}\n{"request":"stats"}\n')
        with sock.makefile("rb") as file:
            assert len(json.loads(file.readline())["links"]) == 2
            assert json.loads(file.readline()) == {"ok": True, "pairs": []}


def test_a_client_that_never_reads_does_not_stop_the_daemon(tmp_path: Path):
    plan = Plan(sites=tuple(f"s{i}" for i in range(60)))
    with serving(plan, tmp_path, FakeEngine(plan)) as path, socket.socket(socket.AF_UNIX) as deaf:
        deaf.settimeout(WAIT_S)
        deaf.connect(str(path))
        deaf.sendall(b'{"request":"links"}\n' * 20)
        with Control(path, WAIT_S) as control:
            assert len(control.links()) == 60 * 59
            # All that it asked for still comes, when it reads at last.
            with deaf.makefile("rb") as file:
                assert all(json.loads(file.readline())["ok"] for _ in range(20))


def test_an_engine_that_refuses_a_change_keeps_the_links(tmp_path: Path):
    plan = Plan(sites=("a", "b"))
    engine = FakeEngine(plan)
    with serving(plan, tmp_path, engine) as path, Control(path, WAIT_S) as control:
        control.links()
        engine.refuse = "no such queue"
        with pytest.raises(EngineError, match="no such queue"):
            control.change(Change(src="a", dst="b", loss=0.5))
        engine.refuse = None
        assert control.links()[0, 1] == Link()


def test_an_engine_that_fails_at_the_schedule_ends_the_daemon(tmp_path: Path):
    engine = FakeEngine(PLAN)
    daemon = Daemon(PLAN, engine, tmp_path / "a.sock")
    failures: list[Exception] = []

    def run() -> None:
        try:
            daemon.run()
        except EngineError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    control = Control(tmp_path / "a.sock", WAIT_S)
    control.links()
    engine.refuse = "gone"
    thread.join(WAIT_S)
    assert [str(failure) for failure in failures] == ["gone"]
    assert engine.closed
    with pytest.raises(DaemonLost, match="has ended"):
        control.stats()
    control.close()
    assert not (tmp_path / "a.sock").exists()


def test_stop_ends_and_leaves_nothing(tmp_path: Path):
    engine = FakeEngine(PLAN)
    with serving(PLAN, tmp_path, engine) as path:
        with Control(path) as control:
            control.stop()
        assert not path.exists()
        assert engine.closed


def test_nobody_connected_ends_it_after_a_while(tmp_path: Path):
    engine = FakeEngine(PLAN, "kernel")
    daemon = Daemon(PLAN, engine, tmp_path / "a.sock", linger_s=0.4)
    thread = threading.Thread(target=daemon.run)
    thread.start()
    channel = Channel.connect(tmp_path / "a.sock")
    thread.join(0.8)
    assert thread.is_alive()
    left_s = time.monotonic()
    channel.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert 0.4 <= time.monotonic() - left_s < 5
    assert engine.closed


def test_once_it_was_used_it_ends_with_the_last_connection(tmp_path: Path):
    engine = FakeEngine(PLAN, "kernel")
    daemon = Daemon(PLAN, engine, tmp_path / "a.sock", linger_s=2 * WAIT_S, reason="why not")
    thread = threading.Thread(target=daemon.run)
    thread.start()
    with Control(tmp_path / "a.sock") as control:
        assert control.describe()["reason"] == "why not"
    channels = [Channel.connect(tmp_path / "a.sock") for _ in range(2)]
    for site, channel in enumerate(channels):
        attach(channel, site)
    channels[0].close()
    engine.wait(lambda: list(engine.fds) == [1])
    assert thread.is_alive()
    channels[1].close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert engine.closed


def test_the_owner_s_end_ends_it(tmp_path: Path):
    engine = FakeEngine(PLAN)
    ours, theirs = socket.socketpair()
    daemon = Daemon(PLAN, engine, tmp_path / "a.sock", owner=theirs, linger_s=0.0)
    thread = threading.Thread(target=daemon.run)
    thread.start()
    with Control(tmp_path / "a.sock") as control:
        control.links()
    thread.join(0.2)
    assert thread.is_alive()
    ours.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert engine.closed
    theirs.close()


def test_two_daemons_at_one_path(tmp_path: Path):
    with serving(PLAN, tmp_path, FakeEngine(PLAN)) as path:
        engine = FakeEngine(PLAN)
        with pytest.raises(AddressInUse, match=r"daemon\.sock"):
            Daemon(PLAN, engine, path)
        engine.close()
        with Control(path) as control:
            control.links()
