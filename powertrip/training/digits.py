"""The packaged task: handwritten digits of 8 x 8 pixels, for runs of seconds on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from powertrip.training.splits import split_indices
from powertrip.training.task import Classification

DIGITS_FILE = Path(__file__).parent / "data" / "digits.npz"


class Digits(Classification):
    """1,797 digits: 1,258 to train on, 180 for validation, 359 for test.

    Each split has the digits 0 to 9 in the same proportions. A step on 32 images takes about
    a millisecond on one core; data/README.md names the source.
    """

    def __init__(self) -> None:
        with np.load(DIGITS_FILE) as stored:
            images, labels = stored["images"], stored["labels"].astype(np.int64)
        parts = split_indices(len(labels), validation=0.1, test=0.2, groups=labels)
        self.train, self.validation, self.test = (
            (torch.from_numpy(images[part]), torch.from_numpy(labels[part])) for part in parts
        )
        self.labels = labels[parts[0]]

    def build_model(self) -> nn.Module:
        """One convolution and a linear layer: 6,186 parameters."""
        return nn.Sequential(
            Pixels(16), nn.Conv2d(1, 16, 5, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)
        )


class Pixels(nn.Module):
    """Whole-number images (batch, height, width) to floats (batch, 1, height, width) in [0, 1].

    Images stay bytes until they are used, a quarter of the memory of floats.

    Parameters
    ----------
    white
        The number that stands for white.
    channels_last
        Lay the floats out for a model whose weights are in `torch.channels_last`.
    """

    def __init__(self, white: int, *, channels_last: bool = False) -> None:
        super().__init__()
        self.white = white
        self.channels_last = channels_last

    def forward(self, images: Tensor) -> Tensor:
        """Scale by the value of white and add the channel dimension."""
        pixels = images.float() / self.white
        if self.channels_last:  # the same bytes, but convolutions go by the strides
            return pixels.unsqueeze(-1).permute(0, 3, 1, 2)
        return pixels.unsqueeze(1)
