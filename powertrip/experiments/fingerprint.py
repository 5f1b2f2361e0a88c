"""What a cell's result depends on: its settings, its data and the code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import powertrip
from powertrip.coordination.setup import Setup, data_folder

_WITHOUT_EFFECT: dict[str, Any] = {
    "name": True,
    "checkpoint": True,
    "telemetry": True,
    "runtime": {"run_dir"},
    "simulation": {"workers"},
}
"""Settings that change where and how a run is shown, not what it comes to."""

_NOT_RUN = {"cli.py", "launcher.py", "train.py"}
_ROOMS_NOT_RUN = {"experiments", "runtime"}
"""Modules and rooms of the package that what a cell comes to does not depend on."""


def cell_key(setup: Setup) -> str:
    """Name a cell by what it depends on: settings, files that they name, version of PowerTrip.

    Where two cells have the same key, one result serves both.

    Raises
    ------
    TaskError
        The task's data set is not where it should be.
    """
    config = setup.config.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
    content = {
        "powertrip": powertrip.__version__,
        "config": config,
        "data": data_version(setup),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def data_version(setup: Setup) -> dict[str, str]:
    """A short proof of what the files hold that a scenario names, and its data set.

    A file counts with its content; a folder, and a data set, with the names and sizes of the files
    in it; a task of the user's with its module, not with what that reads.
    """
    config = setup.config
    found: dict[str, str] = {}
    for text in sorted(set(_texts(config.model_dump(mode="json")))):
        for folder in (setup.base_dir, data_folder()):
            path = None if folder is None else folder / Path(text).expanduser()
            if path is not None and path.is_file():
                found[text] = _content(path, path.stat().st_mtime_ns)
                break
            if path is not None and text == config.task.idx.folder and path.is_dir():
                found[text] = _listing(path)
                break
    if config.task.name == "idx":
        from powertrip.training.idx_files import dataset_folder

        folder = dataset_folder(config.task.idx, data_dir=data_folder(), base_dir=setup.base_dir)
        found["data set"] = _listing(folder)
    return found


def _texts(value: Any) -> Iterator[str]:
    """All texts in a dump that may name a file: the module of a task as one does."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str) and 0 < len(value) < 256:
        module, colon, _ = value.partition(":")
        yield f"{module.replace('.', '/')}.py" if colon and "/" not in module else value


@lru_cache(maxsize=4096)
def _content(path: Path, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@cache
def _listing(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]
    return hashlib.blake2b(repr(sizes).encode(), digest_size=16).hexdigest()


@cache
def source_version() -> str:
    """A short proof of the package's source, as far as a simulated run may depend on it."""
    root = Path(powertrip.__file__).parent
    hasher = hashlib.blake2b(digest_size=10)
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name not in _NOT_RUN and name.partition("/")[0] not in _ROOMS_NOT_RUN:
            hasher.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return hasher.hexdigest()
