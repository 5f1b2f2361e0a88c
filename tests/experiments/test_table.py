from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from powertrip.experiments import table
from powertrip.experiments.table import (
    TableError,
    falls,
    hindsight,
    interval,
    matching,
    number,
    read_table,
    relative,
    spread,
    write_table,
)


def cells(times, *, regime="a"):
    """Rows of the policies, each a list of the times of seeds 0, 1, ...; static has several k."""
    return [
        {
            "regime": regime,
            "policy": policy,
            "k": k,
            "seed": seed,
            "time_to_target_s": time_s,
            "reached": time_s is not None,
        }
        for (policy, k), seeds in times.items()
        for seed, time_s in enumerate(seeds)
    ]


AXES = ("regime", "policy", "k")


def test_a_table_is_read_back_to_the_last_digit(tmp_path):
    rows = [
        {"policy": "static, or not", "k": 2, "t": 0.1 + 0.2, "reached": True, "note": None},
        {"policy": 'a "b"', "k": None, "t": 1e-300, "reached": False, "note": "x\ny"},
    ]
    columns = ["policy", "k", "t", "reached", "note"]
    path = tmp_path / "t.csv"
    assert path in write_table(path, columns, rows)
    assert read_table(path) == rows


def test_columns_of_a_table_are_those_asked_for(tmp_path):
    path = tmp_path / "t.csv"
    write_table(path, ["b", "c"], [{"a": 1, "b": 2}])
    assert path.read_text() == "b,c\n2,\n"


def test_infinite_and_unknown_numbers_are_read_back(tmp_path):
    path = tmp_path / "t.csv"
    write_table(path, ["a", "b"], [{"a": math.inf, "b": math.nan}])
    (row,) = read_table(path)
    assert row["a"] == math.inf
    assert math.isnan(row["b"])


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    write_table(path, ["a"], [{"a": 1}])

    def full(part, columns, rows):
        part.write_text("a\n")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(table, "_write_csv", full)
    with pytest.raises(OSError, match="No space"):
        write_table(path, ["a"], [{"a": 2}])
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]
    assert read_table(path) == [{"a": 1}]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("a,b\n1\n", "line 2: 1 fields where the header has 2")],
)
def test_a_file_that_is_no_table(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TableError, match=message):
        read_table(path)


def test_a_missing_table(tmp_path):
    with pytest.raises(TableError, match="cannot read the table"):
        read_table(tmp_path / "none.csv")


def test_parquet_where_pyarrow_is_installed(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    written = write_table(tmp_path / "t.csv", ["k", "t"], [{"k": None, "t": 0.5}, {"k": 3}])
    assert written == [tmp_path / "t.csv", tmp_path / "t.parquet"]
    rows = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert rows == [{"k": None, "t": 0.5}, {"k": 3, "t": None}]


def test_a_missed_target_takes_for_ever_and_a_missing_value_is_unknown():
    assert number({"time_to_target_s": None, "reached": False}, "time_to_target_s") == math.inf
    assert math.isnan(number({"time_to_target_s": None}, "time_to_target_s"))
    assert math.isnan(number({"test_accuracy": None, "reached": False}, "test_accuracy"))
    with pytest.raises(TableError, match="no number"):
        number({"policy": "all"}, "policy")


def test_the_spread_of_ten_values():
    values = [7.0, 1.0, 9.0, 3.0, 5.0, 2.0, 8.0, 4.0, 6.0, 10.0, math.nan]
    found = spread(values)
    assert (found.median, found.low, found.high, found.count) == (5.5, 1.0, 9.0, 10)


def test_a_median_is_infinite_where_half_have_missed():
    assert spread([1.0, 2.0, math.inf]).median == 2.0
    assert spread([1.0, math.inf]).median == math.inf
    assert spread([math.inf, math.inf]).median == math.inf
    assert math.isnan(spread([]).median)


def test_more_is_better_of_accuracies_alone():
    assert falls("time_to_target_s")
    assert falls("test_loss")
    assert not falls("test_accuracy")


def test_matching_takes_a_value_or_one_of_several():
    rows = cells({("all", None): [1.0], ("static", 2): [2.0], ("static", 4): [3.0]})
    assert [r["k"] for r in matching(rows, {"policy": "static"})] == [2, 4]
    assert [r["k"] for r in matching(rows, {"k": [None, 4]})] == [None, 4]


def test_the_best_k_in_hindsight_is_each_regimes_own():
    easy = {("static", 2): [5, 1, 9], ("static", 4): [4, 4, 4], ("all", None): [8, 8, 8]}
    hard = {("static", 2): [2, 3, 4], ("static", 4): [3, None, None], ("all", None): [1, 1, 1]}
    rows = cells(easy, regime="easy") + cells(hard, regime="hard")
    kept = hindsight(rows, AXES, "time_to_target_s", ["k"])
    assert {(r["regime"], r["policy"], r["k"]) for r in kept} == {
        ("easy", "static", 4),
        ("easy", "all", None),
        ("hard", "static", 2),
        ("hard", "all", None),
    }


def test_the_best_accuracy_in_hindsight_is_the_largest():
    rows = [{"k": k, "seed": 0, "test_accuracy": k / 10} for k in (2, 8, 4)]
    assert [r["k"] for r in hindsight(rows, ["k"], "test_accuracy", ["k"])] == [8]


def test_ratios_are_paired_by_seed():
    rows = cells(
        {("static", 2): [10, 20, 40], ("static", 4): [99, 99, 1], ("together", None): [5, 16, 10]}
    )
    ours, base = reversed(relative(rows, AXES, "time_to_target_s", {"policy": "static"}, ["k"]))
    assert ours.at == {"regime": "a", "policy": "together", "k": None}
    assert ours.reference == {"regime": "a", "policy": "static", "k": 2}
    assert ours.pairs == {0: 0.5, 1: 0.8, 2: 0.25}
    assert (ours.median, ours.of_medians) == (0.5, 0.5)
    assert (base.median, base.low, base.high, base.of_medians) == (1.0, 1.0, 1.0, 1.0)


def test_the_ratio_of_medians_is_not_the_median_of_ratios():
    rows = cells({("static", 2): [10, 20, 40], ("together", None): [9, 4, 8]})
    ours = relative(rows, AXES, "time_to_target_s", {"policy": "static"}, ["k"])[1]
    assert ours.pairs == {0: 0.9, 1: 0.2, 2: 0.2}
    assert ours.median == 0.2
    assert ours.of_medians == 8 / 20


def test_ratios_of_missed_targets():
    rows = cells({("all", None): [None, 4, None, 2], ("together", None): [1, None, None, 3]})
    ours = relative(rows, AXES, "time_to_target_s", {"policy": "all"})[1]
    assert ours.pairs == {0: 0.0, 1: math.inf, 3: 1.5}
    assert ours.median == 1.5


def test_every_k_relative_to_the_first():
    rows = cells({("static", 2): [10, 20], ("static", 4): [5, 5]})
    ratios = relative(rows, AXES, "time_to_target_s", {"k": 2})
    assert [(r.at["k"], r.of_medians) for r in ratios] == [(2, 1.0), (4, 5 / 15)]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"policy": "oort"}, "regime a, policy static, k 2: there is no policy oort"),
        ({"policy": "static"}, "there is no policy static"),
        ({"policy": "static", "k": None}, "there is no policy static"),
    ],
)
def test_a_reference_that_is_not_one(reference, message):
    rows = cells({("static", 2): [1], ("static", 4): [1], ("together", None): [1]})
    with pytest.raises(TableError, match=message):
        relative(rows, AXES, "time_to_target_s", reference)


def test_the_interval_is_that_of_all_resamples():
    values = [1.0, 2.0, 3.0]
    all_samples = [(a, b, c) for a in values for b in values for c in values]
    medians = sorted(statistics.median(sample) for sample in all_samples)
    # Each tail of 2.5 % lies in the first and in the last 7 of the 27 medians.
    assert [medians.count(v) for v in values] == [7, 13, 7]
    assert interval(values) == (1.0, 3.0)
    assert interval([2.0] * 5) == (2.0, 2.0)
    assert all(math.isnan(v) for v in interval([]))


def test_the_interval_of_many_values_is_about_two_standard_errors_wide():
    values = np.random.default_rng(1).normal(10, 1, 400)
    low, high = interval(list(values))
    standard_error = math.sqrt(math.pi / 2) / math.sqrt(400)
    assert low < np.median(values) < high
    assert high - low == pytest.approx(2 * 1.96 * standard_error, rel=0.3)
    assert (low, high) == interval(list(values))


@pytest.mark.parametrize("content", [b"a,b\n\xff,1\n", b"a\n" + b"x" * 200_000 + b"\n"])
def test_a_damaged_table_is_refused_by_name(tmp_path, content):
    path = tmp_path / "summary.csv"
    path.write_bytes(content)
    with pytest.raises(TableError, match=r"summary\.csv is damaged"):
        read_table(path)
