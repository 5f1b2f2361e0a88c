from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from powertrip.coordination.deciding import Decider
from powertrip.coordination.errors import SitesStalled
from powertrip.coordination.messages import Begin
from powertrip.coordination.observer import Observer
from powertrip.coordination.round_model import RoundModel
from powertrip.coordination.timekeeping import ModelledTime
from powertrip.exchange.settings import ExchangeSettings
from powertrip.simulation import timing as timing_module
from powertrip.simulation.errors import AllSitesGone, ModelOutOfReach
from powertrip.simulation.faults import Noise
from powertrip.simulation.settings import (
    DropoutSettings,
    NoiseSettings,
    SimulationSettings,
    TimingSettings,
)
from powertrip.simulation.timing import VirtualTime
from tests.coordination.test_observer import selecting

UPDATE_BYTES = 500_000
PLAIN = {"commit_round_trips": 0.0, "build_round_trips": 0.0}
EVERYONE = {0, 1, 2}


def begin(members, steps=None, *, deadline_s=None, generation=1, first_round=1) -> Begin:
    return Begin(
        generation=generation, members=members, steps=steps, deadline_s=deadline_s,
        first_round=first_round, clock_s=0.0, transfers=(),
    )  # fmt: skip


def simulating(setup, *, model="star", timing=None, noise=None, dropouts=None, **selection):
    """The configuration with settings of the simulation, plain where nothing is said."""
    simulation = SimulationSettings(
        timing=TimingSettings(**PLAIN | (timing or {})),
        noise=NoiseSettings(**noise or {}),
        dropouts=DropoutSettings(**dropouts or {}),
    )
    config = selecting(setup, exchange_model=model, **selection)
    return config.model_copy(update={"simulation": simulation})


@pytest.fixture
def make(three_sites):
    def make(*, join_bytes=1_000_000, packing_s=0.0, exchange=None, **changes) -> VirtualTime:
        config, world = simulating(three_sites, **changes), three_sites.build_world()
        config = config.model_copy(update={"exchange": ExchangeSettings(**exchange or {})})
        model = RoundModel(world, config, update_bytes=UPDATE_BYTES)
        return VirtualTime(config, world, model, join_bytes=join_bytes, packing_s=packing_s)

    return make


def play(clock, work, round_=1, holders=EVERYONE):
    """Play a round and move on to its end."""
    played = clock.play(work, round_, holders)
    return played, clock.account(work, [])


def lasting(clock, seconds):
    """Let a first round of so many seconds pass: paris alone, 100 samples a second."""
    played, _ = play(clock, begin((0,), (round(seconds * 10),)))
    return played.end_s


@pytest.mark.parametrize(
    ("model", "end_s", "own_s", "exchange_s"),
    [
        # Paris trains 0.4 s and needs 0.05, rome 0.8 and 1.1, oslo 1.6 and 0.95.
        ("star", 1.6 + 0.95, 1.1, 0.95),
        # Two steps, each half the longest round trip and a third of the update.
        ("mesh", 1.6 + 2 * (0.5 + 1 / 6), 2 * (0.5 + 1 / 6), 2 * (0.5 + 1 / 6)),
        # Four steps, each as long as the slowest hop.
        ("ring", 1.6 + 4 * (0.5 + 1 / 6), 4 * (0.5 + 1 / 6), 4 * (0.5 + 1 / 6)),
    ],
)
def test_a_round_by_hand(make, model, end_s, own_s, exchange_s):
    clock = make(model=model)
    played, account = play(clock, begin((0, 1, 2), (4, 4, 4)))
    assert (played.members, played.steps, played.failed) == ((0, 1, 2), (4, 4, 4), ())
    assert played.local_s == account.local_s == pytest.approx((0.4, 0.8, 1.6))
    assert (account.start_s, account.idle_s) == (0, 0)
    assert account.end_s == clock.now_s() == pytest.approx(end_s)
    # In the star the exchange counts from where the slowest has trained, as ModelledTime has it;
    # by itself it is as long as that of the farthest.
    assert account.times.exchange_s == pytest.approx(exchange_s)
    assert account.exchange_s == pytest.approx(own_s)
    assert account.times.local_s == pytest.approx(1.6)
    assert (account.times.rebuild_s, account.times.evaluation_s) == (0, 0)


OVERLAP = {"overlap": True}
LONG, SHORT = begin((0, 1, 2), (4, 4, 4)), begin((0, 1, 2), (1, 1, 1))


def test_with_overlap_a_round_waits_for_the_exchange_before_it_in_a_star(make):
    clock = make(exchange=OVERLAP)
    ends_s, exchanged_s, adds_s = [], [], []
    for round_, work in enumerate((LONG, LONG, SHORT, SHORT), start=1):
        played, account = play(clock, work, round_)
        ends_s.append(account.end_s)
        exchanged_s.append(played.exchanged_s)
        adds_s.append(account.times.exchange_s)
        assert account.exchange_s == pytest.approx(1.1)
    # Training takes 0.4, 0.8 and 1.6 s, then 0.1, 0.2 and 0.4; exchanges 0.05, 1.1 and 0.95. The
    # third round waits for that of oslo, which has begun with the end of the second.
    assert ends_s == pytest.approx([1.6, 3.2, 3.2 + 0.95, 4.15 + 0.95])
    assert adds_s == pytest.approx([0, 0, 0.95 - 0.4, 0.95 - 0.4])
    assert exchanged_s[0] == pytest.approx((0.4 + 0.05, 0.8 + 1.1, 1.6 + 0.95))
    # Rome is ready 0.2 s after 3.2, but its exchange of the round before ends 0.3 s after it.
    assert exchanged_s[2] == pytest.approx((3.3 + 0.05, 3.5 + 1.1, 4.15 + 0.95))


def test_with_overlap_the_exchange_of_a_mesh_begins_with_the_next_round(make):
    clock, takes_s = make(model="mesh", exchange=OVERLAP), 4 / 3
    _, first = play(clock, LONG)
    assert first.end_s == pytest.approx(1.6)
    _, second = play(clock, SHORT, 2)
    assert second.end_s == pytest.approx(1.6 + takes_s)
    assert second.times.exchange_s == pytest.approx(takes_s - 0.4)
    # It is waited for by those who go on without its members, too.
    _, third = play(clock, begin((0,), (1,)), 3)
    assert third.end_s == pytest.approx(1.6 + 2 * takes_s)
    _, fourth = play(clock, LONG, 4)
    assert fourth.end_s == pytest.approx(third.end_s + 1.6)


def test_with_overlap_who_notices_a_failure_exchanges_later(make, gone):
    gone({1: [(0.5, 60.0)]})
    clock = make(model="mesh", exchange=OVERLAP, dropouts={"notice_s": 0.5})
    played, _ = play(clock, LONG)
    assert played.end_s == pytest.approx(1.6 + 0.5)
    # Two phases of half a round trip of 0.2 s and half an update.
    assert played.exchanged_s == pytest.approx((2.1 + 0.7, 2.1 + 0.7))


@pytest.mark.parametrize(
    ("exchange", "waits_s"), [({}, 0.0), (OVERLAP, 1.1), ({"codec": "int8"}, 1.1)]
)
def test_a_newcomer_waits_for_the_hub_where_no_round_holds_the_way(make, exchange, waits_s):
    played, _ = play(make(exchange=exchange), begin((0, 1), (1, 1)), 2, holders={0, 2})
    assert played.rebuild_s == pytest.approx(waits_s)  # 0.1 s and a megabyte


def test_packing_is_a_part_of_every_exchange(make):
    for model in ("star", "mesh"):
        plain, packing = make(model=model), make(model=model, packing_s=0.25)
        ends_s = [play(clock, LONG)[1].end_s for clock in (plain, packing)]
        assert ends_s[1] == pytest.approx(ends_s[0] + 0.25)
    alone, _ = play(make(model="mesh", packing_s=0.25), begin((0,), (1,)))
    assert alone.end_s == pytest.approx(0.1)


def test_one_round_begins_where_the_other_has_ended(make):
    clock, work = make(model="mesh"), begin((0, 1), (4, 4))
    _, first = play(clock, work)
    _, second = play(clock, work, 2)
    assert first.end_s == second.start_s == pytest.approx(0.8 + 0.6)
    assert second.end_s == pytest.approx(2 * 1.4)


def test_one_member_exchanges_with_nobody_but_the_hub_of_a_star(make):
    for model, seconds in (("mesh", 0.0), ("ring", 0.0), ("star", 1.1)):
        _, account = play(make(model=model), begin((1,), (4,)))
        assert account.times.exchange_s == account.exchange_s == pytest.approx(seconds)
        assert account.end_s == pytest.approx(0.8 + seconds)


def test_power_that_changes_within_the_round_counts_from_there_on(make):
    clock = make(model="mesh")
    start_s = lasting(clock, 9.0)
    played, account = play(clock, begin((2,), (5,)), 2)
    # oslo does 25 samples in the second that is left until second 10, and then 12.5 a second.
    assert played.local_s == pytest.approx((1 + 25 / 12.5,))
    assert account.end_s == pytest.approx(start_s + 3.0)


def test_a_deadline_cuts_the_training_to_whole_steps(make):
    clock = make()
    played, account = play(clock, begin((0, 1, 2), deadline_s=(1.05, 0.99, 0.1)))
    # Steps take 0.1, 0.2 and 0.4 s; one is done in any case.
    assert played.steps == (10, 4, 1)
    assert played.local_s == pytest.approx((1.0, 0.8, 0.4))
    assert account.end_s == pytest.approx(0.8 + 1.1)


def test_a_deadline_counts_from_where_the_training_begins_and_at_the_power_then(make):
    clock = make(model="mesh")
    lasting(clock, 8.0)
    # The newcomer waits for a megabyte and a round trip from paris: it trains from 9.2 s on.
    played, _ = play(clock, begin((0, 2), deadline_s=(2.8, 2.8)), 2, holders={0})
    assert played.rebuild_s == pytest.approx(1.2)
    # 25 samples a second until second 10, 12.5 until second 12: 20 + 25, four steps.
    assert played.steps == (28, 4)
    assert played.local_s == pytest.approx((2.8, 0.8 + 20 / 12.5))


def test_who_is_slower_than_modelled_does_less_by_its_deadline_and_takes_longer_for_steps(make):
    half = {"timing": {"speed": 0.5}}
    assert play(make(**half), begin((0,), deadline_s=(1.0,)))[0].steps == (5,)
    assert play(make(**half), begin((0,), (4,)))[0].local_s == pytest.approx((0.8,))


def test_a_member_without_power_stalls_the_round_by_name(make):
    clock = make()
    lasting(clock, 20.5)
    now_s = clock.now_s()
    with pytest.raises(SitesStalled, match="round 2 never ends by the model: the power of oslo"):
        clock.play(begin((0, 2), (1, 1)), 2, EVERYONE)
    assert clock.now_s() == now_s


@pytest.mark.parametrize(
    ("model", "end_s", "exchange_s"),
    # The star's exchange ends with rome: 0.8 s and twice 1.1 s and 0.25 s; the mesh's is 0.6 s.
    [("star", 0.8 + 2.45 + 0.5, 2.45 + 0.5), ("mesh", 0.8 + 1.45 + 0.5, 1.45)],
)
def test_what_a_real_run_has_beyond_the_model(make, model, end_s, exchange_s):
    clock = make(model=model, timing={"exchange": 2, "exchange_s": 0.25, "round_s": 0.5})
    played, account = play(clock, begin((0, 1), (4, 4)))
    assert account.end_s == pytest.approx(end_s)
    assert account.times.exchange_s == pytest.approx(exchange_s)
    assert played.exchange_s == pytest.approx({"star": 2.45, "mesh": 1.45}[model])


@pytest.mark.parametrize(("steps", "ready_s"), [((1, 1), 0.3), ((1, 4), 0.8)])
def test_no_exchange_begins_before_the_commit_of_the_round_before(make, steps, ready_s):
    """Three round trips to the hub: 0.3 s for rome, which is behind the training or is not."""
    clock, work = make(model="mesh", timing={"commit_round_trips": 3}), begin((0, 1), steps)
    _, first = play(clock, work)
    assert first.end_s == pytest.approx(0.2 * steps[1] + 0.6)  # nothing comes before the first
    played, second = play(clock, work, 2)
    assert second.end_s - second.start_s == pytest.approx(ready_s + 0.6)
    assert played.local_s == pytest.approx(first.local_s)
    assert second.times.exchange_s == pytest.approx(0.6)


def test_the_commit_is_on_its_way_while_newcomers_wait_for_the_model(make):
    clock = make(model="mesh", timing={"commit_round_trips": 14})
    lasting(clock, 1.0)
    # Rome reads the commit 1.4 s after the round's end. The model takes 1.1 s of it, a step 0.2.
    played, account = play(clock, begin((0, 1), (1, 1)), 2, holders={0})
    assert played.trains_s == pytest.approx(1.0 + 1.1)
    assert account.end_s == pytest.approx(1.0 + 1.4 + 0.6)


@pytest.mark.parametrize(
    ("before_s", "rebuild_s"),
    # Rome and oslo are 1 s apart, and six round trips between them take 6 s.
    [(7.0, 0.0), (4.0, 2.0)],
)
def test_a_group_is_built_behind_the_round_before(make, before_s, rebuild_s):
    clock = make(model="mesh", timing={"build_round_trips": 6})
    lasting(clock, before_s)
    clock.announce(2, rebuild=True, meanwhile=None, round_=1)
    work = begin((1, 2), (1, 1), generation=2, first_round=2)
    played, account = play(clock, work, 2)
    assert played.rebuild_s == account.times.rebuild_s == pytest.approx(rebuild_s)
    assert account.end_s == pytest.approx(before_s + rebuild_s + 0.4 + 2 * (0.5 + 0.25))
    assert play(clock, work, 3)[0].rebuild_s == 0


def test_the_first_group_is_waited_for_and_one_that_stays_is_not_built(make):
    clock = make(model="mesh", timing={"build_round_trips": 6})
    clock.announce(1, rebuild=True, meanwhile=None, round_=0)
    assert play(clock, begin((0, 1), (1, 1)))[0].rebuild_s == pytest.approx(0.6)
    clock.announce(2, rebuild=False, meanwhile=None, round_=1)
    same = begin((1, 2), (1, 1), generation=2, first_round=2)
    assert play(clock, same, 2)[0].rebuild_s == 0


def test_in_a_star_a_group_is_built_around_the_hub(make):
    clock = make(timing={"build_round_trips": 6})
    clock.announce(1, rebuild=True, meanwhile=None, round_=0)
    assert play(clock, begin((1, 2), (1, 1)))[0].rebuild_s == pytest.approx(1.2)


def test_newcomers_wait_for_the_model_in_a_mesh_and_not_in_a_star(make):
    work = begin((0, 1, 2), (1, 1, 1))
    for model, holders, seconds in (
        ("star", {0}, 0.0),
        # A megabyte and a round trip each, one after the other from paris, to rome and to oslo.
        ("mesh", {0}, 1.1 + 1.2),
        ("ring", {0}, 1.1 + 1.2),
        # At once from two of them.
        ("mesh", {0, 1}, 1.2),
        # 2 MB/s from oslo to paris, 1 MB/s and 1 s to rome.
        ("mesh", {2}, (0.2 + 0.5) + (1.0 + 1.0)),
    ):
        clock = make(model=model)
        lasting(clock, 1.0)
        played, account = play(clock, work, 2, holders)
        assert played.rebuild_s == account.times.rebuild_s == pytest.approx(seconds)
        assert played.newcomers == tuple(site for site in (0, 1, 2) if site not in holders)


def test_one_who_leaves_hands_the_model_over_where_nobody_stays(make):
    clock = make(model="mesh")
    lasting(clock, 1.0)
    played, _ = play(clock, begin((0, 1), (1, 1)), 2, holders={2})
    assert played.rebuild_s == pytest.approx((0.2 + 0.5) + (1.0 + 1.0))


def test_a_newcomer_without_a_link_to_the_model_ends_the_run(three_sites):
    config, world = simulating(three_sites, model="mesh"), three_sites.build_world()
    apart = np.array(world.bandwidth)
    apart[2, 1] = 0
    unlinked = SimpleNamespace(
        names=world.names, star=world.star, seconds_for=world.seconds_for,
        samples_done=world.samples_done, rtt_s=world.rtt_s, bandwidth=apart,
    )  # fmt: skip
    model = RoundModel(world, config, update_bytes=UPDATE_BYTES)
    clock = VirtualTime(config, unlinked, model, join_bytes=1000)
    with pytest.raises(ModelOutOfReach, match="rome is to receive the model from oslo"):
        clock.play(begin((0, 1), (1, 1)), 2, {2})


def test_stragglers_and_noise_are_those_of_the_round(make, three_sites):
    noise = {"speed": 0.3, "exchange": 0.2, "straggler_share": 0.5, "straggler_slowdown": 4.0}
    drawn = Noise(NoiseSettings(**noise), seed=three_sites.config.seed, sites=3)
    clock, work = make(model="mesh", noise=noise), begin((2, 0), (2, 4))
    for round_ in (1, 2, 3):
        played, account = play(clock, work, round_)
        slow = drawn.slowdown(round_)
        assert played.local_s == pytest.approx((0.8 * slow[2], 0.4 * slow[0]))
        assert account.times.exchange_s == pytest.approx(0.7 * drawn.exchange(round_))
        assert account.end_s - account.start_s == pytest.approx(
            max(played.local_s) + account.times.exchange_s
        )


def test_a_member_that_fails_is_done_without_and_costs_the_notice(make, gone):
    gone({2: [(1.0, 9.0)]})
    clock = make(model="mesh", dropouts={"notice_s": 5.0})
    played, account = play(clock, begin((2, 0, 1), (4, 4, 4)))
    # oslo would have trained until 1.6 s, and all three have exchanged for 4/3 s.
    assert (played.members, played.failed, played.steps) == ((0, 1), (2,), (4, 4))
    assert account.local_s == pytest.approx((0.4, 0.8))
    assert account.end_s == pytest.approx(1.6 + 4 / 3 + 5)
    assert account.exchange_s == account.times.exchange_s == pytest.approx(0.6)


def test_a_member_that_fails_in_the_last_moment_fails(make, gone):
    gone({1: [(1.4, 2.0)]})
    played, _ = play(make(model="mesh"), begin((0, 1), (4, 4)))
    assert (played.members, played.failed) == ((0,), (1,))
    gone({1: [(1.4 + 1e-6, 2.0)]})
    played, _ = play(make(model="mesh"), begin((0, 1), (4, 4)))
    assert (played.members, played.failed) == ((0, 1), ())


def test_a_member_that_is_gone_at_the_start_is_skipped_without_notice(make, gone):
    gone({2: [(0.0, 2.0)]})
    clock = make(model="mesh")
    work = begin((2, 0, 1), (4, 4, 4))
    played, account = play(clock, work)
    assert (played.members, played.failed, played.newcomers) == ((0, 1), (2,), ())
    assert account.end_s == pytest.approx(1.4)
    # When it is back it takes the model from one of the others.
    played, account = play(clock, work, 2, {0, 1})
    assert (played.members, played.failed) == ((0, 1), (2,))
    played, account = play(clock, work, 3, {0, 1})
    assert (played.members, played.newcomers) == ((2, 0, 1), (2,))
    assert account.times.rebuild_s == pytest.approx(0.2 + 1.0)


def test_the_hub_s_site_gets_the_model_again_from_another(make, gone):
    gone({0: [(0.0, 1.0)]})
    clock, work = make(model="mesh"), begin((0, 1), (4, 4))
    play(clock, work)
    while clock.now_s() < 1.0:
        play(clock, work, 2, {1})
    played, _ = play(clock, work, 3, {1})
    assert played.newcomers == (0,)
    assert played.rebuild_s == pytest.approx(0.1 + 1.0)


def test_where_all_are_gone_the_first_one_back_begins(make, gone):
    gone({0: [(0.0, 12.0)], 1: [(0.0, 11.0)], 2: [(0.0, 3.0)]})
    clock = make(model="mesh")
    played, account = play(clock, begin((0, 1), (4, 4)))
    # oslo is back at 3 s, but it is no member.
    assert (played.members, played.failed, played.start_s) == ((1,), (0,), 11.0)
    assert (account.start_s, account.idle_s, account.trains_s) == (0.0, 11.0, 11.0)
    assert account.end_s == pytest.approx(11.8)


def test_where_all_fail_in_a_round_who_comes_back_does_it_again(make, gone):
    gone({0: [(0.2, 6.0)], 1: [(0.3, 4.0)]})
    clock = make(model="mesh", dropouts={"notice_s": 5.0})
    played, account = play(clock, begin((0, 1), (4, 4)))
    assert (played.members, played.failed, played.start_s) == ((1,), (0,), 4.0)
    assert (account.idle_s, account.end_s) == (4.0, pytest.approx(4.8))


def test_who_has_done_its_part_waits_for_the_others_before_it_fails(make, gone):
    """Oslo fails at 0.2 s. Paris, which needs 0.4 s alone, only after that, but before 1.6 s."""
    gone({0: [(1.5, 3.0)], 2: [(0.2, 9.0)]})
    played, account = play(make(model="mesh"), begin((0, 2), (4, 4)))
    assert (played.members, played.start_s) == ((0,), 3.0)
    assert account.end_s == pytest.approx(3.4)


def test_a_lone_member_does_its_round_again(make, gone):
    gone({0: [(0.5, 2.0), (2.5, 3.0)]})
    played, account = play(make(model="mesh"), begin((0,), (10,)))
    assert (played.members, played.failed, played.start_s) == ((0,), (), 3.0)
    assert account.end_s == pytest.approx(4.0)


def test_members_that_never_stay_end_the_run(make):
    clock = make(dropouts={"every_s": 0.01, "lasts_s": 0.01})
    with pytest.raises(AllSitesGone, match=r"round 1: by .* s no member has ever stayed"):
        clock.play(begin((0,), (40,)), 1, EVERYONE)


def follow(setup, config, clock_of, rounds):
    """Decide, and let rounds pass, as `Course` does; the accounts and what was decided."""
    world = setup.build_world()
    observer = Observer(world, config, setup.ready())
    clock = clock_of(observer, world)
    decider = Decider(config, world, observer, clock)
    current = following = decider.first(EVERYONE)
    accounts, decided, holders = [], [current], EVERYONE
    for round_ in range(1, rounds + 1):
        reports = [
            SimpleNamespace(
                site=site, round=round_, samples=100, local_s=1.0, evaluation_s=0.0, loss_rms=1.0,
                update_norm=1.0, layer_norms=(), trial=None, rejected=None,
            )
            for site in current.begin.members
        ]  # fmt: skip
        if isinstance(clock, VirtualTime):
            played = clock.play(current.begin, round_, holders)
            assert played.newcomers == () or observer.round_model.exchange_model == "star"
            holders = set(played.members)
        accounts.append(clock.account(current.begin, reports))
        observer.learn_round(
            accounts[-1].trains_s, reports, accounts[-1].exchange_s, None, time_s=clock.now_s()
        )
        current = following
        after_next = decider.ahead(round_ + 2, following)
        if after_next is not None:
            following = after_next
            decided.append(after_next)
    return accounts, decided


@pytest.mark.parametrize("model", ["star", "ring", "mesh"])
@pytest.mark.parametrize(
    ("policy", "rounds"),
    [("all", 12), ("powertrip", 12), ("static-k", 12), ("random-k", 12), ("oort", 12),
     ("fixed-radius", 12), ("together", 3)],
)  # fmt: skip
def test_a_plain_simulation_takes_as_long_as_the_model_says(three_sites, model, policy, rounds):
    oslo = "time_s,site,watts\n0,oslo,500\n10,oslo,250\n40,oslo,400\n99,oslo,400\n"
    (three_sites.base_dir / "oslo.csv").write_text(oslo)
    changing = policy in ("random-k", "oort")
    k = 3 if changing and model != "star" else 2  # where newcomers cost time, the model is without
    # One member by itself exchanges nothing, for which the model has the shortest delay.
    config = simulating(
        three_sites, model=model, policy=policy, k=k, adjustment_interval=2, min_delay_s=1e-6
    )
    config = config.model_copy(
        update={"runtime": config.runtime.model_copy(update={"rebuild_s": 0.0})}
    )

    def virtual(observer, world):
        return VirtualTime(config, world, observer.round_model, join_bytes=1)

    modelled = follow(three_sites, config, lambda observer, world: ModelledTime(observer), rounds)
    simulated = follow(three_sites, config, virtual, rounds)
    for expected, account in zip(modelled[0], simulated[0], strict=True):
        assert account.end_s == pytest.approx(expected.end_s, abs=2e-5)
        assert account.times.local_s + account.times.exchange_s == pytest.approx(
            expected.times.local_s + expected.times.exchange_s, abs=2e-5
        )
    as_made = [
        [(g.begin.members, g.begin.steps, g.begin.first_round, g.rebuild, g.decision.reason)
         for g in decided]
        for _, decided in (modelled, simulated)
    ]  # fmt: skip
    assert as_made[0] == as_made[1]
    assert len(as_made[0]) >= rounds // 2


def test_the_schedule_of_failures_is_the_simulation_s_own(make):
    """Without a stand-in the clock has the outages of its settings."""
    clock = make(dropouts={"every_s": 5.0, "lasts_s": 5.0})
    assert isinstance(clock._outages, timing_module.Outages)
    lasting(clock, 18.0)
    assert clock.gone().tolist() == clock._outages.gone(clock.now_s()).tolist()
