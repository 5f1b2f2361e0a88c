from __future__ import annotations

from powertrip.telemetry import events


def halves_at(tmp_path, name: str, time_s: float) -> str:
    """An override by which a site of 2,000 W has half of that from some time on."""
    path = tmp_path / f"{name}.csv"
    path.write_text(f"time_s,site,watts\n0,{name},2000\n{time_s},{name},1000\n")
    return f"{{kind: csv, path: {path}, after_end: hold}}"


def test_a_change_of_power_brings_the_next_decision_forward(jobs, tmp_path):
    options = (
        "sites.count=3", "selection.policy=all", "goal.accuracy=1", "goal.max_rounds=12",
        "selection.adjustment_interval=10", "world.time_scale=1",
        f"sites.list.1.power={halves_at(tmp_path, 'oregon', 1.0)}",
    )  # fmt: skip
    job = jobs.run(*options)
    first, early, *_ = job.of(events.Decision)
    assert early.early == "power or link of oregon has changed by more than 30 %"
    # The round that ends after the change is followed by one of the old plan, and then by the new.
    changed = next(r.round for r in job.of(events.Round) if r.time_s >= 1.0)
    assert (first.round, early.round) == (1, changed + 2)
    generations = [r.generation for r in job.of(events.Round)]
    assert generations[: changed + 2] == [1] * (changed + 1) + [2]

    patient = jobs.run(*options, "selection.replan_threshold=null")
    assert [e.round for e in patient.of(events.Decision)] == [1, 11]
    assert all(e.early is None for e in patient.of(events.Decision))


def test_decisions_govern_the_round_after_next_and_their_order_is_recorded(jobs):
    job = jobs.run("sites.count=4", "selection.policy=random-k", "selection.k=2",
                   "goal.max_rounds=9", "goal.accuracy=1", "selection.adjustment_interval=3",
                   "selection.replan_threshold=null")  # fmt: skip
    decided = job.of(events.Decision)
    assert [e.round for e in decided] == [1, 4, 7]
    rounds = {e.round: e for e in job.of(events.Round)}
    for decision in decided[1:]:
        assert decision.time_s == rounds[decision.round - 2].time_s
    assert [rounds[n].members for n in (3, 4, 6, 7)] == [decided[i].members for i in (0, 1, 1, 2)]
