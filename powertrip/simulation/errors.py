"""What can end a simulated run."""

from __future__ import annotations

from powertrip.errors import InputError, PowerTripError


class AllSitesGone(PowerTripError):
    """No member of a generation is there, and none of its sites ever comes back."""

    def __init__(self, round_: int, time_s: float) -> None:
        super().__init__(
            f"round {round_}: at {time_s:g} s all members are gone (simulation.dropouts)"
        )


class LearnerFailed(PowerTripError):
    """Simulated local training cannot go on."""


class NotSimulated(InputError):
    """The scenario asks for something that a simulation does not have."""
