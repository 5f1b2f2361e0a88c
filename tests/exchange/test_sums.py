from __future__ import annotations

import threading
import time

import pytest
import torch

from powertrip.exchange.errors import ExchangeError


@pytest.mark.parametrize("algorithm", ["ring", "mesh"])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_sum_is_the_same_bits_at_every_member(members, algorithm, k):
    def work(group):
        tensor = torch.linspace(0, 1, 1001) * (1 + group.rank) / 3
        group.sum(tensor).run()
        return tensor, group.bytes_sent

    results = members.each(tuple(range(k)), work, algorithm=algorithm)
    expected = torch.linspace(0, 1, 1001) * sum(range(1, k + 1)) / 3
    first = results[0][0]
    torch.testing.assert_close(first, expected)
    assert all(torch.equal(tensor, first) for tensor, _ in results.values())
    # Either way every element is sent twice by all but one.
    sent = sum(bytes_sent for _, bytes_sent in results.values())
    assert sent == pytest.approx(2 * (k - 1) * 1001 * 4, abs=k)


def test_more_members_than_elements(members):
    def work(group):
        tensor = torch.tensor([1.0 + group.rank, 10.0])
        group.sum(tensor).run()
        return tensor.tolist()

    results = members.each((0, 1, 2, 3), work)
    assert list(results.values()) == [[10.0, 40.0]] * 4


@pytest.mark.parametrize("algorithm", ["ring", "mesh"])
def test_a_sum_that_is_not_urgent_is_made_beside_another(members, algorithm):
    """The halves' sum: begun after one urgent sum, done after the next."""

    def work(group):
        urgent, slow = torch.ones(64), torch.full((64,), 5.0 + group.rank)
        sums = group.sum(urgent), group.sum(slow, channel=1)
        sums[0].run()
        sums[1].begin()
        sums[0].expect()
        urgent.fill_(2.0)
        sums[1].forward()
        sums[0].run()
        sums[1].finish()
        return urgent.tolist(), slow.tolist()

    results = members.each((0, 1, 2), work, algorithm=algorithm)
    assert list(results.values()) == [([6.0] * 64, [18.0] * 64)] * 3


def test_what_is_received_ahead_overwrites_nothing_that_is_still_to_be_sent(members):
    """One member is done with its part long before another has filled its tensor."""
    filled, early = threading.Event(), threading.Barrier(2)

    def work(group):
        tensor = torch.zeros(3000)
        total = group.sum(tensor)
        total.expect()
        if group.rank == 2:
            filled.wait(10)
        tensor.fill_(1.0 + group.rank)
        total.begin()
        if group.rank != 2:
            early.wait(10)
            filled.set()
        total.forward()
        total.finish()
        return tensor.unique().tolist()

    assert list(members.each((0, 1, 2), work).values()) == [[6.0]] * 3


def test_a_group_may_be_closed_while_sums_are_expected(members):
    all_there = threading.Barrier(3)  # one that leaves earlier breaks the others' groups

    def work(group):
        group.sum(torch.zeros(1000)).expect()
        all_there.wait(20)

    assert members.each((0, 1, 2), work) == {0: None, 1: None, 2: None}


def errors_of(members, sites, act, *, limit_s=0.4):
    """The errors of those that sum within a limit, while `act` says what each does instead."""
    over = threading.Barrier(len(sites))

    def work(group):
        total = group.sum(torch.ones(100))
        total.run()  # all are connected
        total.bound(limit_s)
        try:
            act(group, total)
        finally:
            over.wait(20)

    return members.each(sites, work)


def test_who_sends_nothing_is_named_by_all_others(members):
    def act(group, total):
        if group.members[group.rank] != 1:
            total.run()

    errors = errors_of(members, (3, 1, 2), act)
    for site in (3, 2):
        assert isinstance(errors[site], ExchangeError)
        assert (errors[site].awaited, errors[site].adds) == (1, True)


def test_who_only_waits_itself_is_not_taken_for_one_that_sends_nothing(members):
    """Site 2 has no addend of 1 and can send no sum; 3, which has one, waits for 2's in vain."""

    def act(group, total):
        site = group.members[group.rank]
        if site == 1:  # it sends to 3 alone
            place = group.members.index(3)
            group._group.send([total._sum._parts[place]], place, total._sum._tags[0]).wait()
        else:
            total.run()

    errors = errors_of(members, (3, 1, 2), act)
    assert (errors[2].awaited, errors[2].adds) == (1, True)
    assert not errors[3].adds
    assert errors[1] is None


def test_a_closed_connection_accuses_nobody(members):
    def act(group, total):
        if group.rank == 1:
            group.close()
            return
        try:
            total.run(20.0)
        except ExchangeError:
            group.close()  # as a site does, so that the others learn of it at once
            raise

    errors = errors_of(members, (3, 1, 2), act)
    for site in (3, 2):
        assert (errors[site].awaited, errors[site].adds) == (None, False)


@pytest.mark.parametrize("limit_s", [0.2, 0.8])
def test_a_sum_takes_no_longer_than_its_limit(members, limit_s):
    took_s = {}

    def act(group, total):
        if group.rank != 1:
            started_s = time.monotonic()
            try:
                total.run()
            finally:
                took_s[group.rank] = time.monotonic() - started_s

    errors_of(members, (0, 1, 2), act, limit_s=limit_s)
    # Gloo counts milliseconds; the group itself allows 20 s.
    assert [took for took in took_s.values() if not limit_s - 0.05 < took < limit_s + 5.0] == []


def test_the_limit_counts_from_the_beginning_of_a_sum_not_from_what_is_expected(members):
    def work(group):
        tensor = torch.ones(50)
        total = group.sum(tensor)
        total.bound(0.5)
        total.expect()
        time.sleep(0.8)
        total.begin()
        total.forward()
        total.finish()
        return tensor.unique().tolist()

    assert list(members.each((0, 1, 2), work).values()) == [[3.0]] * 3
