from __future__ import annotations

import pickle

import pytest
import torch

from powertrip.runtime import checkpoint
from powertrip.runtime.checkpoint import (
    CheckpointUnreadable,
    CheckpointUnwritable,
    load_checkpoint,
    save_checkpoint,
)


def save(path, *, value=1.0, round_=4):
    return save_checkpoint(
        path,
        model={"weight": torch.full((2, 3), value, requires_grad=True), "count": torch.tensor(7)},
        outer_state=torch.arange(5.0),
        round_=round_,
        digest="abc",
    )


def test_what_is_saved_is_read_back(tmp_path):
    path = tmp_path / "new" / "folder" / "checkpoint.pt"
    assert save(path) == path.stat().st_size > 0
    content = load_checkpoint(path)
    assert torch.equal(content["model"]["weight"], torch.ones(2, 3))
    assert content["model"]["count"].item() == 7
    assert content["outer_state"].tolist() == [0, 1, 2, 3, 4]
    assert (content["round"], content["digest"]) == (4, "abc")
    assert [p.name for p in path.parent.iterdir()] == ["checkpoint.pt"]


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path):
    whole = torch.zeros(1_000_000)
    size = save_checkpoint(
        tmp_path / "c.pt", model={"w": whole[:4]}, outer_state=whole[4:8], round_=0, digest=""
    )
    assert size < 100_000


def test_a_new_checkpoint_replaces_the_old_one(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save(path, value=1.0, round_=4)
    save(path, value=2.0, round_=5)
    assert load_checkpoint(path)["round"] == 5
    assert load_checkpoint(path)["model"]["weight"][0, 0] == 2


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("disk")])
def test_a_write_that_fails_half_way_leaves_the_one_before(tmp_path, monkeypatch, error):
    path = tmp_path / "checkpoint.pt"
    save(path, round_=4)

    def full(content, file):
        file.write(b"half of it")
        raise error

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(CheckpointUnwritable, match=r"checkpoint\.pt"):
        save(path, round_=5)
    monkeypatch.undo()
    assert load_checkpoint(path)["round"] == 4
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointUnwritable):
        save(tmp_path / "file" / "checkpoint.pt")


class Surprise:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return print, ("unpickled",)


def damaged(path):
    save(path)
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize(
    "write",
    [
        damaged,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no checkpoint"),
        lambda path: path.write_bytes(pickle.dumps(Surprise())),
        lambda path: torch.save({"format": 1, "model": Surprise()}, path),
        lambda path: torch.save({"format": 2}, path),
        lambda path: torch.save([1, 2], path),
        lambda path: path.mkdir(),
        lambda path: None,
    ],
    ids=[
        "damaged", "empty", "text", "pickle", "object", "version", "list", "folder", "missing",
    ],
)  # fmt: skip
def test_what_is_no_checkpoint_is_refused_and_never_run(tmp_path, capsys, write):
    path = tmp_path / "checkpoint.pt"
    write(path)
    with pytest.raises(CheckpointUnreadable, match=r"checkpoint\.pt") as caught:
        load_checkpoint(path)
    assert caught.value.exit_code == 2
    assert "unpickled" not in capsys.readouterr().out
