"""What can end a run, real or simulated."""

from __future__ import annotations

from collections.abc import Sequence

from powertrip.errors import PowerTripError


class SitesStalled(PowerTripError):
    """By the model, members never finish their work: their power stays too low."""

    def __init__(self, sites: Sequence[str], round_: int) -> None:
        self.sites = tuple(sites)
        super().__init__(
            f"round {round_} never ends by the model: the power of {', '.join(sites)} stays too "
            "low to finish it; with after_end: loop, a power trace that has ended starts again"
        )


class DigestMismatch(PowerTripError):
    """After a round the members do not hold the same parameters."""

    def __init__(
        self, generation: int, round_: int, expected: str, deviating: Sequence[str]
    ) -> None:
        self.sites = tuple(deviating)
        super().__init__(
            f"generation {generation}, round {round_}: the parameters at {', '.join(deviating)} "
            f"differ from those of the other members (digest {expected})"
        )
