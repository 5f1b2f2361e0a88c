"""What a policy is, and the register of those that a run can name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol

from powertrip.selection.baselines import All, Centralized, FixedRadius, RandomK, StaticK
from powertrip.selection.cefl import Cefl
from powertrip.selection.ecolearn import EcoLearn
from powertrip.selection.lookahead import Lookahead
from powertrip.selection.oort import Oort
from powertrip.selection.powertrip import PowerTrip
from powertrip.selection.together import Together
from powertrip.selection.types import Decision, Observation

if TYPE_CHECKING:
    from powertrip.selection.settings import SelectionSettings


class Policy(Protocol):
    """Decides which sites take part.

    A policy is pure: the same observation gives the same decision. Whatever it has to remember
    comes back to it in `Observation.previous`, and chance comes from the seed and the generation.
    """

    name: ClassVar[str]

    def decide(self, observation: Observation) -> Decision:
        """Choose the members until the next decision.

        Raises
        ------
        NoUsableSite
            If no site has both power and a link.
        """
        ...


POLICIES: dict[str, Callable[[SelectionSettings], Policy]] = {
    "powertrip": PowerTrip,
    "static-k": StaticK,
    "random-k": RandomK,
    "all": All,
    "centralized": Centralized,
    "fixed-radius": FixedRadius,
    "together": Together,
    "oort": Oort,
    "cefl": Cefl,
    "ecolearn": EcoLearn,
    "lookahead": Lookahead,
}


def build_policy(settings: SelectionSettings) -> Policy:
    """Return the policy that the settings name."""
    return POLICIES[settings.policy](settings)
