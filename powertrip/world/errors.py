"""What can be wrong with the traces, tables and matrices that describe a world."""

from __future__ import annotations

from powertrip.errors import InputError


class TraceError(InputError):
    """A trace of power, carbon or prices cannot be used: the message names the file and line, and
    what to change."""


class NetworkError(InputError):
    """The links between the sites cannot be told from the matrices or tables given."""


class PlaceError(InputError):
    """A site's coordinates are needed but not known."""
