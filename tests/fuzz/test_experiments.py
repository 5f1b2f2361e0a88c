"""Experiments, their tables and their finished cells."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from powertrip.errors import ConfigError, InputError
from powertrip.experiments.cell import CellResult
from powertrip.experiments.grid import plan_experiment, read_experiment
from powertrip.experiments.store import Store
from powertrip.experiments.table import TableError, read_table
from tests.fuzz.odd import changed, damaged, fuzzed, says, spoilt_table

FOLDER = Path(__file__).parents[2] / "configs" / "experiments"
FILES = sorted(FOLDER.glob("*.yaml"))
DOCUMENTS = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES]
SMALL = {
    "name": "small",
    "axes": {"policy": {"selection.policy": ["all", "powertrip"]}},
    "seeds": 2,
    "settings": {"goal.max_rounds": 3},
}
TABLE = "policy,seed,rounds,test_accuracy,error\nall,0,12,0.81,\npowertrip,1,7,nan,\n"


@fuzzed(20)
@given(st.sampled_from(DOCUMENTS).flatmap(changed))
def test_an_experiment_is_read_or_all_that_is_wrong_is_told(tmp_path, document):
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    try:
        settings = read_experiment(path)
    except ConfigError as error:
        says(error, path)
        return
    try:
        settings.made_quick()
    except ConfigError:
        return


@fuzzed(15)
@given(changed(SMALL))
def test_an_experiment_is_planned_or_refused(tmp_path, document):
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    try:
        plan_experiment(path)
    except InputError:
        return


@fuzzed(25)
@given(spoilt_table(TABLE))
def test_a_table_of_results_is_read_or_refused_by_name(tmp_path, data):
    path = tmp_path / "summary.csv"
    path.write_bytes(data)
    try:
        read_table(path)
    except TableError as error:
        says(error, path)


@fuzzed(25)
@given(st.data())
def test_a_damaged_cell_is_made_again(tmp_path, data):
    store = Store(tmp_path)
    store.save("key", CellResult("done", {"rounds": 3}, {"round": [1]}, "", 1.0))
    path = tmp_path / "key.json"
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged(path.read_bytes())))
    else:
        path.write_text(json.dumps(data.draw(changed(json.loads(path.read_text())))))
    result = store.load("key")
    assert result is None or result.status == "done"
