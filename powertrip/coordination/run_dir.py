"""The folder that a run writes to, and is read from again."""

from __future__ import annotations

import itertools
import secrets
import time
from pathlib import Path

from powertrip.config import Config, dump_config
from powertrip.errors import InputError
from powertrip.telemetry.eventlog import EVENT_LOG

CONFIG_FILE = "config.yaml"
"""Name of the resolved scenario in a run's folder."""


class NoRecordedRun(InputError):
    """A path is not that of a recorded run."""

    def __init__(self, run: Path, missing: Path) -> None:
        super().__init__(
            f"{run} is no recorded run, {missing} is missing: name the folder of a run, which "
            f"`powertrip train` prints at its end, with {EVENT_LOG} and {CONFIG_FILE} in it"
        )


def make_run_dir(config: Config) -> Path:
    """Make the run's own folder; two runs that start at once get two.

    Raises
    ------
    InputError
        The folder cannot be made.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{config.name}-{config.selection.policy}-{stamp}-{secrets.token_hex(2)}"
    path = Path(config.runtime.run_dir) / name
    try:
        path.mkdir(parents=True)
        (path / CONFIG_FILE).write_text(dump_config(config), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"runtime.run_dir: {path} cannot be written: {error.strerror or error}"
        ) from error
    return path


def reopen_run_dir(run: Path, config: Config) -> Path:
    """Let a run go on in its own folder, with settings that may have changed.

    Parameters
    ----------
    run
        The folder.
    config
        What the run goes on with; the file that it began with stays beside it where they differ.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    path, text = run / CONFIG_FILE, dump_config(config)
    try:
        if path.read_text(encoding="utf-8") != text:
            numbers = itertools.count(1)
            names = (f"{CONFIG_FILE}.before-{number}" for number in numbers)
            before = next(name for name in names if not (run / name).exists())
            partial = run / f"{CONFIG_FILE}.partial"
            partial.write_text(text, encoding="utf-8")
            path.replace(run / before)
            partial.replace(path)
    except OSError as error:
        raise InputError(f"{run} cannot be written: {error.strerror or error}") from error
    return run


def recorded_files(run: Path) -> tuple[Path, Path]:
    """The event log and the resolved scenario of a recorded run.

    Parameters
    ----------
    run
        The run's folder, or its event log.

    Raises
    ------
    NoRecordedRun
        One of them is missing.
    """
    log = run / EVENT_LOG if run.is_dir() else run
    settings = log.parent / CONFIG_FILE
    for path in (log, settings):
        if not path.exists():
            raise NoRecordedRun(run, path)
    return log, settings
