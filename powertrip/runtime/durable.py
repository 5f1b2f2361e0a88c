"""Files that outlast a power failure, and that are known to be as they were written."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field

from powertrip.errors import InputError, PowerTripError

LARGEST = 2**60
"""Largest whole number that a checkpoint's own files hold."""

_NAME = r"^[a-z0-9][a-z0-9.-]*$"
_CHUNK = 2**20


class CheckpointUnwritable(PowerTripError):
    """The checkpoint could not be written; training has lost nothing."""


class CheckpointUnreadable(InputError):
    """A folder or file is no checkpoint of ours: cut short, changed, missing, or of a version that
    is not known here."""


class Strict(BaseModel):
    """Immutable; refuses unknown fields and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class FileEntry(Strict):
    """One file of a checkpoint as it was written.

    Attributes
    ----------
    name
        Within the folder.
    bytes
        Its size.
    checksum
        256-bit BLAKE2b of its content, hexadecimal.
    """

    name: str = Field(pattern=_NAME)
    bytes: int = Field(ge=0, le=LARGEST)
    checksum: str = Field(pattern=r"^[0-9a-f]{64}$")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they outlast a power failure."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync_folder(made.parent)


class HashedFile:
    """Counts and hashes what is written to a file.

    Parameters
    ----------
    file
        Is written to; owned by the caller.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hash, self.bytes = file, hashlib.blake2b(digest_size=32), 0

    def write(self, data: Any) -> int:
        """Write bytes, all of them."""
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._hash.update(view)
        self.bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    @property
    def checksum(self) -> str:
        """Of all that was written so far."""
        return self._hash.hexdigest()


def write_file(folder: Path, name: str, write: Callable[[HashedFile], object]) -> FileEntry:
    """Write a file so that a reader finds all of it or none, even after a power failure.

    Parameters
    ----------
    folder, name
        Where; the folder is made if it is not there.
    write
        Is handed the file to write to.

    Raises
    ------
    CheckpointUnwritable
        The folder cannot be written or the disk is full; no trace is left of the attempt.
    """
    partial = folder / f".{name}.partial-{os.getpid()}"
    try:
        if not folder.is_dir():
            make_folder(folder)
        with partial.open("wb") as file:
            hashed = HashedFile(file)
            write(hashed)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / name)
        _sync_folder(folder)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        with suppress(OSError):  # the error that counts is the first one
            partial.unlink(missing_ok=True)
        raise CheckpointUnwritable(f"{folder / name}: {error}") from error
    return FileEntry(name=name, bytes=hashed.bytes, checksum=hashed.checksum)


@contextmanager
def verified(folder: Path, entry: FileEntry) -> Iterator[IO[bytes]]:
    """Open a file whose content is as it was written.

    Raises
    ------
    CheckpointUnreadable
        It is missing, no plain file, cut short or changed.
    """
    path = folder / entry.name
    with opened(folder, entry.name) as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.bytes:
            raise CheckpointUnreadable(f"{path} has {size} bytes, and {entry.bytes} were written")
        hashed = hashlib.blake2b(digest_size=32)
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
        if hashed.hexdigest() != entry.checksum:
            raise CheckpointUnreadable(f"{path} was changed after it was written")
        file.seek(0)
        yield file


@contextmanager
def opened(folder: Path, name: str, *, missing: str = "is missing") -> Iterator[IO[bytes]]:
    """Open a plain file, without following links.

    Parameters
    ----------
    folder, name
        Where it is.
    missing
        What to say of it if it is not there.

    Raises
    ------
    CheckpointUnreadable
        It is missing or no plain file, or cannot be read.
    """
    path = folder / name
    try:
        if folder.is_symlink():
            raise CheckpointUnreadable(f"{folder} is a link")
        # A pipe, too, must not be waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CheckpointUnreadable(f"{path} {missing}") from error
    except OSError as error:
        what = "a link" if path.is_symlink() else f"not readable: {error.strerror}"
        raise CheckpointUnreadable(f"{path} is {what}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise CheckpointUnreadable(f"{path} is no plain file")
    with os.fdopen(handle, "rb") as file:
        try:
            yield file
        except OSError as error:
            raise CheckpointUnreadable(f"{path} cannot be read: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
