"""What can go wrong between the members of a generation."""

from __future__ import annotations

from powertrip.errors import InputError, PowerTripError


class ExchangeError(PowerTripError):
    """A collective or the building of a group failed; the group is of no more use.

    Parameters
    ----------
    action
        What was being done, e.g. ``"all-reduce"``.
    site, generation
        Whose process noticed it, in which generation.
    reason
        What the collectives library said.
    awaited
        Number of the site that was waited for in vain; None where none was, or nobody can tell.
    adds
        Whether that site kept back its own addend, and did not itself wait for another's.
    """

    def __init__(
        self,
        action: str,
        *,
        site: str,
        generation: int,
        reason: str,
        awaited: int | None = None,
        adds: bool = False,
    ) -> None:
        self.action, self.site, self.generation = action, site, generation
        self.awaited, self.adds = awaited, adds
        super().__init__(f"{action} failed at site {site} in generation {generation}: {reason}")


class NobodyTrained(ExchangeError):
    """No member's update has any weight."""


class BackendUnusable(InputError):
    """The collectives library that the settings name cannot work here."""


class ProbeError(PowerTripError):
    """The links cannot be measured, for a reason that is not the links'."""
