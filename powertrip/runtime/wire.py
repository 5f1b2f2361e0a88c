"""Messages off the wire: JSON that is validated on arrival, within limits."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from powertrip.coordination.messages import (
    Back,
    Begin,
    Broken,
    Commit,
    Entry,
    Gone,
    LinksGone,
    Mail,
    Message,
    Probe,
    Probed,
    Save,
    Stop,
)
from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.seal import COORDINATOR, MOST_BYTES, Opened, SealBroken

MOST_ITEMS = 16_384
"""Items in the longest list that a message may hold."""

_T = TypeVar("_T", bound=Message)

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])
_MAIL: TypeAdapter[Mail] = TypeAdapter(Annotated[Mail, Field(discriminator="kind")])


def decode_entry(data: bytes, sites: int | None = None) -> Entry:
    """Read an entry of the coordinator's log.

    Parameters
    ----------
    data
        The entry.
    sites
        How many there are; None believes any number.

    Raises
    ------
    ControlPlaneError
        The bytes are no entry, or one of a job with other sites.
    """
    entry = _decode(_ENTRY, data)
    if sites is not None and not _suits(entry, sites):
        raise ControlPlaneError(
            f"a {entry.kind} on the control plane is of a job that has other than {sites} sites; "
            "give all processes the same scenario"
        )
    return entry


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


def _suits(entry: Entry, sites: int) -> bool:
    """Whether an entry speaks of sites that there are, of each of them once."""
    save: Save | None = None
    begin: Begin | None = None
    if isinstance(entry, Probe):
        return len(entry.endpoints) == sites
    if isinstance(entry, Begin):
        begin = entry
    elif isinstance(entry, Commit):
        begin, save = entry.begin, entry.save
    elif isinstance(entry, Stop):
        save = entry.save
    while begin is not None:
        if not _stands(begin, sites):
            return False
        begin = begin.following
    return save is None or save.keeper < sites


def _stands(begin: Begin, sites: int) -> bool:
    members = set(begin.members)
    named = members.union(t.donor for t in begin.transfers)
    return (
        0 < len(members) == len(begin.members)
        and members.issuperset(begin.half)
        and members.issuperset(t.newcomer for t in begin.transfers)
        and max(named) < sites
        and all(t.donor != t.newcomer for t in begin.transfers)
        and all(
            work is None or len(work) == len(members) for work in (begin.steps, begin.deadline_s)
        )
    )


def _fits(mail: Mail, sites: int) -> bool:
    if isinstance(mail, LinksGone):
        return True
    if isinstance(mail, Probed) and not len(mail.rtt_s) == len(mail.bandwidth) == sites:
        return False
    if isinstance(mail, Broken) and mail.awaited is not None and mail.awaited >= sites:
        return False
    return mail.site < sites


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
