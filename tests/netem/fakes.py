"""A daemon with an engine that only notes what it is asked, and processes that act as sites."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from netem.client import Control
from netem.engines.base import PairStats
from netem.errors import EngineError
from netem.plan import Link, Plan
from netem.server import Daemon

REPO = Path(__file__).parents[2]
WAIT_S = 20.0
FRAME_BYTES = 10 + 65_535

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces, as root")


class FakeEngine:
    """Hands every packet on at once, without any shaping."""

    def __init__(self, plan: Plan, name: str = "userspace") -> None:
        self.name = name
        self.links: dict[tuple[int, int], Link] = {}
        self.fds: dict[int, int] = {}
        self.inodes: dict[int, int] = {}
        self.closed = False
        self.refuse: str | None = None
        self.changed = threading.Condition()
        self._plan = plan
        self._epoll = select.epoll()
        self._sent: dict[tuple[int, int], PairStats] = {}

    def attach(self, site: int, fd: int) -> None:
        if self.refuse is not None:
            os.close(fd)
            raise EngineError(self.refuse)
        with self.changed:
            self.fds[site] = fd
            self.inodes[site] = os.fstat(fd).st_ino
            if self.name == "userspace":
                self._epoll.register(fd, select.EPOLLIN)
            self.changed.notify_all()

    def detach(self, site: int) -> None:
        with self.changed:
            if (fd := self.fds.pop(site, None)) is not None:
                os.close(fd)
            self.changed.notify_all()

    def set_link(self, src: int, dst: int, link: Link) -> None:
        if self.refuse is not None:
            raise EngineError(self.refuse)
        with self.changed:
            self.links[src, dst] = link
            self.changed.notify_all()

    def stats(self) -> dict[tuple[int, int], PairStats]:
        return dict(self._sent)

    def fileno(self) -> int | None:
        return self._epoll.fileno() if self.name == "userspace" else None

    def process(self) -> None:
        addresses = {self._plan.address(site): site for site in self.fds}
        for src, fd in self.fds.items():
            with contextlib.suppress(BlockingIOError):
                frame = os.read(fd, FRAME_BYTES)
                dst = addresses.get(".".join(map(str, frame[26:30])))
                if dst is not None:
                    os.write(self.fds[dst], frame)
                    old = self._sent.get((src, dst), PairStats(0, 0, 0))
                    new = PairStats(old.bytes + len(frame) - 10, old.packets + 1, 0)
                    self._sent[src, dst] = new

    def next_timeout_s(self) -> float | None:
        return None

    def close(self) -> None:
        for site in list(self.fds):
            self.detach(site)
        self._epoll.close()
        self.closed = True

    def wait(self, condition: object) -> None:
        """Wait until the engine has been asked something after which `condition()` holds."""
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), "the engine was not asked in time"


@contextlib.contextmanager
def serving(plan: Plan, folder: Path, engine: FakeEngine) -> Iterator[Path]:
    """A daemon in a thread; it yields the socket's path, and stops the daemon at the end."""
    path = folder / "daemon.sock"
    ours, owner = socket.socketpair()
    with ours, owner:
        daemon = Daemon(plan, engine, path, owner)
        thread = threading.Thread(target=daemon.run)
        thread.start()
        try:
            yield path
        finally:
            daemon.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()


@contextlib.contextmanager
def control(path: Path) -> Iterator[Control]:
    with Control(path, WAIT_S) as asking:
        yield asking


class Site:
    """A process that enters and then runs code which is sent to it, a block at a time.

    In the code, `site` is the membership and `show(...)` is what `run` returns.
    """

    HEAD = (
        "import sys, json\n"
        "from netem import enter\n"
        "def show(value): print(json.dumps(value), flush=True)\n"
        "site = enter(sys.argv[1], int(sys.argv[2]), timeout_s=20)\n"
        "show(site.address)\n"
        "for line in sys.stdin: exec(json.loads(line))\n"
    )

    def __init__(self, path: Path, number: int, head: str = HEAD) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", head, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPO,
            env=os.environ | {"PYTHONPATH": str(REPO)},
        )

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read(self) -> object:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], WAIT_S)
        assert ready, "the site says nothing"
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        return json.loads(line)

    def send(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def run(self, code: str) -> object:
        self.send(code)
        return self.read()

    def end(self) -> tuple[int, str]:
        """Wait for the process to end by itself; return its exit code and its stderr."""
        _, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, err
