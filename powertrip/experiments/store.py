"""The finished cells of an experiment, a file each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import powertrip
from powertrip.experiments.cell import CellResult
from powertrip.experiments.fingerprint import source_version
from powertrip.experiments.table import replace_file

_RESULT = TypeAdapter(CellResult)


class Store:
    """A folder with one file a cell, each written in one step.

    So several experiments can share it, and one that is interrupted leaves no half of a file.

    Parameters
    ----------
    folder
        The folder; made with the first result.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.other_source: set[str] = set()

    def load(self, key: str) -> CellResult | None:
        """The result of a cell that has been finished, and not failed; None where there is none.

        `other_source` then holds the keys of those that another source of PowerTrip has made.
        """
        try:
            fields: dict[str, Any] = json.loads(self._path(key).read_text(encoding="utf-8"))
            source = fields["source"]
            result = _RESULT.validate_python(fields)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, LookupError, RecursionError):
            return None  # damaged, so it is made again
        if result.status != "done":
            return None
        if source != source_version():
            self.other_source.add(key)
        return result

    def save(self, key: str, result: CellResult) -> None:
        """Write a cell's result, in the place of any that is there."""
        fields = {
            "powertrip": powertrip.__version__,
            "source": source_version(),
            **asdict(result),
        }
        text = json.dumps(fields)
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._path(key), lambda part: part.write_text(text, encoding="utf-8"))

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"
