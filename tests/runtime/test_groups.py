from __future__ import annotations

import threading

import pytest
import torch

from powertrip.coordination.messages import Begin, Transfer
from powertrip.exchange.errors import ExchangeError
from powertrip.runtime.groups import GroupBuilder


def begin(generation, *members, transfers=()) -> Begin:
    return Begin(
        generation=generation, members=members, steps=(1,) * len(members), deadline_s=None,
        first_round=1, transfers=transfers, clock_s=0.0,
    )  # fmt: skip


@pytest.fixture
def builders(jobs):
    made = [
        GroupBuilder(
            jobs.connector("groups"), site=site, name=f"site-{site}", backend="gloo",
            algorithm="mesh", timeout_s=10,
        )
        for site in range(3)
    ]  # fmt: skip
    yield made
    for builder in made:
        builder.close()


def announce(builders, entry) -> None:
    for builder in builders:
        builder.announce(entry)


def sums(groups):
    """What the groups' members add up, each adding one more than its rank."""
    results = {}

    def add(group):
        tensor = torch.tensor([group.rank + 1.0])
        group.sum(tensor).run()
        results[group.rank] = tensor.item()

    threads = [threading.Thread(target=add, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return results


def test_groups_are_built_as_soon_as_they_are_announced(builders):
    first = begin(1, 0, 1, 2)
    announce(builders, first)
    groups = [builder.members(first) for builder in builders]
    assert sums(groups) == {0: 6, 1: 6, 2: 6}
    for group in groups:
        group.close()


def test_a_set_that_follows_itself_keeps_its_group_in_whatever_order(builders):
    announce(builders, begin(1, 0, 1))
    standing = [builder.members(begin(1, 0, 1)) for builder in builders]
    assert standing[2] is None
    announce(builders, begin(2, 1, 0))
    assert [builder.members(begin(2, 1, 0)) for builder in builders] == [None, None, None]
    announce(builders, begin(3, 1, 2))
    newer = [builder.members(begin(3, 1, 2)) for builder in builders]
    assert newer[0] is None
    assert sums(newer[1:]) == {0: 3, 1: 3}
    for group in [*standing[:2], *newer[1:]]:
        group.close()


def test_who_leaves_hands_over_in_a_group_apart(builders):
    announce(builders, begin(1, 0))
    entry = begin(2, 1, 2, transfers=(Transfer(donor=0, newcomer=1), Transfer(donor=0, newcomer=2)))
    announce(builders, entry)
    handovers = [builder.handover(entry) for builder in builders]
    assert [group.members for group in handovers] == [(0, 1, 2)] * 3
    assert builders[0].members(entry) is None
    for group in [*handovers, builders[1].members(entry), builders[2].members(entry)]:
        group.close()


def test_a_group_that_cannot_be_built_is_told_to_whoever_takes_it(jobs):
    lonely = GroupBuilder(
        jobs.connector("alone"), site=0, name="iowa", backend="gloo", algorithm="mesh",
        timeout_s=0.3,
    )  # fmt: skip
    lonely.announce(begin(1, 0, 1))
    with pytest.raises(ExchangeError, match="building the process group failed at site iowa"):
        lonely.members(begin(1, 0, 1))
    lonely.close()


def test_closing_closes_what_nobody_took(builders):
    announce(builders, begin(1, 0, 1))
    mine = builders[0].members(begin(1, 0, 1))
    builders[1].close()
    with pytest.raises(ExchangeError):
        mine.sum(torch.ones(100)).run()
    mine.close()
    builders[0].announce(begin(2, 0, 1, 2))
