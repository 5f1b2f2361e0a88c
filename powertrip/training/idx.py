"""Labelled images in IDX files: EMNIST, FEMNIST, Fashion-MNIST, MNIST, or the user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from powertrip.training.data import IntArray
from powertrip.training.digits import Pixels
from powertrip.training.errors import TaskError
from powertrip.training.idx_files import ImageSet, locate, read_set
from powertrip.training.settings import IdxSettings
from powertrip.training.splits import split_indices
from powertrip.training.task import Classification


class IdxImages(Classification):
    """Classification of the images in a pair of IDX files, or two pairs.

    The validation split is set aside from the training files, the same samples in every run, and
    so is the test split where there are no test files: within each client where a client file
    lies beside the images, otherwise within each class.

    Parameters
    ----------
    settings
        Which files, and how much of them.
    data_dir
        Folder with one sub-folder per data set; None where there is none.
    base_dir
        Folder of the configuration file.

    Raises
    ------
    TaskError
        If a file is missing, damaged, or does not fit its companion.
    """

    def __init__(self, settings: IdxSettings, *, data_dir: Path | None, base_dir: Path) -> None:
        names, folder = locate(settings, data_dir, base_dir)
        first = read_set(folder, names.train, names.transposed)
        first_label = int(first.labels.min())
        self.classes = int(first.labels.max()) - first_label + 1
        groups = first.labels if first.clients is None else first.clients
        train, validation, test = split_indices(
            len(first.labels),
            validation=settings.validation_share,
            test=settings.test_share if names.test is None else 0.0,
            groups=groups,
        )
        train = _limited(train, settings.train_samples)
        second = first
        if names.test is not None:
            second = read_set(folder, names.test, names.transposed)
            _check_test_set(first, second, folder / names.test)
            test = np.arange(len(second.labels))
        test = _limited(test, settings.test_samples)
        self.height, self.width = first.images.shape[1:]
        self.model = settings.model
        if self.model == "cnn" and min(self.height, self.width) < 4:
            raise TaskError(
                f"the images in {folder} are {self.height} x {self.width} pixels; task.idx.model "
                "cnn halves them twice and needs 4 x 4, small takes any size"
            )
        self.train = _tensors(first, train, first_label)
        self.validation = _tensors(first, validation, first_label)
        self.test = _tensors(second, test, first_label)
        self.labels = first.labels[train] - first_label
        self.clients = None if first.clients is None else first.clients[train]

    def build_model(self) -> nn.Module:
        """The model of the settings; the numbers of parameters are for ten classes.

        small: two strided convolutions and a linear layer, 20,746 parameters. cnn: two padded
        convolutions, each followed by pooling, and two linear layers, 105,866 parameters. mlp: a
        hidden layer of 32, 25,450 parameters.
        """
        if self.model == "cnn":
            return self._build_cnn()
        if self.model == "mlp":
            hidden = nn.Linear(self.height * self.width, 32)
            return nn.Sequential(
                Pixels(255), nn.Flatten(), hidden, nn.ReLU(), nn.Linear(32, self.classes)
            )
        height, width = (-(-side // 4) for side in (self.height, self.width))
        return nn.Sequential(
            Pixels(255),
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * height * width, self.classes),
        )

    def _build_cnn(self) -> nn.Module:
        height, width = self.height // 4, self.width // 4
        model = nn.Sequential(
            Pixels(255, channels_last=True),
            nn.Conv2d(1, 16, 3, padding=1),
            nn.MaxPool2d(2),  # before the ReLU it is the same function, and has less to do
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * height * width, 64),
            nn.ReLU(),
            nn.Linear(64, self.classes),
        )
        # Channels last is almost twice as fast on a CPU.
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _check_test_set(train: ImageSet, test: ImageSet, where: Path) -> None:
    if test.images.shape[1:] != train.images.shape[1:]:
        raise TaskError(
            f"the test images {where} are {test.images.shape[1:]} pixels, "
            f"the training images {train.images.shape[1:]}"
        )
    strange = set(test.labels.tolist()) - set(train.labels.tolist())
    if strange:
        raise TaskError(
            f"the test labels {where} hold {sorted(strange)}, which no training sample has"
        )


def _limited(indices: IntArray, limit: int | None) -> IntArray:
    """A fixed random choice, so that data sorted by class or client stays mixed."""
    if limit is None or limit >= len(indices):
        return indices
    return np.sort(np.random.default_rng(0).choice(indices, limit, replace=False))


def _tensors(data: ImageSet, part: IntArray, first_label: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.from_numpy(np.ascontiguousarray(data.images[part])),
        torch.from_numpy(data.labels[part] - first_label),
    )
