import json

import pytest

from powertrip.telemetry import events
from powertrip.telemetry.report import NoRunError, render_summary, summarise


def test_a_summary_adds_up(told):
    summary = summarise(told)
    assert summary.rounds == 6
    assert summary.generations == summary.decisions == 3
    # 2 rounds each of 4, 6 and 5 members at 100 J and 4000 bytes, and 3 joins of 1000 bytes
    assert summary.mean_members == 5.0
    assert summary.energy_j == 3000.0
    assert summary.bytes_sent == 30 * 4000 + 3 * 1000
    # accuracies are 1 - 2^-n: the fifth round is the first above 95 %
    assert summary.reached
    assert summary.time_to_target_s == 5.0
    assert summary.energy_to_target_j == 2500.0
    assert summary.test_accuracy == summary.target_value == 1 - 0.5**6
    assert (summary.local_s, summary.exchange_s, summary.overhead_s) == (3.0, 1.5, 0.375)
    assert (summary.rebuild_s, summary.evaluation_s) == (0.75, 0.75)
    assert (summary.training_s, summary.wall_s) == (6.0, 7.0)
    assert (summary.warnings, summary.failures) == (1, 1)
    assert summary.checkpoint == "runs/x/last.pt"
    assert summary.digest == f"{6:032x}"
    assert (summary.outcome, summary.exit_code) == ("unfinished", None)


def test_a_run_that_is_cut_short_has_a_summary(story):
    summary = summarise([story.start()])
    assert not summary.reached
    assert summary.time_to_target_s is None
    assert summary.mean_members == 0.0
    assert summary.digest == ""
    assert "no rounds" in render_summary(summary)


def test_events_without_a_start_are_no_run(story):
    with pytest.raises(NoRunError, match="no run_started"):
        summarise([story.round(1, 1, 2)])
    with pytest.raises(NoRunError):
        summarise([])


def test_a_falling_target_is_reached_from_above(story):
    target = events.Target(metric="validation_loss", value=0.3)
    told = [story.start(target=target), *(story.round(n, 1, 2) for n in (1, 2, 3))]
    assert summarise(told).time_to_target_s == 2.0


def test_rounds_that_were_not_evaluated_keep_the_last_value(story):
    told = [story.start(), story.round(3, 1, 2), story.round(4, 1, 2, test_accuracy=None)]
    assert summarise(told).test_accuracy == 1 - 0.5**3


def test_the_rendered_summary_tells_what_a_person_asks(told, story):
    end = events.RunEnded(
        time_s=6.0,
        wall_time=1007.0,
        outcome="reached",
        exit_code=0,
        **summarise(told).model_dump(
            include={
                "reached",
                "time_to_target_s",
                "rounds",
                "generations",
                "decisions",
                "energy_j",
                "bytes_sent",
                "evaluation_s",
                "validation_accuracy",
                "test_accuracy",
                "digest",
                "run_dir",
            }
        ),
    )
    lines = render_summary(summarise([*told, end])).splitlines()
    assert lines == [
        "eight-clouds, policy powertrip, seed 0: target reached",
        "",
        "  target          test accuracy of 95.0 %; last 98.4 %",
        "  time to target  5.00 s of training, with 2.50 kJ",
        "  training        6.00 s: local 53%, exchange 27%, rebuilds 13%, overhead 7%",
        "  evaluation      750 ms, not counted as training",
        "  rounds          6 in 3 generations, 5.0 of 8 sites on average",
        "  energy          3 kJ",
        "  bytes moved     123 kB",
        "  accuracy        validation 98.4 %, test 98.4 %",
        "  trouble         1 failure, 1 warning",
        f"  model digest    {6:032x}",
        "  written to      runs/20260101-120000-5f2c",
        "                  events.jsonl, summary.json",
        "  checkpoint      runs/x/last.pt",
    ]


def test_a_run_that_misses_its_target_says_so(story):
    told = [story.start(), story.round(1, 1, 2)]
    text = render_summary(summarise(told))
    assert "time to target  not reached" in text
    assert "unfinished" in text


def test_the_summary_is_plain_json(told):
    fields = json.loads(summarise(told).model_dump_json())
    assert {
        "reached",
        "time_to_target_s",
        "rounds",
        "generations",
        "energy_j",
        "bytes_sent",
        "digest",
        "run_dir",
    } <= fields.keys()
