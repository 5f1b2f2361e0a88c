from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from powertrip.coordination.messages import Probed, Tally
from powertrip.coordination.observer import Observer
from powertrip.selection.kappa import KappaEstimator
from powertrip.selection.policy import build_policy
from powertrip.selection.types import Decision, Work


def report(site, round_=1, *, samples=100, local_s=1.0, **fields):
    plain = {
        "loss_rms": 1.0, "update_norm": 1.0, "layer_norms": (), "trial": None, "rejected": None,
    }  # fmt: skip
    return SimpleNamespace(
        site=site, round=round_, samples=samples, local_s=local_s, **plain | fields
    )


def probed(site, *, rtt_s, bandwidth):
    return Probed(site=site, number=1, rtt_s=(rtt_s,) * 3, bandwidth=(bandwidth,) * 3)


def learn(observer, reports, *, start_s=0.0, exchange_s=1.1, loss=None, time_s=1.0):
    observer.learn_round(start_s, reports, exchange_s, loss, time_s=time_s)


def selecting(setup, **settings):
    """The configuration with other settings of the selection."""
    selection = type(setup.config.selection)(
        **setup.config.selection.model_dump(exclude_unset=True) | settings
    )
    return setup.config.model_copy(update={"selection": selection})


@pytest.fixture
def make(three_sites):
    def make(clock: str = "measured", *, selection=None, **ready) -> Observer:
        config = selecting(three_sites, clock=clock, **selection or {})
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
        learn(observer, [report(0, round_)], loss=loss)
    assert observe(observer).gains.tolist() == [0.5, -0.25]


def test_a_gain_over_rounds_without_evaluation_is_spread_over_them(make):
    observer = make()
    losses = {1: 2.0, 2: None, 3: None, 4: 0.5, 5: 0.25}
    for round_, loss in losses.items():
        learn(observer, [report(0, round_)], loss=loss)
    assert observe(observer).gains.tolist() == [0.5, 0.5, 0.5, 0.25]


def test_exchanges_correct_the_model_of_communication(make):
    observer = make()
    # The model says 1.1 s between paris and rome.
    learn(observer, [report(0), report(1)], exchange_s=3.3)
    assert observe(observer).communication_correction == pytest.approx(3)


def test_links_as_measured_replace_the_models_and_what_exchanges_are_compared_with(make):
    observer = make()
    # The update then takes 0.3 s for the round trip, 1 s up and 0.5 s down.
    observer.learn_links(probed(1, rtt_s=0.3, bandwidth=5e5), time_s=0.0)
    observer.learn_links(probed(0, rtt_s=9.0, bandwidth=1e6), time_s=0.0)
    np.testing.assert_allclose(observe(observer).rtt_s, [0, 0.3, 0.2])
    np.testing.assert_allclose(observe(observer).up, [math.inf, 5e5, 2e6])
    learn(observer, [report(0), report(1)], exchange_s=3.6)
    assert observe(observer).communication_correction == pytest.approx(2)


def test_who_has_taken_part_and_how_long_it_took_is_known(make):
    observer = make()
    seen = observe(observer)
    assert seen.last_seen.tolist() == [0, 0, 0]
    learn(observer, [report(0, 4), report(1, 4, local_s=2.0)])
    after = observe(observer)
    assert after.last_seen.tolist() == [4, 4, 0]
    np.testing.assert_allclose(after.own_round_s, [2.1, 3.1, math.nan])
    # What was observed before does not change with it.
    assert seen.last_seen.tolist() == [0, 0, 0]


def test_with_overlap_a_round_is_the_longer_of_its_parts(three_sites):
    config = selecting(three_sites, clock="measured")
    exchange = config.exchange.model_copy(update={"overlap": True})
    config = config.model_copy(update={"exchange": exchange})
    observer = Observer(three_sites.build_world(), config, three_sites.ready())
    learn(observer, [report(0, 4), report(1, 4, local_s=2.0)], exchange_s=1.1)
    seen = observe(observer)
    assert seen.overlap is True
    np.testing.assert_allclose(seen.own_round_s, [1.1, 2.0, math.nan])
    assert (seen.kappa, seen.h0) == (10, 5)
    np.testing.assert_allclose(seen.used_power_w, [2000, 1000, 500])


def test_a_member_alone_has_no_exchange_to_learn_from(make):
    observer = make()
    learn(observer, [report(0)], exchange_s=1e-6)
    assert observe(observer).communication_correction == 1


def test_measured_speeds_correct_each_site_by_itself(make):
    observer = make()
    # In its 4 s rome would have done 200 samples; paris as many as it did.
    reports = [report(0, samples=100, local_s=1.0), report(1, samples=50, local_s=4.0)]
    learn(observer, reports)
    np.testing.assert_allclose(observe(observer).throughput, [100, 12.5, 25])


def test_a_speed_is_compared_with_the_power_at_the_time_of_the_round(make):
    observer = make()
    learn(observer, [report(2, samples=25)], start_s=10.0, time_s=0.0)
    np.testing.assert_allclose(observe(observer).throughput, [100, 50, 25 * 2])


def test_rebuilds_are_expected_to_cost_their_median(make):
    observer = make()
    assert observe(observer).rebuild_s == 0.25
    for seconds in (1.25, 0.5, 60.0, 0.75):
        observer.learn_rebuild(seconds, time_s=0.0)
    assert observe(observer).rebuild_s == pytest.approx(1.25)
    observer.learn_rebuild(0.8, time_s=0.0)
    assert observe(observer).rebuild_s == pytest.approx(0.8)
    assert observe(observer, 1e6).rebuild_s == pytest.approx(0.25)


def test_a_rebuild_that_training_hides_costs_nothing_worth_naming(make):
    observer = make()
    observer.learn_rebuild(0.0, time_s=0.0)
    assert observe(observer).rebuild_s == pytest.approx(0.001)


def test_a_rebuild_that_is_assumed_to_be_free_can_be_measured(three_sites):
    runtime = three_sites.config.runtime.model_copy(update={"rebuild_s": 0.0})
    config = selecting(three_sites, clock="measured").model_copy(update={"runtime": runtime})
    observer = Observer(three_sites.build_world(), config, three_sites.ready())
    observer.learn_rebuild(0.4, time_s=0.0)
    assert observe(observer).rebuild_s == pytest.approx(0.4)


def test_under_the_modelled_clock_nothing_measured_counts_but_the_loss(make):
    observer = make("modelled")
    before = observe(observer)
    for round_, loss in ((1, 2.0), (2, 1.5)):
        reports = [report(0, round_, local_s=9.0), report(1, round_, local_s=3.0)]
        learn(observer, reports, exchange_s=50.0, loss=loss)
    observer.learn_rebuild(9.0, time_s=1.0)
    observer.learn_links(probed(1, rtt_s=0.3, bandwidth=5e5), time_s=1.0)
    after = observe(observer)
    assert after.throughput.tolist() == before.throughput.tolist()
    assert after.communication_correction == 1
    assert after.rebuild_s == 0.25
    assert after.up.tolist() == before.up.tolist()
    assert after.gains.tolist() == [0.5]


def test_the_star_needs_no_links_between_the_sites(make):
    seen = observe(make())
    assert (seen.exchange_model, seen.pair_rtt_s, seen.pair_bandwidth) == ("star", None, None)


@pytest.mark.parametrize("clock", ["measured", "modelled"])
def test_a_mesh_shows_links_between_all_sites(make, clock):
    observer = make(clock, selection={"exchange_model": "auto"})
    observer.learn_links(probed(1, rtt_s=0.3, bandwidth=5e5), time_s=0.0)
    seen = observe(observer)
    assert seen.exchange_model == "mesh"
    rome_rtt_s, rome_bandwidth = {
        "measured": ([0.3, 0, 0.3], [5e5, math.inf, 5e5]),
        "modelled": ([0.1, 0, 1.0], [1e6, math.inf, 1e6]),
    }[clock]
    np.testing.assert_allclose(seen.pair_rtt_s, [[0, 0.1, 0.2], rome_rtt_s, [0.2, 1, 0]])
    np.testing.assert_allclose(seen.pair_bandwidth[1], rome_bandwidth)
    assert type(seen).from_json(seen.to_json()).pair_rtt_s.tolist() == seen.pair_rtt_s.tolist()


@pytest.mark.parametrize(
    ("model", "modelled_s"),
    [
        # Two phases over the slowest pair, rome and oslo, with a third of the update.
        ("mesh", 2 * (0.5 + 1 / 6)),
        # Four steps, each as long as the slowest hop.
        ("ring", 4 * (0.5 + 1 / 6)),
    ],
)
def test_exchanges_are_compared_with_the_model_that_decisions_use(make, model, modelled_s):
    observer = make(selection={"exchange_model": model})
    learn(observer, [report(i) for i in (1, 2, 0)], exchange_s=3 * modelled_s)
    assert observe(observer).communication_correction == pytest.approx(3)


def test_what_utility_is_made_of_is_known(make):
    observer = make("modelled")
    assert np.isnan(observe(observer).loss_rms).all()
    learn(
        observer,
        [report(2, loss_rms=2.5, update_norm=7.0), report(0, loss_rms=0.5, update_norm=7.0)],
    )
    learn(observer, [report(2, loss_rms=1.5, update_norm=6.0)])
    seen = observe(observer)
    np.testing.assert_allclose(seen.loss_rms, [0.5, math.nan, 1.5])
    assert seen.update_norms.tolist() == [7, 6]
    assert seen.layer_norms.size == 0


@pytest.mark.parametrize("test", ["norm", "layers"])
def test_norms_of_layers_are_kept_as_far_back_as_they_are_read(make, test):
    critical = {"critical": {"test": test, "window": 2}}
    observer = make("modelled", selection={"cefl": critical})
    for i in range(7):
        learn(observer, [report(0, layer_norms=(i, 10 * i)), report(1)])
    kept = [[3, 30], [4, 40], [5, 50], [6, 60]] if test == "layers" else []
    assert observe(observer).layer_norms.tolist() == kept


def trial(*, before, after, half_a, half_b, count=10, part=1.0):
    """One member's share of a trial, with mean losses."""
    shares = {"before": before, "all": after, "half_a": half_a, "half_b": half_b}
    tallies = {k: Tally(correct=0, loss_sum=v * count, count=count) for k, v in shares.items()}
    return SimpleNamespace(part=part, **tallies)


def test_kappa_is_learned_from_the_trials_of_all_members_together(make):
    observer, estimator = make("modelled"), KappaEstimator(10.0)
    assert observe(observer).kappa == 10
    # Of 40 samples the losses are 2.0 before, 1.6 by all updates, and 1.7 and 1.8 by the halves.
    few = trial(before=2.3, after=1.9, half_a=2.0, half_b=2.1)
    many = trial(before=1.9, after=1.5, half_a=1.6, half_b=1.7, count=30)
    for _ in range(30):
        learn(observer, [report(0, trial=few), report(1, trial=many)])
        estimator.learn(2, 1.0, gain_part=0.25, gain_all=0.4)
    assert observe(observer).kappa == pytest.approx(estimator.kappa)
    # r = 5/8 for halves of one: kappa = 2 (1 - r) / (2 r - 1) = 3.
    assert observe(observer).kappa == pytest.approx(3, rel=0.1)


def test_trials_that_say_nothing_leave_kappa_as_it_is(make):
    told = trial(before=2.0, after=1.6, half_a=1.75, half_b=1.75)
    same = trial(before=2.0, after=2.0, half_a=2.0, half_b=2.0)
    nothing = trial(before=0, after=0, half_a=0, half_b=0, count=0)
    for observer, trials in (
        (make(), (None, None)),
        (make(selection={"learn_kappa": False}), (told, told)),
        (make(), (same, same)),
        (make(), (nothing, nothing)),
    ):
        for _ in range(30):
            learn(observer, [report(i, trial=trials[i]) for i in range(2)])
        assert observe(observer).kappa == 10


def test_power_so_far_goes_back_into_the_traces(make):
    lookahead = {"policy": "lookahead", "lookahead": {"season_s": 96.0}}
    seen = observe(make(selection=lookahead), 15.0)
    assert seen.history_step_s == 2
    assert seen.power_history.shape == (384, 3)
    # Every two seconds up to now; oslo has half its power from second 10 on, and its trace
    # begins with the run.
    assert seen.power_history[-4:, 2].tolist() == [500, 250, 250, 250]
    assert (seen.power_history[:-4] == [2000, 1000, 500]).all()
    assert observe(make(), 15.0).power_history.size == 0


def play(observer, rounds, *, seed=0, slow=None):
    """Rounds of three equal sites and their probes, with noise of 3 %; `slow` takes ten times."""
    rng = np.random.default_rng(seed)

    def noisy(value, what):
        return value * rng.lognormal(0, 0.03) * (10 if what == slow else 1)

    rtt_s = ((0, 0.1, 0.2), (0.1, 0, 0.15), (0.2, 0.15, 0))
    for _ in range(rounds):
        for i in range(3):
            measured = tuple(noisy(seconds, ("rtt", i)) for seconds in rtt_s[i])
            observer.learn_links(
                Probed(site=i, number=1, rtt_s=measured, bandwidth=(None,) * 3), time_s=1.0
            )
        reports = [report(i, local_s=noisy(1.0, ("step", i))) for i in range(3)]
        learn(observer, reports, exchange_s=noisy(1.3, "exchange"))


@pytest.mark.parametrize("slow", [("step", 1), ("step", 2), ("rtt", 2), "exchange"])
@pytest.mark.parametrize(
    "policy",
    [
        {"policy": "together", "kappa": 5.0, "h0": 30.0},
        {"policy": "powertrip", "kappa": 100.0, "patience": 1, "margin": 0.0},
    ],
)
@pytest.mark.parametrize("model", ["star", "mesh"])
@pytest.mark.parametrize("normal", [2, 3, 6])
def test_one_slow_outlier_does_not_change_a_decision_but_three_do(
    make, policy, slow, model, normal
):
    observer = make(selection=policy | {"exchange_model": model}, steps=(20,) * 3)
    policy = build_policy(observer._config.selection)

    def decision():
        return policy.decide(observe(observer, 1.0, members=(0, 1, 2), next_round=5))

    play(observer, normal)
    before = decision()
    about_as_long = pytest.approx(before.predicted_round_s, rel=0.25)
    assert set(before.members) == {0, 1, 2}
    play(observer, 1, seed=1, slow=slow)
    after = decision()
    assert (after.members, after.predicted_round_s) == (before.members, about_as_long)
    play(observer, 2, seed=2, slow=slow)
    last = decision()
    assert (last.members, last.predicted_round_s) != (before.members, about_as_long)


def test_measures_that_are_no_numbers_teach_nothing(make):
    observer = make(
        "measured", selection={"policy": "cefl", "cefl": {"critical": {"test": "layers"}}}
    )
    plain = {"update_norm": 2.0, "loss_rms": 3.0, "layer_norms": (1.0, 2.0)}
    learn(observer, [report(0, 1, **plain)], loss=2.0)
    for round_, odd in enumerate((math.nan, math.inf, 1e300), 2):
        spoilt = {"update_norm": odd, "loss_rms": odd, "layer_norms": (1.0, odd)}
        learn(observer, [report(0, round_, **spoilt)], loss=odd)
    state = observer.snapshot()
    json.dumps(state, allow_nan=False)
    assert state["update_norms"] == [2.0] * 4
    assert state["layer_norms"] == [[1.0, 2.0]]
    assert state["loss_rms"][0] == 3.0
    assert state["gains"] == []
    make("measured").restore(state)
