"""The secret that the processes of a job share, and the keys that are derived from it."""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from powertrip.config import Config
from powertrip.errors import InputError

SECRET_VARIABLE = "POWERTRIP_SECRET"
LEAST_BYTES = 16
_MOST_BYTES = 4096


class SecretUnusable(InputError):
    """The secret cannot be read, is too short, or is open to others."""


def load_secret(
    config: Config, base_dir: Path, environment: Mapping[str, str] = os.environ
) -> bytes:
    """Read the job's secret: from the file that the settings name, else from the environment.

    Parameters
    ----------
    config
        Whose `runtime.secret_file` counts.
    base_dir
        Folder that a relative path starts at.
    environment
        Whose `POWERTRIP_SECRET` counts where no file is named.

    Returns
    -------
    bytes
        Without white space around it; empty where there is neither.

    Raises
    ------
    SecretUnusable
        The file cannot be read, others may read it, or the secret has fewer than 16 bytes or more
        than 4,096. No message holds any of it.
    """
    if config.runtime.secret_file is not None:
        return _checked(_read(base_dir / config.runtime.secret_file), "runtime.secret_file")
    value = environment.get(SECRET_VARIABLE)
    if value is None:
        return b""
    return _checked(value.encode("utf-8", "surrogateescape"), SECRET_VARIABLE)


def _read(path: Path) -> bytes:
    try:
        # Not blocking, so that nothing waits for the writer of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SecretUnusable(f"runtime.secret_file: {path} is no regular file")
            if status.st_mode & 0o077:
                raise SecretUnusable(
                    f"runtime.secret_file: others may read {path} (its mode is "
                    f"{stat.S_IMODE(status.st_mode):03o}); make it yours alone: chmod 600 {path}"
                )
            return file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SecretUnusable(
            f"runtime.secret_file: {path} cannot be read: {error.strerror or error}"
        ) from error


def _checked(secret: bytes, where: str) -> bytes:
    if len(secret) > _MOST_BYTES:
        raise SecretUnusable(f"{where}: the secret has more than {_MOST_BYTES} bytes")
    secret = secret.strip()
    if len(secret) < LEAST_BYTES:
        raise SecretUnusable(
            f"{where}: the secret has fewer than {LEAST_BYTES} bytes; make one with: "
            "(umask 077; openssl rand -hex 32 > FILE)"
        )
    return secret


def derive_key(secret: bytes, purpose: str, context: bytes = b"") -> bytes:
    """A key of 32 bytes for one purpose, by HKDF (RFC 5869) with HMAC-SHA256 and one block.

    Parameters
    ----------
    secret
        What only the processes of the job know.
    purpose
        Keys for different purposes tell nothing about each other.
    context
        Whatever else the key is to be bound to.
    """
    extracted = hmac.digest(b"powertrip", secret, "sha256")
    label = purpose.encode()
    info = len(label).to_bytes(2, "big") + label + context
    return hmac.digest(extracted, info + b"\x01", "sha256")
