from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from powertrip.coordination.messages import Begin, Transfer
from powertrip.exchange.errors import ExchangeError
from powertrip.runtime.groups import GroupBuilder

LIMIT_S = 10.0


def begin(generation, *members, transfers=(), redo=False, standby=None) -> Begin:
    return Begin(
        generation=generation, members=members, steps=(1,) * len(members), deadline_s=None,
        first_round=1, transfers=transfers, redo=redo, standby=standby, clock_s=0.0,
    )  # fmt: skip


def wait_until(true) -> None:
    until_s = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def resources() -> list[int]:
    return [len(list(Path("/proc/self", of).iterdir())) for of in ("fd", "task")]


@pytest.fixture
def builders(jobs, request):
    made = [
        GroupBuilder(
            jobs.connector(request.node.name), site=site, name=f"site-{site}", backend="gloo",
            algorithm="mesh", timeout_s=10,
        )
        for site in range(4)
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
    groups = [builder.members(first, LIMIT_S) for builder in builders[:3]]
    assert sums(groups) == {0: 6, 1: 6, 2: 6}
    for group in groups:
        group.close()


def test_one_client_of_the_store_serves_the_groups_that_come_one_after_the_other(jobs):
    connect, connected = jobs.connector("clients"), []

    def counted():
        connected.append(threading.get_ident())
        return connect()

    made = [
        GroupBuilder(
            counted, site=site, name=f"site-{site}", backend="gloo", algorithm="mesh", timeout_s=10
        )
        for site in range(3)
    ]
    for generation, members in enumerate([(0, 1, 2), (0, 1), (0, 1, 2)], start=1):
        entry = begin(generation, *members)
        announce(made, entry)
        groups = [made[site].members(entry, LIMIT_S) for site in members]
        assert len(sums(groups)) == len(members)
        if len(members) > 2:
            wait_until(lambda: all(b.standby == generation for b in made))  # noqa: B023
        for group in groups:
            group.close()
    assert len(connected) == 3
    for builder in made:
        builder.close()


def test_a_set_that_follows_itself_keeps_its_group_in_whatever_order(builders):
    announce(builders, begin(1, 0, 1))
    standing = [builder.members(begin(1, 0, 1), LIMIT_S) for builder in builders]
    assert standing[2:] == [None, None]
    announce(builders, begin(2, 1, 0))
    assert [builder.members(begin(2, 1, 0), LIMIT_S) for builder in builders] == [None] * 4
    announce(builders, begin(3, 1, 2))
    newer = [builder.members(begin(3, 1, 2), LIMIT_S) for builder in builders]
    assert newer[0] is None
    assert sums(newer[1:3]) == {0: 3, 1: 3}
    for group in [*standing[:2], *newer[1:3]]:
        group.close()


def test_who_leaves_hands_over_in_a_group_apart(builders):
    announce(builders, begin(1, 0))
    entry = begin(2, 1, 2, transfers=(Transfer(donor=0, newcomer=1), Transfer(donor=0, newcomer=2)))
    announce(builders, entry)
    handovers = [builder.handover(entry, LIMIT_S) for builder in builders[:3]]
    assert [group.members for group in handovers] == [(0, 1, 2)] * 3
    assert builders[0].members(entry, LIMIT_S) is None
    for group in [
        *handovers,
        builders[1].members(entry, LIMIT_S),
        builders[2].members(entry, LIMIT_S),
    ]:
        group.close()


def test_a_group_that_cannot_be_built_is_told_to_whoever_takes_it(jobs):
    lonely = GroupBuilder(
        jobs.connector("alone"), site=0, name="iowa", backend="gloo", algorithm="mesh",
        timeout_s=0.3,
    )  # fmt: skip
    lonely.announce(begin(1, 0, 1))
    with pytest.raises(ExchangeError, match="building the process group failed at site iowa"):
        lonely.members(begin(1, 0, 1), LIMIT_S)
    lonely.close()


def test_closing_closes_what_nobody_took(builders):
    announce(builders, begin(1, 0, 1))
    mine = builders[0].members(begin(1, 0, 1), LIMIT_S)
    wait_until(lambda: all(future.done() for future in builders[1]._built.values()))
    builders[1].close()
    with pytest.raises(ExchangeError):
        mine.sum(torch.ones(100)).run()
    mine.close()
    builders[0].announce(begin(2, 0, 1, 2))


def test_behind_a_group_another_one_of_the_same_members_is_built(builders):
    first = begin(1, 0, 1, 2, 3)
    announce(builders, first)
    groups = [builder.members(first, LIMIT_S) for builder in builders]
    wait_until(lambda: all(builder.standby == 1 for builder in builders))
    announce(builders, begin(2, 3, 2, 1, 0))  # which keeps both
    assert [builder.standby for builder in builders] == [1] * 4
    builders[3].close()
    for group in groups:
        group.close()
    again = begin(3, 2, 0, 1, redo=True, standby=1)
    announce(builders, again)
    left = [builder.members(again, 0.0) for builder in builders[:3]]
    assert [(group.members, group.rank, group.generation) for group in left] == [
        ((2, 0, 1), 1, 3), ((2, 0, 1), 2, 3), ((2, 0, 1), 0, 3)
    ]  # fmt: skip
    assert sums(left) == {0: 6, 1: 6, 2: 6}
    wait_until(lambda: all(builder.standby == 3 for builder in builders[:3]))
    for group in left:
        group.close()


@pytest.mark.parametrize(
    "entry", [begin(1, 0, 1), begin(1, 0), begin(2, 0, 1, 2, redo=True, standby=1)]
)
def test_a_pair_has_no_standby_group_and_nobody_has_one_that_was_never_built(builders, entry):
    announce(builders, entry)
    if entry.standby is None:
        for builder in builders[: len(entry.members)]:
            builder.members(entry, LIMIT_S).close()
        assert all(builder._built == {} for builder in builders)
    else:
        with pytest.raises(ExchangeError, match="the standby group is not there"):
            builders[0].members(entry, LIMIT_S)


def test_standby_groups_of_members_before_are_dropped(builders):
    announce(builders, begin(1, 0, 1, 2))
    wait_until(lambda: all(builder.standby == 1 for builder in builders[:3]))
    builders[0].drop_standbys(before=1)
    assert builders[0].standby == 1
    builders[0].drop_standbys(before=2)
    assert builders[0].standby is None


def test_who_waits_for_a_group_learns_at_once_that_it_is_superseded(builders):
    """Site 1 never comes; it is found dead."""
    first, again = begin(1, 0, 1), begin(2, 0, redo=True)
    builders[0].announce(first)
    caught = []

    def wait() -> None:
        with pytest.raises(ExchangeError, match="its generation is superseded") as error:
            builders[0].members(first, 60.0)
        caught.append((error.value, time.monotonic()))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    announced_s = time.monotonic()
    builders[0].announce(again)
    waiting.join(10)
    assert caught[0][1] - announced_s < 1.0
    assert caught[0][0].generation == 1
    builders[0].members(again, LIMIT_S).close()


def test_a_group_that_is_ready_when_its_generation_is_superseded_is_closed(builders):
    announce(builders, begin(1, 0, 1))
    for builder in builders[:2]:
        wait_until(lambda b=builder: all(future.done() for future in b._built.values()))
    announce(builders, begin(2, 0, 1, redo=True))
    with pytest.raises(ExchangeError, match="its generation is superseded"):
        builders[0].members(begin(1, 0, 1), LIMIT_S)
    again = [b.members(begin(2, 0, 1, redo=True), LIMIT_S) for b in builders[:2]]
    assert sums(again) == {0: 3, 1: 3}
    for group in again:
        group.close()


def test_a_group_is_not_waited_for_beyond_the_limit(builders):
    first = begin(1, 0, 1)
    builders[0].announce(first)
    started_s = time.monotonic()
    with pytest.raises(ExchangeError, match=r"not all members came within 0\.2 s"):
        builders[0].members(first, 0.2)
    assert time.monotonic() - started_s < 2.0
    builders[1].announce(first)  # who comes late finds a group that nobody takes any more
    builders[1].members(first, LIMIT_S).close()


def test_builders_leave_no_threads_and_no_descriptors(jobs):
    def once(number: int) -> None:
        made = [
            GroupBuilder(
                jobs.connector(f"once-{number}"), site=site, name="x", backend="gloo",
                algorithm="mesh", timeout_s=10,
            )
            for site in range(3)
        ]  # fmt: skip
        announce(made, begin(1, 0, 1, 2))
        groups = [builder.members(begin(1, 0, 1, 2), LIMIT_S) for builder in made]
        announce(made, begin(2, 0, 1, redo=True))
        for closed in (*groups, *made):
            closed.close()

    for number in range(2):
        once(number)
    before = resources()
    for number in range(2, 7):
        once(number)
    wait_until(lambda: all(n <= b + 5 for n, b in zip(resources(), before, strict=True)))
