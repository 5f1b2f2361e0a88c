"""What is saved is read back; what is damaged is refused by name, and never run."""

from __future__ import annotations

import pickle
import stat
from itertools import chain

import pytest
import torch
from torch import nn

from powertrip.runtime import checkpoint, durable
from powertrip.runtime.checkpoint import (
    CheckpointUnreadable,
    CheckpointUnwritable,
    ModelCopy,
    latest,
    load_model,
    load_site,
    read_coordinator,
    read_manifest,
    write_model,
    write_site,
)
from powertrip.runtime.manifest import write_manifest
from powertrip.training.digest import digest
from powertrip.training.flat import FlatModel
from tests.runtime.checkpoints import SITES, small_model, write_checkpoint


def test_what_is_saved_is_read_back(tmp_path):
    model = small_model()
    folder = write_checkpoint(tmp_path / "run", 12, model=model)
    assert folder == tmp_path / "run" / "checkpoints" / "round-00000012"
    assert sorted(path.name for path in folder.iterdir()) == [
        "coordinator.json", "manifest.json", "model.pt", "site-0001.pt"
    ]  # fmt: skip
    saved = load_model(folder)
    assert torch.equal(saved.vector, model.vector + 12)
    assert saved.outer_state.tolist() == [0, 1, 2, 3, 4]
    assert (saved.round, saved.digest) == (12, digest(model.vector + 12, torch.arange(5.0)))
    assert load_site(folder, 0) == {}
    inner = load_site(folder, 1)
    assert inner["momentum"].tolist() == [1, 1, 1]
    assert inner["steps"].item() == 7
    assert read_coordinator(folder) == {"round": 12}
    manifest = read_manifest(folder)
    assert (manifest.round, manifest.sites) == (12, SITES)
    assert manifest.base_dir == str(tmp_path / "run" / "scenarios")
    for entry in manifest.files:
        assert entry.bytes == (folder / entry.name).stat().st_size


def test_the_state_dict_is_that_of_the_vector_and_written_once(tmp_path):
    model = FlatModel(
        nn.Sequential(nn.Conv2d(2, 30, 5).to(memory_format=torch.channels_last), nn.BatchNorm2d(30))
    )
    model.module.register_buffer("table", torch.arange(8.0), persistent=False)
    model = FlatModel(model.module)
    other = FlatModel(
        nn.Sequential(nn.Conv2d(2, 30, 5).to(memory_format=torch.channels_last), nn.BatchNorm2d(30))
    )
    committed = torch.rand_like(model.vector)
    mark = digest(committed, torch.zeros(0))
    copied = ModelCopy.of(model, committed, torch.zeros(0))
    before = committed.clone()
    committed.zero_()  # training goes on
    entry = write_model(tmp_path, copied, round_=3, digest=mark)
    assert entry.bytes < 4 * committed.numel() + 8000
    write_all(tmp_path, entry)
    saved = load_model(tmp_path)
    assert torch.equal(saved.vector, before)
    other.module.load_state_dict(saved.model)
    model.vector.copy_(before)
    x = torch.randn(1, 2, 9, 9)
    other.module.eval()
    model.module.eval()
    assert torch.equal(other.module(x), model.module(x))


def write_all(folder, *entries):
    """A manifest for files that were made otherwise."""
    files = [*entries, checkpoint.write_coordinator(folder, {})]
    write_manifest(folder, files, round_=3, digest="", sites=SITES, base_dir=folder)


def test_it_is_taken_over_by_a_model_of_the_same_size_alone(tmp_path):
    model = small_model()
    saved = load_model(write_checkpoint(tmp_path, 12, model=model))
    vector, outer_state = torch.zeros_like(model.vector), torch.zeros(5)
    saved.copy_into(vector, outer_state)
    assert torch.equal(vector, model.vector + 12)
    assert outer_state.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(CheckpointUnreadable, match="outer optimiser's state has 5 numbers"):
        saved.copy_into(vector.zero_(), torch.zeros(4))
    with pytest.raises(CheckpointUnreadable, match="model has"):
        saved.copy_into(torch.zeros(3), outer_state)
    assert not vector.any()


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path):
    whole = torch.zeros(1_000_000)
    assert write_site(tmp_path, 0, {"momentum": whole[4:8]}).bytes < 10_000


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("disk")])
def test_a_write_that_fails_half_way_leaves_no_trace(tmp_path, monkeypatch, error):
    def full(content, file):
        file.write(b"half of it")
        raise error

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(CheckpointUnwritable, match=r"site-0002\.pt"):
        write_site(tmp_path / "round-00000001", 2, {})
    assert list((tmp_path / "round-00000001").iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointUnwritable):
        write_site(tmp_path / "file" / "round-00000001", 0, {})


def test_files_are_on_the_disk_before_their_names_are(tmp_path, monkeypatch):
    told = []
    fsync, replace = durable.os.fsync, durable.Path.replace
    monkeypatch.setattr(
        durable.os,
        "fsync",
        lambda handle: (
            told.append("folder" if stat.S_ISDIR(durable.os.fstat(handle).st_mode) else "file"),
            fsync(handle),
        ),
    )
    monkeypatch.setattr(
        durable.Path, "replace", lambda a, b: (told.append("rename"), replace(a, b))
    )
    write_site(tmp_path, 0, {})
    assert told == ["file", "rename", "folder"]


class Surprise:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return print, ("unpickled",)


def contents():
    """What a file of a model must not hold, whatever its checksum says."""
    good = {
        "format": 2, "round": 3, "digest": digest(torch.ones(3), torch.ones(2)),
        "vector": torch.ones(3), "outer_state": torch.ones(2), "model": {"w": torch.ones(3)},
    }  # fmt: skip
    yield good | {"model": Surprise()}
    yield good | {"format": 1}
    yield good | {"format": torch.ones(3)}
    yield good | {"digest": "0" * 32}
    yield good | {"more": 1}
    yield [1, 2]
    for key, wrong in (
        ("vector", torch.ones(3, 1)), ("vector", [1.0]), ("outer_state", None),
        ("model", [torch.ones(3)]), ("model", {1: torch.ones(3)}), ("model", {"w": 1.0}),
        ("round", 1.5), ("digest", 7),
    ):  # fmt: skip
        yield good | {key: wrong}


@pytest.mark.parametrize("content", list(contents()))
def test_what_is_no_model_is_refused_and_never_run(tmp_path, capsys, content):
    entry = durable.write_file(tmp_path, "model.pt", lambda file: torch.save(content, file))
    write_all(tmp_path, entry)
    with pytest.raises(CheckpointUnreadable, match=r"model\.pt") as caught:
        load_model(tmp_path)
    assert caught.value.exit_code == 2
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize("data", [b"", b"no checkpoint", pickle.dumps(Surprise())])
def test_what_is_no_file_of_torch_is_refused_and_never_run(tmp_path, capsys, data):
    entry = durable.write_file(tmp_path, "model.pt", lambda file: file.write(data))
    write_all(tmp_path, entry)
    with pytest.raises(CheckpointUnreadable, match=r"model\.pt"):
        load_model(tmp_path)
    assert "unpickled" not in capsys.readouterr().out


def test_a_site_does_not_take_another_ones_state(tmp_path):
    entry = write_site(tmp_path, 2, {})
    (tmp_path / "site-0001.pt").write_bytes((tmp_path / "site-0002.pt").read_bytes())
    model = write_model(
        tmp_path,
        ModelCopy.of(small_model(), small_model().vector, torch.ones(1)),
        round_=3,
        digest="",
    )
    write_all(tmp_path, model, entry.model_copy(update={"name": "site-0001.pt"}))
    with pytest.raises(CheckpointUnreadable, match="something else than site 1's state"):
        load_site(tmp_path, 1)


READERS = {
    "model.pt": load_model,
    "site-0001.pt": lambda folder: load_site(folder, 1),
    "coordinator.json": read_coordinator,
    "manifest.json": read_manifest,
}


@pytest.mark.parametrize("name", list(READERS))
def test_every_cut_and_every_flipped_byte_is_found(tmp_path, name):
    before = write_checkpoint(tmp_path, 4)
    folder = write_checkpoint(tmp_path, 8)
    path = folder / name
    whole = path.read_bytes()
    cuts = (whole[:size] for size in range(0, len(whole), 97))
    flips = (
        whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        for at in range(3, len(whole), 89 if name.endswith(".pt") else 7)
    )
    for data in chain(cuts, flips):
        path.write_bytes(data)
        found = latest(tmp_path)
        assert found.folder == before
        (sentence,) = found.skipped
        assert "round-00000008 is no use" in sentence
        with pytest.raises(CheckpointUnreadable):
            READERS[name](folder)
    path.write_bytes(whole)
    assert latest(tmp_path).folder == folder
