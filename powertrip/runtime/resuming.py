"""The scenario of a run that goes on: its own, from its folder, with what was changed since.

Nothing here is of torch: what is wrong is told before anything is started.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powertrip.config import load_config
from powertrip.coordination.run_dir import CONFIG_FILE, NoRecordedRun
from powertrip.coordination.setup import Setup
from powertrip.errors import InputError
from powertrip.runtime.manifest import newest


class OtherSites(InputError):
    """A run cannot go on, as the sites are not those that it began with."""

    def __init__(self, run: Path, began: Sequence[str], now: Sequence[str]) -> None:
        if len(began) != len(now):
            differ = f"the run has {len(began)} of them, and the scenario {len(now)}"
        else:
            places = [
                f"{a} was site {i}, and {b} is"
                for i, (a, b) in enumerate(zip(began, now, strict=True))
                if a != b
            ]
            differ = places[0]
        super().__init__(
            f"sites: {differ}; {run} goes on with the sites that it began with only "
            f"({', '.join(began[:12])}{', ...' if len(began) > 12 else ''})"
        )


def resolve(
    path: Path | None,
    overrides: Sequence[str],
    *,
    json_summary: bool = False,
    resume: Path | None = None,
) -> Setup:
    """The scenario of a run that begins, or of one that goes on.

    Parameters
    ----------
    path
        The scenario's file; None means the packaged one.
    overrides
        Settings that replace those of the file, or of the run that goes on.
    json_summary
        End standard output with the summary as one line of JSON.
    resume
        Folder of the run that goes on; None for one that begins.

    Raises
    ------
    ConfigError
        With every problem of the settings at once.
    NoRecordedRun
        There is no such run.
    NoCheckpoint
        It has no checkpoint.
    OtherSites
        Its sites are others.
    InputError
        Both a scenario and a run are named.
    """
    if resume is None:
        return Setup.resolve(path, overrides, json_summary=json_summary)
    if path is not None:
        raise InputError(
            f"--config {path} and --resume {resume}: a run goes on with its own scenario; leave "
            "--config out, and write settings that change as key.sub=value"
        )
    run = resume.resolve()
    settings = run / CONFIG_FILE
    if not settings.is_file():
        raise NoRecordedRun(resume, settings)
    manifest = newest(run).manifest
    config = load_config(settings, overrides)
    names = [site.name for site in config.sites.selected]
    if names != list(manifest.sites):
        raise OtherSites(resume, manifest.sites, names)
    base_dir = Path(manifest.base_dir)
    return Setup(config, base_dir if base_dir.is_dir() else run, json_summary, resume=str(run))
