from __future__ import annotations

import sys
from io import StringIO

import pytest
from rich.console import Console

from powertrip.experiments.experiment import run_experiment
from powertrip.experiments.grid import plan_experiment
from powertrip.experiments.progress import Progress
from powertrip.experiments.table import TableError
from scripts import reproduction
from tests.experiments.pretend import written

TRY = """
name: try
settings: {goal.accuracy: 0.95, goal.max_rounds: 2}
axes:
  regime: {easy: {}, hard: {goal.max_rounds: 1}}
  policy:
    static: {selection.policy: static-k, each: {selection.k: [2, 4]}}
    all: {selection.policy: all, selection.k: 8}
seeds: 2
figures:
  - {kind: line, x: k, y: time_to_target_s, by: policy, panels: regime, name: valley}
  - {kind: bar, x: policy, y: training_s, by: regime, best: k, relative_to: {policy: static},
     name: ratios}
  - {kind: curve, x: round, y: test_accuracy, by: [policy, k, regime], name: curve}
"""

PAGE = """# Page

<!-- table: try/valley -->
whatever
<!-- end -->

12 s, written by hand.

<!-- table: try/ratios -->
<!-- end -->
"""


@pytest.fixture
def results(tmp_path, pretend):
    with Progress(Console(file=StringIO())) as progress:
        run_experiment(
            plan_experiment(written(tmp_path, TRY)),
            tmp_path / "try",
            progress,
            workers=1,
            simulate=pretend,
        )
    return tmp_path


def test_a_table_holds_the_numbers_behind_a_figure(results):
    lines = reproduction.filled(PAGE, results).splitlines()
    start = lines.index("<!-- table: try/valley -->")
    # A round takes k + seed seconds, and with 2 sites two of them do not suffice.
    assert lines[start + 2 : start + 10] == [
        "| regime | k | static | all |",
        "|---|---|---|---|",
        "| easy | 2 | never |  |",
        "| easy | 4 | 9 (8 to 10) |  |",
        "| hard | 2 | never |  |",
        "| hard | 4 | never |  |",
        "| easy |  |  | 17 (16 to 18) |",
        "| hard |  |  | never |",
    ]
    assert lines[start + 11].startswith("Time to target (s): median of 2 seeds, band from")
    assert lines[start + 12] == "<!-- end -->"
    assert "12 s, written by hand." in lines
    # 16/4 and 18/6, both of k = 2.
    assert "| all | 3.5 (3 to 4) | 3.5 (3 to 4) |" in lines


def test_a_page_is_filled_once_and_then_up_to_date(results, monkeypatch, capsys):
    page = results / "page.md"
    page.write_text(PAGE)

    def run(*options):
        words = ["reproduction", "--page", str(page), "--results", str(results), *options]
        monkeypatch.setattr(sys, "argv", words)
        reproduction.main()

    with pytest.raises(SystemExit, match="is out of date"):
        run("--check")
    assert page.read_text() == PAGE
    run()
    assert "2 tables" in capsys.readouterr().out
    run("--check")
    page.write_text(page.read_text().replace("9 (8 to 10)", "7 (6 to 8)"))
    with pytest.raises(SystemExit, match="is out of date"):
        run("--check")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("try/curve", "try has no bars or lines called curve; it has valley, ratios, curve"),
        ("other/valley", "cannot read the table"),
    ],
)
def test_a_table_that_there_is_not(results, name, message):
    with pytest.raises(TableError, match=message):
        reproduction.filled(f"<!-- table: {name} -->\n<!-- end -->", results)
