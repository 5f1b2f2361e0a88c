from __future__ import annotations

import pytest

from powertrip.chaos.invariants import Injected, broken, not_back, not_recovered, recoveries
from powertrip.chaos.schedule import Fault
from powertrip.chaos.table import recovery_table
from tests.chaos.conftest import NAMES


def injected(kind, began, *, number=1, sites=(1,), lasts_s=0.0):
    return Injected(Fault(number, 0.0, kind, sites, lasts_s), began, began + lasts_s)


def test_an_undisturbed_run_breaks_nothing(log):
    log.decide(1).rounds(1, 4).decide(2, NAMES[:2]).rounds(5, 6, 2, count=2).end()
    assert broken(log.events) == []


def test_a_round_that_is_missing_or_twice_is_found(log):
    log.decide(1).rounds(1, 2).rounds(4, 5).rounds(5, 6).end()
    assert broken(log.events) == [
        "round 4 was committed after round 2",
        "round 5 was committed after round 5",
    ]


def test_what_a_checkpoint_held_must_not_be_lost_and_what_came_after_it_may(log):
    log.decide(1).rounds(1, 3).saved(2).rounds(4, 5).resumed(2).rounds(3, 6).end()
    assert broken(log.events) == []


def test_a_coordinator_that_is_started_again_saves_nothing_by_that(log):
    log.decide(1).rounds(1, 3).saved(2).rounds(4, 5)
    log.resumed(5, checkpoint=None, lost_rounds=0).rounds(6, 7).resumed(2).rounds(3, 4).end()
    assert broken(log.events) == []


def test_a_resumed_run_that_goes_on_from_before_its_checkpoint_is_found(log):
    log.decide(1).rounds(1, 5).saved(4).resumed(3).rounds(4, 6).end()
    assert broken(log.events) == ["round 4 was saved, and the run went on from 3"]


def test_a_resumed_run_that_does_not_follow_its_checkpoint_is_found(log):
    log.decide(1).rounds(1, 5).saved(4).resumed(4).rounds(6, 7).end()
    assert broken(log.events) == ["round 6 was committed after round 4"]


def test_a_coordinator_that_is_started_again_loses_nothing(log):
    log.decide(1).rounds(1, 5).resumed(5, checkpoint=None, lost_rounds=0).rounds(6, 7).end()
    assert broken(log.events) == []


@pytest.mark.parametrize("told", [6, 7])
def test_what_it_had_committed_and_not_told_may_be_told_then(log, told):
    log.decide(1).rounds(1, 5).resumed(6, checkpoint=None, lost_rounds=0).rounds(told, 8).end()
    assert broken(log.events) == []


def test_a_coordinator_that_forgets_a_committed_round_is_found(log):
    log.decide(1).rounds(1, 5).resumed(4, checkpoint=None, lost_rounds=0).rounds(5, 6).end()
    assert broken(log.events) == ["round 5 was committed, and the coordinator went on from 4"]


def test_members_that_were_not_chosen_are_found(log):
    log.decide(1, NAMES[:2]).rounds(1, 1, count=3).end()
    assert broken(log.events) == ["round 1: sydney took part, and were not chosen for generation 1"]


def test_digests_that_differ_are_found(log):
    log.decide(1).rounds(1, 1).site("DigestMismatch", "iowa", 1001.5).end()
    assert broken(log.events) == [" (round 1)"]


def test_an_end_that_is_not_told_or_is_another_one_is_found(log):
    log.decide(1).rounds(1, 2)
    assert broken(log.events) == ["the run has not told of its end"]
    log.end(digest="beef")
    assert broken(log.events) == [
        "the run ended with 2 rounds and digest beef, its last round was 2 with "
        "00000000000000000000000000000002"
    ]


def test_a_run_that_failed_is_found(log):
    log.decide(1).rounds(1, 2).site("ModelLost", "iowa", 1002.5).end(outcome="failed")
    assert broken(log.events) == ["the run failed: "]


def test_recovery_is_the_time_to_the_next_round_and_the_longest_without_one(log):
    log.decide(1).rounds(1, 4).stall(2.5).rounds(5, 6).stall(40).rounds(7, 8)
    found = recoveries(
        log.events,
        [injected("cut_link", 1003.25), injected("kill_site", 1008.75, number=2)],
    )
    # The round under way when the link was cut was done; the next one took 3.5 s.
    assert [(r.next_s, r.stall_s) for r in found] == [(0.75, 3.5), (40.75, 40.75)]
    assert not_recovered(found, NAMES) == [
        "40.8 s without a committed round after fault 2, kill_site tokyo; 30 s are the limit"
    ]


def test_a_fault_that_nothing_follows_is_found(log):
    log.decide(1).rounds(1, 2)
    found = recoveries(log.events, [injected("kill_job", 1002.5, sites=())])
    assert not_recovered(found, NAMES) == ["no round was committed after fault 1, kill_job"]


def test_a_resumed_job_may_take_longer(log):
    log.decide(1).rounds(1, 3)
    killed = injected("kill_supervisor", 1002.5)
    # The round that it still committed before its end is none of the resumed run.
    (found,) = recoveries(log.events, [killed])
    assert found.next_s is None
    log.resumed(2, wall_time=1040.0).stall(40).rounds(3, 4)
    (found,) = recoveries(log.events, [killed])
    assert (found.next_s, found.stall_s) == (40.5, 40.5)
    assert not_recovered([found], NAMES) == []


def test_a_site_that_does_not_come_back_is_found(log):
    log.decide(1).rounds(1, 3).site("SiteGone", "tokyo", 1003.2).rounds(4, 90)
    killed = injected("kill_site", 1003.1)
    assert not_back(log.events, [killed], NAMES, within_s=60) == [
        "tokyo was not back 60 s after fault 1"
    ]
    again = injected("freeze_site", 1020.0, number=2)
    assert not_back(log.events, [killed, again], NAMES, within_s=60) == []
    log.site("back", "tokyo", 1010.0)
    assert not_back(log.events, [killed], NAMES, within_s=60) == []


def test_the_table_has_a_line_a_fault_and_a_line_a_kind(log):
    log.decide(1).rounds(1, 4)
    found = recoveries(
        log.events,
        [
            injected("kill_site", 1001.5),
            injected("kill_site", 1002.5, number=2, sites=(2,)),
            injected("kill_job", 1005.0, number=3, sites=()),
        ],
    )
    lines = recovery_table(found, NAMES)
    assert lines[1:4] == [
        "    0.50 s         0.50 s  1: kill_site tokyo",
        "    0.50 s         1.00 s  2: kill_site sydney",
        "     never          never  3: kill_job",
    ]
    assert lines[-2:] == [
        "     0.50 s         1.00 s  kill_site, 2",
        "      never          never  kill_job, 1",
    ]
