"""What can end a run."""

from __future__ import annotations

from collections.abc import Sequence

from powertrip.errors import InputError, PowerTripError


class ControlPlaneError(PowerTripError):
    """The store cannot be reached, or holds what no process of this run wrote."""


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
