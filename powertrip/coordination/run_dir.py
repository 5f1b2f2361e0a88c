"""The folder that a run writes to."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from powertrip.config import Config, dump_config
from powertrip.errors import InputError


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
        (path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"runtime.run_dir: {path} cannot be written: {error.strerror or error}"
        ) from error
    return path
