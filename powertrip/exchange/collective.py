"""What the members compute together."""

from __future__ import annotations

import torch

from powertrip.exchange.errors import NobodyTrained
from powertrip.exchange.group import Group, GroupSum


class WeightedMean:
    """The mean of the members' updates, weighted by the samples behind each.

    The weight travels in one slot behind the update, so a round costs a single all-reduce.

    Parameters
    ----------
    size
        Elements of an update.
    device
        Where updates are.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._buffer = torch.zeros(size + 1, dtype=torch.float32, device=device)
        self._sum: GroupSum | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one update as it travels."""
        return self._buffer.nbytes

    @property
    def update(self) -> torch.Tensor:
        """Where the caller writes its update before `over` and reads the mean after; ``[size]``."""
        return self._buffer[:-1]

    def expect(self, group: Group) -> None:
        """Get ready for the next mean over a group; that one is quicker for it.

        Only where the next mean over this group is sure to come.
        """
        self._over(group).expect()

    def over(self, group: Group, weight: float, limit_s: float | None = None) -> float:
        """Replace `update` by the weighted mean over the group.

        Parameters
        ----------
        weight
            This member's weight, for example the samples it trained on; 0 takes part without a say.
        limit_s
            How long it may take; None for the group's own limit.

        Returns
        -------
        float
            The members' total weight.

        Raises
        ------
        ExchangeError
            The exchange failed.
        NobodyTrained
            No member had any weight.
        """
        self.update.mul_(weight)
        self._buffer[-1] = weight
        self._over(group).run(limit_s)
        total = float(self._buffer[-1])
        if not total > 0:
            raise NobodyTrained(
                "averaging",
                site="of every member",
                generation=group.generation,
                reason="no member trained on a single sample",
            )
        self.update.div_(total)
        return total

    def _over(self, group: Group) -> GroupSum:
        if self._sum is None or self._sum.group is not group:
            self._sum = group.sum(self._buffer)
        return self._sum
