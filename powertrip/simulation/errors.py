"""What can end a simulated run."""

from __future__ import annotations

from powertrip.errors import InputError, PowerTripError


class AllSitesGone(PowerTripError):
    """Members fail so often that a round never ends."""

    def __init__(self, round_: int, time_s: float) -> None:
        super().__init__(
            f"round {round_}: by {time_s:g} s no member has ever stayed until its end; let sites "
            "fail less often (simulation.dropouts.every_s)"
        )


class ModelOutOfReach(PowerTripError):
    """A newcomer has no link to the site that is to give it the model."""

    def __init__(self, newcomer: str, donor: str, round_: int) -> None:
        super().__init__(
            f"round {round_}: {newcomer} is to receive the model from {donor}, and there is no "
            f"link from {donor} to it (network)"
        )


class LearnerFailed(PowerTripError):
    """Simulated local training cannot go on."""


class NotSimulated(InputError):
    """The scenario asks for something that a simulation does not have."""


class NotStackable(InputError):
    """The models of several sites cannot be trained as one batch."""
