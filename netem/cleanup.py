"""Find and remove what dead jobs have left on this machine.

Links live in namespaces that end with their processes. What can remain after a SIGKILL is a link
daemon's folder with its socket.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from netem.errors import EngineError
from netem.launch import SOCKET_FOLDER_PREFIX, START_TIMEOUT_S
from netem.shared import LOCK
from netem.sockets import abandoned


@dataclass(frozen=True)
class Leftover:
    """The folder of a link daemon that is dead.

    Parameters
    ----------
    folder
        Its path.
    reason
        How it is known that nobody uses it.
    """

    folder: Path
    reason: str

    def __str__(self) -> str:
        return f"folder {self.folder}: {self.reason}"


def find(parent: Path | None = None) -> tuple[Leftover, ...]:
    """Return the folders of dead daemons that are the caller's own.

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
        elif held and all(abandoned(path) or _unlocked(path) for path in held):
            reason = "nobody listens at its socket, or is about to"
        if reason is not None:
            found.append(Leftover(folder, reason))
    return tuple(found)


def _unlocked(path: Path) -> bool:
    """Return whether a path is the lock of a start (`netem.shared`) that nobody holds any more."""
    if path.name != LOCK or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def remove(leftovers: Iterable[Leftover]) -> None:
    """Remove leftovers; one that has vanished meanwhile is no error.

    Raises
    ------
    netem.errors.EngineError
        If something cannot be removed.
    """
    for leftover in leftovers:
        try:
            for path in leftover.folder.iterdir():
                path.unlink(missing_ok=True)
            leftover.folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise EngineError(f"cannot remove {leftover}: {error.strerror}") from error


def clean() -> tuple[Leftover, ...]:
    """Remove everything that dead jobs have left, and return what it was.

    Raises
    ------
    netem.errors.EngineError
        As by `remove`.
    """
    leftovers = find()
    remove(leftovers)
    return leftovers
