"""What torchrun starts: a thin parent, without torch, of one site's process.

Rank 0's supervisor is the coordinator's parent as well. It enters the site's emulated links, starts
a process anew that has died, passes signals on, bounds how long its children may take to end, and
leaves none behind, whatever kills it.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from powertrip.coordination.setup import Setup
from powertrip.errors import InputError
from powertrip.runtime.emulation import LOST_SIGNAL, SiteLinks
from powertrip.runtime.errors import LinksLost, LinksUnusable, PresenceUnusable
from powertrip.runtime.handshake import RUN_BYTES
from powertrip.runtime.signals import STOP_SIGNALS

_PR_SET_PDEATHSIG = 1
_HANDLED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGALRM, LOST_SIGNAL}
_ENDED_BY_TORCHRUN_S = 30.0  # after which torchrun itself sends SIGKILL
_LIVED_S = 60.0  # after which the next death is a first one again
_LONGEST_PAUSE_S = 10.0  # before a process that dies again and again is started once more
_BACKLOG = 256

LOOPBACK = "127.0.0.1"
"""Where the processes of a job on one machine find each other."""
PRESENCE_VARIABLE = "POWERTRIP_PRESENCE_FD"
"""The descriptor of the socket that the coordinator's process listens at for the sites'."""
INCARNATION_VARIABLE = "POWERTRIP_INCARNATION"
"""How many processes of its role a process has had before it."""
RUN_VARIABLE = "POWERTRIP_RUN"
"""The run's number, hexadecimal, which is the same for all processes of the coordinator."""


def presence_listener(environment: Mapping[str, str]) -> socket.socket:
    """A socket for the coordinator to listen at; made here, it outlives the coordinator's process.

    On one machine it is loopback's; on several, that of the address that all know rank 0 by.

    Raises
    ------
    PresenceUnusable
        That address is none of this machine's, or a name of loopback on this one alone.
    """
    host = environment["MASTER_ADDR"] if _on_several(environment) else LOOPBACK
    try:
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(address[0]).is_loopback and host not in (address[0], "localhost"):
            raise PresenceUnusable(host, f"here that is {address[0]}, which nobody else can reach")
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise PresenceUnusable(host, error.strerror or str(error)) from error


def _on_several(environment: Mapping[str, str]) -> bool:
    """Whether the job's processes are on several machines."""
    return environment["LOCAL_WORLD_SIZE"] != environment["WORLD_SIZE"]


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the child processes.

    A value that the user has set stays as it is.
    """
    child = dict(environment)
    # torch logs every wait on the store that ends without news as a warning with a stack trace.
    child.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    child.setdefault("OMP_NUM_THREADS", "1")
    if not _on_several(environment):
        # The host's name may be one of an address where nobody listens.
        child["MASTER_ADDR"] = LOOPBACK
        # torch asks for the names of its peers' addresses, and waits where no server answers.
        child.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
        if Path("/sys/class/net/lo").exists():
            # On one machine nothing needs to listen beyond loopback.
            child.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return child


class Supervisor:
    """Runs the children of one rank to their end.

    Parameters
    ----------
    setup
        What the children are told on their standard input.
    roles
        Which children, of `powertrip.runtime.process`; the first one's exit code is the rank's.
    environment
        Of the children.
    grace_s
        Seconds from the first request to stop until children that still run are killed.
    links
        The emulated links of the rank's site, entered before its process starts and closed after
        it; the coordinator stays in the machine's own network, where its store and the viewers of
        its metrics are.
    presence
        Where the coordinator's process listens for the sites', on rank 0; the caller's.
    """

    def __init__(
        self,
        setup: Setup,
        roles: Sequence[str],
        environment: Mapping[str, str],
        *,
        grace_s: float,
        links: SiteLinks | None = None,
        presence: socket.socket | None = None,
    ) -> None:
        self._links = links
        self._presence = presence
        self._run = os.urandom(RUN_BYTES)
        self._starts: Counter[str] = Counter()
        self._started_s: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._again_s: dict[str, float] = {}
        self._seen: set[int] = set()
        self._links_code: int | None = None
        self._message = setup.encode()
        self._roles = roles
        self._environment = environment
        self._grace_s = min(grace_s, _ENDED_BY_TORCHRUN_S - 2.0)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = False

    def run(self) -> int:
        """Start the children, wait for all of them, and return the rank's exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        die_with_parent(signal.SIGTERM)
        try:
            for role in self._roles:
                if role == "site" and self._links is not None and not self._enter(self._links):
                    break
                self._start(role)
            while self._again_s or any(c.poll() is None for c in self._children.values()):
                if (info := self._await_signal()) is not None:
                    self._handle(info.si_signo)
                self._start_again()
        finally:
            for child in self._children.values():
                if child.poll() is None:
                    child.kill()
                    child.wait()
            if self._links is not None:
                self._links.close()
        return self._exit_code()

    def _enter(self, links: SiteLinks) -> bool:
        """Enter the site's links; where that fails the rank has no site and ends."""
        try:
            links.enter()
        except LinksUnusable as error:
            _tell(str(error))
            self._links_code = error.exit_code
            self._stop(signal.SIGTERM)
            return False
        self._environment = links.environment(self._environment)
        return True

    def _start(self, role: str) -> None:
        environment = {**self._environment, INCARNATION_VARIABLE: str(self._starts[role])}
        self._starts[role] += 1
        self._started_s[role] = time.monotonic()
        descriptors = []
        if role == "coordinator":
            environment[RUN_VARIABLE] = self._run.hex()
        if role == "coordinator" and self._presence is not None:
            descriptors.append(self._presence.fileno())
            environment[PRESENCE_VARIABLE] = str(self._presence.fileno())
        child = subprocess.Popen(
            [sys.executable, "-m", "powertrip.runtime.process", role],
            stdin=subprocess.PIPE,
            env=environment,
            pass_fds=descriptors,
            preexec_fn=_prepare_child,
        )
        self._children[role] = child
        assert child.stdin is not None
        try:
            child.stdin.write(self._message)
            child.stdin.close()
        except BrokenPipeError:
            pass  # it has died already, which its exit code tells

    def _await_signal(self) -> signal.struct_siginfo | None:
        """The next signal, or None when a process is to be started again before it comes."""
        if not self._again_s:
            return signal.sigwaitinfo(_HANDLED)
        pause_s = min(self._again_s.values()) - time.monotonic()
        return signal.sigtimedwait(_HANDLED, max(pause_s, 0.0))

    def _start_again(self) -> None:
        if self._stopping:
            self._again_s.clear()
        for role, at_s in list(self._again_s.items()):
            if time.monotonic() >= at_s:
                del self._again_s[role]
                self._start(role)

    def _has_died(self, role: str, code: int) -> None:
        """A child has ended by itself otherwise than as it was told to."""
        if self._stopping or code in (0, InputError.exit_code):
            return
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed ({code})"
        # An orderly failure of the coordinator is the run's; its death is only its own.
        mends = code < 0 if role == "coordinator" else self._coordinated
        if mends:
            if time.monotonic() - self._started_s[role] > _LIVED_S:
                self._failures[role] = 0
            pause_s = min(2.0 ** self._failures[role] - 1.0, _LONGEST_PAUSE_S)
            self._failures[role] += 1
            self._again_s[role] = time.monotonic() + pause_s
            _tell(f"the {role} process {how}; it is started again")
        elif code < 0:
            _tell(f"the {role} process {how}")
            self._stop(signal.SIGTERM)

    @property
    def _coordinated(self) -> bool:
        """Whether the coordinator is there, or will be, as far as this rank can tell."""
        coordinator = self._children.get("coordinator")
        return coordinator is None or coordinator.poll() is None or "coordinator" in self._again_s

    def _handle(self, number: int) -> None:
        if number == signal.SIGALRM:
            self._stopping = True
            for role, child in self._children.items():
                if child.poll() is None:
                    _tell(f"the {role} process did not end within {self._grace_s:g} s: killed")
                    child.kill()
        elif number == LOST_SIGNAL:
            if self._links is not None and self._links.lost and not self._stopping:
                # Nothing can be said to the others any more, nor heard from them.
                _tell(self._links.lost)
                self._links_code, self._stopping = LinksLost.exit_code, True
                self._children["site"].kill()
                self._links.give_up()
                self._bound()
        elif number == signal.SIGCHLD:
            for role, child in self._children.items():
                code = child.poll()
                if code is not None and child.pid not in self._seen:
                    self._seen.add(child.pid)
                    self._has_died(role, code)
            first = self._children.get(self._roles[0])
            if first is not None and first.poll() is not None and not self._again_s:
                self._bound()
        else:
            self._stop(signal.Signals(number))

    def _stop(self, number: signal.Signals) -> None:
        self._stopping = True
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(number)
        self._bound()

    def _bound(self) -> None:
        """From now on the children that still run have only so long to end."""
        if signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0):
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)

    def _exit_code(self) -> int:
        if self._links_code is not None:
            return self._links_code
        codes = [self._children[role].returncode for role in self._roles]
        failed = [code for code in codes if code != 0]
        code = codes[0] or (failed[0] if failed else 0)
        return code if code >= 0 else 128 - code


def _prepare_child() -> None:
    """In the child, before it becomes another program."""
    # A request to stop waits until the child can hear it (runtime.signals), and kills it never.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED.difference(STOP_SIGNALS))
    die_with_parent(signal.SIGKILL)


def _tell(text: str) -> None:
    rank = os.environ.get("RANK", "?")
    print(f"powertrip: rank {rank}: {text}", file=sys.stderr, flush=True)  # noqa: T201
