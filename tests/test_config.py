from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from powertrip.config import Config, default_path, dump_config, load_config
from powertrip.errors import ConfigError

CONFIGS = Path(__file__).parents[1] / "configs"

MINIMAL = """
sites:
  list:
    - {name: here, samples_per_s: 10, power: {kind: constant, watts: 500}}
network: {kind: matrix, rtt_s: [[0]], bandwidth_bps: [[0]]}
"""


OWN = """
name: own
seed: 3
goal: {accuracy: 0.9}
sites:
  list:
    - {name: a, samples_per_s: 10, power: {kind: constant, watts: 500}}
    - {name: b, samples_per_s: 10, power: {kind: builtin, domain: cella_pdu6, capacity_w: 1}}
    - {name: c, samples_per_s: 10, power: {kind: builtin, domain: cella_pdu7, capacity_w: 1}}
network: {kind: table}
task: digits
partition: shared
outer: {kind: nesterov, lr: 0.5}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scenarios")


@pytest.fixture(scope="module")
def write(folder):
    path = folder / "scenario.yaml"

    def write(content: str | bytes) -> Path:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def problems(path: Path | None = None, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return caught.value.problems


def test_the_packaged_scenario_loads():
    config = load_config()
    assert default_path().is_file()
    assert [site.name for site in config.sites.selected][:2] == ["iowa", "oregon"]
    assert len(config.sites.selected) == 8


def test_a_minimal_scenario_gets_the_defaults(write):
    config = load_config(write(MINIMAL))
    assert config.sites.list[0].gpus == 8
    assert config.name == "run"
    assert config.training == type(config.training)()


def test_all_problems_come_at_once_each_with_its_place_and_what_to_write(write):
    path = write(
        """
        name: two words
        seed: -1
        extra: 1
        sites:
          list:
            - {name: a, samples_per_s: fast, gpu: v100x, power: {kind: solar}}
            - {name: b, samples_per_s: 1, power: {kind: constant, watts: -1}}
            - {samples_per_s: 1, lat: 3, power: {watts: 5}}
        network: {kind: matrix, rtt_s: [[0]]}
        selection: {policy: powertripp, min_mebers: 2}
        training: {local_steps: 4, local_epochs: 1}
        goal: 0.9
        """
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    found = dict(text.split(": ", 1) for text in caught.value.problems)
    expected = {
        "name": "got 'two words'",
        "seed": "greater than or equal to 0, got -1",
        "extra": "unknown setting; known here: checkpoint, emulation, exchange",
        "sites.list[0].samples_per_s": "got 'fast'",
        "sites.list[0].gpu": "input should be 'v100' or 'a40', got 'v100x'",
        "sites.list[0].power.kind": (
            "'solar' is none of 'constant', 'csv', 'google', 'builtin', 'synthetic'"
        ),
        "sites.list[1].power.watts": "greater than or equal to 0, got -1",
        "sites.list[2].name": "is missing",
        "sites.list[2].power.kind": "is missing",
        "network.bandwidth_bps": "is missing",
        "selection.policy": "unknown policy 'powertripp'; write one of: powertrip, static-k",
        "selection.min_mebers": "unknown setting; did you mean min_members?",
        "training": "set one of them and write null for the other",
        "goal": "is a section; write its settings below it, got 0.9",
    }
    assert found.keys() == expected.keys()
    for place, text in expected.items():
        assert text in found[place]
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"14 problems in {path}:\n  ")
    assert all(f"\n  {text}" in str(caught.value) for text in caught.value.problems)


def test_bad_overrides_are_listed_with_the_problems_of_the_file(write):
    path = write(MINIMAL.replace("watts: 500", "watt: 500"))
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["nonsense", "seed=x"])
    assert [text.split(":")[0] for text in caught.value.problems] == [
        "'nonsense' is no override; write key.sub=value, for example training.lr=0.05",
        "seed",
        "sites.list[0].power.watts",
        "sites.list[0].power.watt",
    ]


def test_a_list_whose_entries_are_wrong_is_not_called_too_short(write):
    (text,) = problems(write(MINIMAL.replace("name: here, ", "")))
    assert text == "sites.list[0].name: is missing"
    fleet = "sites.fleet={count: 2, samples_per_s: 1, power: {kind: constant, watts: 1}}"
    (text,) = problems(write(OWN), fleet, "sites.fleet.regions=[1]")
    assert text == "sites.fleet.regions[0]: input should be a valid string, got 1"
    (text,) = problems(write(OWN), fleet, "sites.fleet.regions=[]")
    assert text == "sites.fleet.regions: list should have at least 1 item after validation, not 0"


def test_more_sites_than_listed(write):
    (text,) = problems(write(OWN), "sites.count=9")
    assert text == (
        "sites: count is 9 but there are only 3 sites; "
        "lower it, list more sites or enlarge the fleet"
    )


@pytest.mark.parametrize(
    ("override", "look", "value"),
    [
        ("training.lr=1e-3", lambda c: c.training.lr, 0.001),
        ("sites.list.2.gpus=4", lambda c: c.sites.list[2].gpus, 4),
        (
            "sites.list.2.power={kind: constant, watts: 7}",
            lambda c: c.sites.list[2].power.kind,
            "constant",
        ),
        ("sites.list.1.power.offset_s=5", lambda c: c.sites.list[1].power.offset_s, 5),
        ("runtime.pacing=off", lambda c: c.runtime.pacing, "off"),
        ("name=no", lambda c: c.name, "no"),
        ("world.whole_gpus=true", lambda c: c.world.whole_gpus, True),
        ("goal.accuracy=null", lambda c: c.goal.accuracy, None),
        ("partition=iid", lambda c: c.partition.kind, "iid"),
        ("partition.alpha=2", lambda c: (c.partition.kind, c.partition.alpha), ("shared", 2)),
        (
            "task.idx.dataset=mnist",
            lambda c: (c.task.name, c.task.idx.dataset),
            ("digits", "mnist"),
        ),
        ("outer=fedavg", lambda c: (c.outer.kind, c.outer.lr), ("fedavg", None)),
        ("telemetry.metrics.port=0", lambda c: c.telemetry.metrics.port, 0),
        (" seed = 4 ", lambda c: c.seed, 4),
    ],
)
def test_an_override_replaces_one_setting(write, override, look, value):
    path = write(OWN)
    before, after = load_config(path), load_config(path, [override])
    assert look(after) == value != look(before)


def test_an_override_of_a_shorthand_section_keeps_its_word(write):
    path = write(MINIMAL + "outer: fedavg\npartition: dirichlet\n")
    config = load_config(path, ["outer.lr=0.5", "partition.alpha=0.1"])
    assert (config.outer.kind, config.outer.lr) == ("fedavg", 0.5)
    assert (config.partition.kind, config.partition.alpha) == ("dirichlet", 0.1)


def test_later_overrides_win():
    assert load_config(None, ["seed=1", "seed=2"]).seed == 2


def test_an_override_changes_one_use_of_an_anchor(write):
    path = write(
        """
        sites:
          list:
            - {name: a, samples_per_s: 1, power: &shared {kind: constant, watts: 1}}
            - {name: b, samples_per_s: 1, power: *shared}
        network: {kind: distance}
        """
    )
    config = load_config(path, ["sites.list.0.power.watts=9"])
    assert [site.power.watts for site in config.sites.list] == [9, 1]


def test_an_override_reaches_a_missing_link_of_a_matrix(write):
    path = write(MINIMAL.replace("rtt_s: [[0]]", "rtt_s: [[null]]"))
    assert load_config(path, ["network.rtt_s.0.0=3"]).network.rtt_s == ((3.0,),)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("training.lr", "'training.lr' is no override; write key.sub=value, for example"),
        ("=3", "'=3' is no override"),
        ("my.yaml", "'my.yaml' is no override; write key.sub=value; name a scenario by --config"),
        ("training..lr=3", "'training..lr=3' is no override"),
        ("seed=[", "seed: '[' is not YAML; quote it"),
        ("name=2001-99-99", "name: '2001-99-99' is not YAML; quote it"),
        ("seed.more=3", "seed.more: seed is no section with settings in it"),
        ("name.kind=x", "name.kind: name is no section with settings in it"),
        ("sites.list.3=3", "sites.list.3: there is no entry 3 in a list of 3, counted from 0"),
        ("sites.list.x.gpus=3", "there is no entry x in a list of 3"),
        ("sites.list.-1.gpus=3", "there is no entry -1 in a list of 3"),
        ("sites.list.0.gpus=many", "sites.list[0].gpus: input should be a valid integer"),
        ("training.larning_rate=3", "training.larning_rate: unknown setting; known here: batch_s"),
        ("sites.list.1.power.watts=3", "sites.list[1].power.watts: unknown setting; known here"),
        ("telemetry.metrics.prt=3", "telemetry.metrics.prt: unknown setting; did you mean port?"),
        ("world.time_scale=.inf", "world.time_scale: input should be a finite number, got inf"),
        ("network.kind=ring", "network.kind: 'ring' is none of 'matrix', 'table', 'distance'"),
        ("runtime.pacing=false", "runtime.pacing: input should be 'modelled' or 'off', got False"),
    ],
)
def test_a_wrong_override_says_what_is_wrong(write, override, text):
    (problem,) = problems(write(OWN), override)
    assert text in problem


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff\xfe\x00\x01", "is not UTF-8 text; it should be a YAML file"),
        (b"a: [1", "is not YAML: while parsing a flow sequence"),
        (b"a: \x00", "is not YAML: unacceptable character"),
        (b"", "holds no settings; write `sites:` and `network:` at least"),
        (b"- 1\n", "holds no settings"),
        (b"just words", "holds no settings"),
        (b"seed: 2001-99-99", "is not YAML: a value in it cannot be read: month must be in"),
        (b"seed: !!int many", "is not YAML: a value in it cannot be read"),
        (b"seed: !!timestamp now", "is not YAML: a value in it cannot be read"),
        (b"seed: !!bool maybe", "is not YAML: a value in it cannot be read"),
        (b"seed: !!python/name:os.system", "is not YAML: could not determine a constructor"),
        (b"[" * 1200, "is not YAML: a value in it cannot be read: maximum recursion depth"),
        (b"seed: " + b"1" * 5000, "is not YAML: a value in it cannot be read"),
    ],
)
def test_a_file_that_is_no_scenario(write, content, text):
    path = write(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    (problem,) = caught.value.problems
    assert problem.startswith(text)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read(folder):
    assert problems(folder / "none.yaml") == ("cannot be read: No such file or directory",)
    assert problems(folder) == ("cannot be read: Is a directory",)


EVERY_KIND = """
name: every-kind
sites:
  count: 4
  list:
    - {name: a, samples_per_s: 1.5e-7, power: {kind: constant, watts: 1e12}}
    - {name: "off", samples_per_s: 2, lat: -3.5, lon: 170, power: {kind: csv, path: a b/ü.csv}}
    - {name: "c: {#}", samples_per_s: 3, power: {kind: google, path: p.csv.gz, capacity_w: 9}}
    - {name: "1e5", samples_per_s: 4, gpu: a40,
       power: {kind: builtin, domain: cella_pdu6, capacity_w: 1, after_end: hold}}
    - {name: "null", samples_per_s: 5, power: {kind: synthetic, capacity_w: 1, seed: 3}}
network:
  kind: matrix
  rtt_s: [[0, 0.1, null, 1], [0.2, 0, 1, 1], [1, 1, 0, 1e-9], [1, 1, 1, 0]]
  bandwidth_bps: [[0, 1e9, null, 0], [1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
task: {name: "my.module:Task", options: {depth: 3, nested: {words: ["off", "2001-01-01", null]}}}
goal: {loss: 0.25}
runtime: {pacing: off}
training: {local_epochs: 0.5}
selection: {initial_count: 3}
"""


@pytest.mark.parametrize("content", [None, MINIMAL, OWN, EVERY_KIND])
def test_what_is_printed_loads_as_the_same_config(write, folder, content):
    config = load_config(write(content) if content else None)
    text = dump_config(config)
    again = folder / "again.yaml"
    again.write_text(text, encoding="utf-8")
    assert load_config(again) == config
    assert dump_config(load_config(again)) == text


def test_every_setting_is_printed_under_its_description():
    lines = dump_config(load_config()).splitlines()
    for section, owner in (("", Config), ("training", Config.model_fields["training"].annotation)):
        pad = "  " if section else ""
        for name, field in owner.model_fields.items():
            described = (field.description or "").splitlines()
            assert described, f"{section}.{name} has no description"
            place = next(i for i, line in enumerate(lines) if line.startswith(f"{pad}{name}:"))
            assert lines[place - 1] == f"{pad}# {described[-1].strip()}"


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
KEYS = st.sampled_from(
    ["sites", "list", "network", "kind", "power", "watts", "name", "task", "outer", "goal", "rtt_s"]
)
TREES = st.recursive(
    PLAIN | st.sampled_from(["constant", "matrix", "csv", "digits"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS | st.text(max_size=4) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


# A busy machine makes examples slowly; that is no fault of theirs.
FUZZ = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def refused_or_usable(path: Path, *overrides: str) -> None:
    try:
        config = load_config(path, overrides)
    except ConfigError:
        return
    dump_config(config)


@FUZZ
@given(st.dictionaries(st.sampled_from(sorted(Config.model_fields)), TREES, max_size=5))
def test_any_settings_load_or_are_refused(write, content):
    refused_or_usable(write(yaml.safe_dump({**yaml.safe_load(MINIMAL), **content})))


@FUZZ
@given(st.binary(max_size=60))
@example(b"sites: &a {list: [*a]}")
@example(b"true: 1")
@example(b"? !!binary YQ==\n: 1")
@example(b"<<: 3")
def test_any_bytes_load_or_are_refused(write, content):
    refused_or_usable(write(content))


@FUZZ
@given(
    st.lists(KEYS | st.sampled_from(["0", "9", "x"]), min_size=1, max_size=4).map(".".join),
    TREES.map(yaml.safe_dump) | st.text(max_size=10),
)
def test_any_override_loads_or_is_refused(write, key, value):
    refused_or_usable(write(MINIMAL), f"{key}={value}")


def test_a_key_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("name: a\nseed: 1\nname: b\n")
    with pytest.raises(ConfigError, match="line 3: name stands there a second time"):
        load_config(path)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_scenarios_of_the_repository_load(path):
    config = load_config(path)
    assert config.name == path.stem
    assert len(config.sites.selected) >= 8


def test_a_fleet_is_printed_as_it_was_written_and_read_back(write):
    config = load_config(CONFIGS / "gcp-regions.yaml", ["sites.fleet.count=40"])
    text = dump_config(config)
    assert "\n    count: 40\n" in text
    assert "us-central1.2" not in text
    again = load_config(write(text))
    assert again == config
    assert [site.name for site in again.sites.selected].count("us-central1.2") == 1
