from __future__ import annotations

from collections import Counter

import pytest

from powertrip.chaos.schedule import KINDS, UnknownFault, draw, parse_kinds

ALONE = {"kill_coordinator", "kill_supervisor", "kill_job", "partition"}


def drawn(seed, sites=8, length_s=1200, every_s=15, **options):
    return draw(seed, sites, length_s=length_s, every_s=every_s, **options)


def test_a_seed_says_all():
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


@pytest.mark.parametrize("seed", range(5))
def test_a_long_schedule_has_every_kind_about_as_often_as_the_others(seed):
    faults = drawn(seed)
    counts = Counter(fault.kind for fault in faults)
    assert set(counts) == set(KINDS)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert [fault.number for fault in faults] == list(range(1, len(faults) + 1))
    assert 50 <= len(faults) <= 90


@pytest.mark.parametrize("sites", [2, 4, 8, 25])
@pytest.mark.parametrize("seed", range(5))
def test_enough_sites_are_left_alone(sites, seed):
    faults = drawn(seed, sites, every_s=4)
    assert max(fault.ends_s for fault in faults) <= 1200
    for place, fault in enumerate(faults):
        lasting = [one for one in faults[:place] if one.ends_s > fault.at_s]
        if fault.kind in ALONE:
            assert not lasting
        hit = [site for one in (*lasting, fault) for site in one.sites]
        assert len(set(hit)) == len(hit)
        assert len(set(hit)) <= max(sites // 2, 2)
        assert all(0 <= site < sites for site in hit)
        assert not any(one.kind in ALONE for one in lasting)
        if place:
            assert fault.at_s - faults[place - 1].at_s >= 0.5 * 4 - 0.1


def test_a_partition_leaves_the_hub_in_the_larger_part():
    for seed in range(20):
        for fault in drawn(seed, 8, kinds=("partition",)):
            assert 0 not in fault.sites
            assert 1 <= len(set(fault.sites)) <= 3


def test_what_is_drawn_is_what_was_asked_for():
    kinds = parse_kinds("freeze_site, kill_site")
    assert {fault.kind for fault in drawn(0, kinds=kinds)} == {"kill_site", "freeze_site"}
    assert parse_kinds("") == KINDS
    assert draw(0, 3, length_s=60, every_s=5, kinds=()) == ()
    with pytest.raises(UnknownFault, match="no fault 'frieze'; the kinds are kill_site, "):
        parse_kinds("kill_site,frieze")


def test_a_fault_in_words():
    found = {fault.kind: fault.text("abcdefgh") for fault in drawn(1)}
    assert found["kill_job"] == "kill_job"
    assert " -> " in found["one_way"]
    assert found["bad_update"].split()[1] in ("nan", "exploding")
    assert found["freeze_site"].endswith(" s")
