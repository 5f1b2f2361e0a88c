from __future__ import annotations

import threading

import pytest
import torch

from powertrip.runtime.faults import FAULTS_VARIABLE, Faults, FaultsUnreadable, SiteFaults


def write(path, **fields):
    path.write_text(Faults.model_validate(fields).model_dump_json())


def test_without_the_variable_there_is_nothing(tmp_path):
    assert SiteFaults.of({}, 0) is None
    faults = SiteFaults.of({FAULTS_VARIABLE: str(tmp_path / "none")}, 0)
    faults.await_power(threading.Event())
    vector = torch.ones(3)
    faults.spoil(vector, torch.zeros(3))
    assert vector.tolist() == [1, 1, 1]


def test_an_update_is_spoilt_once_a_process(tmp_path):
    path = tmp_path / "faults.json"
    write(path, bad_updates=({"site": 2, "how": "exploding", "name": "7"},))
    mine, others = SiteFaults(path, 2), SiteFaults(path, 1)
    before, after = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.0])

    others.spoil(after, before)
    assert after.tolist() == [1.5, 1.0]
    mine.spoil(after, before)
    assert after.tolist() == [501.0, -998.0]
    mine.spoil(after, before)
    assert after.tolist() == [501.0, -998.0]

    write(path, bad_updates=({"site": 2, "how": "nan", "name": "8"},))
    mine.spoil(after, before)
    assert after.isnan().all()


def test_a_site_without_power_waits_until_it_has_some_or_is_told_otherwise(tmp_path):
    path = tmp_path / "faults.json"
    write(path, no_power=(3,))
    faults = SiteFaults(path, 3)
    cut = threading.Event()
    cut.set()
    faults.await_power(cut)

    waiting = threading.Thread(target=faults.await_power, args=(threading.Event(),))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    path.unlink()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_malformed_file_is_told(tmp_path):
    path = tmp_path / "faults.json"
    path.write_text('{"no_power": "iowa"}')
    with pytest.raises(FaultsUnreadable, match=rf"{FAULTS_VARIABLE}: .*\nno_power"):
        Faults.read(path)
