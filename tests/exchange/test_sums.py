from __future__ import annotations

import threading

import pytest
import torch


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
