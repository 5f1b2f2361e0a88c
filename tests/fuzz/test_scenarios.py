"""Scenarios, and the files that they name: a world comes of them, or an error that says why."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from powertrip.config import default_path, load_config
from powertrip.coordination.setup import Setup
from powertrip.errors import ConfigError, InputError
from tests.fuzz.odd import changed, damaged, fuzzed, says, spoilt_table, values

SCENARIO = """
sites:
  list:
    - name: paris
      region: gcp:europe-west9
      samples_per_s: 100
      power: {kind: csv, path: power.csv}
      carbon: {kind: csv, path: hours.csv, zone: FR}
      price: {kind: csv, path: hours.csv, zone: FR}
    - name: iowa
      region: gcp:us-central1
      samples_per_s: 50
      power: {kind: google, path: google.csv, capacity_w: 1000, pdu: a, max_gap_s: 900}
      carbon: {kind: electricity-maps, path: maps.csv, zone: US}
network: {kind: table, latency_csv: rtt.csv, throughput_csv: rate.csv}
"""
FILES = {
    "power.csv": "time_s,site,watts\n0,paris,500\n60,paris,250.5\n120,paris,0\n0,iowa,1\n",
    "hours.csv": (
        "timestamp_utc,FR,US\n2022-05-01T00:00:00Z,80,400\n2022-05-01T01:00:00Z,81,\n"
        "2022-05-01T02:00:00Z,79.5,390\n"
    ),
    "google.csv": (
        "time,cell,pdu,measured_power_util,bad_measurement_data\n300000000,x,a,0.7,false\n"
        "600000000,x,a,0.71,true\n900000000,x,a,0.69,false\n"
    ),
    "maps.csv": (
        "Datetime (UTC),Zone id,Carbon intensity gCO2eq/kWh (Life cycle)\n"
        "2022-01-01 00:00:00,US,400\n2022-01-01 01:00:00,US,410\n"
    ),
    "rtt.csv": (
        "src_region,dst_region,avg_rtt\ngcp:europe-west9-a,gcp:us-central1-b,101.5\n"
        "gcp:us-central1-b,gcp:europe-west9-a,100\n"
    ),
    "rate.csv": (
        "src_region,dst_region,throughput_received,success\n"
        "gcp:europe-west9,gcp:us-central1,5e9,True\ngcp:us-central1,gcp:europe-west9,4.e9,true\n"
    ),
}
WHOLE = yaml.safe_load(SCENARIO)
PACKAGED = yaml.safe_load(default_path().read_text(encoding="utf-8"))
SMALL = {
    "sites": {
        "list": [
            {"name": "a", "samples_per_s": 1, "power": {"kind": "synthetic", "capacity_w": 9}}
        ],
        "fleet": {"count": 3, "mix": {"gcp:us-west1": 1}},
    },
    "network": {"kind": "distance"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenario")
    (folder / "scenario.yaml").write_text(SCENARIO)
    return folder


def build(folder) -> None:
    """Build the world of the scenario, and look at it."""
    world = Setup(load_config(folder / "scenario.yaml"), folder).build_world()
    for time_s in (0.0, 1.0, 1e6):
        for seen in (world.power_w, world.carbon_g_per_j, world.price_per_j, world.throughput):
            assert np.isfinite(seen(time_s)).all()
            assert (seen(time_s) >= 0).all()
    assert np.isfinite(world.samples_done(0, 0.0, 10.0))
    assert not np.isnan(world.rtt_s).any()


def test_the_files_are_read_as_they_are(folder):
    for name, text in FILES.items():
        (folder / name).write_text(text)
    build(folder)


@fuzzed(50)
@given(st.sampled_from(sorted(FILES)), st.data())
def test_a_file_of_a_world_is_read_or_refused_by_name(folder, name, data):
    for other, text in FILES.items():
        (folder / other).write_text(text)
    (folder / name).write_bytes(data.draw(spoilt_table(FILES[name])))
    try:
        build(folder)
    except InputError as error:
        # A region that a table does not hold is missing from both of them.
        says(error, "network: " if str(error).startswith("network: ") else name)


@fuzzed(40)
@given(st.sampled_from([WHOLE, PACKAGED, SMALL]).flatmap(changed))
def test_a_scenario_is_read_or_all_that_is_wrong_is_told(folder, document):
    path = folder / "changed.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    try:
        setup = Setup(load_config(path), folder)
    except ConfigError as error:
        says(error, path)
        return
    Setup.decode(setup.encode())
    try:
        setup.build_world()
    except InputError:
        return


@fuzzed(25)
@given(damaged(SCENARIO.encode()))
def test_a_damaged_scenario_is_read_or_refused_by_name(folder, data):
    path = folder / "changed.yaml"
    path.write_bytes(data)
    try:
        load_config(path)
    except ConfigError as error:
        says(error, path)


KEYS = (
    "sites",
    "list",
    "0",
    "power",
    "kind",
    "training",
    "lr",
    "task",
    "seed",
    "9" * 5000,
    "-1",
    "٣",
)


@fuzzed(40)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(KEYS) | st.text(max_size=4), min_size=1, max_size=4).map(
                ".".join
            ),
            values.map(json.dumps) | st.text(max_size=10),
        ).map("=".join)
        | st.text(max_size=10),
        max_size=3,
    )
)
def test_overrides_are_applied_or_refused(overrides):
    try:
        load_config(None, overrides)
    except ConfigError:
        return


def test_a_file_that_names_itself_in_itself_is_refused(tmp_path):
    path = tmp_path / "bomb.yaml"
    lines = ["a0: &a0 [x, x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)
    ]
    for text in (
        "\n".join([*lines, "sites: *a11", "network: *a11", "name: *a11"]),
        "sites: &s {list: [*s]}\nnetwork: *s",
        "&s [*s]: 1",
        "{" * 2000,
        "[" * 2000,
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match="bomb") as caught:
            load_config(path)
        assert len(str(caught.value)) < 20_000
