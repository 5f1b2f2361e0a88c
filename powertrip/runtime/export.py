"""The model of a run for others: its weights and nothing else."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from powertrip import __version__
from powertrip.errors import PowerTripError
from powertrip.runtime.checkpoint import latest, load_model

EXPORTED = "model.safetensors"
"""Name of the file in the run's folder, where no other is asked for."""


class ExportFailed(PowerTripError):
    """The file could not be written."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes
    ----------
    path, bytes, tensors
        The file, its size, and how many tensors are in it.
    round
        After which the model was committed.
    skipped
        Why later checkpoints were not taken, one sentence each.
    """

    path: Path
    bytes: int
    tensors: int
    round: int
    skipped: tuple[str, ...]


def export_model(run: Path, out: Path | None = None) -> Exported:
    """Write the model of a run's last checkpoint, under the names of its module's state dict.

    Parameters
    ----------
    run
        The run's folder.
    out
        The file, in the format of safetensors; None means one in the run's folder.

    Raises
    ------
    NoCheckpoint
        The run has none that is whole.
    ExportFailed
        The file cannot be written.
    """
    found = latest(run)
    saved = load_model(found.folder)
    path = run / EXPORTED if out is None else out
    # The format knows neither parts of a vector nor another order of dimensions in memory.
    tensors = {name: tensor.contiguous().clone() for name, tensor in saved.model.items()}
    about = {
        "format": "pt",
        "round": str(saved.round),
        "digest": saved.digest,
        "powertrip_version": __version__,
    }
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        save_file(tensors, partial, metadata=about)
        partial.replace(path)
        size = path.stat().st_size
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise ExportFailed(f"{path} cannot be written: {error}") from error
    return Exported(path, size, len(tensors), saved.round, found.skipped)
