"""Messages off the wire: JSON that is validated on arrival."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from powertrip.coordination.messages import Entry, Mail
from powertrip.runtime.errors import ControlPlaneError

_T = TypeVar("_T")

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


def _decode(adapter: TypeAdapter[_T], data: bytes) -> _T:
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ControlPlaneError(
            f"a message on the control plane cannot be read: {where}: {first['msg']}"
        ) from error
