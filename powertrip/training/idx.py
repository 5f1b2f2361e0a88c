"""Labelled images in IDX files: EMNIST, FEMNIST, Fashion-MNIST, MNIST, or the user's own."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from powertrip.training.data import IntArray
from powertrip.training.digits import Pixels
from powertrip.training.errors import TaskError
from powertrip.training.settings import EMNIST_SPLITS, IdxSettings
from powertrip.training.splits import split_indices
from powertrip.training.task import Classification

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class _Names:
    """Where a data set is kept, and the first part of its files' names."""

    folder: str
    train: str
    test: str | None
    transposed: bool = False


_DATASETS = {
    "fashion-mnist": _Names("fashion_mnist", "train", "t10k"),
    "mnist": _Names("mnist", "train", "t10k"),
    "mnist-10k": _Names("mnist", "mnist-10k", None),
    "femnist-digits": _Names("emnist", "femnist-digits-12clients", None),
} | {
    f"emnist-{split}": _Names(
        "emnist", f"emnist-{split}-train", f"emnist-{split}-test", transposed=True
    )
    for split in EMNIST_SPLITS
}


def read_idx(path: Path) -> npt.NDArray[Any]:
    """Read an IDX file, plain or gzipped.

    The format is that of http://yann.lecun.com/exdb/mnist: two zero bytes, a type code, the number
    of dimensions, their sizes as big-endian 32-bit numbers, then the values.

    Raises
    ------
    TaskError
        If the file is missing, is not IDX, or has fewer or more bytes than its header announces.
    """
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP_MAGIC):
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TaskError(f"{path} is damaged or cut short ({error}); fetch it again") from error
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES or not content[3]:
        raise TaskError(
            f"{path} is not an IDX file: it starts with {content[:4].hex(' ') or 'nothing'}, "
            "where 00 00, a type code from 08 to 0e and the number of dimensions should stand"
        )
    dtype = np.dtype(_IDX_TYPES[content[2]])
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise TaskError(f"{path} is cut short: its header of {start} bytes is incomplete")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    expected = dtype.itemsize * int(np.prod(shape, dtype=object))
    if len(content) - start != expected:
        raise TaskError(
            f"{path} announces {' x '.join(map(str, shape))} values, {expected} bytes, "
            f"but holds {len(content) - start}; fetch it again"
        )
    values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


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
        names, folder = _locate(settings, data_dir, base_dir)
        first = _read_set(folder, names.train, names.transposed)
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
            second = _read_set(folder, names.test, names.transposed)
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


@dataclass(frozen=True)
class _Set:
    images: npt.NDArray[np.uint8]
    labels: IntArray
    clients: IntArray | None


def dataset_folder(settings: IdxSettings, *, data_dir: Path | None, base_dir: Path) -> Path:
    """The folder that a data set's files are read from.

    Parameters are those of `IdxImages`.

    Raises
    ------
    TaskError
        If the training images are nowhere.
    """
    return _locate(settings, data_dir, base_dir)[1]


def _locate(settings: IdxSettings, data_dir: Path | None, base_dir: Path) -> tuple[_Names, Path]:
    if settings.dataset == "custom":
        assert settings.train is not None
        names = _Names("", settings.train, settings.test, settings.transposed)
    else:
        names = _DATASETS[settings.dataset]
    if settings.folder is not None:
        wanted = Path(settings.folder).expanduser()
        candidates = [base_dir / wanted] + ([data_dir / wanted] if data_dir else [])
    elif settings.dataset == "custom":
        candidates = [base_dir] + ([data_dir] if data_dir else [])
    elif data_dir is None:
        raise TaskError(
            f"the data set {settings.dataset} is not packaged: set the environment variable "
            f"POWERTRIP_DATA to a folder with a sub-folder {names.folder}, or task.idx.folder to "
            "the folder of its files"
        )
    else:
        candidates = [data_dir / names.folder]
    for folder in candidates:
        if _find(folder, names.train, "images", 3) is not None:
            return names, folder
    listed = " and ".join(str(folder) for folder in candidates)
    raise TaskError(
        f"there is no {names.train}-images-idx3-ubyte, nor the same with .gz, in {listed}; "
        "put the file there or set task.idx.folder"
    )


def _find(folder: Path, prefix: str, kind: str, dimensions: int) -> Path | None:
    for separator in "-.":
        for ending in ("", ".gz"):
            path = folder / f"{prefix}-{kind}{separator}idx{dimensions}-ubyte{ending}"
            if path.is_file():
                return path
    return None


def _read_set(folder: Path, prefix: str, transposed: bool) -> _Set:
    arrays: dict[str, npt.NDArray[Any]] = {}
    for kind, dimensions in (("images", 3), ("labels", 1), ("client", 1)):
        path = _find(folder, prefix, kind, dimensions)
        if path is None:
            if kind == "client":
                continue
            raise TaskError(
                f"there is no {prefix}-{kind}-idx{dimensions}-ubyte, nor the same with .gz, "
                f"in {folder}"
            )
        values = read_idx(path)
        if values.ndim != dimensions or values.dtype.kind not in "iu":
            raise TaskError(
                f"{path} holds {values.ndim} dimensions of {values.dtype}; "
                f"{kind} need {dimensions} of whole numbers"
            )
        arrays[kind] = values
        if len(values) != len(arrays["images"]):
            raise TaskError(
                f"{path} has {len(values)} entries, "
                f"but there are {len(arrays['images'])} images in {prefix}"
            )
    images, clients = arrays["images"], arrays.get("client")
    if images.dtype != np.uint8 or images.size == 0:
        raise TaskError(f"the images of {prefix} in {folder} are empty or not bytes")
    return _Set(
        images=np.swapaxes(images, 1, 2) if transposed else images,
        labels=arrays["labels"].astype(np.int64),
        clients=None if clients is None else clients.astype(np.int64),
    )


def _check_test_set(train: _Set, test: _Set, where: Path) -> None:
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


def _tensors(data: _Set, part: IntArray, first_label: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.from_numpy(np.ascontiguousarray(data.images[part])),
        torch.from_numpy(data.labels[part] - first_label),
    )
