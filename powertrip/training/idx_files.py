"""Files of labelled images in the IDX format: where they lie, and what is in them.

Nothing here needs torch, so that the files can be read while torch is being imported.
"""

from __future__ import annotations

import gzip
import struct
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from powertrip.training.errors import TaskError
from powertrip.training.settings import EMNIST_SPLITS, IdxSettings, TaskSettings

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_KINDS = (("images", 3), ("labels", 1), ("client", 1))

_ahead: dict[Path, Future[bytes]] = {}  # what `reading_ahead` has read and nobody has taken


@dataclass(frozen=True)
class Names:
    """Where a data set is kept, and the first part of its files' names."""

    folder: str
    train: str
    test: str | None
    transposed: bool = False


_DATASETS = {
    "fashion-mnist": Names("fashion_mnist", "train", "t10k"),
    "mnist": Names("mnist", "train", "t10k"),
    "mnist-10k": Names("mnist", "mnist-10k", None),
    "femnist-digits": Names("emnist", "femnist-digits-12clients", None),
} | {
    f"emnist-{split}": Names(
        "emnist", f"emnist-{split}-train", f"emnist-{split}-test", transposed=True
    )
    for split in EMNIST_SPLITS
}


@dataclass(frozen=True)
class ImageSet:
    """Images [count, height, width], the label of each, and its client where that is known."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    clients: npt.NDArray[np.int64] | None


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
        ahead = _ahead.pop(path, None)
        content = _content(path) if ahead is None else ahead.result()
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
    return values.astype(dtype.newbyteorder("="), copy=False)


@contextmanager
def reading_ahead(
    settings: TaskSettings, *, data_dir: Path | None, base_dir: Path
) -> Iterator[None]:
    """Read a task's IDX files in a thread meanwhile: `read_idx` then has their content at once.

    Parameters
    ----------
    settings
        The task; one that has no such files is left alone, and so are files that are not there.
    data_dir, base_dir
        As in `IdxImages`.
    """
    paths = _paths(settings.idx, data_dir, base_dir) if settings.name == "idx" else []
    contents: dict[Path, Future[bytes]] = {path: Future() for path in paths}

    def read() -> None:
        for path, content in contents.items():
            try:
                content.set_result(_content(path))
            except Exception as error:  # noqa: BLE001 (whoever asks for it is told)
                content.set_exception(error)

    reader = threading.Thread(target=read)
    _ahead.update(contents)
    reader.start()
    try:
        yield
    finally:
        reader.join()


def _paths(settings: IdxSettings, data_dir: Path | None, base_dir: Path) -> list[Path]:
    try:
        names, folder = locate(settings, data_dir, base_dir)
    except TaskError:  # whoever loads the task is told
        return []
    found = [
        _find(folder, prefix, kind, dimensions)
        for prefix in (names.train, names.test)
        if prefix is not None
        for kind, dimensions in _KINDS
    ]
    return [path for path in found if path is not None]


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content


def dataset_folder(settings: IdxSettings, *, data_dir: Path | None, base_dir: Path) -> Path:
    """The folder that a data set's files are read from.

    Parameters are those of `IdxImages`.

    Raises
    ------
    TaskError
        If the training images are nowhere.
    """
    return locate(settings, data_dir, base_dir)[1]


def locate(settings: IdxSettings, data_dir: Path | None, base_dir: Path) -> tuple[Names, Path]:
    """A data set's names, and the folder of its files; parameters and errors as `IdxImages`."""
    if settings.dataset == "custom":
        assert settings.train is not None
        names = Names("", settings.train, settings.test, settings.transposed)
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


def read_set(folder: Path, prefix: str, transposed: bool) -> ImageSet:
    """Read the files of one prefix; `transposed` swaps the rows and columns of the images.

    Raises
    ------
    TaskError
        If a file is missing, damaged, or does not fit its companion.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for kind, dimensions in _KINDS:
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
    return ImageSet(
        images=np.swapaxes(images, 1, 2) if transposed else images,
        labels=arrays["labels"].astype(np.int64),
        clients=None if clients is None else clients.astype(np.int64),
    )
