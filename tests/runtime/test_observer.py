from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from powertrip.runtime.messages import Begin, Probed
from powertrip.runtime.observer import Observer
from powertrip.selection.types import Decision, Work


def begin(*members) -> Begin:
    return Begin(
        generation=1, members=members, steps=(1,) * len(members), deadline_s=None, first_round=1,
        rounds=1, transfers=(), clock_s=0.0,
    )  # fmt: skip


def report(site, round_=1, *, samples=100, local_s=1.0):
    return SimpleNamespace(site=site, round=round_, samples=samples, local_s=local_s)


def probed(site, *, rtt_s, bandwidth):
    return Probed(site=site, number=1, rtt_s=(rtt_s,) * 3, bandwidth=(bandwidth,) * 3)


@pytest.fixture
def make(three_sites):
    def make(clock: str = "measured", **ready) -> Observer:
        config = three_sites.config.model_copy(
            update={"selection": three_sites.config.selection.model_copy(update={"clock": clock})}
        )
        return Observer(three_sites.build_world(), config, three_sites.ready(**ready))

    return make


def observe(observer: Observer, time_s: float = 0.0, **changes):
    fields = {"next_round": 1, "generation": 1, "members": (), "previous": None}
    return observer.observe(time_s=time_s, **fields | changes)


def test_the_facts_at_a_time(make):
    seen = observe(make(), 10.0)
    np.testing.assert_allclose(seen.power_w, [2000, 1000, 250])
    np.testing.assert_allclose(seen.throughput, [100, 50, 12.5])
    np.testing.assert_allclose(seen.full_speed, [100, 100, 50])
    np.testing.assert_allclose(seen.rtt_s, [0, 0.1, 0.2])
    np.testing.assert_allclose(seen.up, [math.inf, 1e6, 2e6])
    np.testing.assert_allclose(seen.down, [math.inf, 1e6, 1e6])
    assert seen.reachable.tolist() == [True, True, True]
    assert (seen.hub, seen.update_bytes, seen.batch_size) == (0, 500_000, 10)
    assert seen.communication_correction == 1
    assert seen.rebuild_s == 0.25
    assert seen.gains.tolist() == []
    assert np.isnan(seen.distance_m[1])


def test_what_the_coordinator_knows_is_passed_on(make):
    previous = Decision(
        generation=4, policy="all", members=(1,), work=Work(steps=(2,)), rounds=3,
        predicted_round_s=1.0, candidates=(), reason="",
    )  # fmt: skip
    seen = observe(make(), 1.0, next_round=9, generation=5, members=(1, 2), previous=previous)
    assert (seen.time_s, seen.round, seen.generation) == (1.0, 9, 5)
    assert (seen.members, seen.previous) == ((1, 2), previous)
    assert seen.interval_rounds == 6


def test_a_site_without_samples_is_out_of_reach(make):
    seen = observe(make(samples=(10, 0, 30)))
    assert seen.samples.tolist() == [10, 0, 30]
    assert seen.reachable.tolist() == [True, False, True]


def test_the_longest_local_work_is_the_base(make):
    assert observe(make(steps=(3, 7, 5))).base_steps.tolist() == [3, 7, 5]


def test_gains_are_the_falls_of_the_loss(make):
    observer = make()
    for round_, loss in ((1, 2.0), (2, 1.5), (3, 1.75)):
        observer.learn_round(begin(0), 0.0, [report(0, round_)], 0.1, loss)
    assert observe(observer).gains.tolist() == [0.5, -0.25]


def test_a_gain_over_rounds_without_evaluation_is_spread_over_them(make):
    observer = make()
    losses = {1: 2.0, 2: None, 3: None, 4: 0.5, 5: 0.25}
    for round_, loss in losses.items():
        observer.learn_round(begin(0), 0.0, [report(0, round_)], 0.1, loss)
    assert observe(observer).gains.tolist() == [0.5, 0.5, 0.5, 0.25]


def test_exchanges_correct_the_model_of_communication(make):
    observer = make()
    # The model says 1.1 s between paris and rome.
    observer.learn_round(begin(0, 1), 0.0, [report(0), report(1)], 3.3, None)
    assert observe(observer).communication_correction == pytest.approx(3)


def test_links_as_measured_replace_the_models_and_what_exchanges_are_compared_with(make):
    observer = make()
    # The update then takes 0.3 s for the round trip, 1 s up and 0.5 s down.
    observer.learn_links(probed(1, rtt_s=0.3, bandwidth=5e5))
    observer.learn_links(probed(0, rtt_s=9.0, bandwidth=1e6))
    np.testing.assert_allclose(observe(observer).rtt_s, [0, 0.3, 0.2])
    np.testing.assert_allclose(observe(observer).up, [math.inf, 5e5, 2e6])
    observer.learn_round(begin(0, 1), 0.0, [report(0), report(1)], 3.6, None)
    assert observe(observer).communication_correction == pytest.approx(2)


def test_who_has_taken_part_and_how_long_it_took_is_known(make):
    observer = make()
    seen = observe(observer)
    assert seen.last_seen.tolist() == [0, 0, 0]
    observer.learn_round(begin(0, 1), 0.0, [report(0, 4), report(1, 4, local_s=2.0)], 1.1, None)
    after = observe(observer)
    assert after.last_seen.tolist() == [4, 4, 0]
    np.testing.assert_allclose(after.own_round_s, [2.1, 3.1, math.nan])
    # What was observed before does not change with it.
    assert seen.last_seen.tolist() == [0, 0, 0]
    assert (seen.kappa, seen.h0) == (10, 5)
    np.testing.assert_allclose(seen.used_power_w, [2000, 1000, 500])


def test_a_member_alone_has_no_exchange_to_learn_from(make):
    observer = make()
    observer.learn_round(begin(0), 0.0, [report(0)], 1e-6, None)
    assert observe(observer).communication_correction == 1


def test_measured_speeds_correct_each_site_by_itself(make):
    observer = make()
    # In its 4 s rome would have done 200 samples; paris as many as it did.
    reports = [report(0, samples=100, local_s=1.0), report(1, samples=50, local_s=4.0)]
    observer.learn_round(begin(0, 1), 0.0, reports, 1.1, None)
    np.testing.assert_allclose(observe(observer).throughput, [100, 12.5, 25])


def test_a_speed_is_compared_with_the_power_at_the_time_of_the_round(make):
    observer = make()
    observer.learn_round(begin(2), 10.0, [report(2, samples=25, local_s=1.0)], 0.1, None)
    np.testing.assert_allclose(observe(observer).throughput, [100, 50, 25 * 2])


def test_a_rebuild_moves_its_estimate_by_three_tenths(make):
    observer = make()
    observer.learn_rebuild(1.25)
    assert observer.rebuild_s == pytest.approx(0.25 + 0.3)
    assert observe(observer).rebuild_s == observer.rebuild_s


def test_under_the_modelled_clock_nothing_measured_counts_but_the_loss(make):
    observer = make("modelled")
    before = observe(observer)
    for round_, loss in ((1, 2.0), (2, 1.5)):
        reports = [report(0, round_, local_s=9.0), report(1, round_, local_s=3.0)]
        observer.learn_round(begin(0, 1), 0.0, reports, 50.0, loss)
    observer.learn_rebuild(9.0)
    after = observe(observer)
    assert after.throughput.tolist() == before.throughput.tolist()
    assert after.communication_correction == 1
    assert after.rebuild_s == 0.25
    assert after.gains.tolist() == [0.5]
