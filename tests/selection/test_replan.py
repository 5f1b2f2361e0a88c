from __future__ import annotations

import numpy as np
import pytest

from powertrip.selection import SelectionSettings
from powertrip.selection.replan import reason_to_replan


@pytest.fixture
def before(observe):
    # own rounds 2.5, 4.25, 20.5 s
    return observe(
        throughput=[100.0, 50.0, 10.0], delay_s=[0.5, 0.25, 0.5], members=(0, 1), round=5
    )


def why(before, now, **options):
    return reason_to_replan(before, now, SelectionSettings(**options))


def test_nothing_changed(before):
    assert why(before, before.replace(round=7)) is None


@pytest.mark.parametrize("speed", [70.0, 140.0])
def test_a_member_gains_or_loses_power(before, speed):
    now = before.replace(throughput=[speed, 50.0, 10.0], round=6)
    assert why(before, now) == "power or link of site 0 has changed by more than 30 %"
    assert why(before, now, replan_threshold=0.5) is None
    assert why(before, now, replan_threshold=None) is None


def test_a_members_link_changes(before):
    now = before.replace(rtt_s=[0.5, 0.4, 0.5], round=6)
    assert why(before, now) == "power or link of site 1 has changed by more than 30 %"


def test_others_count_where_they_become_better_than_a_member(before):
    better = before.replace(throughput=[100.0, 50.0, 60.0], round=6)
    assert why(before, better) == "power or link of site 2 has changed by more than 30 %"
    assert why(before, before.replace(throughput=[100.0, 50.0, 20.0], round=6)) is None
    assert why(before, before.replace(throughput=[100.0, 50.0, 1.0], round=6)) is None


def test_rate_is_limited_but_not_for_a_lost_member(before):
    now = before.replace(throughput=[10.0, 50.0, 10.0], round=6)
    assert why(before, now, replan_min_rounds=2) is None
    assert why(before, now.replace(round=7), replan_min_rounds=2) is not None
    lost = now.replace(throughput=[0.0, 50.0, 10.0], power_w=[0.0, 1.0, 1.0])
    assert why(before, lost, replan_min_rounds=9) == "site 0 lost power or link"


def test_a_site_that_comes_back_is_a_change(before):
    away = before.replace(reachable=[True, True, False])
    now = before.replace(throughput=[100.0, 50.0, 60.0], round=6)
    assert why(away, now) == "power or link of site 2 has changed by more than 30 %"


@pytest.mark.parametrize("rtt_s", [0.2, 0.8, float("inf")])
def test_the_exchange_among_the_members_of_a_mesh_changes(before, rtt_s):
    def mesh(seen, between_s):
        pair_rtt_s = np.full((3, 3), 0.4)
        pair_rtt_s[0, 1] = pair_rtt_s[1, 0] = between_s
        return seen.replace(
            exchange_model="mesh", pair_rtt_s=pair_rtt_s, pair_bandwidth=np.full((3, 3), np.inf)
        )

    standing, now = mesh(before, 0.4), before.replace(round=6)
    assert why(standing, mesh(now, 0.44)) is None
    assert why(standing, mesh(now, rtt_s)) == (
        "the exchange among the members has changed by more than 30 %"
    )
