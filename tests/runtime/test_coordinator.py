from __future__ import annotations

import threading

import pytest
import torch

from powertrip.exchange.errors import ExchangeError
from powertrip.runtime.site import Site
from powertrip.selection.policy import POLICIES
from powertrip.telemetry import events
from powertrip.training.digest import digest
from tests.jobs import Killed, tell_gone
from tests.runtime.checkpoints import latest_model

FOUR = ("sites.count=4", "goal.max_rounds=12", "selection.adjustment_interval=2")


def check_checkpoint(job, *, rounds: int) -> None:
    """The checkpoint holds the model of the last committed round, and no step beyond it."""
    (event,) = job.of(events.Checkpoint)
    saved = latest_model(job.run_dir)
    assert event.round == saved.round == rounds
    # The digits model has parameters only, in the order of its state dict.
    vector = torch.cat([tensor.flatten() for tensor in saved.model.values()])
    assert digest(vector, saved.outer_state) == saved.digest == job.summary.digest


def decisions(job):
    return [(e.generation, e.members, e.steps, e.reason) for e in job.of(events.Decision)]


def test_equal_seeds_decide_alike_and_end_with_the_same_model(jobs):
    first, second = (jobs.run(*FOUR, "selection.policy=random-k", "selection.k=2") for _ in "ab")
    other = jobs.run(*FOUR, "selection.policy=random-k", "selection.k=2", "seed=1")
    assert first.summary.digest == second.summary.digest != other.summary.digest
    assert decisions(first) == decisions(second) != decisions(other)
    assert len({members for _, members, *_ in decisions(first)}) > 2
    assert first.summary.training_s == second.summary.training_s > 0


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_runs(jobs, policy):
    job = jobs.run(
        f"selection.policy={policy}", "selection.k=1", "selection.adjustment_interval=1",
        "goal.accuracy=null", "goal.max_rounds=6", "sites.count=2",
    )  # fmt: skip
    assert job.summary.rounds == 6
    made = job.of(events.Decision)
    assert len(made) == 5  # for rounds 1, 3, 4, 5 and 6
    assert {decision.policy for decision in made} == {policy}
    for event in job.of(events.Round):
        assert len({site.site for site in event.sites}) == len(event.members) >= 1


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
        step = site._replica._outer.step

        def wrong(committed, mean):
            step(committed, mean)
            committed[0] += 1e-3

        site._replica._outer.step = wrong

    job = jobs.run("sites.count=3", "selection.policy=all", sabotage=sabotage)
    (failure,) = job.of(events.Failure)
    assert failure.kind == "DigestMismatch"
    assert "virginia" in failure.text
    assert (job.summary.outcome, job.summary.exit_code) == ("failed", 1)


def in_exchange(site: Site, name: str, round_: int, then) -> None:
    """Have something happen to a site when it enters the exchange of a round."""
    if site.name != name:
        return
    exchange = site._exchange

    def wrapped(group, *what):
        if site._round == round_:
            if then is killed:
                site._orders.close()  # who is dead reads no log, and builds no groups
                tell_gone(site)
            then(group)
        return exchange(group, *what)

    site._exchange = wrapped


def killed(group) -> None:
    raise Killed


def trained_rounds(site: Site, seen: list) -> None:
    train = site._trainer.train

    def wrapped(round_, pace, **options):
        seen.append((site.name, round_))
        return train(round_, pace, **options)

    site._trainer.train = wrapped


def test_a_site_that_dies_in_an_exchange_costs_its_own_work_only(jobs):
    trained = []

    def sabotage(site: Site) -> None:
        in_exchange(site, "virginia", 4, killed)
        trained_rounds(site, trained)

    job = jobs.run("sites.count=4", "selection.policy=all", "goal.max_rounds=8", sabotage=sabotage)
    rounds = job.of(events.Round)
    assert [event.round for event in rounds] == list(range(1, 9))
    assert len(rounds[2].members) == 4
    assert all("virginia" not in event.members for event in rounds[3:])
    assert [f.kind for f in job.of(events.Failure)] == ["SiteGone", "ExchangeFailed"]
    # The others exchange what they have trained: nobody trains the round again.
    assert [count for count in map(trained.count, set(trained)) if count > 1] == []
    assert job.summary.exit_code == 3
    check_checkpoint(job, rounds=8)


def test_an_exchange_that_is_left_behind_before_it_began_does_not_touch_the_next(jobs):
    next_began, first_ended = threading.Event(), threading.Event()
    calls = []

    def sabotage(site: Site) -> None:
        in_exchange(site, "virginia", 4, killed)
        if site.name != "iowa":
            return
        exchange = site._exchange

        def late(group, *what):
            if site._round != 4:
                return exchange(group, *what)
            calls.append(group.generation)
            if len(calls) == 2:
                next_began.set()
                assert first_ended.wait(10)
                return exchange(group, *what)
            assert next_began.wait(10)
            try:
                return exchange(group, *what)
            finally:
                first_ended.set()

        site._exchange = late

    job = jobs.run("sites.count=4", "selection.policy=all", "goal.max_rounds=6", sabotage=sabotage)
    assert len(calls) == 2
    assert [f.kind for f in job.of(events.Failure)] == ["SiteGone", "ExchangeFailed"]
    assert [len(event.members) for event in job.of(events.Round)] == [4] * 3 + [3] * 3


def test_a_site_that_is_back_gets_the_model_and_takes_part_again(jobs):
    def again(event, stop):
        if isinstance(event, events.Failure) and event.kind == "ExchangeFailed":
            jobs.start_again(2)

    job = jobs.run(
        "sites.count=4", "selection.policy=all", "goal.max_rounds=60", "goal.accuracy=1",
        "runtime.pacing=modelled", "selection.clock=measured", "exchange.probe.enabled=false",
        sabotage=lambda site: in_exchange(site, "virginia", 3, killed), on_event=again,
    )  # fmt: skip
    assert [event.site for event in job.of(events.SiteReturned)] == ["virginia"]
    rounds = job.of(events.Round)
    assert "virginia" not in rounds[2].members
    assert "virginia" in rounds[-1].members
    joined = [event for event in job.of(events.Rebuild) if "virginia" in event.newcomers]
    assert len(joined) == 1
    assert [event.round for event in rounds] == list(range(1, len(rounds) + 1))


def test_an_exchange_that_breaks_is_made_again(jobs):
    def cut(group):
        if group.generation < 3:
            group.close()
            raise ExchangeError("all-reduce", site="virginia", generation=1, reason="cut")

    job = jobs.run(
        "sites.count=3", "selection.policy=all", "goal.max_rounds=5",
        sabotage=lambda site: in_exchange(site, "virginia", 3, cut),
    )  # fmt: skip
    (failure,) = job.of(events.Failure)
    assert (failure.kind, failure.round) == ("ExchangeFailed", 3)
    assert [len(event.members) for event in job.of(events.Round)] == [3] * 5


def test_a_run_whose_last_holder_dies_says_so(jobs):
    job = jobs.run(
        "sites.count=2", "selection.policy=static-k", "selection.k=1", "goal.max_rounds=9",
        "runtime.shortest_limit_s=0.3",
        sabotage=lambda site: in_exchange(site, "iowa", 3, killed)
        or in_exchange(site, "oregon", 3, killed),
    )  # fmt: skip
    assert job.summary.outcome == "failed"
    assert job.of(events.Failure)[-1].kind == "ModelLost"


def test_updates_that_are_no_numbers_have_no_weight_and_three_of_them_end_a_sites_part(jobs):
    def sabotage(site: Site) -> None:
        if site.name != "oregon":
            return
        train = site._trainer.train

        def spoilt(round_, pace, **options):
            result = train(round_, pace, **options)
            if 2 <= round_ <= 4:
                site._model.vector[7] = float("nan")
            return result

        site._trainer.train = spoilt

    job = jobs.run(
        "sites.count=3", "selection.policy=all", "goal.max_rounds=10",
        "selection.adjustment_interval=1", sabotage=sabotage,
    )  # fmt: skip
    rejected = [f for f in job.of(events.Failure) if f.kind == "UpdateRejected"]
    assert [(f.site, f.round) for f in rejected] == [("oregon", r) for r in (2, 3, 4)]
    rounds = job.of(events.Round)
    assert "oregon" in rounds[3].members
    assert "oregon" not in rounds[-1].members
    assert len(rounds) == 10
    assert job.summary.test_accuracy > 0.5
