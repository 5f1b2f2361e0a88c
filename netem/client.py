"""The site's end: enter a namespace of its own, and talk to the link daemon."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from netem import tun
from netem.engines.base import PairStats
from netem.errors import DaemonLost, EnterError, Unsupported
from netem.plan import Change, Link, Plan
from netem.protocol import REPLY_TIMEOUT_S, Channel

INTERFACE = "eth0"
NAMESPACE = "/proc/thread-self/ns/net"

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_DEFAULT_BUFFER_BYTES = 131072
_TCP = {
    # A connection that has found the rate of its link keeps it from one exchange to the next.
    "tcp_slow_start_after_idle": "0",
    # TCP sends over long round trips in as large pieces as over short ones (since Linux 5.18): at
    # 100 ms and 200 Mbit/s the userspace backend then needs a third of the processor time.
    "tcp_tso_rtt_log": "18",
}


def enter(
    socket_path: Path | str,
    site: int,
    backend: str | None = None,
    plan: Plan | None = None,
    timeout_s: float = REPLY_TIMEOUT_S,
) -> Membership:
    """Move this process into a network namespace of its own, joined to the other sites.

    From then on its only interfaces are `lo` and `eth0`, which has the site's address. To be
    called once, before the process has threads and sockets: those keep the network that they
    were made in. Children inherit the namespace. After an error the process may be in an empty
    namespace already, and can only end.

    Parameters
    ----------
    socket_path
        Where the daemon listens.
    site
        The number of this process's site in the plan.
    backend, plan
        What the daemon should be running; None takes what it runs.
    timeout_s
        How long to wait for each answer of the daemon.

    Returns
    -------
    Membership
        To be kept for as long as the process lives: closing it detaches the site.

    Raises
    ------
    netem.errors.DaemonLost
        If no daemon answers.
    netem.errors.EnterError
        If the site is attached already, the daemon runs something else, or the process has
        threads.
    netem.errors.PlanError
        If the plan has no such site.
    netem.errors.Unsupported
        If the machine does not allow it.
    """
    channel = Channel.connect(socket_path, timeout_s)
    try:
        described = channel.request("describe", timeout_s=timeout_s)
        running = Plan.parse(described["plan"], "the daemon's plan")
        if backend not in (None, described["backend"]):
            raise EnterError(
                f"the link daemon at {socket_path} runs the backend {described['backend']}, "
                f"not {backend}"
            )
        if plan not in (None, running):
            raise EnterError(f"the link daemon at {socket_path} runs another plan than this one")
        running.address(site)
        _unshare()
        _prepare(running.buffer_bytes(site))
        return Membership(channel, site, described["backend"], running, timeout_s)
    except BaseException:
        channel.close()
        raise


class Membership:
    """A site's attachment to the daemon; made by `enter`.

    The daemon detaches the site when every copy of this connection is closed, which forked
    children hold as well.

    Attributes
    ----------
    site, address, backend, plan
        What the process has entered.
    """

    def __init__(
        self, channel: Channel, site: int, backend: str, plan: Plan, timeout_s: float
    ) -> None:
        self.site = site
        self.address = plan.address(site)
        self.backend = backend
        self.plan = plan
        self._channel = channel
        self._signal: signal.Signals | None = None
        self._attach(timeout_s)

    @property
    def lost(self) -> bool:
        """Whether the daemon has ended."""
        return self._channel.lost()

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the daemon ends, at most `timeout_s`; return whether it has."""
        return self._channel.lost(timeout_s)

    def check(self) -> None:
        """Raise `netem.errors.DaemonLost` if the daemon has ended."""
        if self.lost:
            raise DaemonLost(
                f"{self._channel.name} has ended (backend {self.backend}): the links of site "
                f"{self.site} ({self.plan.sites[self.site]}) are gone; its log says why"
            )

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the daemon ends, and only then."""
        return self._channel.fileno()

    def signal_when_lost(self, number: signal.Signals) -> None:
        """Have the kernel send this process a signal when the daemon ends.

        None comes if it had ended before: look at `lost` afterwards.
        """
        self._channel.signal_when_lost(number)
        self._signal = number

    def reattach(self, socket_path: Path | str, timeout_s: float = REPLY_TIMEOUT_S) -> None:
        """Attach to another daemon, of the same plan and backend, after the first has ended.

        Connections that the site had over the old links may or may not survive. What
        `signal_when_lost` asked for holds for the new daemon too.

        Raises
        ------
        netem.errors.NetemError
            As by `enter`.
        """
        self._channel.close()
        self._channel = Channel.connect(socket_path, timeout_s)
        described = self._channel.request("describe", timeout_s=timeout_s)
        if (described["backend"], Plan.parse(described["plan"])) != (self.backend, self.plan):
            raise EnterError(f"the link daemon at {socket_path} runs another plan or backend")
        self._attach(timeout_s)
        if self._signal is not None:
            self._channel.signal_when_lost(self._signal)

    def close(self) -> None:
        """Detach the site: the process stays in its namespace, without links."""
        self._channel.close()

    def _attach(self, timeout_s: float) -> None:
        if self.backend == "userspace":
            fd = self._open_tun(timeout_s)
        else:
            fd = os.open(NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._channel.request(
                "attach", [fd], timeout_s=timeout_s, site=self.site, kind=self.backend
            )
        finally:
            os.close(fd)

    def _open_tun(self, timeout_s: float) -> int:
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return tun.open_tun(INTERFACE, self.address, self.plan.netmask)
            except Unsupported as error:
                cause = error.__cause__
                busy = isinstance(cause, OSError) and cause.errno == errno.EBUSY
                if not busy or time.monotonic() > deadline_s:
                    raise
            # The daemon before has the device still: one that lives for as long as it serves what a
            # site sent last, one that dies closes its connections first. Its end is no event here.
            time.sleep(0.005)


class Control:
    """Requests to a daemon, from any process that reaches its socket.

    Parameters
    ----------
    socket_path
        Where the daemon listens.
    timeout_s
        How long to wait for each answer.

    Raises
    ------
    netem.errors.DaemonLost
        If no daemon answers; so does every method.
    """

    def __init__(self, socket_path: Path | str, timeout_s: float = REPLY_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._channel = Channel.connect(socket_path, timeout_s)

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def describe(self) -> dict[str, Any]:
        """Return the daemon's `plan`, `backend` and its `reason`, `pid` and `attached` sites."""
        return self._request("describe")

    def change(self, change: Change) -> int:
        """Replace fields of links at once; return of how many ordered pairs."""
        return int(self._request("change", change=change.to_json())["pairs"])

    def begin(self) -> None:
        """Put all links back to the plan's start, and begin its schedule (again)."""
        self._request("begin")

    def links(self) -> dict[tuple[int, int], Link]:
        """Return every ordered pair's link as it is, with the plan's scale in its rate."""
        reply = self._request("links")
        return {(src, dst): Link.model_validate(link) for src, dst, link in reply["links"]}

    def stats(self) -> dict[tuple[int, int], PairStats]:
        """Return what every ordered pair has sent."""
        return {(src, dst): PairStats(*row) for src, dst, *row in self._request("stats")["pairs"]}

    def fileno(self) -> int:
        """Return a descriptor that is hung up (POLLRDHUP) when the daemon ends."""
        return self._channel.fileno()

    def stop(self) -> None:
        """Let the daemon end, which removes all links; wait until it has."""
        self._request("stop")
        if not self._channel.lost(self._timeout_s):
            raise DaemonLost(f"{self._channel.name} does not end")

    def close(self) -> None:
        """Close the connection; the daemon goes on."""
        self._channel.close()

    def _request(self, name: str, **fields: Any) -> dict[str, Any]:
        with self._lock:
            return self._channel.request(name, timeout_s=self._timeout_s, **fields)


def _unshare() -> None:
    names = [thread.name for thread in threading.enumerate()]
    if len(names) > 1:
        raise EnterError(
            f"this process has {len(names)} threads ({', '.join(names)}), which would stay in "
            "the old network; enter before any thread is started"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return
    number = ctypes.get_errno()
    if number != errno.EPERM:
        raise Unsupported(f"cannot make a network namespace: {os.strerror(number)}")
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        remedy = {
            errno.EINVAL: "libraries have started threads; enter before importing them",
            errno.ENOSPC: "raise `sysctl user.max_user_namespaces`",
        }.get(
            number,
            "run as root, or allow it with `sysctl kernel.unprivileged_userns_clone=1` (on "
            "Ubuntu also `kernel.apparmor_restrict_unprivileged_userns=0`)",
        )
        raise Unsupported(f"cannot make a user namespace: {os.strerror(number)}; {remedy}")
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError as error:
        raise Unsupported(f"cannot map the user of a user namespace: {error.strerror}") from error


def _prepare(buffer_bytes: int) -> None:
    tun.bring_up("lo")
    sizes = f"4096 {min(_DEFAULT_BUFFER_BYTES, buffer_bytes)} {buffer_bytes}"
    net = Path("/proc/sys/net")
    try:
        (net / "ipv4/tcp_rmem").write_text(sizes)
        (net / "ipv4/tcp_wmem").write_text(sizes)
        # The kernel's own chatter (router solicitations) has no place on a measured link.
        quiet = net / "ipv6/conf/default/disable_ipv6"
        if quiet.exists():
            quiet.write_text("1")
        for name, value in _TCP.items():
            if (net / "ipv4" / name).exists():
                (net / "ipv4" / name).write_text(value)
    except OSError as error:
        raise Unsupported(f"cannot set {error.filename}: {error.strerror}") from error
