from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powertrip.coordination.membership import HUB, check_world_size, plan_transfers, site_of_rank
from powertrip.coordination.messages import Transfer
from powertrip.errors import ConfigError

SITES = st.integers(0, 30)


def test_one_rank_is_one_site():
    assert [site_of_rank(rank) for rank in range(5)] == list(range(5))
    assert HUB == 0


def test_as_many_processes_as_sites():
    check_world_size(8, 8)


def test_too_few_processes_name_both_ways_out():
    with pytest.raises(ConfigError) as caught:
        check_world_size(4, 8)
    (problem,) = caught.value.problems
    assert "there are 8 of them, but 4 processes were started" in problem
    assert "start 8 (--nproc_per_node=8" in problem
    assert "sites.count=4" in problem


def test_too_many_processes_name_the_one_way_out():
    with pytest.raises(ConfigError) as caught:
        check_world_size(9, 8)
    (problem,) = caught.value.problems
    assert "--nproc_per_node=8" in problem
    assert "sites.count" not in problem


@pytest.mark.parametrize(
    ("members", "holders", "pairs"),
    [
        ((0, 1), {0, 1}, []),
        ((0, 1, 2), {0, 1}, [(0, 2)]),
        ((5, 4, 3, 2, 1), {1, 4}, [(4, 5), (1, 3), (4, 2)]),
        ((1, 2), {0}, [(0, 1), (0, 2)]),
        ((7,), {9, 3}, [(3, 7)]),
        ((2,), {2, 3}, []),
    ],
)
def test_who_gives_to_whom(members, holders, pairs):
    expected = tuple(Transfer(donor=donor, newcomer=newcomer) for donor, newcomer in pairs)
    assert plan_transfers(members, holders) == expected


@given(st.lists(SITES, unique=True, min_size=1), st.sets(SITES, min_size=1))
def test_every_newcomer_gets_the_model_once_and_donors_share_the_work(members, holders):
    transfers = plan_transfers(members, holders)
    assert [t.newcomer for t in transfers] == [site for site in members if site not in holders]
    assert {t.donor for t in transfers} <= holders
    staying = holders & set(members)
    load = Counter(t.donor for t in transfers)
    if staying:
        assert set(load) <= staying
        assert max(load.values(), default=0) <= -(-len(transfers) // len(staying))
    else:
        assert set(load) == {min(holders)}


def test_newcomers_get_the_model_from_where_they_have_it_first():
    def seconds(donor, newcomer):
        return {0: 1.0, 1: 3.0, 4: 2.0}[donor] + (10.0 if newcomer == 7 and donor != 4 else 0.0)

    def pairs(members, holders):
        return [(t.donor, t.newcomer) for t in plan_transfers(members, holders, seconds)]

    assert pairs((0, 1, 5), {0, 1}) == [(0, 5)]
    assert pairs((0, 1, 7, 4), {0, 1, 4}) == [(4, 7)]
    # The nearest is busy with two already when the third is as near to another.
    assert pairs((0, 1, 5, 6, 8), {0, 1}) == [(0, 5), (0, 6), (0, 8)]
    assert pairs((0, 1, 5, 6, 8, 9), {0, 1}) == [(0, 5), (0, 6), (0, 8), (1, 9)]
    # Nobody stays who holds it: one gives it to all.
    assert pairs((7, 8), {0, 1, 4}) == [(4, 7), (4, 8)]


def test_nobody_holds_the_model():
    with pytest.raises(ValueError, match="no site holds the current model"):
        plan_transfers((0, 1), set())
