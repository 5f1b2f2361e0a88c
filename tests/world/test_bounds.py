"""Small files that would fill the memory, and paths that are none."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from pydantic import ValidationError

from powertrip.errors import InputError
from powertrip.world import files
from powertrip.world.files import find_file, read_table
from powertrip.world.site_settings import SyntheticPower


@pytest.mark.parametrize(
    "path", ["~nobody-has-this-name/x.csv", "x" * 5000, "/" + "x" * 5000, "\0"]
)
def test_what_is_no_path_is_refused(tmp_path, path):
    with pytest.raises(InputError) as caught:
        find_file(Path(path), tmp_path, None)
    assert len(str(caught.value)) < 6000


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_table_has_a_greatest_size_unpacked(tmp_path, monkeypatch, pack):
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    path = tmp_path / "table.csv"
    path.write_bytes(pack(b"a\n" * 500))
    assert len(read_table(path, ["a"]).rows) == 499
    path.write_bytes(pack(b"a\n" * 501))
    with pytest.raises(InputError, match=r"table\.csv is too large"):
        read_table(path, ["a"])


def test_a_synthetic_trace_has_a_greatest_number_of_steps():
    with pytest.raises(ValidationError, match="more than 10000000 steps"):
        SyntheticPower(capacity_w=1, duration_s=1e9, step_s=1)
