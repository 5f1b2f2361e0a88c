"""IDX files that are read ahead; what `read_idx` itself does is in test_idx."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from powertrip.training import idx_files
from powertrip.training.errors import TaskError
from powertrip.training.idx_files import read_idx, reading_ahead
from powertrip.training.settings import IdxSettings, TaskSettings


def settings(**idx: str) -> TaskSettings:
    return TaskSettings(name="idx", idx=IdxSettings(dataset="custom", train="mine", **idx))


def write(folder: Path) -> Path:
    path = folder / "mine-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 7, 9])))
    return path


def test_a_file_is_read_once_and_then_afresh(tmp_path: Path) -> None:
    path = write(tmp_path)
    with reading_ahead(settings(), data_dir=None, base_dir=tmp_path):
        pass
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert np.array_equal(read_idx(path), [[[7, 9]]])
    with pytest.raises(TaskError, match="damaged or cut short"):
        read_idx(path)


def test_what_is_wrong_is_said_by_who_asks(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with (
        reading_ahead(settings(), data_dir=None, base_dir=tmp_path),
        pytest.raises(TaskError, match="damaged or cut short"),
    ):
        read_idx(path)


@pytest.mark.parametrize(
    "task", [TaskSettings(), TaskSettings(name="idx"), settings(test="absent", folder="nowhere")]
)
def test_nothing_to_read_is_no_error(task: TaskSettings, tmp_path: Path) -> None:
    with reading_ahead(task, data_dir=None, base_dir=tmp_path):
        assert not idx_files._ahead


def test_it_does_not_wait_for_torch() -> None:
    code = "import sys, powertrip.training.idx_files; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
