"""The relay as a process of its own, between sockets of one network."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netem.errors import RelayLost
from netem.plan import Plan
from netem.relay import Relay, start_relay
from tests.netem.fakes import REPO, WAIT_S, FakeEngine, Site, needs_root, serving

STARTER = """
import socket, sys
from netem.relay import start_relay
relay = start_relay(("127.0.0.1", int(sys.argv[1])))
relay.serve(socket.create_server(("127.0.0.1", 0)))
print(relay.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Sends back, once the sender has ended, everything that it has sent."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                data = b""
                while more := connection.recv(1 << 16):
                    data += more
                connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.fixture
def front() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def relay(server: socket.socket, front: socket.socket) -> Iterator[Relay]:
    relay = start_relay(server.getsockname())
    try:
        relay.serve(front)
        yield relay
    finally:
        relay.close()


@needs_root
def test_a_port_of_the_machine_is_reached_at_a_site_s_address(
    server: socket.socket, tmp_path: Path
):
    plan = Plan(sites=("a", "b"), subnet="10.96.0.0/24")
    before = (
        "import socket\n"
        "from netem.relay import start_relay\n"
        f"relay = start_relay(('127.0.0.1', {server.getsockname()[1]}))\n"
    )
    with (
        serving(plan, tmp_path, FakeEngine(plan)) as path,
        Site(path, 0, before + Site.HEAD) as hub,
        Site(path, 1) as other,
    ):
        assert (hub.read(), other.read()) == ("10.96.0.10", "10.96.0.11")
        hub.run("relay.serve(socket.create_server((site.address, 5000))); show(0)")
        for site in (other, hub):
            answer = site.run(
                "import socket\n"
                "s = socket.create_connection(('10.96.0.10', 5000), 20)\n"
                "s.sendall(b'hello'); s.shutdown(socket.SHUT_WR)\n"
                "show(s.recv(99, socket.MSG_WAITALL).decode())\n"
            )
            assert answer == "hello"


def exchange(front: socket.socket, data: bytes) -> bytes:
    with socket.create_connection(front.getsockname(), WAIT_S) as connection:
        sender = threading.Thread(
            target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR))
        )
        sender.start()
        answer = b""
        while more := connection.recv(1 << 16):
            answer += more
        sender.join(WAIT_S)
        return answer


def test_every_byte_passes_both_ways_and_so_does_the_end(relay: Relay, front: socket.socket):
    for data in (b"short", os.urandom(3_000_000), b""):
        assert exchange(front, data) == data
    assert not relay.lost


def test_one_relay_offers_several_ports(relay: Relay, front: socket.socket):
    with ExitStack() as stack:
        targets, fronts = (
            [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
            for _ in range(2)
        )
        for near, target in zip(fronts, targets, strict=True):
            relay.serve(near, to=target.getsockname())
        for number, (near, target) in enumerate(zip(fronts, targets, strict=True)):
            connection = socket.create_connection(near.getsockname(), WAIT_S)
            stack.enter_context(connection).sendall(bytes((number,)))
            target.settimeout(WAIT_S)
            far = stack.enter_context(target.accept()[0])
            far.settimeout(WAIT_S)
            assert far.recv(1)[0] == number
            far.sendall(bytes((100 + number,)))
            assert connection.recv(1)[0] == 100 + number
        assert exchange(front, b"the first one still") == b"the first one still"


def test_an_end_that_refuses_ends_the_connection_and_not_the_relay(front: socket.socket):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()
    relay = start_relay(nobody)
    try:
        relay.serve(front)
        for _ in range(2):
            # The reset may come before the connection is reported as made.
            with (
                pytest.raises(ConnectionResetError),
                socket.create_connection(front.getsockname(), WAIT_S) as connection,
            ):
                connection.recv(1)
        assert not relay.lost
    finally:
        relay.close()


def test_its_death_is_a_signal_and_breaks_the_connections(relay: Relay, front: socket.socket):
    came = []  # by a handler, not a mask: other threads of the tests' process may be there
    before = signal.signal(signal.SIGIO, lambda number, frame: came.append(number))
    try:
        relay.signal_when_lost(signal.SIGIO)
        with socket.create_connection(front.getsockname(), WAIT_S) as connection:
            front.close()  # the relay has its own hold on it
            assert not came
            assert not select.select([relay], [], [], 0)[0]
            os.kill(relay.pid, signal.SIGKILL)
            assert select.select([relay], [], [], WAIT_S)[0]
            deadline_s = time.monotonic() + WAIT_S
            while not came and time.monotonic() < deadline_s:
                time.sleep(0.01)
            assert came
            assert relay.lost
            with pytest.raises(ConnectionError):
                raise_if_ended(connection)
        with (
            socket.create_server(("127.0.0.1", 0)) as other,
            pytest.raises(RelayLost, match=f"process {relay.pid}"),
        ):
            relay.serve(other)
    finally:
        relay.close()
        signal.signal(signal.SIGIO, before)


def test_a_connection_that_breaks_does_not_look_like_one_that_has_ended(front: socket.socket):
    with socket.create_server(("127.0.0.1", 0)) as target:
        relay = start_relay(target.getsockname())
        try:
            relay.serve(front)
            with socket.create_connection(front.getsockname(), WAIT_S) as connection:
                accepted, _ = target.accept()
                with accepted:
                    at_once = struct.pack("ii", 1, 0)
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)
        finally:
            relay.close()


def test_many_connections_at_once(front: socket.socket):
    with ExitStack() as stack:
        target = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        target.settimeout(WAIT_S)
        relay = start_relay(target.getsockname())
        stack.callback(relay.close)
        relay.serve(front)
        connections = {}
        for number in range(32):
            near = socket.create_connection(front.getsockname(), WAIT_S)
            stack.enter_context(near).sendall(bytes((number,)))
            connections[number] = near
        for _ in range(32):
            far = stack.enter_context(target.accept()[0])
            far.settimeout(WAIT_S)
            number = far.recv(1)[0]
            far.sendall(bytes((100 + number,)))
            assert connections.pop(number).recv(1) == bytes((100 + number,))


def raise_if_ended(connection: socket.socket) -> None:
    if connection.recv(1) == b"":
        raise ConnectionResetError


def test_it_ends_with_the_process_that_has_started_it(server: socket.socket):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(server.getsockname()[1])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO,
    )
    with starter:
        assert starter.stdout is not None
        relay = os.pidfd_open(int(starter.stdout.readline()))
        starter.kill()
    try:
        assert select.select([relay], [], [], WAIT_S)[0]
    finally:
        os.close(relay)
