"""Faults that a test asks a site's process for: those that no signal and no link can bring about.

They are read from a JSON file that the environment variable `POWERTRIP_FAULTS` names, at the start
and at the end of a site's local training; without the variable nothing of this is there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from powertrip.errors import InputError

FAULTS_VARIABLE = "POWERTRIP_FAULTS"
"""The environment variable that names the file."""

_EXPLODED = 1000.0
_AGAIN_S = 0.05  # between two looks at the file, by a site that is without power


class FaultsUnreadable(InputError):
    """The file of faults is not what `Faults` describes."""


class BadUpdate(BaseModel):
    """One update of a site is spoilt, by each of its processes once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    site: int
    how: Literal["nan", "exploding"]
    """nan: the model after local training is no number; exploding: the update is 1000 times as
    long."""
    name: str
    """Unlike that of any other; one that was done is not done again."""


class Faults(BaseModel):
    """What the file holds; it is to be replaced, never written in place."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    no_power: tuple[int, ...] = ()
    """Sites whose budget is zero: they begin no local training while they stand here."""
    bad_updates: tuple[BadUpdate, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; one that is not there asks for nothing.

        Raises
        ------
        FaultsUnreadable
            It cannot be read, or is malformed.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except (OSError, ValidationError) as error:
            raise FaultsUnreadable(f"{FAULTS_VARIABLE}: {path} cannot be read: {error}") from error


class SiteFaults:
    """The faults of one site's process.

    Parameters
    ----------
    path
        The file.
    site
        The site's number.
    """

    def __init__(self, path: Path, site: int) -> None:
        self._path, self._site = path, site
        self._done: set[str] = set()

    @classmethod
    def of(cls, environment: Mapping[str, str], site: int) -> Self | None:
        """Those that the environment asks for; None where it asks for none."""
        path = environment.get(FAULTS_VARIABLE)
        return None if path is None else cls(Path(path), site)

    def await_power(self, cut: threading.Event) -> None:
        """Wait until the site has power, or is told to do something else."""
        while self._site in Faults.read(self._path).no_power:
            if cut.wait(_AGAIN_S):
                return

    def spoil(self, vector: Tensor, before: Tensor) -> None:
        """Spoil the model after local training, where that is asked for.

        Parameters
        ----------
        vector
            The model, [size]; changed in place.
        before
            The same before the round.
        """
        for bad in Faults.read(self._path).bad_updates:
            if bad.site != self._site or bad.name in self._done:
                continue
            self._done.add(bad.name)
            if bad.how == "nan":
                vector.fill_(torch.nan)
            else:
                vector.copy_(before + _EXPLODED * (vector - before))
