"""The device and threads that settings ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from powertrip.training.device import prepare_torch
from powertrip.training.errors import DeviceError
from powertrip.training.settings import TrainingSettings


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_threads_and_cpu() -> None:
    assert prepare_torch(TrainingSettings(device="cpu", threads=2)) == torch.device("cpu")
    assert torch.get_num_threads() == 2


def test_without_a_gpu_auto_is_cpu_and_cuda_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert prepare_torch(TrainingSettings(device="auto")).type == "cpu"
    with pytest.raises(DeviceError, match="torch sees no GPU here; write cpu or auto"):
        prepare_torch(TrainingSettings(device="cuda"))


def test_processes_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    chosen = [prepare_torch(TrainingSettings(device="auto"), local_rank=rank) for rank in (0, 3, 5)]
    assert [device.index for device in chosen] == [0, 3, 1]
