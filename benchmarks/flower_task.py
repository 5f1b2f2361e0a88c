"""The task that PowerTrip and Flower are compared on: Fashion-MNIST with `flower_net`."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from benchmarks.flower_net import Net
from powertrip.training.idx import IdxImages
from powertrip.training.settings import IdxSettings

HELD_OUT = 1000
"""Validation samples, and test samples."""


class FashionCnn(IdxImages):
    """10,000 images of Fashion-MNIST to learn from, 1,000 for validation and 1,000 for test."""

    def __init__(self, data_dir: Path | None, base_dir: Path) -> None:
        settings = IdxSettings(train_samples=10_000, test_samples=HELD_OUT)
        super().__init__(settings, data_dir=data_dir, base_dir=base_dir)
        # The files are in random order.
        images, labels = self.validation
        self.validation = images[:HELD_OUT], labels[:HELD_OUT]

    def build_model(self) -> nn.Module:
        """105,866 parameters."""
        return Net()
