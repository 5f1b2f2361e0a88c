"""What is left of an update that has travelled as whole numbers of eight bits."""

from __future__ import annotations

import torch
from torch import Tensor

from powertrip.exchange.codec import BLOCK

_MOST = 127


class Int8:
    """Rounds vectors to int8 with a scale for every block, as the receiver finds them.

    The largest number of a block becomes 127 or -127, so that none is off by more than a 254th of
    it.

    Parameters
    ----------
    like
        A vector as long as those to come, on their device.
    """

    def __init__(self, like: Tensor) -> None:
        self._size = like.numel()
        blocks = -(-self._size // BLOCK)
        self._blocks = torch.zeros(blocks, BLOCK, dtype=like.dtype, device=like.device)

    def through(self, vector: Tensor) -> Tensor:
        """Return the vector as it arrives, [size]; valid until the next one is asked for."""
        blocks, arrived = self._blocks, self._blocks.view(-1)[: self._size]
        arrived.copy_(vector)
        scale = torch.linalg.vector_norm(blocks, ord=torch.inf, dim=1, keepdim=True).div_(_MOST)
        blocks.div_(scale.masked_fill(scale == 0, 1.0)).round_().mul_(scale)
        return arrived
