from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from powertrip.config import default_path, load_config
from powertrip.coordination.setup import DATA_VARIABLE, Setup, data_folder
from powertrip.errors import ConfigError


@pytest.mark.parametrize("json_summary", [False, True])
def test_a_child_process_gets_the_same_setup(three_sites, json_summary):
    packaged = Setup(load_config(), default_path().parent, json_summary)
    own = Setup(three_sites.config, three_sites.base_dir, json_summary)
    further = Setup(load_config(), default_path().parent, json_summary, resume="runs/x")
    for setup in (packaged, own, further):
        data = setup.encode()
        assert b"\n" not in data
        assert Setup.decode(data) == setup
        assert json.loads(data)["json_summary"] is json_summary


def test_what_only_simulations_know_is_refused(three_sites):
    three_sites.check_real()
    config = load_config(None, ["exchange.overlap=true", "exchange.codec=int8"])
    with pytest.raises(ConfigError, match="for `powertrip simulate` so far") as refused:
        Setup(config, three_sites.base_dir).check_real()
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [
        "exchange.overlap",
        "exchange.codec",
    ]


def test_every_process_builds_the_same_world(three_sites):
    worlds = [Setup.decode(three_sites.encode()).build_world() for _ in range(2)]
    assert worlds[0].names == worlds[1].names == ("paris", "rome", "oslo")
    for t_s in (0.0, 10.0, 20.0):
        assert np.array_equal(worlds[0].power_w(t_s), worlds[1].power_w(t_s))


def test_files_are_found_beside_the_scenario_then_in_the_data_folder(tmp_path, monkeypatch):
    scenario, data = tmp_path / "scenario", tmp_path / "data"
    for folder, watts in ((scenario, 1), (data, 2)):
        folder.mkdir()
        (folder / "p.csv").write_text(f"time_s,site,watts\n0,iowa,{watts}\n60,iowa,{watts}\n")
    config = load_config(None, ["sites.count=1", "sites.list.0.power={kind: csv, path: p.csv}"])
    monkeypatch.setenv(DATA_VARIABLE, str(data))
    assert Setup(config, scenario).build_world().power_w(0).tolist() == [1]
    (scenario / "p.csv").unlink()
    assert Setup(config, scenario).build_world().power_w(0).tolist() == [2]


def test_the_data_folder_is_what_the_environment_names(monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, "/some/where")
    assert data_folder() == Path("/some/where")
    monkeypatch.setenv(DATA_VARIABLE, "")
    assert data_folder() is None
    monkeypatch.delenv(DATA_VARIABLE)
    assert data_folder() is None
