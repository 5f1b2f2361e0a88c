"""The files of a checkpoint: the model, and what each site remembers for itself.

`manifest` says what a checkpoint is; `checkpoint_writer` writes one beside the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from powertrip.runtime.durable import (
    CheckpointUnreadable,
    CheckpointUnwritable,
    FileEntry,
    HashedFile,
    verified,
    write_file,
)
from powertrip.runtime.manifest import (
    FORMAT,
    MODEL,
    Found,
    Manifest,
    NoCheckpoint,
    begin_checkpoint,
    latest,
    prune,
    read_coordinator,
    read_manifest,
    required,
    set_aside,
    site_file,
    write_coordinator,
    write_manifest,
)
from powertrip.training.digest import digest as digest_of
from powertrip.training.flat import FlatModel

__all__ = [
    "CheckpointUnreadable",
    "CheckpointUnwritable",
    "FileEntry",
    "Found",
    "Manifest",
    "ModelCopy",
    "NoCheckpoint",
    "SavedModel",
    "begin_checkpoint",
    "latest",
    "load_model",
    "load_site",
    "prune",
    "read_coordinator",
    "read_manifest",
    "set_aside",
    "write_coordinator",
    "write_manifest",
    "write_model",
    "write_site",
]


@dataclass(frozen=True)
class ModelCopy:
    """A committed model, apart from the one that is trained.

    Attributes
    ----------
    vector
        Everything that is learned, flat.
    outer_state
        The outer optimiser's state, flat.
    places
        Shape, strides and offset in the vector of each entry of the module's state dict.
    rest
        The entries that are not in the vector: buffers of whole numbers.
    """

    vector: Tensor
    outer_state: Tensor
    places: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], int]]
    rest: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: FlatModel, vector: Tensor, outer_state: Tensor) -> Self:
        """Copy a committed vector and outer state; this is all that training waits for.

        Parameters
        ----------
        model
            Says how the vector is laid out; its own vector may hold anything.
        vector, outer_state
            What is committed.
        """
        places, rest = {}, {}
        whole = model.vector.untyped_storage().data_ptr()
        first = int(model.vector.storage_offset())
        for name, value in model.module.state_dict().items():
            if not isinstance(value, Tensor):
                continue
            if value.untyped_storage().data_ptr() == whole:
                offset = int(value.storage_offset()) - first
                places[name] = (tuple(value.shape), tuple(value.stride()), offset)
            else:
                rest[name] = value.detach().clone()
        return cls(vector.detach().clone(), outer_state.detach().clone(), places, rest)

    def state_dict(self) -> dict[str, Tensor]:
        """The module's state dict, on the CPU; its tensors are parts of one vector."""
        return self._state_dict(self.vector.cpu())

    def _state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        inside = {name: vector.as_strided(*place) for name, place in self.places.items()}
        return inside | {name: value.cpu() for name, value in self.rest.items()}

    def content(self) -> dict[str, Any]:
        """What the file of a model holds, but for its round: the vector once, and parts of it."""
        vector = self.vector.cpu()
        return {
            "vector": vector,
            "outer_state": self.outer_state.cpu(),
            "model": self._state_dict(vector),
        }


@dataclass(frozen=True)
class SavedModel:
    """A model as it was read from a checkpoint, on the CPU.

    Attributes
    ----------
    vector, outer_state
        What is committed, flat.
    model
        The module's state dict; its tensors are parts of the vector.
    round, digest
        The round after which it was committed, and its digest.
    """

    vector: Tensor
    outer_state: Tensor
    model: dict[str, Tensor]
    round: int
    digest: str

    def copy_into(self, vector: Tensor, outer_state: Tensor) -> None:
        """Write what is committed over a model and an outer state of the same sizes.

        Raises
        ------
        CheckpointUnreadable
            They are of other sizes: those of another task or outer optimiser.
        """
        for what, saved, into in (
            ("model", self.vector, vector),
            ("outer optimiser's state", self.outer_state, outer_state),
        ):
            if saved.shape != into.shape or saved.dtype != into.dtype:
                raise CheckpointUnreadable(
                    f"the checkpoint's {what} has {saved.numel()} numbers ({saved.dtype}), that of "
                    f"the scenario {into.numel()} ({into.dtype}): a run goes on with the task and "
                    "the outer optimiser that it began with"
                )
        vector.copy_(self.vector)
        outer_state.copy_(self.outer_state)


def write_model(folder: Path, model: ModelCopy, *, round_: int, digest: str) -> FileEntry:
    """Write a committed model.

    Raises
    ------
    CheckpointUnwritable
        The folder cannot be written or the disk is full.
    """
    content = model.content() | {"format": FORMAT, "round": round_, "digest": digest}
    return write_file(folder, MODEL, lambda file: _save(content, file))


def write_site(folder: Path, site: int, inner_state: Mapping[str, Tensor]) -> FileEntry:
    """Write what a site's inner optimiser remembers.

    Raises
    ------
    CheckpointUnwritable
        The folder cannot be written or the disk is full.
    """
    inner = {name: _alone(tensor) for name, tensor in inner_state.items()}
    content = {"format": FORMAT, "site": site, "inner": inner}
    return write_file(folder, site_file(site), lambda file: _save(content, file))


def load_model(folder: Path) -> SavedModel:
    """Read the model of a checkpoint; nothing but tensors and plain values is ever unpickled.

    Parameters
    ----------
    folder
        The checkpoint's, as `manifest.latest` finds it.

    Raises
    ------
    CheckpointUnreadable
        It is damaged, or not what was committed.
    """
    path = folder / MODEL
    content = _load(folder, MODEL, {"vector", "outer_state", "model", "round", "digest"})
    vector, outer_state, model = content["vector"], content["outer_state"], content["model"]
    flat = all(isinstance(t, Tensor) and t.dim() == 1 for t in (vector, outer_state))
    plain = isinstance(content["round"], int) and isinstance(content["digest"], str)
    if not (flat and plain and _are_tensors(model)):
        raise CheckpointUnreadable(f"{path} holds something else than a model")
    if digest_of(vector, outer_state) != content["digest"]:
        raise CheckpointUnreadable(f"{path} does not hold the model with the digest that it names")
    return SavedModel(vector, outer_state, dict(model), content["round"], content["digest"])


def load_site(folder: Path, site: int) -> dict[str, Tensor]:
    """Read what a site's inner optimiser remembered; empty where the checkpoint has nothing of it.

    Raises
    ------
    CheckpointUnreadable
        It is damaged.
    """
    name = site_file(site)
    if read_manifest(folder).entry(name) is None:
        return {}
    content = _load(folder, name, {"site", "inner"})
    if not _is(content["site"], site) or not _are_tensors(content["inner"]):
        raise CheckpointUnreadable(f"{folder / name} holds something else than site {site}'s state")
    return dict(content["inner"])


def _save(content: dict[str, Any], file: HashedFile) -> None:
    torch.save(content, file)  # type: ignore[arg-type]  # it asks for no more than write and flush


def _load(folder: Path, name: str, keys: set[str]) -> dict[str, Any]:
    entry = required(read_manifest(folder), name, folder)
    with verified(folder, entry) as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a file that was made up can fail anywhere in the reader
            raise CheckpointUnreadable(f"{folder / name} cannot be read: {error}") from error
    if not isinstance(content, dict) or not _is(content.get("format"), FORMAT):
        raise CheckpointUnreadable(f"{folder / name} is of no format that this PowerTrip knows")
    if content.keys() != keys | {"format"}:
        raise CheckpointUnreadable(f"{folder / name} lacks something, or holds more than it should")
    return content


def _alone(tensor: Tensor) -> Tensor:
    """On the CPU, without the rest of a storage that it is a part of."""
    tensor = tensor.detach().cpu()
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()


def _is(value: object, number: int) -> bool:
    # A tensor in its place has no truth value of its own.
    return isinstance(value, int) and value == number


def _are_tensors(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
    )
