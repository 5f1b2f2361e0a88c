from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from powertrip.runtime.checkpoint import load_model
from powertrip.runtime.export import ExportFailed, export_model
from powertrip.runtime.manifest import NoCheckpoint
from tests.runtime.checkpoints import small_model, write_checkpoint


def test_the_model_alone_is_written_under_its_own_names(tmp_path):
    model = small_model()
    folder = write_checkpoint(tmp_path, 8, model=model)
    done = export_model(tmp_path)
    assert done.path == tmp_path / "model.safetensors"
    assert (done.round, done.bytes) == (8, done.path.stat().st_size)
    found = load_file(done.path)
    assert done.tensors == len(found) == len(model.module.state_dict())
    fresh = small_model()
    fresh.module.load_state_dict(found)
    assert torch.equal(fresh.vector, load_model(folder).vector)
    with safe_open(done.path, "pt") as file:
        about = file.metadata()
    assert (about["round"], about["digest"]) == ("8", load_model(folder).digest)


def test_the_one_before_is_taken_where_the_last_is_damaged(tmp_path):
    write_checkpoint(tmp_path, 4)
    (write_checkpoint(tmp_path, 8) / "model.pt").write_bytes(b"")
    done = export_model(tmp_path, tmp_path / "mine.safetensors")
    assert (done.path.name, done.round, len(done.skipped)) == ("mine.safetensors", 4, 1)


def test_what_cannot_be_done_is_named(tmp_path):
    with pytest.raises(NoCheckpoint):
        export_model(tmp_path)
    write_checkpoint(tmp_path, 4)
    with pytest.raises(ExportFailed, match="cannot be written"):
        export_model(tmp_path, tmp_path / "no" / "folder" / "m.safetensors")
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ExportFailed, match="cannot be written"):
        export_model(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "model.safetensors"]
