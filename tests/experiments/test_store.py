from __future__ import annotations

import json

import pytest

from powertrip.experiments.cell import CellResult
from powertrip.experiments.store import Store

DONE = CellResult("done", {"rounds": 3}, {"round": [1, 2], "train_loss": [0.1, 0.3]}, "", 1.5)
FAILED = CellResult("failed", {}, {}, "because", 0.5)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "cells")


def test_a_result_is_read_back(store):
    store.save("a", DONE)
    assert store.load("a") == DONE
    assert store.load("b") is None
    assert store.other_source == set()


def test_a_failed_cell_is_not_finished(store):
    store.save("a", FAILED)
    assert store.load("a") is None
    assert json.loads((store.folder / "a.json").read_text())["error"] == "because"
    store.save("a", DONE)
    assert store.load("a") == DONE


def test_results_of_another_source_are_used_and_noted(store):
    store.save("a", DONE)
    path = store.folder / "a.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"source": "other"}))
    assert store.load("a") == DONE
    assert store.other_source == {"a"}


def test_a_file_that_was_damaged_is_no_result(store):
    store.folder.mkdir()
    (store.folder / "a.json").write_text('{"status": "do')
    (store.folder / "b.json").write_text("{}")
    assert store.load("a") is None
    assert store.load("b") is None
