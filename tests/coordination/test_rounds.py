from __future__ import annotations

import pytest

from powertrip.coordination.messages import Begin, Broken, Report, Transfer
from powertrip.coordination.roster import Roster
from powertrip.coordination.rounds import Rounds

HUB = 0


def begin(*members: int, generation: int = 1, transfers=()) -> Begin:
    return Begin(
        generation=generation, members=members, steps=(1,) * len(members), deadline_s=None,
        first_round=1, transfers=transfers, clock_s=0.0,
    )  # fmt: skip


def report(site: int, *, generation=1, round_=1, digest="d1", standby=None) -> Report:
    return Report(
        site=site, generation=generation, round=round_, steps=1, samples=8, loss=1.0, loss_rms=1.0,
        local_s=1.0, lag_s=0.0, exchange_s=1.0, evaluation_s=0.0, bytes_sent=1, digest=digest,
        update_norm=1.0, validation=None, test=None, rebuild_s=0.0, joined_bytes=0, standby=standby,
    )  # fmt: skip


def broken(site: int, awaited=None, *, generation=1, round_=1, digest=None) -> Broken:
    return Broken(
        site=site, generation=generation, round=round_, awaited=awaited, adds=awaited is not None,
        digest=digest, text="broken",
    )  # fmt: skip


@pytest.fixture
def rounds():
    rounds = Rounds(Roster(), HUB)
    rounds.hold((0, 1, 2), "d0")
    rounds.begin(begin(0, 1, 2), 1)
    return rounds


def test_a_round_is_done_when_all_that_are_left_have_reported_it(rounds):
    rounds.report(report(0))
    rounds.report(report(2))
    assert rounds.verdict() == "wait"
    rounds.lose(1, 0, 1)
    assert rounds.verdict() == "done"
    assert [r.site for r in rounds.commit()] == [0, 2]
    assert rounds.holders(2) == {0, 2}


def test_a_member_that_is_gone_is_not_waited_for(rounds):
    rounds.lose(1, 0, 1)
    assert rounds.verdict() == "failed"
    again = rounds.again()
    assert (again.members, again.holders, again.lost) == ((0, 2), {0, 2}, (1,))


def test_others_have_a_moment_to_say_what_they_have_waited_for(rounds):
    rounds.fail(broken(0, 2))
    assert rounds.verdict() == "settle"
    rounds.fail(broken(1, 2))
    rounds.fail(broken(2))
    assert rounds.verdict() == "failed"
    assert rounds.accuse() == (2,)
    assert rounds.verdict() == "failed"
    assert rounds.again().members == (0, 1)


def test_without_a_culprit_all_try_once_more_and_then_without_the_last(rounds):
    for expected in ((), (2,)):
        for site in (0, 1, 2):
            rounds.fail(broken(site, generation=rounds.attempt.begin.generation))
        assert rounds.accuse() == expected
        rounds.begin(begin(0, 1, 2, generation=rounds.attempt.begin.generation + 1), 1)


def test_without_a_culprit_for_the_second_time_who_says_nothing_is_left_out(rounds):
    rounds.accuse()
    rounds.fail(broken(0))
    rounds.fail(broken(2))
    assert rounds.verdict() == "settle"
    assert rounds.accuse() == (1,)


def test_a_member_that_says_nothing_in_time_is_left_out_and_the_others_may_be_done(rounds):
    rounds.report(report(0))
    rounds.report(report(1))
    assert rounds.accuse() == (2,)
    assert rounds.verdict() == "done"


def test_where_nobody_says_anything_nobody_is_left_out(rounds):
    assert rounds.accuse() == ()
    assert rounds.again().members == (0, 1, 2)


def test_an_exchange_that_keeps_failing_is_given_up(rounds):
    for _ in range(5):
        assert rounds.accuse() is not None
    assert rounds.accuse() is None


def test_a_commit_is_a_new_beginning(rounds):
    for _ in range(5):
        rounds.accuse()
    for site in (0, 1, 2):
        rounds.report(report(site))
    rounds.commit()
    rounds.begin(begin(0, 1, 2), 2)
    assert rounds.accuse() == ()


def test_the_one_that_holds_the_model_is_not_left_out_whoever_accuses_it(rounds):
    rounds.hold([1], "d0")
    transfers = (Transfer(donor=1, newcomer=0), Transfer(donor=1, newcomer=2))
    rounds.begin(begin(0, 2, 1, generation=2, transfers=transfers), 1)
    for site in (0, 2):
        rounds.fail(broken(site, 1, generation=2))
    assert rounds.accuse() == (0, 2)
    assert rounds.verdict() == "failed"
    again = rounds.again()
    assert (again.members, again.holders) == ((1,), {1})


def test_of_a_process_that_was_replaced_nothing_is_left(rounds):
    for site in (0, 1):
        rounds.report(report(site))
    rounds.lose(0, 0, 1)
    assert rounds.arrive(0, 1, 1)
    rounds.report(report(2))
    assert rounds.verdict() == "done"
    rounds.commit()
    assert rounds.holders(2) == {1, 2}


def test_a_process_that_comes_without_its_predecessor_s_end_is_another_one_all_the_same(rounds):
    assert rounds.arrive(0, 1, 1)
    assert rounds.holders(1) == {1, 2}
    assert rounds.verdict() == "failed"
    assert not rounds.lose(0, 0, 1)  # which is said too late
    assert rounds.again().members == (1, 2)


def test_a_process_that_was_silent_still_holds_what_it_held(rounds):
    rounds.hold([0], "d0")
    rounds.lose(0, 0, 1)
    assert rounds.holders(1) == frozenset()
    assert rounds.verdict() == "wait"  # for it to come back
    assert rounds.again() is None
    rounds.arrive(0, 0, 1)
    assert rounds.verdict() == "failed"
    again = rounds.again()
    assert (again.members, again.holders) == ((1, 2), {0})


def test_for_a_process_that_was_replaced_nobody_waits(rounds):
    rounds.hold([0], "d0")
    rounds.begin(begin(0), 1)
    rounds.lose(0, 0, 1)
    assert rounds.verdict() == "wait"
    rounds.arrive(0, 1, 1)
    assert rounds.verdict() == "failed"
    assert rounds.again() is None


def test_a_newcomer_that_got_the_model_holds_it(rounds):
    rounds.hold([0], "d0")
    rounds.begin(begin(1, 2, generation=2), 1)
    rounds.fail(broken(1, generation=2, digest="d0"))
    rounds.fail(broken(2, generation=2, digest="another"))
    rounds.lose(0, 0, 2)
    assert rounds.holders(1) == {1}


def test_where_no_member_is_left_others_are_to_be_chosen(rounds):
    rounds.hold([0], "d0")
    rounds.begin(begin(1, 2, generation=2), 1)
    rounds.lose(1, 0, 2)
    rounds.lose(2, 0, 2)
    assert rounds.verdict() == "failed"
    again = rounds.again()
    assert (again.members, again.holders, again.lost) == ((), {0}, (1, 2))


def test_holders_that_were_left_out_are_asked_where_there_are_no_others(rounds):
    rounds.roster.leave_out([0, 1], 1)
    assert rounds.holders(1) == {2}
    rounds.lose(2, 0, 1)
    assert rounds.holders(1) == {0, 1}
    assert rounds.again().holders == {0, 1}
    assert rounds.roster.away(1) == {2}


def test_what_is_of_an_attempt_to_come_is_kept_for_it(rounds):
    rounds.fail(broken(1, generation=2, round_=2))
    rounds.report(report(2, round_=2))
    assert rounds.behind
    for site in (0, 1, 2):
        rounds.report(report(site))
    rounds.commit()
    assert [r.site for r in rounds.begin(begin(0, 1, 2), 2).reports] == [2]
    rounds.begin(begin(0, 1, 2, generation=2), 2)
    assert rounds.verdict() == "settle"


def test_what_a_process_said_of_an_attempt_to_come_is_not_said_by_the_next_one(rounds):
    rounds.fail(broken(0, generation=2, round_=2, digest="d1"))
    rounds.lose(0, 0, 1)
    rounds.arrive(0, 1, 1)
    for site in (1, 2):
        rounds.report(report(site))
    rounds.commit()
    rounds.begin(begin(0, 1, 2, generation=2), 2)
    assert rounds.holders(2) == {1, 2}


@pytest.mark.parametrize(
    ("standbys", "newcomer", "left", "taken"),
    [
        ({0: 1, 1: 1, 2: 1}, False, (0, 1), 1),
        ({0: 1, 1: 1, 2: None}, False, (0, 1), 1),
        ({0: 1, 1: None, 2: 1}, False, (0, 1), None),
        ({0: 1, 1: 1, 2: 1}, True, (0, 1), None),
        ({0: 1, 1: 1, 2: 1}, False, (0,), None),
    ],
)
def test_the_standby_group_is_used_where_all_that_are_left_have_it(
    rounds, standbys, newcomer, left, taken
):
    for site, standby in standbys.items():
        rounds.report(report(site, standby=standby))
    rounds.commit()
    rounds.begin(begin(0, 1, 2), 2)
    if newcomer:
        rounds.hold([0], "d1")
    for site in {0, 1, 2} - set(left):
        rounds.lose(site, 0, 1)
    assert rounds.verdict() == "failed"
    again = rounds.again()
    assert (again.members, again.standby) == (left, taken)
