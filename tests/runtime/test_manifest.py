"""Which checkpoint a run goes on from, and which are removed."""

from __future__ import annotations

import json
import os
import re

import pytest

from powertrip.runtime import manifest as module
from powertrip.runtime.checkpoint import CheckpointUnreadable, CheckpointUnwritable, latest
from powertrip.runtime.manifest import (
    NoCheckpoint,
    begin_checkpoint,
    folder_of,
    newest,
    prune,
    read_coordinator,
    read_manifest,
    set_aside,
    write_manifest,
)
from tests.runtime.checkpoints import SITES, write_checkpoint


def test_the_last_one_is_found(tmp_path):
    for round_ in (2, 100_000_000, 9):
        write_checkpoint(tmp_path, round_)
    found = latest(tmp_path)
    assert (found.folder.name, found.manifest.round) == ("round-100000000", 100_000_000)
    assert found.skipped == ()
    assert newest(tmp_path) == found


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda f: (f / "manifest.json").unlink(), "it was not finished"),
        (lambda f: (f / "model.pt").unlink(), r"model\.pt is missing"),
        (lambda f: (f / "site-0001.pt").unlink(), r"site-0001\.pt is missing"),
        (lambda f: (f / "model.pt").write_bytes(b"x"), r"has 1 bytes, and \d+ were written"),
        (lambda f: replaced(f / "model.pt", os.mkfifo), "no plain file"),
        (lambda f: replaced(f / "model.pt", os.mkdir), "no plain file"),
        (lambda f: linked(f / "model.pt"), "is a link"),
        (lambda f: linked(f / "manifest.json"), "is a link"),
        (lambda f: linked(f), "is a link"),
    ],
)
def test_where_it_is_damaged_the_one_before_is_taken_and_it_is_said_why(tmp_path, harm, why):
    before = write_checkpoint(tmp_path, 3)
    harm(write_checkpoint(tmp_path, 5))
    found = latest(tmp_path)
    assert found.folder == before
    (sentence,) = found.skipped
    assert sentence.startswith("round-00000005 is no use: ")
    assert re.search(why, sentence), sentence


def replaced(path, make):
    path.unlink()
    make(path)


def linked(path):
    elsewhere = path.with_name(f"elsewhere-{path.name}")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def test_where_none_is_left_all_that_is_there_is_named(tmp_path):
    with pytest.raises(NoCheckpoint, match="there is none at all"):
        latest(tmp_path)
    for round_ in (3, 5):
        (write_checkpoint(tmp_path, round_) / "model.pt").unlink()
    with pytest.raises(NoCheckpoint) as caught:
        latest(tmp_path)
    assert [s[:14] for s in caught.value.skipped] == ["round-00000005", "round-00000003"]
    assert str(caught.value).count("model.pt is missing") == 2
    assert isinstance(caught.value, CheckpointUnreadable)
    assert newest(tmp_path).manifest.round == 5


def rewritten(folder, change):
    """The manifest with something else in it, and a checksum that fits."""
    path = folder / "manifest.json"
    body = json.loads(path.read_bytes())["manifest"]
    body = change(body)
    path.write_bytes(module._json({"manifest": body, "checksum": ""}))
    data = {"manifest": body, "checksum": module._checksum(module._json(body))}
    path.write_bytes(module._json(data))


def entry(**changes):
    return {"name": "model.pt", "bytes": 1, "checksum": "0" * 64} | changes


@pytest.mark.parametrize(
    "change",
    [
        lambda m: [],
        lambda m: 7,
        lambda m: m | {"format": 1},
        lambda m: m | {"format": 10**4000},
        lambda m: m | {"more": 1},
        lambda m: {k: v for k, v in m.items() if k != "digest"},
        lambda m: m | {"round": -1},
        lambda m: m | {"round": 10**40},
        lambda m: m | {"round": "5"},
        lambda m: m | {"round": 5.0},
        lambda m: m | {"round": True},
        lambda m: m | {"round": 4},
        lambda m: m | {"sites": []},
        lambda m: m | {"sites": "paris"},
        lambda m: m | {"wall_time": "soon"},
        lambda m: m | {"files": {}},
        lambda m: m | {"files": []},
        lambda m: m | {"files": [7]},
        lambda m: m | {"files": m["files"] + m["files"][:1]},
        lambda m: m | {"files": [*m["files"], entry(name="../../model.pt")]},
        lambda m: m | {"files": [*m["files"], entry(name="/etc/passwd")]},
        lambda m: m | {"files": [*m["files"], entry(name="manifest.json")]},
        lambda m: m | {"files": [*m["files"], entry(name="site-1.pt")]},
        lambda m: m | {"files": [*m["files"], entry(name="site-0007.pt", bytes=10**30)]},
        lambda m: m | {"files": [*m["files"], entry(name="site-0007.pt", bytes=-1)]},
        lambda m: m | {"files": [*m["files"], entry(name="site-0007.pt", checksum="x" * 64)]},
    ],
)
def test_a_manifest_with_other_things_in_it_is_refused(tmp_path, change):
    folder = write_checkpoint(tmp_path, 5)
    rewritten(folder, lambda m: m)
    assert latest(tmp_path).folder == folder
    rewritten(folder, change)
    with pytest.raises(CheckpointUnreadable, match=r"manifest\.json"):
        read_manifest(folder)
    with pytest.raises(CheckpointUnreadable):
        read_coordinator(folder)
    with pytest.raises(NoCheckpoint):
        latest(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b"9" * 5000,
        b'{"manifest":{"format":2,"round":1e999},"checksum":"x"}',
        b'{"manifest":{"format":2,"digest":"\\ud800"},"checksum":"x"}',
    ],
)  # fmt: skip
def test_a_manifest_that_is_none_is_refused(tmp_path, data):
    folder = write_checkpoint(tmp_path, 5)
    (folder / "manifest.json").write_bytes(data)
    with pytest.raises(CheckpointUnreadable, match=r"manifest\.json"):
        read_manifest(folder)


@pytest.mark.parametrize("data", [b"[]", b"[" * 100_000, b'{"a":NaN}', b"9" * 5000, b"\xff"])
def test_a_state_that_is_none_is_refused(tmp_path, data):
    folder = write_checkpoint(tmp_path, 5)
    found = module.write_file(folder, "coordinator.json", lambda file: file.write(data))
    rewritten(
        folder,
        lambda m: m | {"files": [f for f in m["files"] if f["name"] != found.name]
                       + [found.model_dump()]},
    )  # fmt: skip
    with pytest.raises(CheckpointUnreadable, match=r"coordinator\.json"):
        read_coordinator(folder)


def test_a_manifest_needs_the_model_and_the_coordinators_state(tmp_path):
    files = read_manifest(write_checkpoint(tmp_path, 1)).files
    for missing in ("model.pt", "coordinator.json"):
        rest = [entry for entry in files if entry.name != missing]
        with pytest.raises(CheckpointUnwritable, match=missing):
            write_manifest(tmp_path, rest, round_=1, digest="", sites=SITES, base_dir=tmp_path)


def folders(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_the_last_ones_are_kept(tmp_path):
    for round_ in (1, 2, 3, 4):
        write_checkpoint(tmp_path, round_)
    begin_checkpoint(tmp_path, 6)
    (folder_of(tmp_path, 3) / "manifest.json").unlink()
    (tmp_path / "checkpoints" / "notes").write_text("mine")
    prune(tmp_path, 2)
    assert folders(tmp_path) == ["notes", "round-00000002", "round-00000004", "round-00000006"]
    prune(tmp_path, 1)
    assert folders(tmp_path) == ["notes", "round-00000004", "round-00000006"]
    prune(tmp_path / "elsewhere", 1)


def test_what_cannot_be_removed_is_named(tmp_path, monkeypatch):
    for round_ in (1, 2):
        write_checkpoint(tmp_path, round_)

    def refuse(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.shutil, "rmtree", refuse)
    with pytest.raises(CheckpointUnwritable, match=r"round-00000001 cannot be removed: Perm"):
        prune(tmp_path, 1)
    # Half of it is never taken for a checkpoint.
    assert not (folder_of(tmp_path, 1) / "manifest.json").exists()


def test_removing_follows_no_link(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    write_checkpoint(elsewhere, 1)
    write_checkpoint(tmp_path, 2)
    folder_of(tmp_path, 1).symlink_to(folder_of(elsewhere, 1))
    prune(tmp_path, 1)
    assert folders(tmp_path) == ["round-00000002"]
    assert latest(elsewhere).manifest.round == 1


def test_what_is_later_than_what_a_run_goes_on_from_is_set_aside(tmp_path):
    for round_ in (2, 4, 6):
        write_checkpoint(tmp_path, round_)
    (folder_of(tmp_path, 4) / "model.pt").unlink()
    (folder_of(tmp_path, 6) / "manifest.json").unlink()
    found = latest(tmp_path)
    assert [path.name for path in set_aside(tmp_path, found)] == [
        "round-00000006.unusable-1", "round-00000004.unusable-1"
    ]  # fmt: skip
    assert latest(tmp_path).skipped == ()
    write_checkpoint(tmp_path, 4)
    (folder_of(tmp_path, 4) / "model.pt").unlink()
    set_aside(tmp_path, latest(tmp_path))
    assert "round-00000004.unusable-2" in folders(tmp_path)


def test_a_folder_that_is_begun_again_is_empty(tmp_path):
    folder = write_checkpoint(tmp_path, 4)
    assert begin_checkpoint(tmp_path, 4) == folder
    assert list(folder.iterdir()) == []
