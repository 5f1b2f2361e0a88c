from __future__ import annotations

import numpy as np

from powertrip.selection.coverage import due_sites

OWN_S = np.arange(6.0)


def due(observe, last_seen, round_, coverage, usable=(True,) * 6, samples=100):
    seen = observe(
        throughput=[1.0] * 6, last_seen=last_seen, round=round_, samples=np.full(6, samples)
    )
    sites = due_sites(seen, np.array(usable), OWN_S, coverage)
    return np.flatnonzero(sites).tolist()


def test_off(observe):
    assert due(observe, [0] * 6, 100, None) == []


def test_spread_from_the_start(observe):
    # six sites within this decision and two more
    assert due(observe, [0] * 6, 1, 2) == [0, 1]


def test_whoever_was_out_for_long_enough_is_due(observe):
    # rounds 5 to 12 are two decisions of four; the others have just taken part
    assert due(observe, [12, 12, 4, 12, 12, 5], 13, 3) == [2, 5]
    assert due(observe, [12, 12, 4, 12, 12, 5], 13, 2) == [2, 5]
    # one is due, and six within three decisions are two each: the shortest round comes along
    assert due(observe, [12, 12, 4, 12, 12, 9], 13, 2) == [0, 2]


def test_unreachable_sites_and_those_without_data_are_never_due(observe):
    usable = (True, True, False, True, True, True)
    assert 2 not in due(observe, [12, 12, 0, 12, 12, 12], 13, 1, usable)
    assert due(observe, [0] * 6, 13, 1, samples=0) == []
