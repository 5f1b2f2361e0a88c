from __future__ import annotations

import gzip

import pytest
import torch

from powertrip.coordination.setup import Setup
from powertrip.experiments.cell import ROUND_COLUMNS, SUMMARY_COLUMNS, RoundRecorder, run_cell
from powertrip.simulation import engine
from powertrip.telemetry import events
from powertrip.telemetry.events import EVENT_ADAPTER

QUIET = ("telemetry.console=none", "telemetry.metrics.enabled=false")


def setup(*overrides: str) -> Setup:
    return Setup.resolve(None, [*QUIET, "goal.accuracy=0.9", *overrides])


def test_a_cell_yields_its_summary_and_a_row_a_round(pretend, tmp_path):
    key, result = run_cell("c", setup("selection.k=2", "seed=3"), tmp_path, None, pretend)
    assert (key, result.status, result.error) == ("c", "done", "")
    assert set(result.summary) == set(SUMMARY_COLUMNS) - {"status", "error"}
    assert tuple(result.rounds) == ROUND_COLUMNS
    # A third of what was missing is left after each round of 2 + 3 s: 0.9 is reached in the third.
    assert result.rounds["round"] == [1, 2, 3]
    assert result.rounds["time_s"] == [5.0, 10.0, 15.0]
    assert result.rounds["predicted_round_s"] == [5.5] * 3
    assert result.rounds["members"] == [2] * 3
    assert result.rounds["test_accuracy"] == pytest.approx([2 / 3, 8 / 9, 26 / 27])
    assert result.rounds["projected_gain"] == [0.2] * 3
    assert result.rounds["measured_gain"][0] is None
    assert result.rounds["measured_gain"][1:] == pytest.approx([1 / 3 - 1 / 9, 1 / 9 - 1 / 27])
    assert result.summary["time_to_target_s"] == 15.0
    assert result.summary["believed_to_target_s"] == 3 * 2  # by the candidate that was chosen
    assert (result.summary["target_metric"], result.summary["target"]) == ("test_accuracy", 0.9)
    assert result.summary["digest"] == "2-3"


def test_a_cell_leaves_nothing_in_its_scratch_folder(pretend, tmp_path):
    for k in (2, 13, 14):
        run_cell("c", setup(f"selection.k={k}"), tmp_path, None, pretend)
    assert list(tmp_path.iterdir()) == []


def test_a_log_is_kept_where_it_is_wanted(pretend, tmp_path):
    log = tmp_path / "logs" / "c.jsonl.gz"
    run_cell("c", setup("selection.k=2"), tmp_path / "scratch", log, pretend)
    assert [p.name for p in log.parent.iterdir()] == ["c.jsonl.gz"]
    lines = map(EVENT_ADAPTER.validate_json, gzip.decompress(log.read_bytes()).splitlines())
    assert [line.event for line in lines] == [
        "run_started",
        "decision",
        "round",
        "round",
        "round",
        "run_ended",
    ]


def test_a_cell_that_cannot_begin_has_failed(pretend, tmp_path):
    _, result = run_cell("c", setup("selection.k=13"), tmp_path, None, pretend)
    assert (result.status, result.summary, result.rounds) == ("failed", {}, {})
    assert result.error == "13 brings bad luck; take 12"


def test_a_run_that_breaks_has_failed_with_what_it_did(pretend, tmp_path):
    _, result = run_cell("c", setup("selection.k=14"), tmp_path, None, pretend)
    assert (result.status, result.error) == ("failed", "it diverged")
    assert result.rounds["round"] == [1]
    assert (result.summary["outcome"], result.summary["reached"]) == ("failed", True)


def test_a_bug_is_not_taken_for_a_failed_cell(tmp_path):
    def broken(setup, telemetry):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_cell("c", setup(), tmp_path, None, broken)
    assert list(tmp_path.iterdir()) == []


def test_torch_has_one_thread_in_a_simulation_and_its_own_number_after_it(
    tmp_path, pretend, monkeypatch
):
    seen = []

    def counting(setup, telemetry):
        seen.append(torch.get_num_threads())
        return pretend(setup, telemetry)

    monkeypatch.setattr(engine, "simulate", counting)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _, result = run_cell("c", setup("selection.k=2"), tmp_path, None)
        assert (result.status, seen, torch.get_num_threads()) == ("done", [1], 2)
    finally:
        torch.set_num_threads(before)


def decision(generation: int, round_: int, gain: float) -> events.Decision:
    taken = events.Candidate(
        k=1, gain=gain, compute_s=1, communication_s=1, round_s=2, switch_s=0, efficiency=1,
        chosen=True,
    )  # fmt: skip
    return events.Decision(
        time_s=0, generation=generation, round=round_, members=("a",), policy="all", reason="",
        predicted_round_s=1, rounds=1, decide_s=0, power_w={}, throughput={}, candidates=(taken,),
    )  # fmt: skip


def round_event(round_: int, **changes) -> events.Round:
    fields = {
        "time_s": 10.0 * round_, "round": round_, "generation": 1, "members": ("a",), "local_s": 1,
        "exchange_s": 1, "eval_s": 0, "overhead_s": 0, "duration_s": 2, "sites": (),
        "train_loss": 1, "predicted_round_s": 2, "digest": "", "energy_j": 5, "bytes_sent": 7,
    }  # fmt: skip
    return events.Round(**fields | changes)


def recorded(*told) -> RoundRecorder:
    recorder = RoundRecorder()
    for event in told:
        recorder.add(event)
    return recorder


def test_a_round_has_the_gain_of_the_decision_that_governs_it():
    """Decisions are told ahead: that on round 3 stands in the log before round 2."""
    recorder = recorded(
        decision(1, 1, 0.5), round_event(1), decision(2, 3, 0.25), round_event(2), round_event(3)
    )
    assert recorder.rounds["projected_gain"] == [0.5, 0.5, 0.25]


def test_the_measured_gain_is_per_round_where_not_all_are_evaluated():
    losses = {1: 3.0, 2: None, 3: 2.0, 4: 2.5}
    recorder = recorded(*(round_event(r, validation_loss=loss) for r, loss in losses.items()))
    assert recorder.rounds["measured_gain"] == [None, None, 0.5, -0.5]


def test_the_mean_of_the_steps_is_over_the_members():
    share = {
        "samples": 1, "local_s": 1, "exchange_s": 1, "step_s": 1, "loss": 1, "bytes_sent": 1,
        "energy_j": 1, "power_w": 1,
    }  # fmt: skip
    sites = tuple(events.SiteRound(site=f"s{n}", steps=n, **share) for n in (2, 3))
    recorder = recorded(round_event(1), round_event(2, sites=sites))
    assert recorder.rounds["mean_steps"] == [None, 2.5]
