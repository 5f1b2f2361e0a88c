"""Seals on what goes through the job's store, which itself asks nobody who they are.

Whatever a process writes there carries an HMAC-SHA256 under a key that is derived from the secret
and the run's number, and is bound to its place: an entry to its index in the log, a mail to its
sender, the way it is sent on, and its number on that way, a note to its name. So nobody without the
secret can write one, change one, or put one in another place or there again.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from dataclasses import dataclass
from typing import Literal

from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.handshake import RUN_BYTES
from powertrip.runtime.secret import derive_key

COORDINATOR = -1
"""The sender of what the coordinator's process puts into its own inbox."""
MOST_BYTES = 1 << 20
"""Size of the largest message; what is larger is neither sent nor looked at."""
MOST_NOTE_BYTES = 16 << 20
"""The same for what stands in the store by itself, such as the coordinator's own records."""
MOST_WAYS = 256
"""Ways of one process to the inbox that are followed."""

_SEAL_DIGITS = 64
_HEADER = struct.Struct("!iI8sQ")  # sender, incarnation, way, number
_HEADER_DIGITS = 2 * _HEADER.size

Fault = Literal["oversized", "forged", "replayed", "outdated", "unreadable", "misplaced"]


class SealBroken(ControlPlaneError):
    """A message in the store is none that a process of this run has written there.

    Attributes
    ----------
    fault
        What is wrong with it.
    """

    def __init__(self, fault: Fault, text: str) -> None:
        self.fault, self.text = fault, text
        super().__init__(f"a message on the control plane cannot be trusted: {text}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.fault, self.text)


@dataclass(frozen=True)
class Opened:
    """A mail whose seal is right.

    Attributes
    ----------
    site, incarnation
        The process that has sent it; `COORDINATOR` is none of a site.
    way, number
        Where it belongs in what that process sends.
    content
        The message itself.
    """

    site: int
    incarnation: int
    way: bytes
    number: int
    content: bytes


class Seal:
    """What one process seals its messages with, and opens those of the others.

    Parameters
    ----------
    secret
        What the processes of the job share.
    run
        The run's own number, so that nothing of another run with this secret is taken for its.
    site, incarnation
        The process whose mails it seals.
    """

    def __init__(
        self,
        secret: bytes = b"",
        *,
        run: bytes = bytes(RUN_BYTES),
        site: int = COORDINATOR,
        incarnation: int = 0,
    ) -> None:
        self._entry_key = derive_key(secret, "log", run)
        self._mail_key = derive_key(secret, "mail", run)
        self._note_key = derive_key(secret, "note", run)
        self._site, self._incarnation = site, incarnation

    def close_entry(self, index: int, content: bytes) -> str:
        """Seal an entry of the log.

        Raises
        ------
        ControlPlaneError
            It is larger than a message may be.
        """
        return _close(self._entry_key, struct.pack("!Q", index), content, MOST_BYTES)

    def open_entry(self, index: int, data: bytes) -> bytes:
        """The entry with that index.

        Raises
        ------
        SealBroken
            This is none.
        """
        return _open(self._entry_key, struct.pack("!Q", index), data, MOST_BYTES)

    def close_note(self, name: str, content: bytes) -> str:
        """Seal what stands in the store under a name, until another one replaces it.

        Raises
        ------
        ControlPlaneError
            It is larger than a note may be.
        """
        return _close(self._note_key, _fixed(name), content, MOST_NOTE_BYTES)

    def open_note(self, name: str, data: bytes) -> bytes:
        """What some process of this run has put there, once.

        Raises
        ------
        SealBroken
            This is nothing of the kind.
        """
        return _open(self._note_key, _fixed(name), data, MOST_NOTE_BYTES)

    def close_mail(self, way: bytes, number: int, content: bytes) -> str:
        """Seal a mail.

        Parameters
        ----------
        way
            `new_way` of whatever sends it.
        number
            Greater than that of all before it on its way.
        content
            The message.

        Raises
        ------
        ControlPlaneError
            It is larger than a message may be.
        """
        header = _HEADER.pack(self._site, self._incarnation, way, number)
        sealed = _close(self._mail_key, header, content, MOST_BYTES)
        return sealed[:_SEAL_DIGITS] + header.hex() + sealed[_SEAL_DIGITS:]

    def open_mail(self, data: bytes) -> Opened:
        """A mail of any process of this run.

        Raises
        ------
        SealBroken
            It is none.
        """
        before, after = _SEAL_DIGITS, _SEAL_DIGITS + _HEADER_DIGITS
        _check_size(data, MOST_BYTES + after)
        header = _binary(data[before:after], _HEADER_DIGITS)
        content = _open(self._mail_key, header, data[:before] + data[after:], MOST_BYTES)
        site, incarnation, way, number = _HEADER.unpack(header)
        return Opened(site, incarnation, way, number, content)


def new_way() -> bytes:
    """A name for one way to the inbox, on which mails arrive in order."""
    return os.urandom(8)


class Seen:
    """What has arrived, so that nothing arrives again."""

    def __init__(self) -> None:
        self._incarnations: dict[int, int] = {}
        self._numbers: dict[int, dict[bytes, int]] = {}

    def take(self, mail: Opened) -> None:
        """Note that a mail has arrived.

        Raises
        ------
        SealBroken
            It has arrived before, or a later process of its site has been heard already.
        """
        newest = self._incarnations.get(mail.site, -1)
        if mail.incarnation < newest:
            raise SealBroken("outdated", f"it is of an earlier process of site {mail.site}")
        if mail.incarnation > newest:
            self._incarnations[mail.site] = mail.incarnation
            self._numbers[mail.site] = {}
        numbers = self._numbers[mail.site]
        if mail.number <= numbers.get(mail.way, 0):
            raise SealBroken("replayed", f"it has come from site {mail.site} before")
        if mail.way not in numbers and len(numbers) >= MOST_WAYS:
            raise SealBroken("misplaced", f"site {mail.site} has too many ways to the inbox")
        numbers[mail.way] = mail.number


def _close(key: bytes, place: bytes, content: bytes, most: int) -> str:
    if len(content) > most:
        raise ControlPlaneError(
            f"a message of {len(content)} bytes is too large for the control plane, which takes "
            f"{most}"
        )
    return hmac.digest(key, place + content, "sha256").hex() + content.decode()


def _open(key: bytes, place: bytes, data: bytes, most: int) -> bytes:
    _check_size(data, most + _SEAL_DIGITS)
    seal, content = _binary(data[:_SEAL_DIGITS], _SEAL_DIGITS), data[_SEAL_DIGITS:]
    if not hmac.compare_digest(seal, hmac.digest(key, place + content, "sha256")):
        raise _forged()
    return content


def _check_size(data: bytes, most: int) -> None:
    if len(data) > most:
        raise SealBroken("oversized", f"it has {len(data)} bytes, of at most {most}")


def _fixed(name: str) -> bytes:
    """A name as a place of fixed length, which cannot be taken for another with its content."""
    return hashlib.sha256(name.encode()).digest()


def _binary(digits: bytes, count: int) -> bytes:
    try:
        value = bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        raise _forged() from None
    if 2 * len(value) != count:
        raise _forged()
    return value


def _forged() -> SealBroken:
    return SealBroken(
        "forged",
        "its seal is none of this run; someone without the secret writes to the store, or the "
        "processes do not have the same one (runtime.secret_file, POWERTRIP_SECRET)",
    )
