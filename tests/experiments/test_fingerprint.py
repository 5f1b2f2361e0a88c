from __future__ import annotations

import os

import pytest

import powertrip
from powertrip.coordination.setup import DATA_VARIABLE, Setup
from powertrip.experiments.fingerprint import cell_key, data_version, source_version

SCENARIO = """
sites:
  list:
    - {name: a, samples_per_s: 10, power: {kind: csv, path: power.csv}}
    - {name: b, samples_per_s: 10, power: {kind: constant, watts: 100}}
network: {kind: matrix, rtt_s: [[0, 1], [1, 0]], bandwidth_bps: [[0, 1e+6], [1e+6, 0]]}
"""


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    """A scenario with a trace of its own beside it, and a data folder."""
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
    images = tmp_path / "data" / "fashion_mnist"
    images.mkdir(parents=True)
    (images / "train-images-idx3-ubyte").write_bytes(b"12345")
    (tmp_path / "power.csv").write_text("time_s,site,watts\n0,a,100\n")
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return lambda *overrides: Setup.resolve(path, overrides)


def test_a_cell_is_known_by_what_it_depends_on(scenario):
    key = cell_key(scenario())
    assert cell_key(scenario()) == key
    assert cell_key(scenario("goal.max_rounds=7")) != key
    assert cell_key(scenario("seed=1")) != key
    shown = ("name=other", "telemetry.console=none", "runtime.run_dir=elsewhere")
    assert cell_key(scenario(*shown, "simulation.workers=3")) == key


def test_a_file_that_the_scenario_names_counts_with_its_content(scenario, tmp_path):
    before = cell_key(scenario())
    trace = tmp_path / "power.csv"
    trace.write_text("time_s,site,watts\n0,a,200\n")
    os.utime(trace, ns=(1, 1))
    assert cell_key(scenario()) != before
    (tmp_path / "other.csv").write_text("nobody reads this\n")
    trace.write_text("time_s,site,watts\n0,a,100\n")
    os.utime(trace, ns=(2, 2))
    assert cell_key(scenario()) == before


def test_a_data_set_counts_where_it_is_learned(scenario, tmp_path):
    assert set(data_version(scenario())) == {"power.csv"}
    setup = scenario("task=idx")
    assert set(data_version(setup)) == {"power.csv", "data set"}
    assert cell_key(setup) != cell_key(scenario())


def test_a_task_of_the_user_s_counts_with_its_module(scenario, tmp_path):
    setup = scenario("task=my_tasks:Mine")
    before = cell_key(setup)
    (tmp_path / "my_tasks.py").write_text("class Mine: ...\n")
    assert cell_key(setup) != before


def test_another_version_of_powertrip_makes_other_cells(scenario, monkeypatch):
    before = cell_key(scenario())
    monkeypatch.setattr(powertrip, "__version__", "99")
    assert cell_key(scenario()) != before


def test_the_source_s_version_is_that_of_all_that_runs(tmp_path, monkeypatch):
    versions = []
    for room in ("experiments", "simulation"):
        (tmp_path / room).mkdir()
    monkeypatch.setattr(powertrip, "__file__", str(tmp_path / "__init__.py"))
    for name in ("a.py", "experiments/figures.py", "simulation/engine.py"):
        (tmp_path / name).write_text("x = 1\n")
        source_version.cache_clear()
        versions.append(source_version())
    source_version.cache_clear()
    assert versions[0] == versions[1] != versions[2]
