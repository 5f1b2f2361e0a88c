"""Checkpoints as tests make, find and damage them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from powertrip.runtime.checkpoint import (
    ModelCopy,
    SavedModel,
    begin_checkpoint,
    latest,
    load_model,
    write_coordinator,
    write_manifest,
    write_model,
    write_site,
)
from powertrip.training.digest import digest
from powertrip.training.flat import FlatModel

SITES = ("paris", "rome", "oslo")


def small_model() -> FlatModel:
    """Two layers with a norm between them, which has buffers of floats and one of whole numbers."""
    torch.manual_seed(0)
    return FlatModel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))


def write_checkpoint(
    run_dir: Path, round_: int, *, model: FlatModel | None = None, state: dict | None = None
) -> Path:
    """A whole checkpoint of a small run, with an inner state of its second site."""
    model = model or small_model()
    vector, outer_state = model.vector + round_, torch.arange(5.0)
    mark = digest(vector, outer_state)
    folder = begin_checkpoint(run_dir, round_)
    copied = ModelCopy.of(model, vector, outer_state)
    files = [
        write_model(folder, copied, round_=round_, digest=mark),
        write_site(folder, 1, {"momentum": torch.ones(3), "steps": torch.tensor(7)}),
        write_coordinator(folder, {"round": round_} if state is None else state),
    ]
    write_manifest(
        folder, files, round_=round_, digest=mark, sites=SITES, base_dir=run_dir / "scenarios"
    )
    return folder


def latest_model(run_dir: Path) -> SavedModel:
    """The model that a run goes on from."""
    return load_model(latest(run_dir).folder)
