"""A user's own task: digits, and a sample that makes trouble wherever it is trained."""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import Tensor

from powertrip.training.digits import Digits

MARK = 99


class Troubled(Digits):
    """Digits, one of them with a strange target.

    Parameters
    ----------
    marked
        Which training sample; None for none.
    trouble
        What its batch meets with: raise, die, hang or diverge.
    """

    def __init__(self, marked: int | None = None, trouble: str = "raise") -> None:
        super().__init__()
        self.trouble = trouble
        if marked is not None:
            self.train[1][marked] = MARK

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy, or the trouble."""
        if (targets == MARK).any():
            if self.trouble == "raise":
                raise ValueError("there is no such digit")
            if self.trouble == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "hang":
                time.sleep(60)
            return outputs.sum() * float("inf")
        return torch.nn.functional.cross_entropy(outputs, targets)
