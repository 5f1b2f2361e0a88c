"""The failures of choosing sites."""

from __future__ import annotations

from powertrip.errors import PowerTripError


class SelectionError(PowerTripError):
    """Base of every error of the selection room."""


class RecordError(SelectionError):
    """An observation or a decision is malformed; the message names the field and what it takes."""


class NoUsableSite(SelectionError):
    """No site has both power and a link to the hub, so that nobody could train."""


class MissingGains(SelectionError):
    """The projector `oracle` lacks a measured gain; only a simulation can hand them in."""
