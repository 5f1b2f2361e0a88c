"""IDX files: parsing, names, orientation, splits, and what is wrong with bad ones."""

from __future__ import annotations

import gzip
import struct
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from powertrip.training.errors import TaskError
from powertrip.training.evaluation import evaluate
from powertrip.training.flat import initial_model
from powertrip.training.idx import IdxImages
from powertrip.training.idx_files import read_idx
from powertrip.training.local import LocalTrainer, Steps
from powertrip.training.partition import partition
from powertrip.training.settings import IdxSettings, PartitionSettings, TrainingSettings


def idx_bytes(values: npt.NDArray[Any], code: int = 0x08) -> bytes:
    header = bytes([0, 0, code, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.tobytes()


def write_set(
    folder: Path, prefix: str, images: npt.NDArray[Any], labels: Any, gz: bool = False
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, values in (
        ("images-idx3", images),
        ("labels-idx1", np.asarray(labels, dtype=np.uint8)),
    ):
        content = idx_bytes(values)
        path = folder / f"{prefix}-{kind}-ubyte{'.gz' if gz else ''}"
        path.write_bytes(gzip.compress(content) if gz else content)


def some_images(count: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 6), dtype=np.uint8)


def as_bytes(split: Any) -> list[bytes]:
    return [image.numpy().tobytes() for image in split[0]]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.booleans())
def test_what_is_written_is_read(tmp_path_factory: Any, shape: list[int], gz: bool) -> None:
    values = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    path = tmp_path_factory.mktemp("idx") / "file"
    content = idx_bytes(values)
    path.write_bytes(gzip.compress(content) if gz else content)
    assert np.array_equal(read_idx(path), values)


def test_wider_types_are_big_endian(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx_bytes(np.array([1, 256, -5], dtype=">i4"), code=0x0C))
    assert read_idx(path).tolist() == [1, 256, -5]


GOOD = idx_bytes(np.arange(10, dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (GOOD[:-3], "announces 10 values, 10 bytes, but holds 7"),
        (GOOD + b"x", "announces 10 values, 10 bytes, but holds 11"),
        (GOOD[:6], "its header of 8 bytes is incomplete"),
        (b"", "starts with nothing"),
        (b"\x89PNG....", "is not an IDX file: it starts with 89 50 4e 47"),
        (b"\0\0\x07\x01" + GOOD[4:], "is not an IDX file"),
        (gzip.compress(GOOD)[:-9], "damaged or cut short"),
        (gzip.compress(GOOD)[:12] + b"\xff" * 20, "damaged or cut short"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "some-labels"
    path.write_bytes(content)
    with pytest.raises(TaskError, match=f"some-labels .*{said}"):
        read_idx(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="absent cannot be read: No such file"):
        read_idx(tmp_path / "absent")


@pytest.mark.parametrize("gz", [False, True])
def test_emnist_names_and_orientation(tmp_path: Path, gz: bool) -> None:
    folder = tmp_path / "emnist"
    train, test = some_images(40, 1), some_images(10, 2)
    # EMNIST counts its letters from 1.
    write_set(folder, "emnist-letters-train", train, np.arange(40) % 4 + 1, gz)
    write_set(folder, "emnist-letters-test", test, np.arange(10) % 4 + 1, gz)
    task = IdxImages(IdxSettings(dataset="emnist-letters"), data_dir=tmp_path, base_dir=tmp_path)
    assert (task.classes, task.height, task.width) == (4, 6, 8)
    assert np.array_equal(task.test[0].numpy(), test.transpose(0, 2, 1))
    assert task.test[1].tolist() == [i % 4 for i in range(10)]
    assert task.build_model()(task.test[0]).shape == (10, 4)


def test_the_cnn_is_the_usual_one(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    write_set(tmp_path, "mine", images, np.arange(60) % 10)
    settings = IdxSettings(dataset="custom", train="mine", model="cnn")
    task = IdxImages(settings, data_dir=None, base_dir=tmp_path)
    model = initial_model(task, seed=0)
    assert model.parameters_size == 105_866
    weights = [p.detach().contiguous() for p in model.module.parameters()]
    x = task.test[0][:, None] / 255
    for kernel, bias in (weights[:2], weights[2:4]):
        x = F.max_pool2d(F.relu(F.conv2d(x, kernel, bias, padding=1)), 2)
    x = F.linear(F.relu(F.linear(x.flatten(1), *weights[4:6])), *weights[6:])
    assert torch.allclose(model.module(task.test[0]), x, atol=1e-5)


def test_the_mlp_has_one_hidden_layer(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    write_set(tmp_path, "mine", images, np.arange(60) % 10)
    settings = IdxSettings(dataset="custom", train="mine", model="mlp")
    task = IdxImages(settings, data_dir=None, base_dir=tmp_path)
    model = initial_model(task, seed=0)
    assert model.parameters_size == 784 * 32 + 32 + 32 * 10 + 10 == 25_450
    w1, b1, w2, b2 = (p.detach() for p in model.module.parameters())
    x = F.relu(F.linear(task.test[0].flatten(1) / 255, w1, b1))
    assert torch.allclose(model.module(task.test[0]), F.linear(x, w2, b2), atol=1e-5)


def test_the_cnn_takes_other_sizes(tmp_path: Path) -> None:
    def cnn(height: int, width: int) -> IdxImages:
        name = f"of{height}x{width}"
        images = np.zeros((20, height, width), dtype=np.uint8)
        write_set(tmp_path, name, images, np.arange(20) % 3)
        settings = IdxSettings(dataset="custom", train=name, model="cnn")
        return IdxImages(settings, data_dir=None, base_dir=tmp_path)

    task = cnn(9, 4)
    assert task.build_model()(task.test[0]).shape == (len(task.test[0]), 3)
    with pytest.raises(TaskError, match=r"are 9 x 3 pixels; .* needs 4 x 4, small takes any size"):
        cnn(9, 3)


def test_real_emnist_letters_stand_upright(real_data: Path) -> None:
    def letters(transposed: bool) -> tuple[torch.Tensor, torch.Tensor]:
        settings = IdxSettings(
            dataset="custom", folder="emnist", train="emnist-letters-sample", transposed=transposed
        )
        task = IdxImages(settings, data_dir=real_data, base_dir=Path())
        splits = (task.train, task.validation, task.test)
        images, labels = (torch.cat(tensors) for tensors in zip(*splits, strict=True))
        assert len(images) == 51
        return images, labels

    (upright, labels), (lying, _) = letters(True), letters(False)
    assert torch.equal(upright, lying.transpose(1, 2))
    # A V that stands is open at the top: in its middle there is ink only far down.
    (letter_v,) = upright[labels == 21]
    middle = letter_v[:, 13:15].sum(dim=1).nonzero()
    assert int(middle.min()) > 14


def test_real_femnist_is_split_within_clients(real_data: Path) -> None:
    task = IdxImages(IdxSettings(dataset="femnist-digits"), data_dir=real_data, base_dir=Path())
    assert task.clients is not None
    sizes = np.array([487, 504, 544, 518, 507, 454, 516, 528, 479, 505, 496, 459])
    kept = np.bincount(np.asarray(task.clients)) / sizes
    assert np.all(np.abs(kept - 0.7) < 0.01)
    assert [len(s[0]) for s in (task.train, task.validation, task.test)] == [4198, 600, 1199]
    parts = partition(PartitionSettings(kind="client"), task, 8, seed=0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(4198))
    held = [set(np.asarray(task.clients)[part].tolist()) for part in parts]
    assert sum(map(len, held)) == 12


def test_real_fashion_mnist_splits_do_not_overlap(real_data: Path) -> None:
    settings = IdxSettings(train_samples=2000, test_samples=500)
    task = IdxImages(settings, data_dir=real_data, base_dir=Path())
    assert [len(s[0]) for s in (task.train, task.validation, task.test)] == [2000, 6000, 500]
    train, validation = set(as_bytes(task.train)), set(as_bytes(task.validation))
    test = set(as_bytes(task.test))
    assert not train & validation
    assert not train & test
    assert not validation & test
    model = initial_model(task, seed=0)
    local = TrainingSettings(lr=0.05, momentum=0.9)
    trainer = LocalTrainer(task, np.arange(2000), local, seed=0, site=0, model=model)
    trainer.train(0, Steps(150))
    assert evaluate(task, model, "test").accuracy > 0.65


def test_one_pair_of_files_is_split_three_ways(tmp_path: Path) -> None:
    images = some_images(100)
    write_set(tmp_path / "own", "mine", images, np.arange(100) % 5)
    settings = IdxSettings(dataset="custom", folder="own", train="mine", test_share=0.3)
    task = IdxImages(settings, data_dir=None, base_dir=tmp_path)
    parts = [as_bytes(split) for split in (task.train, task.validation, task.test)]
    assert [len(part) for part in parts] == [60, 10, 30]
    assert sorted(chain(*parts)) == sorted(image.tobytes() for image in images)
    assert np.array_equal(task.labels, task.train[1].numpy())
    again = IdxImages(settings, data_dir=None, base_dir=tmp_path)
    assert torch.equal(again.validation[0], task.validation[0])


def test_validation_comes_out_of_the_training_files(tmp_path: Path) -> None:
    write_set(tmp_path / "mnist", "train", some_images(50, 1), np.arange(50) % 5)
    write_set(tmp_path / "mnist", "t10k", some_images(20, 2), np.arange(20) % 5)
    settings = IdxSettings(dataset="mnist", validation_share=0.2, train_samples=30)
    task = IdxImages(settings, data_dir=tmp_path, base_dir=tmp_path)
    assert [len(s[0]) for s in (task.train, task.validation, task.test)] == [30, 10, 20]
    assert as_bytes(task.test) == [image.tobytes() for image in some_images(20, 2)]
    assert not set(as_bytes(task.train)) & set(as_bytes(task.validation))


def broken(folder: Path, what: str) -> None:
    write_set(folder, "train", some_images(20), np.arange(20) % 5)
    write_set(folder, "t10k", some_images(10), np.arange(10) % 5)
    labels, images = folder / "train-labels-idx1-ubyte", folder / "train-images-idx3-ubyte"
    if what == "count":
        labels.write_bytes(idx_bytes(np.zeros(19, dtype=np.uint8)))
    elif what == "labels":
        labels.unlink()
    elif what == "swapped":
        labels.write_bytes(images.read_bytes())
    elif what == "images":
        images.unlink()
    elif what == "strange":
        write_set(folder, "t10k", some_images(10), [9] * 10)
    elif what == "size":
        write_set(folder, "t10k", some_images(10)[:, :5], np.arange(10) % 5)
    elif what == "client":
        path = folder / "train-client-idx1-ubyte"
        path.write_bytes(idx_bytes(np.zeros(3, dtype=np.uint8)))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("count", "train-labels-idx1-ubyte has 19 entries, but there are 20 images"),
        ("labels", "there is no train-labels-idx1-ubyte, nor the same with .gz, in"),
        ("swapped", "holds 3 dimensions of uint8; labels need 1 of whole numbers"),
        ("images", "there is no train-images-idx3-ubyte.* or set task.idx.folder"),
        ("strange", r"the test labels .* hold \[9\], which no training sample has"),
        ("size", r"are \(5, 6\) pixels, the training images \(8, 6\)"),
        ("client", "train-client-idx1-ubyte has 3 entries, but there are 20 images"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, what: str, said: str) -> None:
    broken(tmp_path / "mnist", what)
    with pytest.raises(TaskError, match=said):
        IdxImages(IdxSettings(dataset="mnist"), data_dir=tmp_path, base_dir=tmp_path)


def test_without_a_data_folder_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"POWERTRIP_DATA .* or task\.idx\.folder"):
        IdxImages(IdxSettings(), data_dir=None, base_dir=tmp_path)
