"""What can end a run."""

from __future__ import annotations

from collections.abc import Sequence

from powertrip.errors import InputError, PowerTripError


class ControlPlaneError(PowerTripError):
    """The store cannot be reached, or holds what no process of this run wrote."""


class FellBehind(ControlPlaneError):
    """A site has not read the log for so long that what it has missed is deleted."""

    def __init__(self, site: str, entries: int) -> None:
        super().__init__(
            f"site {site} is {entries} entries of the coordinator's log behind, and must join anew"
        )


class CoordinatorSilent(PowerTripError):
    """The coordinator has published nothing for longer than the limit."""

    def __init__(self, site: str, limit_s: float) -> None:
        super().__init__(
            f"site {site} has heard nothing from the coordinator for {limit_s:g} s "
            "(runtime.silence_limit_s)"
        )


class SitesSilent(PowerTripError):
    """Sites have not reported within the limit."""

    def __init__(self, sites: Sequence[str], doing: str, limit_s: float, setting: str) -> None:
        self.sites = tuple(sites)
        super().__init__(
            f"no word from {', '.join(sites)} within {limit_s:g} s while {doing} ({setting})"
        )


class SiteFailed(PowerTripError):
    """A site has reported an error that ends the run."""

    def __init__(self, site: str, kind: str, text: str, exit_code: int) -> None:
        self.site, self.kind, self.exit_code = site, kind, exit_code
        super().__init__(text if exit_code == 2 else f"site {site}: {kind}: {text}")


class ModelLost(PowerTripError):
    """All sites that held the last commit are gone."""

    def __init__(self, round_: int) -> None:
        super().__init__(
            f"nobody is left who holds the model of round {round_}; `powertrip train --resume RUN` "
            "goes on from the last checkpoint"
        )


class ExchangeKeepsFailing(PowerTripError):
    """The members' exchange fails again and again, and nobody can tell why."""

    def __init__(self, generation: int, round_: int, text: str) -> None:
        super().__init__(
            f"the exchange of round {round_} keeps failing, last in generation {generation}: {text}"
        )


class PresenceUnusable(InputError):
    """The coordinator cannot listen at the address that the job has for rank 0."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(
            f"rank 0 cannot listen at {host}, the job's master address: {reason}; start rank 0 on "
            "that machine, or give torchrun the address of rank 0's own as --master-addr"
        )


class LinksUnusable(InputError):
    """This machine cannot emulate the links, or this process cannot enter them."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the links between the sites cannot be emulated: {reason}\n"
            "  (emulation.backend=off trains over the machine's own network)"
        )


class LinksLost(PowerTripError):
    """The emulated links have ended while the run needed them."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the emulated links are gone: {reason}; links.log in runtime.run_dir says why"
        )
