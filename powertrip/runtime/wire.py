"""Messages off the wire: JSON that is validated on arrival, within limits."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from powertrip.coordination.messages import (
    Back,
    Broken,
    Entry,
    Gone,
    LinksGone,
    Mail,
    Message,
    Probed,
)
from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.seal import COORDINATOR, MOST_BYTES, Opened, SealBroken

MOST_ITEMS = 16_384
"""Items in the longest list that a message may hold."""

_T = TypeVar("_T", bound=Message)

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])
_MAIL: TypeAdapter[Mail] = TypeAdapter(Annotated[Mail, Field(discriminator="kind")])


def decode_entry(data: bytes) -> Entry:
    """Read an entry of the coordinator's log.

    Raises
    ------
    ControlPlaneError
        The bytes are no entry.
    """
    return _decode(_ENTRY, data)


def decode_mail(data: bytes) -> Mail:
    """Read a message to the coordinator.

    Raises
    ------
    ControlPlaneError
        The bytes are no such message.
    """
    return _decode(_MAIL, data)


def decode_opened(opened: Opened, sites: int | None = None) -> Mail:
    """Read a mail whose seal is right, and see that its sender may say such a thing.

    Parameters
    ----------
    opened
        The mail.
    sites
        How many there are; None asks for no more than that the message is one.

    Raises
    ------
    SealBroken
        The bytes are no such message, one site speaks for another one, or of one that there is not.
    """
    try:
        mail = decode_mail(opened.content)
    except ControlPlaneError as error:
        raise SealBroken("unreadable", f"site {opened.site}: {error}") from error
    if opened.site != COORDINATOR and (
        isinstance(mail, LinksGone | Gone | Back) or mail.site != opened.site
    ):
        raise SealBroken("misplaced", f"site {opened.site} may not send this {mail.kind}")
    if sites is not None and not _fits(mail, sites):
        raise SealBroken("misplaced", f"a {mail.kind} of a job that has other than {sites} sites")
    return mail


def _fits(mail: Mail, sites: int) -> bool:
    if isinstance(mail, LinksGone):
        return True
    if isinstance(mail, Probed) and not len(mail.rtt_s) == len(mail.bandwidth) == sites:
        return False
    if isinstance(mail, Broken) and mail.awaited is not None and not 0 <= mail.awaited < sites:
        return False
    return 0 <= mail.site < sites


def _decode(adapter: TypeAdapter[_T], data: bytes) -> _T:
    if len(data) > MOST_BYTES:
        raise ControlPlaneError(
            f"a message on the control plane cannot be read: it has {len(data)} bytes"
        )
    try:
        message = adapter.validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ControlPlaneError(
            f"a message on the control plane cannot be read: {where}: {first['msg']}"
        ) from error
    longest = _longest(message)
    if longest > MOST_ITEMS:
        raise ControlPlaneError(
            f"a message on the control plane cannot be read: a list in it has {longest} items"
        )
    return message


def _longest(value: object) -> int:
    """Items in the longest list of a message."""
    if isinstance(value, tuple):
        return max(len(value), max(map(_longest, value), default=0))
    if isinstance(value, Message):
        return max((_longest(each) for _, each in value), default=0)
    return 0
