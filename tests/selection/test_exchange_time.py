from __future__ import annotations

import time

import numpy as np
import pytest

from powertrip.selection.exchange_time import PairExchange
from powertrip.selection.round_time import predicted_round_s, round_terms
from powertrip.selection.types import Work
from powertrip.selection.work_rules import WORK_RULES

RTT_S = np.array([[0, 0.2, 0.4], [0.2, 0, 0.1], [0.6, 0.1, 0]])
BANDWIDTH = np.array([[9, 1e6, 2e6], [1e6, 9, 3e6], [1e6, 3e6, 9]])


def pairs(model, rtt_s=RTT_S, bandwidth=BANDWIDTH, **changes):
    fields = {"update_bytes": 3_000_000, "min_delay_s": 0.01, "correction": 1.0} | changes
    return PairExchange.of(model, rtt_s, bandwidth, **fields)


def test_ring_by_hand():
    # two: 2 steps of max(0.1 + 1.5, 0.1 + 1.5)
    # three: 4 steps of max(0->1: 0.1 + 1, 1->2: 0.05 + 1/3, 2->0: 0.3 + 1)
    np.testing.assert_allclose(pairs("ring").prefixes_s(np.arange(3)), [0.01, 3.2, 5.2])
    # the other way round: 0->2: 0.2 + 0.5; 2->1: 0.05 + 1/3; 1->0: 0.1 + 1
    assert pairs("ring").set_s(np.array([0, 2, 1])) == pytest.approx(4.4)


def test_mesh_by_hand():
    # two phases: two: 0.1 + 1.5; three: the slowest pair, 2->0: 0.3 + 1
    np.testing.assert_allclose(pairs("mesh").prefixes_s(np.arange(3)), [0.01, 3.2, 2.6])
    assert pairs("mesh", correction=2.0).set_s(np.arange(3)) == pytest.approx(5.2)


@pytest.mark.parametrize("model", ["ring", "mesh"])
def test_prefixes_agree_with_the_definition(model):
    rng = np.random.default_rng(1)
    n = 9
    rtt_s, bandwidth = rng.uniform(0, 0.3, (n, n)), rng.uniform(1e6, 9e6, (n, n))
    order = rng.permutation(n)[:7]
    seconds = pairs(model, rtt_s, bandwidth).prefixes_s(order)
    for k in range(2, 8):
        members = order[:k].tolist()
        hops = zip(members, members[1:] + members[:1], strict=True)
        if model == "mesh":
            hops = [(i, j) for i in members for j in members if i != j]
        slowest = max(rtt_s[i, j] / 2 + 3e6 / k / bandwidth[i, j] for i, j in hops)
        steps = 2 * (k - 1) if model == "ring" else 2
        assert seconds[k - 1] == pytest.approx(steps * slowest)


def test_sites_without_a_link_to_a_better_one_are_left_out():
    bandwidth = BANDWIDTH.copy()
    bandwidth[2, 0] = 0.0
    mesh = pairs("mesh", bandwidth=bandwidth)
    assert mesh.connected(np.array([0, 1, 2])).tolist() == [0, 1]
    assert mesh.connected(np.array([2, 1, 0])).tolist() == [2, 1]
    assert np.isinf(mesh.set_s(np.arange(3)))


def test_the_round_waits_for_the_slowest_then_exchanges(observe):
    seen = observe(
        throughput=[100.0, 50.0, 200.0],
        exchange_model="mesh",
        pair_rtt_s=RTT_S,
        pair_bandwidth=BANDWIDTH,
        update_bytes=3_000_000,
    )
    terms = round_terms(seen, 0.01)
    times = WORK_RULES["straggler"].prefix_times(terms, np.arange(3))
    np.testing.assert_allclose(times.compute_s, [2, 4, 4])
    np.testing.assert_allclose(times.communication_s, [0.01, 3.2, 2.6])
    work = Work(steps=(20, 20, 20))
    assert predicted_round_s(terms, np.arange(3), work) == pytest.approx(6.6)
    # without matrices the star stands in
    star = round_terms(seen.replace(pair_rtt_s=None, pair_bandwidth=None), 0.01)
    assert star.pairs is None


@pytest.mark.parametrize("model", ["ring", "mesh"])
def test_a_hundred_sites_are_quick(model):
    rng = np.random.default_rng(0)
    exchange = pairs(model, rng.uniform(0, 0.3, (100, 100)), rng.uniform(1e6, 9e6, (100, 100)))
    times_s = []
    for _ in range(5):
        start_s = time.perf_counter()
        exchange.prefixes_s(np.arange(100))
        times_s.append(time.perf_counter() - start_s)
    assert min(times_s) < 0.05  # 2 to 3 ms on an idle core
