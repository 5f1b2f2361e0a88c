"""Runs a command once per site, each in its namespace, until all have ended or one has failed."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from netem.client import Control
from netem.errors import DaemonLost, NetemError
from netem.interpreter import python_main
from netem.launch import RunningDaemon
from netem.plan import Plan

START_S = 60.0
GRACE_S = 10.0
_CHUNK_BYTES = 1 << 16


class SiteFailed(NetemError):
    """A site could not be brought up, so the command was run at none."""


@dataclass
class _Site:
    number: int
    process: subprocess.Popen[bytes]
    control: socket.socket
    pidfd: int
    line: bytearray = field(default_factory=bytearray)


def environment(plan: Plan, site: int, *, emulated: bool) -> dict[str, str]:
    """Return what a site's command finds in its environment beside what is there already.

    `NETEM_SITE` is its number, `NETEM_NAME` its name, `NETEM_ADDRESS` its address, and
    `NETEM_SITES` the addresses of all in order, with commas between.
    """
    addresses = [plan.address(each) if emulated else "127.0.0.1" for each in range(len(plan.sites))]
    return {
        "NETEM_SITE": str(site),
        "NETEM_NAME": plan.sites[site],
        "NETEM_ADDRESS": addresses[site],
        "NETEM_SITES": ",".join(addresses),
    }


class Runner:
    """A command at every site of a plan.

    Parameters
    ----------
    plan
        The sites.
    daemon
        Has the links; None runs the command in the machine's own network.
    command
        The program and its arguments.
    write
        Is given the output, a line at a time, with the site's name before it.
    """

    def __init__(
        self,
        plan: Plan,
        daemon: RunningDaemon | None,
        command: Sequence[str],
        write: Callable[[bytes], object],
    ) -> None:
        self._plan = plan
        self._daemon = daemon
        self._command = list(command)
        self._write = write
        self._sites: list[_Site] = []
        self._selector = selectors.DefaultSelector()
        self._width = max(len(name) for name in plan.sites)

    def run(self) -> int:
        """Run the command at every site, and return when none runs any more.

        A site whose command fails ends the others, by SIGTERM and after 10 s by SIGKILL; SIGINT
        and SIGTERM to this process do so as well.

        Returns
        -------
        int
            The exit code of the first that failed, 128 + its signal if one ended it; else 0.

        Raises
        ------
        SiteFailed
            If a site cannot enter its namespace.
        netem.errors.DaemonLost
            If the link daemon ends before the commands do.
        """
        with self._signals() as signals, self._selector:
            self._selector.register(signals, selectors.EVENT_READ)
            if self._daemon is not None:
                self._selector.register(self._daemon, selectors.EVENT_READ)
            try:
                for number in range(len(self._plan.sites)):
                    self._start(number)
                self._all_ready()
                if self._daemon is not None:
                    with Control(self._daemon.socket_path) as control:
                        control.begin()
                for site in self._sites:
                    # One that has died meanwhile is found by its exit code.
                    with contextlib.suppress(OSError):
                        site.control.sendall(b"g")
                return self._until_all_ended(signals)
            finally:
                self._kill()

    def _start(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        path = "-" if self._daemon is None else str(self._daemon.socket_path)
        launch = python_main("netem.site", path, str(number), str(theirs.fileno()))
        emulated = self._daemon is not None
        with theirs:
            process = subprocess.Popen(
                [*launch, *self._command],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=os.environ | environment(self._plan, number, emulated=emulated),
                start_new_session=True,
            )
        site = _Site(number, process, ours, os.pidfd_open(process.pid))
        self._sites.append(site)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, site)
        self._selector.register(site.pidfd, selectors.EVENT_READ, site)

    def _all_ready(self) -> None:
        deadline_s = time.monotonic() + START_S
        for site in self._sites:
            name = self._plan.sites[site.number]
            data = b""
            while not data.endswith(b"\n"):
                site.control.settimeout(max(0.001, deadline_s - time.monotonic()))
                try:
                    more = site.control.recv(_CHUNK_BYTES)
                except TimeoutError as error:
                    raise SiteFailed(f"the site {name} did not start within {START_S} s") from error
                if not more:
                    self._drain(site)
                    raise SiteFailed(f"the site {name} ended before it had entered its namespace")
                data += more
            reply: dict[str, Any] = json.loads(data)
            if "error" in reply:
                raise SiteFailed(f"the site {name}: {reply['error']}")

    def _until_all_ended(self, signals: socket.socket) -> int:
        code = 0
        running = {site.number for site in self._sites}
        kill_at_s: float | None = None
        while running:
            wait_s = None if kill_at_s is None else max(0.0, kill_at_s - time.monotonic())
            failed = None
            for key, _ in self._selector.select(wait_s):
                site = key.data
                if self._daemon is not None and key.fileobj is self._daemon:
                    raise DaemonLost(
                        f"the link daemon (process {self._daemon.pid}) has ended, and all links "
                        "with it; its log says why"
                    )
                if key.fileobj is signals:
                    failed = 128 + signals.recv(1)[0]
                elif key.fileobj == site.pidfd:
                    self._selector.unregister(site.pidfd)
                    ended = site.process.wait()
                    running.discard(site.number)
                    if ended != 0:
                        failed = ended if ended > 0 else 128 - ended
                else:
                    self._read(site)
            if failed is not None and kill_at_s is None:
                code = failed
                kill_at_s = time.monotonic() + GRACE_S
                self._signal(signal.SIGTERM)
            elif kill_at_s is not None and time.monotonic() >= kill_at_s:
                self._signal(signal.SIGKILL)
                kill_at_s = time.monotonic() + GRACE_S
        for site in self._sites:
            self._drain(site)
        return code

    def _read(self, site: _Site) -> bool:
        """Pass on what a site has written; return whether there may be more."""
        assert site.process.stdout is not None
        try:
            data = os.read(site.process.stdout.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return False
        site.line += data
        *lines, rest = bytes(site.line).split(b"\n")
        if not data:
            self._selector.unregister(site.process.stdout)
            lines, rest = ([rest] if rest else []), b""
        site.line[:] = rest
        prefix = f"{self._plan.sites[site.number]:<{self._width}} | ".encode()
        for line in lines:
            self._write(prefix + line + b"\n")
        return bool(data)

    def _drain(self, site: _Site) -> None:
        registered = {key.fileobj for key in self._selector.get_map().values()}
        while site.process.stdout in registered and self._read(site):
            pass

    def _signal(self, number: signal.Signals) -> None:
        for site in self._sites:
            if site.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(site.process.pid, number)

    def _kill(self) -> None:
        """Leave no process and no descriptor, of children that the command left either."""
        for site in self._sites:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(site.process.pid, signal.SIGKILL)
            site.process.wait()
            site.control.close()
            os.close(site.pidfd)
            if site.process.stdout is not None:
                site.process.stdout.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """Have SIGINT and SIGTERM arrive as bytes on a socket."""
        read, write = socket.socketpair()
        write.setblocking(False)
        numbers = (signal.SIGINT, signal.SIGTERM)
        earlier = {number: signal.signal(number, lambda *_: None) for number in numbers}
        earlier_fd = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        try:
            yield read
        finally:
            signal.set_wakeup_fd(earlier_fd)
            for number, handler in earlier.items():
                signal.signal(number, handler)
            read.close()
            write.close()
