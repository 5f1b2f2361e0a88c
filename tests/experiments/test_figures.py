from __future__ import annotations

import itertools
import math

import matplotlib.image
import numpy as np
import pytest
from pydantic import ValidationError

from powertrip.experiments import drawing
from powertrip.experiments.drawing import draw
from powertrip.experiments.figures import FigureSettings, curve_band, scale, summarised
from powertrip.experiments.table import TableError

AXES = ("policy", "k")
TIMES = {
    ("together", None): [4, 6, 9],
    ("static", 2): [10, 20, 30],
    ("static", 4): [8, 12, 36],
    ("static", 8): [None, None, 50],
}
CELLS = [
    {
        "policy": policy,
        "k": k,
        "seed": seed,
        "rounds": 3,
        "reached": time_s is not None,
        "time_to_target_s": time_s,
    }
    for (policy, k), seeds in TIMES.items()
    for seed, time_s in enumerate(seeds)
]
ROUNDS = [
    {"policy": c["policy"], "k": c["k"], "seed": c["seed"], "round": r, "time_s": r * 2.0,
     "test_accuracy": 1 - 1 / (r + c["seed"])}
    for c in CELLS
    for r in (1, 2, 3)
]  # fmt: skip


def figure(**fields) -> FigureSettings:
    return FigureSettings(**{"kind": "line", "x": "k", "y": "time_to_target_s"} | fields)


def combinations():
    return [{"policy": policy, "k": k} for policy, k in TIMES]


def test_a_line_is_the_median_with_a_band_from_one_tenth_to_nine():
    lines = summarised(figure(by="policy"), AXES, CELLS)
    static = lines["static",]
    assert static.x == [(2,), (4,), (8,)]
    assert static.middle == [20, 12, math.inf]
    assert (static.low, static.high) == ([10, 8, 50], [30, 36, math.inf])
    assert (lines["together",].x, lines["together",].middle) == ([(None,)], [6])


def test_bars_relative_to_the_best_k_in_hindsight():
    bars = summarised(
        figure(kind="bar", x="policy", best="k", relative_to={"policy": "static"}), AXES, CELLS
    )[()]
    # The best is k = 4, with a median of 12: the ratios of together are 4/8, 6/12 and 9/36.
    assert bars.x == [("together",), ("static",)]
    assert bars.middle == [0.5, 1.0]
    assert (bars.low, bars.high) == ([0.25, 1.0], [0.5, 1.0])


def test_a_speed_up_is_the_inverse_and_its_band_is_too():
    # The ratios of k = 4 to k = 2 are 0.8, 0.6 and 1.2.
    points = summarised(
        figure(where={"policy": "static"}, relative_to={"k": 2}, inverse=True),
        AXES,
        [c for c in CELLS if c["policy"] == "static"],
    )[()]
    assert points.middle == pytest.approx([1, 1 / 0.8, 0])
    assert all(low <= middle <= high for low, middle, high in
               zip(points.low, points.middle, points.high, strict=True))  # fmt: skip


def test_a_curve_holds_a_run_s_last_value_until_the_median_run_ends():
    long, short, middle = (
        [{"time_s": float(t), "test_accuracy": t / 10} for t in range(1, last + 1)]
        for last in (9, 3, 5)
    )
    at, median, low, high = curve_band([long, short, middle], "time_s", "test_accuracy")
    assert (at[0], at[-1]) == (1.0, 5.0)
    assert np.interp(2.5, at, median) == pytest.approx(0.25, abs=0.01)
    assert (median[-1], low[-1], high[-1]) == pytest.approx((0.5, 0.3, 0.5))


def test_a_curve_over_rounds_has_a_point_a_round_and_skips_what_is_not_evaluated():
    rows = [
        {"round": r, "test_accuracy": None if r == 2 else r / 10, "reached": False}
        for r in (1, 2, 3)
    ]
    at, median, *_ = curve_band([rows, rows], "round", "test_accuracy")
    assert (at.tolist(), median.tolist()) == ([1, 3], pytest.approx([0.1, 0.3]))
    assert curve_band([[{"round": 1, "test_accuracy": None}]], "round", "test_accuracy") is None


@pytest.mark.parametrize(
    ("column", "values", "factor", "name"),
    [
        ("time_to_target_s", [3.0, 90.0], 1, "time to target (s)"),
        ("time_to_target_s", [30.0, 7300.0, math.inf], 3600, "time to target (h)"),
        ("energy_j", [3e6], 1e6, "energy (MJ)"),
        ("carbon_g", [], 1, "carbon (g CO2e)"),
        ("test_accuracy", [0.5], 1, "test accuracy"),
    ],
)
def test_axes_have_units_that_suit_their_values(column, values, factor, name):
    assert scale(column, values) == (factor, name)


@pytest.mark.parametrize(
    "fields",
    [
        {"by": "policy"},
        {"by": "policy", "log": ["x", "y"]},
        {"kind": "bar", "x": ["policy", "k"]},
        {"kind": "bar", "x": "policy", "by": "k", "best": "k"},
        {"kind": "bar", "x": "policy", "best": "k", "relative_to": {"policy": "static"}},
        {"where": {"policy": "static"}, "relative_to": {"k": 2}, "inverse": True},
        {"kind": "curve", "x": "time_s", "y": "test_accuracy", "by": ["policy", "k"]},
        {"kind": "curve", "x": "round", "y": "test_accuracy", "best": "k", "panels": "policy"},
    ],
)
def test_figures_are_drawn_the_same_each_time(tmp_path, fields):
    shown = figure(**fields)
    measured = ("time_to_target_s", "test_accuracy", "round", "time_s")
    assert shown.problems("figures[0]", AXES, measured, combinations()) == []
    drawn = []
    for _ in range(2):
        path = draw(shown, "Title", AXES, CELLS, ROUNDS, tmp_path)
        drawn.append(path.read_bytes())
    assert drawn[0] == drawn[1]
    assert matplotlib.image.imread(path).std() > 0.05
    assert [p.name for p in tmp_path.iterdir()] == [f"{shown.file}.png"]


def test_long_names_stay_within_the_figure(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(drawing.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    monkeypatch.setattr(drawing, "replace_file", lambda path, write: write(path))
    names = [f"communication with {k} bits a number" for k in (4, 8, 16, 32)]
    cells = [{**CELLS[0], "policy": name, "seed": seed} for name in names for seed in (0, 1)]
    relative = {"policy": names[0]}
    shown = figure(kind="bar", x="policy", best="k", relative_to=relative, inverse=True)
    draw(shown, "Title", AXES, cells, ROUNDS, tmp_path)
    (canvas,) = drawn
    canvas.draw_without_rendering()
    (plot,) = canvas.axes
    texts = [plot.yaxis.label, *plot.get_xticklabels()]
    boxes = [text.get_window_extent() for text in texts]
    assert all(canvas.bbox.count_contains(box.get_points()) == 2 for box in boxes)
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes[1:]))


def test_cells_that_never_ran_are_left_out(tmp_path):
    broken = {"policy": "static", "k": 16, "seed": 0, "status": "failed", "rounds": None}
    path = draw(figure(by="policy"), "t", AXES, [*CELLS, broken], ROUNDS, tmp_path)
    assert path.exists()
    with pytest.raises(TableError, match="no cell that it shows has run"):
        draw(figure(by="policy"), "t", AXES, [broken], [], tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": "policy", "kind": "bar"}, "cells that differ in k would be shown as one"),
        ({"y": "speed"}, "figures[0].y: there is no column speed"),
        ({"by": "colour"}, "colour is no axis; write one of policy, k"),
        ({"where": {"policy": "oort"}}, "no cell is like that"),
        (
            {"by": "policy", "relative_to": {"policy": "static"}},
            "figures[0].relative_to: policy together: there is no policy static",
        ),
    ],
)
def test_what_keeps_a_figure_from_being_drawn_is_known_beforehand(fields, message):
    problems = figure(**fields).problems("figures[0]", AXES, ["time_to_target_s"], combinations())
    assert len(problems) == 1
    assert message in problems[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": ["k", "policy"]}, "a line has one column x"),
        ({"kind": "curve", "relative_to": {"k": 2}}, "a curve cannot be relative"),
        ({"inverse": True}, "inverse needs relative_to"),
    ],
)
def test_what_does_not_go_together(fields, message):
    with pytest.raises(ValidationError, match=message):
        figure(**fields)
