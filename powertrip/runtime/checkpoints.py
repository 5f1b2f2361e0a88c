"""The coordinator's part of the checkpoints: when one is due, and what makes it whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from powertrip.coordination.membership import HUB
from powertrip.coordination.messages import Save, Saved
from powertrip.runtime.durable import CheckpointUnwritable, FileEntry
from powertrip.runtime.manifest import (
    MODEL,
    begin_checkpoint,
    prune,
    write_coordinator,
    write_manifest,
)
from powertrip.runtime.settings import CheckpointSettings


@dataclass
class _Open:
    """A checkpoint that the sites are writing."""

    save: Save
    digest: str
    state: dict[str, Any]
    expected: set[int]
    files: list[FileEntry] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Made:
    """A checkpoint that is whole.

    Attributes
    ----------
    folder, round
        Where it is, and the last round in it.
    nbytes, seconds
        Size of its files, and the longest time that a site has written.
    """

    folder: str
    round: int
    nbytes: int
    seconds: float


class Checkpoints:
    """Has checkpoints made, one at a time; a later one takes the place of one that is not whole.

    Parameters
    ----------
    run_dir
        The run's folder, which every site that keeps the model can write to.
    settings
        How often, and how many are kept.
    sites
        Names of all sites.
    base_dir
        Where relative paths of the scenario start.
    warn
        Told of what has failed, in words; training goes on.
    """

    def __init__(
        self,
        run_dir: Path,
        settings: CheckpointSettings,
        *,
        sites: Collection[str],
        base_dir: Path,
        warn: Callable[[str], None],
    ) -> None:
        self._run_dir, self._settings = run_dir.resolve(), settings
        self._sites, self._base_dir, self._warn = tuple(sites), base_dir, warn
        self._open: _Open | None = None
        self._last_round, self._last_s = 0, time.monotonic()

    @property
    def open(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._open is not None

    def start(self, round_: int) -> None:
        """The training begins, after a round that needs no checkpoint."""
        self._last_round, self._last_s = round_, time.monotonic()

    def due(self, round_: int) -> bool:
        """Whether the commit of a round is one to be saved."""
        passed_s = time.monotonic() - self._last_s
        return self._settings.is_due(round_ - self._last_round, passed_s)

    def begin(
        self,
        round_: int,
        digest: str,
        state: dict[str, Any],
        *,
        holders: Collection[int],
        present: Collection[int],
    ) -> Save | None:
        """Begin a checkpoint of a commit; None where that cannot be.

        Parameters
        ----------
        round_, digest
            The round, and the digest of the model after it.
        state
            The coordinator's, after it.
        holders
            Sites that hold the model.
        present
            Sites that will save what they remember.
        """
        self._last_round, self._last_s = round_, time.monotonic()
        if not holders:
            return None
        try:
            folder = begin_checkpoint(self._run_dir, round_)
        except CheckpointUnwritable as error:
            self._fail(round_, str(error))
            return None
        # On the hub's machine the folder is at hand.
        keeper = HUB if HUB in holders else min(holders)
        save = Save(folder=str(folder), round=round_, keeper=keeper)
        self._open = _Open(save, digest, state, set(present) | {keeper})
        return save

    def take(self, saved: Saved) -> Made | None:
        """A site has written its part; the checkpoint, where it is whole by that."""
        making = self._open
        if making is None or saved.round != making.save.round:
            return None
        if saved.error is not None:
            self._fail(saved.round, f"{self._sites[saved.site]}: {saved.error}")
            return None
        making.expected.discard(saved.site)
        try:
            making.files += [FileEntry(**file.model_dump()) for file in saved.files]
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            self._fail(saved.round, f"{self._sites[saved.site]} names an odd file: {problem}")
            return None
        making.seconds = max(making.seconds, saved.seconds)
        return self._finish(making)

    def lose(self, site: int) -> Made | None:
        """A site is gone; the checkpoint, where it is whole without it."""
        making = self._open
        if making is None or site not in making.expected:
            return None
        making.expected.discard(site)
        if site == making.save.keeper:
            self._fail(making.save.round, f"{self._sites[site]}, which writes the model, is gone")
            return None
        return self._finish(making)

    def _finish(self, making: _Open) -> Made | None:
        if making.expected:
            return None
        folder, round_ = Path(making.save.folder), making.save.round
        self._open = None
        try:
            if not any(entry.name == MODEL for entry in making.files):
                raise CheckpointUnwritable(f"{folder}: the model is not in it")
            making.files.append(write_coordinator(folder, making.state))
            manifest = write_manifest(
                folder,
                making.files,
                round_=round_,
                digest=making.digest,
                sites=self._sites,
                base_dir=self._base_dir,
            )
            prune(self._run_dir, self._settings.keep)
        except CheckpointUnwritable as error:
            self._fail(round_, str(error))
            return None
        nbytes = sum(entry.bytes for entry in manifest.files)
        return Made(str(folder), round_, nbytes, making.seconds)

    def _fail(self, round_: int, why: str) -> None:
        self._open = None
        self._warn(f"no checkpoint of round {round_}, the one before stays: {why}")
