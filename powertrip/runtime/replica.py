"""A site's copy of the model, and what it takes to go back to the last commit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from powertrip.errors import PowerTripError
from powertrip.training.digest import digest
from powertrip.training.local import LocalResult
from powertrip.training.outer import OuterOptimizer


class CommitNotHeld(PowerTripError):
    """A site is told to go on from a commit that it does not hold."""

    def __init__(self, site: str, wanted: int, held: int) -> None:
        super().__init__(
            f"site {site} is to go on from round {wanted}, and holds round {held}: it has missed "
            "entries of the coordinator's log, and must join anew"
        )


@dataclass(frozen=True)
class Trained:
    """A site's own work of a round, kept until the round is committed.

    Attributes
    ----------
    update
        The model before the round minus the model after local training.
    weight
        Of the update in the mean: the samples behind it; 0 where it was rejected.
    result
        What was done.
    local_s, lag_s
        Seconds that it took, and by which it ended after its modelled end.
    rejected
        Why the update has no weight; None where it has.
    """

    update: Tensor
    weight: int
    result: LocalResult
    local_s: float
    lag_s: float
    rejected: str | None = None


class Replica:
    """The model after the last round that this site has done, and after the round before.

    A round that a site has done may still fail elsewhere. Until its commit is known the site can go
    back to the round before, and it keeps its own update, which it need not train again. No site is
    ever more than one exchange ahead of what is committed.

    Parameters
    ----------
    site
        Name, for errors.
    vector
        The model, flat; changed in place from here on.
    outer
        The outer optimizer; owned by this.
    """

    def __init__(self, site: str, vector: Tensor, outer: OuterOptimizer) -> None:
        self._site = site
        self.vector, self._outer = vector, outer
        self.round = 0
        """The last round that is in the model."""
        self._before: tuple[Tensor, Tensor] | None = None
        self._spare = torch.empty_like(vector), torch.empty_like(outer.state)
        self._kept: dict[int, Trained] = {}

    @property
    def outer_state(self) -> Tensor:
        """The outer optimizer's state, flat; a newcomer's is written into."""
        return self._outer.state

    def digest(self) -> str:
        """Digest of the model and the outer state."""
        return digest(self.vector, self._outer.state)

    def at(self, round_: int) -> tuple[Tensor, Tensor, str]:
        """The model and the outer state after a round, not to be changed, and their digest.

        Raises
        ------
        CommitNotHeld
            This site does not have them.
        """
        if round_ == self.round:
            return self.vector, self._outer.state, self.digest()
        if round_ == self.round - 1 and self._before is not None:
            return *self._before, digest(*self._before)
        raise CommitNotHeld(self._site, round_, self.round)

    def digest_after(self, round_: int) -> str | None:
        """Digest after a round, the last one or the one before; None where neither is held."""
        if self.round == round_:
            return self.digest()
        if self.round == round_ + 1 and self._before is not None:
            return digest(*self._before)
        return None

    def keep(self, round_: int, trained: Trained) -> None:
        """Keep this site's work of a round until `confirm`."""
        self._kept[round_] = trained

    def kept(self, round_: int) -> Trained | None:
        """This site's work of a round, where it has done it already."""
        return self._kept.get(round_)

    def step(self, round_: int, mean_update: Tensor) -> None:
        """Take the outer step of the next round.

        Parameters
        ----------
        round_
            Its number.
        mean_update
            Over the members, [size].
        """
        if round_ != self.round + 1:
            raise CommitNotHeld(self._site, round_ - 1, self.round)
        self._spare[0].copy_(self.vector)
        self._spare[1].copy_(self._outer.state)
        self._before = self._spare
        self._outer.step(self.vector, mean_update)
        self.round = round_

    def confirm(self, round_: int) -> None:
        """A round is committed: nobody goes back behind it."""
        if round_ >= self.round:
            self._before = None
        self._kept = {r: trained for r, trained in self._kept.items() if r > round_}

    def back_to(self, round_: int) -> None:
        """Go back to a committed round, if this site is ahead of it; later work is dropped.

        Raises
        ------
        CommitNotHeld
            It holds neither that round nor the one after.
        """
        if self.round == round_ + 1 and self._before is not None:
            vector, state = self._before
            self.vector.copy_(vector)
            self._outer.state.copy_(state)
            self.round, self._before = round_, None
        if self.round != round_:
            raise CommitNotHeld(self._site, round_, self.round)
        self._kept = {r: trained for r, trained in self._kept.items() if r == round_ + 1}

    def received(self, round_: int) -> None:
        """The model and the outer state have been written by a donor that has done a round."""
        self.round, self._before = round_, None
        self._kept.clear()
