from __future__ import annotations

from types import SimpleNamespace

import pytest

from powertrip.coordination.errors import SitesStalled
from powertrip.coordination.messages import Begin
from powertrip.coordination.observer import Observer
from powertrip.coordination.timekeeping import ModelledTime


def begin(members, steps, *, generation=1, first_round=1, newcomers=()) -> Begin:
    return Begin(
        generation=generation, members=members, steps=steps, deadline_s=None,
        first_round=first_round, clock_s=0.0,
        transfers=[{"donor": 9, "newcomer": site} for site in newcomers],
    )  # fmt: skip


def report(site, round_=1, **changes):
    fields = {"local_s": 9.0, "exchange_s": 8.0, "evaluation_s": 0.0, "rebuild_s": 7.0}
    return SimpleNamespace(site=site, round=round_, **fields | changes)


def announce_first(keeper, *, rebuild=True):
    return keeper.announce(1, rebuild=rebuild, meanwhile=None, round_=0)


@pytest.fixture
def modelled(three_sites):
    observer = Observer(three_sites.build_world(), three_sites.config, three_sites.ready())
    return ModelledTime(observer)


def test_modelled_rounds_follow_each_other_without_the_wall(modelled):
    work = begin((0, 1), (4, 4))
    assert modelled.now_s() == 0
    assert announce_first(modelled) == 0.25
    first = modelled.account(work, [report(0), report(1, evaluation_s=2.0)])
    # Training takes 0.4 and 0.8 s, rome's link 1.1 s, the rebuild 0.25 s by the settings.
    assert first.start_s == 0
    assert first.end_s == pytest.approx(0.25 + 0.8 + 1.1)
    assert first.local_s == pytest.approx((0.4, 0.8))
    assert first.times.local_s == pytest.approx(0.8)
    assert first.times.exchange_s == pytest.approx(1.1)
    assert (first.times.rebuild_s, first.times.evaluation_s) == (0.25, 2.0)
    second = modelled.account(work, [report(0, 2), report(1, 2)])
    assert second.start_s == first.end_s == pytest.approx(2.15)
    assert second.end_s == modelled.now_s() == pytest.approx(2.15 + 1.9)
    assert second.times.rebuild_s == 0


def test_a_generation_of_the_same_members_costs_no_rebuild(modelled):
    assert announce_first(modelled, rebuild=False) == 0
    account = modelled.account(begin((0,), (4,)), [report(0)])
    assert account.times.rebuild_s == 0
    assert account.end_s == pytest.approx(0.4 + 0.05)


def test_a_generation_that_is_announced_ahead_begins_after_the_round_before_it(modelled):
    announce_first(modelled)
    work, next_ = begin((0, 1), (4, 4)), begin((0,), (4,), generation=2, first_round=3)
    modelled.account(work, [report(0), report(1)])
    clock_s = modelled.announce(2, rebuild=True, meanwhile=work, round_=2)
    # The first round ended at 2.15; another of 1.9 s is to come, and the rebuild.
    assert clock_s == pytest.approx(2.15 + 1.9 + 0.25)
    second = modelled.account(work, [report(0, 2), report(1, 2)])
    assert (second.end_s, second.times.rebuild_s) == (pytest.approx(4.05), 0)
    third = modelled.account(next_, [report(0, 3)])
    assert third.times.rebuild_s == 0.25
    assert third.end_s == pytest.approx(clock_s + 0.4 + 0.05)


def test_a_generation_of_one_round_before_the_next_counts_with_its_rebuild(modelled):
    announce_first(modelled)
    first, second = begin((0,), (4,)), begin((0, 1), (4, 4), generation=2, first_round=2)
    modelled.announce(2, rebuild=True, meanwhile=first, round_=1)
    modelled.account(first, [report(0)])
    clock_s = modelled.announce(3, rebuild=False, meanwhile=second, round_=2)
    assert clock_s == pytest.approx(0.25 + 0.45 + 0.25 + 1.9)


def test_the_power_at_the_modelled_time_counts(modelled):
    modelled.account(begin((0,), (95,)), [report(0)])  # 9.5 s, and 0.05 s for the exchange
    account = modelled.account(begin((2,), (5,)), [report(2, 2)])
    # oslo does 25 samples/s until second 10, then 12.5.
    assert account.local_s[0] == pytest.approx(0.45 + (50 - 0.45 * 25) / 12.5)


def test_a_round_that_never_ends_names_who_stalls_it(modelled):
    modelled.account(begin((0,), (220,)), [report(0)])
    before_s = modelled.now_s()
    with pytest.raises(SitesStalled, match="round 3 never ends by the model: the power of oslo"):
        modelled.account(begin((0, 2), (1, 1)), [report(0, 3), report(2, 3)])
    with pytest.raises(SitesStalled, match="round 4 never ends"):
        modelled.announce(2, rebuild=False, meanwhile=begin((2,), (1,)), round_=4)
    assert modelled.now_s() == before_s
