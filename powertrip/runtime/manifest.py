"""The folders of checkpoints: what is in one, which is the last that is whole, which go.

A checkpoint is `checkpoints/round-00000012` in a run's folder. Its manifest is written last, and
is what makes the other files a checkpoint. Here is nothing of torch, so that a command line can
look before it starts anything.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from powertrip import __version__
from powertrip.runtime.durable import (
    LARGEST,
    CheckpointUnreadable,
    CheckpointUnwritable,
    FileEntry,
    Strict,
    make_folder,
    opened,
    verified,
    write_file,
)

CHECKPOINTS = "checkpoints"
"""Name of the folder of checkpoints in a run's folder."""

MANIFEST = "manifest.json"
"""Name of the file that makes a folder a checkpoint."""

MODEL = "model.pt"
COORDINATOR = "coordinator.json"

FORMAT: Final = 2

_FOLDER = re.compile(r"round-(\d{8,15})")
_FILE = re.compile(r"model\.pt|coordinator\.json|site-\d{4,9}\.pt")
_LONGEST_MANIFEST = 64 * 2**20  # bytes; that of 100,000 sites has 15 MB


class NoCheckpoint(CheckpointUnreadable):
    """There is no checkpoint to go on from; the message says what there is instead."""

    def __init__(self, run_dir: Path, skipped: Sequence[str]) -> None:
        self.skipped = tuple(skipped)
        there = "".join(f"\n  {sentence}" for sentence in skipped) or " there is none at all"
        super().__init__(
            f"{run_dir} holds no checkpoint that a run can go on from (its folder {CHECKPOINTS}):"
            f"{there}"
        )


class Manifest(Strict):
    """What a checkpoint consists of.

    Attributes
    ----------
    round, digest
        The last round that is in it, and the digest of the model after it.
    sites
        Names of all sites, in the order of their numbers.
    base_dir
        Where relative paths of the scenario start.
    files
        All files but this one.
    wall_time
        When it was made, Unix seconds.
    powertrip_version
        Who made it.
    """

    format: Literal[2] = FORMAT
    round: int = Field(ge=0, le=LARGEST)
    digest: str
    sites: tuple[str, ...] = Field(min_length=1)
    base_dir: str
    files: tuple[FileEntry, ...]
    wall_time: float
    powertrip_version: str

    def entry(self, name: str) -> FileEntry | None:
        """The file of that name; None where it is not in the checkpoint."""
        return next((entry for entry in self.files if entry.name == name), None)


@dataclass(frozen=True)
class Found:
    """A checkpoint that is whole.

    Attributes
    ----------
    folder, manifest
        Where it is, and what is in it.
    skipped
        Why later ones were not taken, one sentence each.
    """

    folder: Path
    manifest: Manifest
    skipped: tuple[str, ...] = ()


def site_file(site: int) -> str:
    """Name of the file with a site's own state."""
    return f"site-{site:04d}.pt"


def folder_of(run_dir: Path, round_: int) -> Path:
    """The folder of the checkpoint after a round."""
    return run_dir / CHECKPOINTS / f"round-{round_:08d}"


def begin_checkpoint(run_dir: Path, round_: int) -> Path:
    """Make the folder of a checkpoint, without what an earlier attempt has left in it.

    Raises
    ------
    CheckpointUnwritable
        It cannot be made.
    """
    folder = folder_of(run_dir, round_)
    try:
        _remove(folder)
        make_folder(folder)
    except OSError as error:
        raise CheckpointUnwritable(f"{folder}: {error.strerror or error}") from error
    return folder


def write_coordinator(folder: Path, state: dict[str, Any]) -> FileEntry:
    """Write the coordinator's state: strict JSON.

    Raises
    ------
    CheckpointUnwritable
        See `write_file`.
    """
    data = _json(state)
    return write_file(folder, COORDINATOR, lambda file: file.write(data))


def write_manifest(
    folder: Path,
    files: Sequence[FileEntry],
    *,
    round_: int,
    digest: str,
    sites: Sequence[str],
    base_dir: Path,
) -> Manifest:
    """Make a folder's files a checkpoint.

    Parameters
    ----------
    folder
        With all files in it.
    files
        What `write_model`, `write_site` and `write_coordinator` have returned; the first and the
        last must be among them. Of a site without one, the inner state starts afresh.
    round_, digest
        The last round that is in it, and the digest of the model after it.
    sites
        Names of all sites.
    base_dir
        Where relative paths of the scenario start.

    Raises
    ------
    CheckpointUnwritable
        See `write_file`.
    """
    manifest = Manifest(
        round=round_,
        digest=digest,
        sites=tuple(sites),
        base_dir=str(base_dir.resolve()),
        files=tuple(files),
        wall_time=time.time(),
        powertrip_version=__version__,
    )
    if problem := _problem(manifest):
        raise CheckpointUnwritable(f"{folder}: {problem}")
    body = manifest.model_dump(mode="json")
    data = _json({"manifest": body, "checksum": _checksum(_json(body))})
    write_file(folder, MANIFEST, lambda file: file.write(data))
    return manifest


def latest(run_dir: Path) -> Found:
    """The last checkpoint of a run of which every file is as it was written.

    Raises
    ------
    NoCheckpoint
        There is none.
    """
    return _last(run_dir, _read_whole)


def newest(run_dir: Path) -> Found:
    """The last checkpoint with a manifest; whether its files are whole is not looked at.

    Raises
    ------
    NoCheckpoint
        There is none.
    """
    return _last(run_dir, read_manifest)


def _last(run_dir: Path, read: Callable[[Path], Manifest]) -> Found:
    skipped: list[str] = []
    for folder in _folders(run_dir):
        try:
            return Found(folder, read(folder), tuple(skipped))
        except CheckpointUnreadable as error:
            skipped.append(f"{folder.name} is no use: {error}")
    raise NoCheckpoint(run_dir, skipped)


def _read_whole(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    for entry in manifest.files:
        with verified(folder, entry):
            pass
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """What a checkpoint consists of.

    Raises
    ------
    CheckpointUnreadable
        It is no checkpoint of ours, or it has no model.
    """
    path = folder / MANIFEST
    with opened(folder, MANIFEST, missing="is missing: it was not finished") as file:
        data = file.read(_LONGEST_MANIFEST + 1)
    if len(data) > _LONGEST_MANIFEST:
        raise CheckpointUnreadable(f"{path} is larger than any manifest")
    whole = _parsed(path, data)
    if not isinstance(whole, dict) or whole.keys() != {"manifest", "checksum"}:
        raise CheckpointUnreadable(f"{path} is no manifest of a checkpoint")
    body = whole["manifest"]
    found = body.get("format") if isinstance(body, dict) else None
    if found != FORMAT:
        raise CheckpointUnreadable(
            f"{path} has format {found!s:.20}, and this PowerTrip knows {FORMAT}: read it with "
            "the PowerTrip that wrote it"
        )
    try:
        if _checksum(_json(body)) != whole["checksum"]:
            raise CheckpointUnreadable(f"{path} was changed after it was written")
        manifest = Manifest.model_validate_json(_json(body))
    except (ValidationError, ValueError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        what = error if first is None else f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CheckpointUnreadable(f"{path} is no manifest of a checkpoint: {what}") from error
    if problem := _problem(manifest):
        raise CheckpointUnreadable(f"{path}: {problem}")
    if (number := _round_of(folder)) is not None and number != manifest.round:
        raise CheckpointUnreadable(f"{path} is that of round {manifest.round}")
    return manifest


def read_coordinator(folder: Path) -> dict[str, Any]:
    """The coordinator's state.

    Raises
    ------
    CheckpointUnreadable
        The file or the manifest is damaged.
    """
    entry = required(read_manifest(folder), COORDINATOR, folder)
    with verified(folder, entry) as file:
        data = file.read()
    state = _parsed(folder / COORDINATOR, data)
    if not isinstance(state, dict):
        raise CheckpointUnreadable(f"{folder / COORDINATOR} holds no state of a coordinator")
    return state


def required(manifest: Manifest, name: str, folder: Path) -> FileEntry:
    """The entry of a file; raises `CheckpointUnreadable` where the manifest has none."""
    entry = manifest.entry(name)
    if entry is None:
        raise CheckpointUnreadable(f"{folder / MANIFEST} names no {name}")
    return entry


def prune(run_dir: Path, keep: int) -> None:
    """Remove all but the last checkpoints, and what was left unfinished before them.

    Parameters
    ----------
    keep
        How many stay, at least one; unfinished ones later than the last do not count.

    Raises
    ------
    CheckpointUnwritable
        One cannot be removed.
    """
    kept = 0
    for folder in _folders(run_dir):
        try:
            finished = (folder / MANIFEST).exists()
            if kept >= max(keep, 1) or (kept and not finished):
                _remove(folder)
        except OSError as error:
            raise CheckpointUnwritable(
                f"{folder} cannot be removed: {error.strerror or error}"
            ) from error
        kept += finished


def set_aside(run_dir: Path, found: Found) -> list[Path]:
    """Rename what is later than the checkpoint that a run goes on from.

    It was of no use, and shall neither be taken for a part of what comes nor be counted among the
    checkpoints that are kept.

    Returns
    -------
    list of Path
        What they are called then.

    Raises
    ------
    CheckpointUnwritable
        One cannot be renamed.
    """
    renamed = []
    for folder in _folders(run_dir):
        if folder == found.folder:
            break
        numbers = itertools.count(1)
        free = (folder.with_name(f"{folder.name}.unusable-{number}") for number in numbers)
        aside = next(path for path in free if not path.exists())
        try:
            renamed.append(folder.rename(aside))
        except OSError as error:
            raise CheckpointUnwritable(
                f"{folder} cannot be renamed: {error.strerror or error}"
            ) from error
    return renamed


def _remove(folder: Path) -> None:
    """Remove a checkpoint; its manifest first, so that half of it is never taken for one."""
    if folder.is_symlink():
        folder.unlink()
        return
    if not folder.exists():
        return
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder)


def _folders(run_dir: Path) -> list[Path]:
    """The folders of checkpoints, finished or not, the latest first."""
    try:
        found = [path for path in (run_dir / CHECKPOINTS).iterdir() if _round_of(path) is not None]
    except OSError:
        return []
    return sorted(found, key=lambda path: _round_of(path) or 0, reverse=True)


def _round_of(folder: Path) -> int | None:
    named = _FOLDER.fullmatch(folder.name)
    return None if named is None else int(named[1])


def _problem(manifest: Manifest) -> str | None:
    names = [entry.name for entry in manifest.files]
    if missing := {MODEL, COORDINATOR}.difference(names):
        return f"it names no {' and no '.join(sorted(missing))}"
    if strange := [name for name in names if not _FILE.fullmatch(name)]:
        return f"it names a file {strange[0]!r}"
    return "it names a file twice" if len(set(names)) < len(names) else None


def _parsed(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CheckpointUnreadable(f"{path} is not JSON: {error}") from error


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _json(value: Any) -> bytes:
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()
