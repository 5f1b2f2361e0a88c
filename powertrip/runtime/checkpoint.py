"""The model on disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from powertrip.errors import InputError, PowerTripError

FORMAT = 1


class CheckpointUnwritable(PowerTripError):
    """The checkpoint could not be written; training has lost nothing."""


class CheckpointUnreadable(InputError):
    """A file is no checkpoint of ours, or of an unknown version."""


def save_checkpoint(
    path: Path,
    *,
    model: dict[str, torch.Tensor],
    outer_state: torch.Tensor,
    round_: int,
    digest: str,
) -> int:
    """Write a checkpoint so that a reader finds either all of it or the one before.

    Parameters
    ----------
    model
        The module's state dict.
    outer_state
        The outer optimiser's state, flat.

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    CheckpointUnwritable
        The folder cannot be written or the disk is full.
    """
    content = {
        "format": FORMAT,
        "model": {name: tensor.detach().cpu().clone() for name, tensor in model.items()},
        "outer_state": outer_state.detach().cpu().clone(),
        "round": round_,
        "digest": digest,
    }
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return path.stat().st_size
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        with suppress(OSError):  # the error that counts is the first one
            partial.unlink(missing_ok=True)
        raise CheckpointUnwritable(f"{path}: {error}") from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; nothing but tensors and plain values is ever unpickled.

    Raises
    ------
    CheckpointUnreadable
        There is no such file, or it is no checkpoint of a known version.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise CheckpointUnreadable(f"{path} is no readable checkpoint: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointUnreadable(f"{path} is no checkpoint of version {FORMAT}")
    return content
