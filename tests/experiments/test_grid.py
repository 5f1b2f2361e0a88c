from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from powertrip.errors import ConfigError
from powertrip.experiments.grid import plan_experiment, read_experiment
from tests.experiments.pretend import written

TWO_AXES = """
name: try
settings: {goal.accuracy: 0.9, training.lr: 0.25}
axes:
  regime:
    slow: {network.bandwidth_scale: 0.5}
    fast: {network.bandwidth_scale: 1, training.lr: 0.125}
  policy:
    together:
    static: {selection.policy: static-k, each: {selection.k: [2, 4]}}
seeds: [3, 7]
quick:
  seeds: 1
  settings: {goal.max_rounds: 5}
  axes: {regime: {slow: null}, policy: {static: {each: {selection.k: [6]}}}}
"""


def held(experiment):
    return [(*cell.at.values(), cell.seed) for cell in experiment.cells]


def test_the_cells_are_the_product_in_the_file_s_order(tmp_path):
    experiment = plan_experiment(written(tmp_path, TWO_AXES))
    assert experiment.columns == ("regime", "policy", "k")
    assert held(experiment) == [
        (regime, policy, k, seed)
        for regime in ("slow", "fast")
        for policy, k in (("together", None), ("static", 2), ("static", 4))
        for seed in (3, 7)
    ]
    assert len({cell.key for cell in experiment.cells}) == 12


def test_a_cell_has_the_settings_of_its_labels_over_those_of_all(tmp_path):
    experiment = plan_experiment(written(tmp_path, TWO_AXES), overrides=["goal.accuracy=0.8"])
    first, last = (experiment.cells[i].setup.config for i in (0, -1))
    assert (first.goal.accuracy, first.training.lr, first.seed) == (0.8, 0.25, 3)
    assert (first.network.bandwidth_scale, first.selection.policy) == (0.5, "together")
    assert (last.network.bandwidth_scale, last.training.lr, last.seed) == (1.0, 0.125, 7)
    assert (last.selection.policy, last.selection.k) == ("static-k", 4)
    assert (last.telemetry.console, last.telemetry.metrics.enabled) == ("none", False)
    assert last.simulation.workers == 0
    assert experiment.cells[-1].name == "regime fast, policy static, k 4, seed 7"


def test_quick_replaces_label_by_label(tmp_path):
    experiment = plan_experiment(written(tmp_path, TWO_AXES), quick=True)
    assert held(experiment) == [("fast", "together", None, 0), ("fast", "static", 6, 0)]
    config = experiment.cells[1].setup.config
    assert (config.goal.accuracy, config.goal.max_rounds) == (0.9, 5)
    assert config.selection.policy == "static-k"


def test_an_axis_may_be_a_list_of_values_of_a_setting(tmp_path):
    text = "name: t\naxes: {selection.k: [2, 4], sites: {3: {sites.count: 3}, 8: }}"
    experiment = plan_experiment(written(tmp_path, text))
    assert experiment.columns == ("k", "sites")
    assert held(experiment) == [(2, 3, 0), (2, 8, 0), (4, 3, 0), (4, 8, 0)]
    assert experiment.cells[2].setup.config.selection.k == 4


def test_several_values_of_several_settings_are_a_product(tmp_path):
    text = """
name: t
axes:
  policy:
    static: {selection.policy: static-k, each: {selection.k: [2, 4], training.local_steps: [1, 8]}}
"""
    experiment = plan_experiment(written(tmp_path, text))
    assert experiment.columns == ("policy", "k", "local_steps")
    assert [cell.at["local_steps"] for cell in experiment.cells] == [1, 8, 1, 8]


def test_without_axes_there_is_a_cell_a_seed(tmp_path):
    experiment = plan_experiment(written(tmp_path, "name: t\nseeds: 3"))
    assert [(cell.at, cell.name) for cell in experiment.cells] == [
        ({}, "seed 0"),
        ({}, "seed 1"),
        ({}, "seed 2"),
    ]


def test_the_scenario_is_looked_for_beside_the_file(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        """
sites: {list: [{name: a, samples_per_s: 10, power: {kind: constant, watts: 100}}]}
network: {kind: matrix, rtt_s: [[0]], bandwidth_bps: [[0]]}
"""
    )
    folder = tmp_path / "experiments"
    folder.mkdir()
    experiment = plan_experiment(written(folder, "name: t\nscenario: ../mine.yaml"))
    (cell,) = experiment.cells
    assert cell.setup.config.sites.list[0].name == "a"
    assert cell.setup.base_dir == tmp_path
    assert experiment.settings.scenario == str(tmp_path / "mine.yaml")


def test_the_experiment_as_run_makes_the_same_cells(tmp_path):
    experiment = plan_experiment(
        written(tmp_path, TWO_AXES), quick=True, overrides=["goal.max_rounds=7", "outer=fedavg"]
    )
    dumped = experiment.settings.model_dump(mode="json", exclude_defaults=True)
    again = plan_experiment(written(tmp_path, yaml.safe_dump(dumped, sort_keys=False)))
    assert [cell.key for cell in again.cells] == [cell.key for cell in experiment.cells]
    assert held(again) == held(experiment)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: t\nseed: 4", "seed: unknown setting; did you mean seeds?"),
        ("name: t\nseeds: 0", "at least 1"),
        ("name: t\nseeds: [1, 1]", "a list of different ones"),
        ("name: t\nquick: {seeds: 0}", "quick.seeds: write how many seeds, at least 1"),
        ("name: t\naxes: {k: {}}", "k is empty"),
        ("name: t\naxes: {policy: {a: {each: {selection.k: 3}}}}", "axes.policy.a.each: write"),
        ("name: t\naxes: {rounds: {a: {}}}", "a column is named rounds already"),
        ("name: t\naxes: {selection.k: [1], p: {a: {each: {selection.k: [1]}}}}", "column k is"),
        (
            "name: t\naxes: {p: {a: {each: {world.time_scale: [1], a.time_scale: [2]}}}}",
            "two settings end in time_scale",
        ),
        (
            "name: t\naxes: {p: {a: {selection.polcy: all}}}",
            "with p a:\n  selection.polcy: unknown setting; did you mean policy?",
        ),
        ("name: t\nquick: {axes: {p: null}}", "there is no such axis"),
        ("name: t\naxes: {p: {a: }}\nquick: {axes: {p: {b: }}}", "there is no label b"),
        ("name: t\naxes: {p: {a: }}\nquick: {axes: {p: {a: {each: 5}}}}", "each"),
        ("name: t\nfigures: [{kind: line, x: k, y: rounds}]", "there is no column k"),
        ("name: t\naxes: {selection.k: [1]}\nfigures: [{kind: pie, x: k, y: rounds}]", "kind"),
        (
            "name: t\naxes: {selection.k: [1]}\nfigures: [{kind: line, x: k, y: rounds},"
            " {kind: bar, x: k, y: rounds}]",
            "two are called rounds-against-k",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        plan_experiment(path, quick="quick" in text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("override", "other"),
    [("selection.k=3", "selection.k"), ("seed=3", "seed"), ("network={}", "network.bandwidth")],
)
def test_what_tells_cells_apart_cannot_be_overridden(tmp_path, override, other):
    with pytest.raises(ConfigError, match=f"the experiment varies {other}"):
        plan_experiment(written(tmp_path, TWO_AXES), overrides=[override])


def test_an_override_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match="is no override"):
        plan_experiment(written(tmp_path, TWO_AXES), overrides=["goal"])


def test_the_defaults(tmp_path):
    settings = read_experiment(written(tmp_path, "name: t"))
    assert (settings.seed_list, settings.title, settings.scenario) == ((0,), "", None)


def test_the_example_of_the_docs(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "experiments.md"
    (example,) = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    path = written(tmp_path, re.sub(r"^scenario:.*\n", "", example, flags=re.MULTILINE))
    assert len(plan_experiment(path).cells) == 60
    assert len(plan_experiment(path, quick=True).cells) == 16


def test_more_cells_than_anybody_can_run_are_refused_at_once(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text("name: large\nseeds: 1000000000000\n")
    with pytest.raises(ConfigError, match="more than 1000000 cells"):
        plan_experiment(path)
    axes = "".join(f"  a{n}: {{x{n}: {{}}, y{n}: {{}}}}\n" for n in range(25))
    path.write_text(f"name: large\naxes:\n{axes}")
    with pytest.raises(ConfigError, match="33554432 cells, and 1000000 are the most"):
        plan_experiment(path)
