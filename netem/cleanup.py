"""Find and remove what dead jobs have left on this machine.

Links live in namespaces that end with their processes. What can remain is the hub's interface,
for the moment until the kernel has taken the namespace apart, and a link daemon's folder with its
socket, after a SIGKILL.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netem.errors import EngineError, Unsupported
from netem.launch import SOCKET_FOLDER_PREFIX, START_TIMEOUT_S
from netem.sockets import abandoned

_MARK = "netem "
# The kernel keeps 255 bytes of an interface's alias.
_LONGEST_JOB = 100
_STATE, _STARTED = 0, 19


@dataclass(frozen=True)
class Owner:
    """Which process something belongs to; a later process with its number is told apart.

    Parameters
    ----------
    job
        The job's text.
    pid
        The process, in its namespace of process numbers.
    started
        When it started, in clock ticks since boot.
    pid_namespace
        The inode of that namespace.
    """

    job: str
    pid: int
    started: int
    pid_namespace: int

    @classmethod
    def of_this_process(cls, job: str) -> Owner:
        """Return the calling process, as the owner of a job's things."""
        pid = os.getpid()
        fields = _stat(pid)
        assert fields is not None
        return cls(job[:_LONGEST_JOB], pid, int(fields[_STARTED]), _pid_namespace())

    @classmethod
    def from_text(cls, text: str) -> Owner:
        """Read what `to_text` wrote.

        Raises
        ------
        ValueError
            If it is something else.
        """
        if not text.startswith(_MARK):
            raise ValueError(f"not an owner: {text!r}")
        try:
            return cls(**json.loads(text.removeprefix(_MARK)))
        except TypeError as error:
            raise ValueError(f"not an owner: {text!r}") from error

    def to_text(self) -> str:
        """Return it as one short line, such as an interface's alias."""
        return _MARK + json.dumps(asdict(self), separators=(",", ":"))

    def alive(self) -> bool | None:
        """Return whether the process runs; None if that cannot be told from here."""
        if self.pid_namespace != _pid_namespace():
            return None
        fields = _stat(self.pid)
        if fields is None or fields[_STATE] in ("Z", "X"):
            return False
        return int(fields[_STARTED]) == self.started


@dataclass(frozen=True)
class Leftover:
    """Something whose job is dead.

    Parameters
    ----------
    kind
        `interface` or `folder`.
    name
        The interface's name, or the folder's path.
    reason
        How it is known that nobody uses it.
    """

    kind: Literal["interface", "folder"]
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.reason}"


def find() -> tuple[Leftover, ...]:
    """Return everything on this machine that a dead job has left; needs no rights."""
    return (*find_interfaces(), *find_folders())


def find_interfaces() -> tuple[Leftover, ...]:
    """Return the interfaces of dead jobs, in the caller's network namespace."""
    found = []
    with IPRoute(groups=0) as netlink:
        for message in netlink.get_links():
            try:
                owner = Owner.from_text(message.get_attr("IFLA_IFALIAS") or "")
            except ValueError:
                continue
            if owner.alive() is False:
                reason = f"process {owner.pid} of job {owner.job} has ended"
                found.append(Leftover("interface", message.get_attr("IFLA_IFNAME"), reason))
    return tuple(found)


def find_folders(parent: Path | None = None) -> tuple[Leftover, ...]:
    """Return the socket folders of dead daemons that are the caller's own.

    Parameters
    ----------
    parent
        Where to look; None is the folder for temporary files.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    found = []
    for folder in sorted(parent.glob(f"{SOCKET_FOLDER_PREFIX}*")):
        try:
            about = folder.lstat()
            if folder.is_symlink() or not folder.is_dir() or about.st_uid != os.geteuid():
                continue
            held = list(folder.iterdir())
        except OSError:
            # Removed meanwhile, or not readable: not a leftover of ours.
            continue
        reason = None
        if not held and time.time() - about.st_mtime > 2 * START_TIMEOUT_S:
            reason = "no daemon has begun in it"
        elif held and all(abandoned(path) for path in held):
            reason = "nobody listens at its socket"
        if reason is not None:
            found.append(Leftover("folder", str(folder), reason))
    return tuple(found)


def remove(leftovers: Iterable[Leftover]) -> None:
    """Remove leftovers; one that has vanished meanwhile is no error.

    Raises
    ------
    netem.errors.Unsupported
        If the caller may not.
    netem.errors.EngineError
        If something cannot be removed for another reason.
    """
    for leftover in leftovers:
        try:
            if leftover.kind == "interface":
                with IPRoute(groups=0) as netlink:
                    for index in netlink.link_lookup(ifname=leftover.name):
                        netlink.link("del", index=index)
            else:
                for path in Path(leftover.name).iterdir():
                    path.unlink(missing_ok=True)
                Path(leftover.name).rmdir()
        except FileNotFoundError:
            continue
        except (NetlinkError, OSError) as error:
            code = error.code if isinstance(error, NetlinkError) else error.errno
            if code == errno.ENODEV:
                continue
            if code in (errno.EPERM, errno.EACCES):
                raise Unsupported(f"cannot remove {leftover}; run it as root") from error
            raise EngineError(f"cannot remove {leftover}: {os.strerror(code or 0)}") from error


def clean() -> tuple[Leftover, ...]:
    """Remove everything that dead jobs have left, and return what it was.

    Raises
    ------
    netem.errors.NetemError
        As by `remove`.
    """
    leftovers = find()
    remove(leftovers)
    return leftovers


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything; fields are counted from the one after it.
    return text[text.rindex(")") + 1 :].split()


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
