from __future__ import annotations

import pytest

from powertrip.coordination.attempt import Attempt
from powertrip.coordination.messages import Begin, Broken, Report

HUB = 0


def begin(*members: int, generation: int = 4) -> Begin:
    return Begin(
        generation=generation, members=members, steps=(1,) * len(members), deadline_s=None,
        first_round=7, transfers=(), clock_s=0.0,
    )  # fmt: skip


def report(site: int, *, generation: int = 4, round_: int = 7, digest: str = "d") -> Report:
    return Report(
        site=site, generation=generation, round=round_, steps=1, samples=8, loss=1.0, loss_rms=1.0,
        local_s=1.0, lag_s=0.0, exchange_s=1.0, evaluation_s=0.0, bytes_sent=1, digest=digest,
        update_norm=1.0, validation=None, test=None, rebuild_s=0.0, joined_bytes=0,
    )  # fmt: skip


def broken(site: int, awaited: int | None = None, *, adds: bool = False, **where) -> Broken:
    where = {"generation": 4, "round": 7} | where
    return Broken(site=site, awaited=awaited, adds=adds, text=f"{site} is sorry", **where)


def attempt(*members: int, gone=()) -> Attempt:
    return Attempt(begin(*members), 7, gone)


def test_it_is_complete_when_all_have_reported():
    tried = attempt(2, 0, 1)
    assert (tried.complete, tried.failed, tried.waiting) == (False, False, (2, 0, 1))
    for site in (1, 2):
        assert tried.report(report(site))
    assert (tried.complete, tried.failed, tried.waiting) == (False, False, (0,))
    tried.report(report(0))
    assert (tried.complete, tried.failed, tried.waiting) == (True, False, ())
    assert [r.site for r in tried.reports] == [2, 0, 1]  # in the members' order


@pytest.mark.parametrize(
    "stray",
    [report(0, generation=3), report(0, generation=5), report(0, round_=6), report(0, round_=8),
     report(9)],
)  # fmt: skip
def test_a_report_of_another_attempt_or_of_no_member_says_nothing(stray):
    tried = attempt(0, 1)
    assert not tried.report(stray)
    assert (tried.reports, tried.waiting) == ([], (0, 1))


@pytest.mark.parametrize(
    "stray", [broken(0, generation=3), broken(0, generation=5), broken(0, round=6), broken(9)]
)
def test_a_failure_of_another_attempt_or_of_no_member_says_nothing(stray):
    tried = attempt(0, 1)
    tried.fail(stray)
    assert (tried.failed, tried.waiting, tried.text) == (False, (0, 1), "")


def test_who_has_reported_and_is_gone_is_not_missed():
    tried = attempt(0, 1, 2)
    tried.report(report(1))
    tried.lose(1)
    assert (tried.lost, tried.failed, tried.left) == ((), False, (0, 2))
    tried.report(report(0))
    tried.report(report(2))
    assert tried.complete
    assert [r.site for r in tried.reports] == [0, 1, 2]


def test_who_is_gone_without_a_report_makes_it_fail_unless_all_others_have_done_it():
    tried = attempt(0, 1, 2)
    tried.report(report(0))
    tried.lose(1)
    assert (tried.lost, tried.failed, tried.complete) == ((1,), True, False)
    assert tried.waiting == (2,)
    tried.report(report(2))
    assert (tried.failed, tried.complete) == (False, True)


def test_a_failed_exchange_makes_it_fail_whoever_else_has_reported():
    tried = attempt(0, 1, 2)
    tried.report(report(0))
    tried.fail(broken(1))
    assert (tried.failed, tried.lost, tried.waiting) == (True, (), (2,))
    assert tried.text == "1 is sorry"


def test_who_has_reported_has_not_failed():
    tried = attempt(0, 1)
    tried.report(report(0))
    tried.fail(broken(0))
    assert not tried.failed


def test_without_anybody_left_it_is_not_complete():
    tried = attempt(0, 1)
    tried.report(report(0))
    tried.lose(0)
    tried.lose(1)
    assert (tried.complete, tried.failed, tried.left) == (False, True, ())


def test_sites_that_are_gone_from_the_beginning_and_others():
    tried = attempt(0, 1, gone={1, 5})
    tried.lose(7)
    assert (tried.left, tried.lost) == ((0,), (1,))


@pytest.mark.parametrize(
    ("told", "culprits"),
    [
        # Everybody misses the addend of 2, and one that waits for 1 only waits with it.
        ([(0, 2, True), (1, 2, True), (3, 1, False)], {2}),
        # Two misses between the same pair: the link, and the lower rank is left out.
        ([(1, 2, True), (2, 1, True)], {2}),
        ([(2, 1, True)], {1}),
        # The hub stays, whatever its rank.
        ([(1, 0, True)], {1}),
        ([(0, 3, True)], {3}),
        # Nobody knows better than those that miss parts.
        ([(0, 3, False), (1, 3, False)], {3}),
        # Two broken links without a common end.
        ([(0, 1, True), (2, 3, True)], {1, 3}),
        # A site that is cut off from all accuses all, and all accuse it.
        ([(2, 0, True), (0, 2, True), (1, 2, True), (3, 2, True)], {2}),
        # Who accuses itself or nobody says nothing.
        ([(1, 1, True), (2, None, True)], set()),
        ([], set()),
    ],
)
def test_who_is_to_be_left_out(told, culprits):
    tried = attempt(1, 2, 3, 0)
    for site, awaited, adds in told:
        tried.fail(broken(site, awaited, adds=adds))
    assert tried.culprits(HUB) == culprits


@pytest.mark.parametrize("spare", [0, 1, 2, 3])
def test_one_is_spared_and_every_broken_link_has_lost_an_end_all_the_same(spare):
    tried = attempt(1, 2, 3, 0)
    links = [(0, 1), (1, 2), (2, 0), (3, spare)]
    for site, awaited in links:
        tried.fail(broken(site, awaited, adds=True))
    found = tried.culprits(HUB, spare=spare)
    assert spare not in found
    assert all(found & {a, b} for a, b in links if a != b)


def test_a_site_outside_can_be_accused():
    """A site that hands the model over, and leaves."""
    tried = attempt(0, 1)
    tried.fail(broken(1, 5, adds=True))
    assert tried.culprits(HUB) == {5} or tried.culprits(HUB) == {1}
    assert tried.culprits(HUB, spare=5) == {1}
