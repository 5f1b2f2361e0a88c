"""One link daemon for processes that are started apart, as torchrun and srun start theirs.

Whoever comes first chooses the backend and starts the daemon; the others find it. Nobody needs to
know who is first, and the daemon ends when the last of them has.

They take turns by a lock file in the job's folder, which each removes at the end of its turn. So
who gets the lock of a file that is in the folder no more has waited for it meanwhile: what the
turn before found impossible, and wrote into the file, is as true for those as if they had tried,
and nobody who comes later can read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from netem.capabilities import Choice, choose_backend
from netem.client import Control
from netem.errors import AddressInUse, DaemonLost, EngineError, EnterError, NetemError
from netem.launch import SOCKET_FOLDER_PREFIX, RunningDaemon, start_daemon
from netem.plan import Plan
from netem.protocol import error_reply, raise_for
from netem.underlay import Underlay

JOIN_TIMEOUT_S = 60.0
_SOCKET = "daemon.sock"
LOCK = "lock"
"""Name of the file that the process which starts the daemon holds locked meanwhile."""


class Joined(NamedTuple):
    """What `join_daemon` has found or made."""

    choice: Choice
    """The backend and why, for the first process as for all others."""

    socket_path: Path | None
    """Where the daemon listens; None where the choice is `off` or `none`."""

    daemon: RunningDaemon | None
    """The daemon if this process has started it; to be kept, not stopped."""


def join_daemon(
    job: str,
    plan: Plan,
    wanted: str = "auto",
    *,
    underlay: Underlay | None = None,
    log_path: Path | None = None,
    timeout_s: float = JOIN_TIMEOUT_S,
) -> Joined:
    """Find the job's link daemon on this machine, or start it.

    Parameters
    ----------
    job
        A text that the processes of the job share, and other jobs do not.
    plan
        The links; the same for all processes of the job.
    wanted
        As `netem.capabilities.choose_backend` takes it.
    underlay
        How the job's other machines are reached, if there are any; `auto` is `kernel` then.
    log_path
        Where the daemon's log is appended; None is the stderr of the process that starts it.
    timeout_s
        How long to wait until other processes of the job have started it.

    Raises
    ------
    netem.errors.NetemError
        `Unsupported` if the wanted backend cannot work here, `EnterError` if the job's daemon has
        another plan or backend, `EngineError` if another process takes too long, `AddressInUse` if
        the place for the socket is somebody else's, and whatever `start_daemon` raises.
    """
    if wanted == "off":
        return Joined(choose_backend(wanted), None, None)
    if underlay is not None and wanted == "auto":
        wanted = "kernel"
    name = hashlib.blake2b(f"{os.geteuid()} {job}".encode(), digest_size=10).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"{SOCKET_FOLDER_PREFIX}{name}"
    path = folder / _SOCKET
    with _turn(folder, timeout_s) as turn:
        if turn.found is not None:
            raise_for(turn.found)
            return Joined(Choice(*turn.found["choice"]), None, None)
        try:
            with Control(path) as control:
                described = control.describe()
        except DaemonLost:
            try:
                joined = _start(path, plan, wanted, underlay, log_path)
            except NetemError as error:
                turn.leave(error_reply(error))
                raise
            if joined.socket_path is None:
                turn.leave({"ok": True, "choice": joined.choice})
            return joined
    running = Choice(described["backend"], described["reason"])
    if wanted not in ("auto", running.name):
        raise EnterError(f"the job's link daemon runs the backend {running.name}, not {wanted}")
    if Plan.parse(described["plan"], "the daemon's plan") != plan:
        raise EnterError(
            f"the link daemon of this job (process {described['pid']}) has other links than these: "
            "give every process the same plan"
        )
    return Joined(running, path, None)


def _start(
    path: Path, plan: Plan, wanted: str, underlay: Underlay | None, log_path: Path | None
) -> Joined:
    choice = choose_backend(wanted)
    if choice.name == "none":
        return Joined(choice, None, None)
    daemon = start_daemon(
        plan,
        choice.name,
        path,
        tied=False,
        private=True,
        reason=choice.reason,
        underlay=underlay,
        log_path=log_path,
    )
    return Joined(choice, path, daemon)


class _Turn(NamedTuple):
    """A process's turn with the job's folder."""

    lock: int
    """The lock file's descriptor."""

    found: dict[str, Any] | None
    """What the turn before has left for those that waited."""

    def leave(self, finding: dict[str, Any]) -> None:
        """Tell those that wait."""
        os.truncate(self.lock, 0)
        os.pwrite(self.lock, json.dumps(finding).encode(), 0)


@contextlib.contextmanager
def _turn(folder: Path, timeout_s: float) -> Iterator[_Turn]:
    """Have the job's folder to oneself, among its processes, for the body of a `with`."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        with contextlib.ExitStack() as held:
            here = _open(folder)
            held.callback(os.close, here)
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                lock = os.open(LOCK, flags, 0o600, dir_fd=here)
            except FileNotFoundError:
                continue  # the folder was removed just now
            held.callback(os.close, lock)
            _lock(lock, deadline_s, timeout_s)
            if _in_folder(here, lock):
                held.callback(_remove, folder, here)
                yield _Turn(lock, None)
                return
            found = os.pread(lock, os.fstat(lock).st_size, 0)
            if found:
                yield _Turn(lock, json.loads(found))
                return


def _open(folder: Path) -> int:
    while True:
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and folder.parent.exists():
                continue  # the folder was removed just now
            raise AddressInUse(f"{folder} cannot be used: {error.strerror}; remove it") from error
        about = os.fstat(fd)
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
            os.close(fd)
            raise AddressInUse(
                f"{folder} belongs to somebody else, or is open to others; remove it"
            )
        return fd


def _lock(fd: int, deadline_s: float, timeout_s: float) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > deadline_s:
                raise EngineError(
                    f"another process of this job has been starting its links for {timeout_s:g} s; "
                    "end it if it hangs"
                ) from error
            # A lock that comes free is no event that could be waited for within a time.
            time.sleep(0.01)


def _in_folder(here: int, lock: int) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), os.stat(LOCK, dir_fd=here))
    except FileNotFoundError:
        return False


def _remove(folder: Path, here: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(LOCK, dir_fd=here)
    # A daemon's folder stays until that ends.
    with contextlib.suppress(OSError):
        folder.rmdir()
