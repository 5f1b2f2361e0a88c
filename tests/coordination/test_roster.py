from __future__ import annotations

import pytest

from powertrip.coordination.roster import MOST_REJECTIONS, Roster


@pytest.fixture
def roster():
    return Roster()


def test_at_first_all_are_there(roster):
    assert roster.away(1) == roster.missing(1, 1) == frozenset()


def test_who_is_gone_is_away_until_it_is_back(roster):
    assert roster.lose(2, 0, 5)
    assert not roster.lose(2, 0, 5)  # which is known
    assert roster.away(1) == {2}
    assert roster.arrive(2, 1)
    assert not roster.arrive(2, 1)
    assert roster.away(1) == frozenset()


def test_who_was_gone_takes_no_part_in_what_was_announced_before(roster):
    roster.lose(2, 0, 5)
    roster.arrive(2, 0)
    assert roster.missing(1, 4) == roster.missing(1, 5) == {2}
    assert roster.missing(1, 6) == frozenset()


def test_a_process_that_was_replaced_says_nothing(roster):
    roster.lose(2, 0, 5)
    roster.arrive(2, 1)
    assert not roster.lose(2, 0, 9)
    assert roster.missing(1, 9) == frozenset()
    roster.lose(2, 1, 9)
    assert not roster.arrive(2, 0)
    assert roster.away(1) == {2}


def test_a_process_that_is_gone_before_it_was_ready_has_replaced_the_one_before(roster):
    roster.lose(2, 1, 5)
    assert roster.incarnation(2) == 1
    assert not roster.arrive(2, 0)
    assert roster.arrive(2, 2)
    assert roster.incarnation(2) == 2


def test_who_was_waited_for_in_vain_is_left_out_twice_as_long_each_time(roster):
    for length in (4, 8, 16, 32, 64, 64):
        roster.leave_out([1], 10)
        assert roster.away(10 + length - 1) == {1}
        assert roster.missing(10 + length - 1, 99) == {1}
        assert roster.away(10 + length) == frozenset()


def test_rejections_leave_a_site_out_for_good(roster):
    for _ in range(MOST_REJECTIONS - 1):
        assert not roster.reject(3)
    assert roster.away(10**6) == frozenset()
    assert roster.reject(3)
    assert roster.away(10**6) == {3}
    roster.arrive(3, 1)
    assert roster.away(10**6) == {3}


def test_what_is_held_against_sites_outlives_the_coordinators_process(roster):
    roster.leave_out([1], 10)
    for _ in range(MOST_REJECTIONS):
        roster.reject(3)
    roster.reject(0)
    later = Roster()
    later.restore(roster.records)
    assert later.records == roster.records
    assert later.away(13) == {1, 3}
    assert later.away(14) == {3}
    later.leave_out([1], 20)
    assert later.away(27) == {1, 3}


def test_a_standby_group_is_used_by_those_who_all_have_it_and_once(roster):
    for site, generation in enumerate((4, 4, 4)):
        roster.note_standby(site, generation)
    assert roster.take_standby((0, 2)) == 4
    assert roster.take_standby((0, 2)) is None


@pytest.mark.parametrize("told", [{0: 4, 1: 5}, {0: 4, 1: None}, {0: 4}, {}])
def test_a_standby_group_that_not_all_have_is_of_no_use(roster, told):
    for site, generation in told.items():
        roster.note_standby(site, generation)
    assert roster.take_standby((0, 1)) is None


def test_a_process_that_is_gone_has_no_standby_group(roster):
    roster.note_standby(0, 4)
    roster.note_standby(1, 4)
    roster.lose(1, 0, 4)
    roster.arrive(1, 1)
    assert roster.take_standby((0, 1)) is None
    roster.note_standby(1, 4)
    assert roster.take_standby((1,)) == 4
