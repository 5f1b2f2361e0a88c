"""What the coordinator leaves in the store before each entry, for another process to go on from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, ValidationError

from powertrip.coordination.messages import Begin, Commit, Ready
from powertrip.coordination.roster import Record
from powertrip.runtime.control import job_store, store_errors
from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.manifest import NoCheckpoint, newest
from powertrip.runtime.seal import Seal

_KEY = "coordinator"
_RUN_KEY = "run_dir"


class Memory(BaseModel):
    """The run as the coordinator knows it, and what it is about to publish.

    Attributes
    ----------
    entry, position
        The entry of the log, and its index.
    ready
        The sites' first reports.
    course
        See `Course.snapshot`.
    holders
        Sites that hold the last commit.
    incarnations
        Which process of each site was known, in the sites' order.
    records
        What is held against sites.
    wall_time
        When, Unix seconds.
    run_dir
        The run's folder.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    entry: Begin | Commit
    position: int
    ready: tuple[Ready, ...]
    course: dict[str, Any]
    holders: tuple[int, ...]
    incarnations: tuple[int, ...] = ()
    records: tuple[Record, ...] = ()
    wall_time: float
    run_dir: str

    @property
    def round(self) -> int:
        """The last round that is committed."""
        if isinstance(self.entry, Commit):
            return self.entry.round
        return self.entry.first_round - 1


def remember(store: dist.Store, memory: Memory, seal: Seal) -> None:
    """Put what the coordinator knows into the store.

    Raises
    ------
    ControlPlaneError
        The store cannot be reached.
    """
    note = seal.close_note(_KEY, memory.model_dump_json().encode())
    with store_errors("leaving what the coordinator knows"):
        store.set(_KEY, note)


def recall(store: dist.Store, seal: Seal) -> Memory | None:
    """What another process of the coordinator has left; None where it had not come so far.

    Raises
    ------
    ControlPlaneError
        The store cannot be reached, or holds no such thing.
    """
    with store_errors("asking what the coordinator knew"):
        if not store.check([_KEY]):
            return None
        data = store.get(_KEY)
    try:
        return Memory.model_validate_json(seal.open_note(_KEY, data))
    except ValidationError as error:
        raise ControlPlaneError(
            f"what the coordinator has left in the store cannot be read: {error.errors()[0]['msg']}"
        ) from error


def note_run(run_dir: str) -> None:
    """Let later attempts of the job, which torchrun makes under --max-restarts, find the run."""
    with store_errors("noting the run's folder"):
        job_store(attempts=True).set(_RUN_KEY, run_dir)


def earlier_run(environment: Mapping[str, str] = os.environ) -> str | None:
    """The folder of the run that an earlier attempt of this job has begun and saved, if any.

    Raises
    ------
    ControlPlaneError
        The store cannot be reached.
    """
    if environment.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    with store_errors("asking for an earlier attempt"):
        store = job_store(attempts=True)
        if not store.check([_RUN_KEY]):
            return None
        run_dir = store.get(_RUN_KEY).decode()
    try:
        newest(Path(run_dir))
    except NoCheckpoint:
        return None
    return run_dir
