from __future__ import annotations

import torch

from powertrip.exchange.errors import ExchangeError
from powertrip.runtime.checkpoint import load_checkpoint
from powertrip.runtime.site import Site
from powertrip.telemetry import events
from powertrip.training.digest import digest

FOUR = ("sites.count=4", "goal.max_rounds=12", "selection.adjustment_interval=2")


def check_checkpoint(job, *, rounds: int) -> None:
    """The checkpoint holds the model of the last committed round, and no step beyond it."""
    (event,) = job.of(events.Checkpoint)
    content = load_checkpoint(job.run_dir / "checkpoint.pt")
    assert event.round == content["round"] == rounds
    # The digits model has parameters only, in the order of its state dict.
    vector = torch.cat([tensor.flatten() for tensor in content["model"].values()])
    assert digest(vector, content["outer_state"]) == content["digest"] == job.summary.digest


def decisions(job):
    return [(e.generation, e.members, e.steps, e.reason) for e in job.of(events.Decision)]


def test_equal_seeds_decide_alike_and_end_with_the_same_model(jobs):
    first, second = (jobs.run(*FOUR, "selection.policy=random-k", "selection.k=2") for _ in "ab")
    other = jobs.run(*FOUR, "selection.policy=random-k", "selection.k=2", "seed=1")
    assert first.summary.digest == second.summary.digest != other.summary.digest
    assert decisions(first) == decisions(second) != decisions(other)
    assert len({members for _, members, *_ in decisions(first)}) > 2
    assert first.summary.training_s == second.summary.training_s > 0


def test_the_run_ends_where_the_target_is_reached(jobs):
    job = jobs.run(
        "sites.count=3",
        "selection.policy=all",
        "goal.accuracy=0.5",
        "goal.max_rounds=150",
        "training.local_steps=8",
    )
    rounds = job.of(events.Round)
    assert job.summary.outcome == "reached"
    assert job.summary.exit_code == 0
    assert rounds[-1].test_accuracy >= 0.5 > max(r.test_accuracy for r in rounds[:-1])
    assert job.summary.time_to_target_s == rounds[-1].time_s
    assert job.summary.digest == rounds[-1].digest


def test_a_target_out_of_reach_ends_with_the_budget_and_exit_code_3(jobs):
    job = jobs.run("sites.count=2", "selection.policy=all", "goal.accuracy=1", "goal.max_rounds=3")
    assert (job.summary.outcome, job.summary.exit_code, job.summary.rounds) == ("budget", 3, 3)
    assert job.summary.time_to_target_s is None


def test_a_run_without_a_target_ends_well_with_its_budget(jobs):
    job = jobs.run(
        "sites.count=2", "selection.policy=all", "goal.accuracy=null", "goal.max_rounds=2"
    )
    assert (job.summary.outcome, job.summary.exit_code) == ("reached", 0)
    assert job.summary.rounds == 2


def test_seconds_of_the_training_clock_bound_a_run(jobs):
    job = jobs.run("sites.count=2", "selection.policy=all", "goal.accuracy=1", "goal.max_s=2")
    times = [event.time_s for event in job.of(events.Round)]
    assert times[-1] >= 2 > times[-2]


def test_the_coordinator_works_on_when_its_own_site_is_no_member(jobs):
    # The hub has 1,568 W at the start; belgium, alone in a set of one, has more.
    job = jobs.run("sites.count=4", "selection.policy=centralized", "goal.max_rounds=3")
    assert {members for _, members, *_ in decisions(job)} == {("oregon",)}
    assert job.summary.rounds == 3
    assert job.summary.bytes_sent == 0


def test_newcomers_get_the_model_from_a_member_or_from_one_who_leaves(jobs):
    job = jobs.run(
        "sites.count=4",
        "goal.max_rounds=24",
        "goal.accuracy=1",
        "selection.adjustment_interval=1",
        "selection.policy=random-k",
        "selection.k=1",
        "seed=3",
    )
    rebuilds = job.of(events.Rebuild)
    moved = [event for event in rebuilds if event.newcomers]
    model = 4 * 6_186
    assert len(moved) > 10  # a set of one is left by everyone who holds the model
    assert all(event.join_bytes > model for event in moved)
    digests = [event.digest for event in job.of(events.Round)]
    assert len(set(digests)) == len(digests)


def test_200_generations_leave_neither_keys_nor_descriptors_nor_threads(jobs):
    import threading
    from pathlib import Path

    counts = []

    def look(event, stop):
        if isinstance(event, events.Round) and event.round in (80, 200):
            keys = len(jobs.connector(f"job-{jobs._count}")().list_keys())
            descriptors = len(list(Path("/proc/self/fd").iterdir()))
            counts.append((descriptors, threading.active_count(), keys))

    job = jobs.run(
        "sites.count=4",
        "selection.policy=random-k",
        "selection.k=2",
        "goal.accuracy=1",
        "goal.max_rounds=200",
        "selection.adjustment_interval=1",
        on_event=look,
    )
    # Decisions are made a round ahead, so that the first one holds for two rounds.
    assert job.summary.generations == 199
    early, late = counts
    # Sites build and leave groups while this looks: one group has 9 descriptors and 3 threads.
    assert late[0] <= early[0] + 40
    assert late[1] <= early[1] + 2
    assert late[2] <= early[2] + 10


def test_a_stop_request_finishes_the_round_and_saves_the_model(jobs):
    def stop_in_round_5(event, stop):
        if isinstance(event, events.Round) and event.round == 4:
            stop()

    job = jobs.run(
        "sites.count=3", "selection.policy=all", "goal.accuracy=1", on_event=stop_in_round_5
    )
    assert job.summary.outcome == "interrupted"
    assert job.summary.exit_code == 128 + 15
    assert 5 <= job.summary.rounds <= 6
    check_checkpoint(job, rounds=job.summary.rounds)


def test_diverging_members_are_named(jobs):
    def sabotage(site: Site) -> None:
        if site.name != "virginia":
            return
        step = site._outer.step

        def wrong(committed, mean):
            step(committed, mean)
            committed[0] += 1e-3

        site._outer.step = wrong

    job = jobs.run("sites.count=3", "selection.policy=all", sabotage=sabotage)
    (failure,) = job.of(events.Failure)
    assert failure.kind == "DigestMismatch"
    assert "virginia" in failure.text
    assert (job.summary.outcome, job.summary.exit_code) == ("failed", 1)


def test_an_exchange_that_breaks_ends_the_run_and_keeps_the_last_commit(jobs):
    def sabotage(site: Site) -> None:
        if site.name == "virginia":
            mean = site._mean.over
            rounds = iter(range(100))

            def leave(group, weight):
                if next(rounds) == 3:
                    raise ExchangeError("all-reduce", site="virginia", generation=1, reason="cut")
                return mean(group, weight)

            site._mean.over = leave

    job = jobs.run("sites.count=3", "selection.policy=all", sabotage=sabotage)
    (failure,) = job.of(events.Failure)
    assert failure.round == 4
    assert job.summary.rounds == 3
    assert job.summary.outcome == "failed"
    check_checkpoint(job, rounds=3)
