from __future__ import annotations

import math

import numpy as np
import pytest

from powertrip.selection import Decision, SelectionSettings, Work, build_policy


def decide(observation, **options):
    plain = {"policy": "powertrip", "projector": "log"}
    return build_policy(SelectionSettings(**plain | options)).decide(observation)


def follow(observation, decisions, **options):
    """Decide again and again in an unchanging world."""
    made = []
    for generation in range(decisions):
        made.append(decide(observation, **options))
        observation = observation.replace(
            generation=generation + 1, members=made[-1].members, previous=made[-1]
        )
    return made


def counts(decisions):
    return [len(made.members) for made in decisions]


def equal(observe, n, **fields):
    """Equal sites, each with a round of 2 s."""
    return observe(throughput=[100.0 + i * 1e-6 for i in range(n)], delay_s=[0.01] * n, **fields)


def test_efficiency_by_hand(observe):
    # own rounds 2.5, 4.25, 4.5; members 0 and 1; R 4; rebuild 1 s
    seen = observe(
        throughput=[100.0, 50.0, 200.0],
        delay_s=[0.5, 0.25, 3.5],
        members=(1, 0),
        gains=[0.2, 0.2],
        rebuild_s=1.0,
    )
    table = decide(seen).candidates
    assert [line.k for line in table] == [1, 2, 3]
    assert [line.switch_s for line in table] == [1.0, 0.0, 1.0]
    assert [line.round_s for line in table] == pytest.approx([2.5, 4.25, 4.5])
    gain = [0.2 * (k / 2) * math.log(3) / math.log(1 + k) for k in (1, 2, 3)]
    assert [line.gain for line in table] == pytest.approx(gain)
    efficiency = [4 * gain[0] / 11, 4 * gain[1] / 17, 4 * gain[2] / 19]
    assert [line.efficiency for line in table] == pytest.approx(efficiency)


def test_efficiency_under_an_objective_by_hand(observe):
    # two sites of 2 s and 4 s of computing, 0.5 s and 1 s of exchange, drawing 100 and 300 W
    seen = observe(
        throughput=[100.0, 50.0],
        delay_s=[0.5, 1.0],
        used_power_w=[100.0, 300.0],
        members=(0,),
        gains=[0.2],
        rebuild_s=1.0,
        kappa=1.0,
    )
    made = decide(seen, projector="saturating", objective={"time": 1, "energy": 3})
    # one: 10 s and 800 J for four rounds of 0.2; two: 21 s and 6400 J, gain 0.2 (2/3) / (1/2)
    efficiency = [0.8 / (10**0.25 * 800**0.75), 0.8 * 4 / 3 / (21**0.25 * 6400**0.75)]
    assert [line.efficiency for line in made.candidates] == pytest.approx(efficiency)


def test_starts_with_a_quarter_and_at_least_two(observe):
    assert counts([decide(equal(observe, n)) for n in (1, 2, 8, 12, 40)]) == [1, 2, 2, 3, 10]
    made = decide(equal(observe, 8), initial_count=5)
    assert len(made.members) == 5
    assert made.reason == "start with 5 of 8 usable sites"
    assert len(decide(equal(observe, 3), initial_count=5).members) == 3


def test_grows_to_all_where_sites_are_equal(observe):
    made = follow(equal(observe, 6), 6, patience=1, window=1)
    assert counts(made) == [2, 3, 4, 5, 6, 6]
    # ln(3) 3 / (2 ln(4)) - 1 = 18.9 %
    assert made[1].reason == "grow 2 -> 3: +18.9 % efficiency over staying (margin 3 %)"
    assert made[-1].reason == "stay at 6: the most efficient count near it"


def test_shrinks_away_from_slow_sites_as_far_as_the_window_sees(observe):
    seen = observe(
        throughput=[100.0, 99.0, 10.0, 9.0, 8.0], delay_s=[0.01] * 5, members=(0, 1, 2, 3, 4)
    )
    made = follow(seen, 3, patience=1, window=3)
    assert made[0].members == (0, 1)
    assert made[0].reason.startswith("shrink 5 -> 2: +")
    assert counts(made) == [2, 2, 2]
    # one less slow site gains 0.2 %: a window of 1 does not see past that
    assert counts(follow(seen, 3, patience=1, window=1)) == [5, 5, 5]


def test_patience_waits_for_the_same_move_and_then_starts_over(observe):
    made = follow(equal(observe, 8), 7, patience=3, window=1)
    assert counts(made) == [2, 2, 2, 3, 3, 3, 4]
    assert [d.streak for d in made] == [0, 1, 2, 0, 1, 2, 0]
    assert made[1].reason == "stay at 2: 3 is +18.9 % more efficient, seen in 1 of 3 decisions"


def test_an_opposite_move_starts_a_new_streak(observe):
    wants_more = equal(observe, 3, members=(2, 1))
    first = decide(wants_more, patience=3, window=1)
    wants_less = observe(
        throughput=[1.0, 10.0, 100.0], delay_s=[0.01] * 3, members=(2, 1), previous=first
    )
    second = decide(wants_less, patience=3, window=1)
    assert (first.streak, second.streak) == (1, -1)
    third = decide(wants_less.replace(previous=second), patience=3, window=1)
    assert third.streak == -2
    last = decide(wants_less.replace(previous=third), patience=3, window=1)
    assert (last.members, last.streak) == ((2,), 0)
    assert last.reason.startswith("shrink 2 -> 1")


def test_a_pause_ends_the_streak(observe):
    wants_more = equal(observe, 3, members=(2, 1))
    first = decide(wants_more, patience=2, window=1)
    content = observe(
        throughput=[10.0, 99.0, 100.0], delay_s=[0.01] * 3, members=(2, 1), previous=first
    )
    second = decide(content, patience=2, window=1)
    assert (first.streak, second.streak) == (1, 0)
    assert decide(wants_more.replace(previous=second), patience=2, window=1).streak == 1


def test_the_streak_of_another_policy_does_not_count(observe):
    previous = Decision(
        generation=0,
        policy="together",
        members=(2, 1),
        work=Work(steps=(1, 1)),
        rounds=4,
        predicted_round_s=1.0,
        candidates=(),
        reason="",
        streak=5,
    )
    seen = equal(observe, 3, members=(2, 1), previous=previous)
    assert decide(seen, patience=2).streak == 1


def test_small_advantages_do_not_move(observe):
    seen = equal(observe, 3, members=(2, 1))
    made = decide(seen, patience=1, margin=0.2)
    assert len(made.members) == 2
    assert made.streak == 0
    assert made.reason == "stay at 2: 3 is only +18.9 % more efficient (margin 20 %)"
    assert len(decide(seen, patience=1, margin=0.18).members) == 3


def test_the_rebuild_is_weighed_against_the_interval(observe):
    seen = equal(observe, 3, members=(2, 1), rebuild_s=1.0)
    # a round of 2.01 s: growing pays 18.9 % and costs 1 s of R rounds
    assert len(decide(seen.replace(interval_rounds=20), patience=1).members) == 3
    assert len(decide(seen.replace(interval_rounds=2), patience=1).members) == 2


def test_members_keep_their_seats_unless_clearly_outranked(observe):
    def seen(speed):
        return observe(
            throughput=[100.0, 90.0, speed, 1.0], delay_s=[0.01] * 4, members=(0, 1), rebuild_s=0.1
        )

    assert decide(seen(95.0)).members == (0, 1)
    made = decide(seen(105.0), seat_margin=0.1)
    assert made.members == (0, 2)
    assert made.reason.endswith("; site 2 in for site 1")
    stay = next(line for line in made.candidates if line.k == 2)
    assert stay.switch_s == 0.1


def test_a_lost_member_is_replaced_at_once(observe):
    seen = observe(
        throughput=[100.0, 99.0, 0.0, 98.0], delay_s=[0.01] * 4, members=(0, 1, 2), rebuild_s=0.1
    )
    made = decide(seen, patience=5)
    assert made.members == (0, 1, 3)
    assert made.reason.endswith("; site 2 lost power or link")
    unreachable = seen.replace(
        throughput=[100.0, 99.0, 100.0, 98.0],
        power_w=[1.0] * 4,
        reachable=[True, True, False, True],
    )
    assert decide(unreachable, patience=5).members == (0, 1, 3)


def test_a_lost_seat_is_not_filled_with_a_site_that_slows_all(observe):
    seen = observe(
        throughput=[100.0, 99.0, 0.0, 5.0], delay_s=[0.01] * 4, members=(0, 1, 2), rebuild_s=0.1
    )
    made = decide(seen, patience=5)
    assert made.members == (0, 1)
    assert made.reason.startswith("shrink 3 -> 2")
    assert made.streak == 0


def test_all_members_lost_starts_anew(observe):
    seen = observe(throughput=[0.0, 0.0, 0.0, 7.0, 8.0, 9.0], delay_s=[0.01] * 6, members=(0, 1, 2))
    made = decide(seen, initial_count=2, patience=5)
    assert made.members == (5, 4)
    assert made.reason == (
        "all members lost power or link (site 0, site 1, site 2): start with 2 of 3 usable sites"
    )


def test_ranks_again_even_where_the_count_stays(observe):
    before = observe(throughput=[100.0, 90.0, 10.0], delay_s=[0.01] * 3, members=(0, 1))
    after = observe(throughput=[100.0, 10.0, 90.0], delay_s=[0.01] * 3, members=(0, 1))
    assert set(decide(before).members) == {0, 1}
    assert set(decide(after).members) == {0, 2}


def test_bounds(observe):
    seen = observe(throughput=[100.0, 1.0, 0.9, 0.8], delay_s=[0.01] * 4, members=(0, 1, 2))
    assert len(decide(seen, patience=1, window=9).members) == 1
    assert len(decide(seen, patience=1, window=9, min_members=3).members) == 3
    assert len(decide(seen.replace(members=(0,)), min_members=2).members) == 2
    table = decide(equal(observe, 30, members=tuple(range(10))), window=3).candidates
    assert [line.k for line in table] == list(range(7, 14))


def test_without_a_window_the_neighbourhood_goes_from_half_to_twice_the_members(observe):
    def weighed(members, n=1000, **options):
        seen = equal(observe, n, members=tuple(range(members)))
        return [line.k for line in decide(seen, **options).candidates]

    assert weighed(1) == [1, 2, 3]
    assert weighed(2) == [1, 2, 3, 4]
    assert weighed(5, n=6) == [3, 4, 5, 6]
    assert weighed(10, min_members=8) == list(range(8, 21))
    wide = weighed(400)
    assert (wide[0], wide[-1]) == (200, 800)
    assert set(range(390, 411)) <= set(wide)
    changes = np.array([k - 400 for k in wide if k > 400])
    assert (changes[1:] <= np.maximum(changes[:-1] + 1, 1.1 * changes[:-1] + 1)).all()
    assert len(wide) < 120


def test_from_few_or_many_it_finds_its_way_where_no_small_move_is_worth_the_margin(observe):
    # Rounds of 0.5 s + 0.03 s k: k/(k+20) over that is best at sqrt(20 * 0.5 / 0.03) = 18.3. At 100
    # two fewer are worth 1.4 %; at 25, eighteen are worth 2.5 %.
    own_s = 0.5 + 0.03 * np.arange(1, 101)
    seen = observe(
        throughput=200 / (own_s - 0.01),
        delay_s=[0.01] * 100,
        kappa=20.0,
        members=tuple(range(100)),
    )
    options = {"projector": "saturating", "patience": 1}
    assert counts(follow(seen, 4, **options)) == [50, 25, 25, 25]
    assert counts(follow(seen, 4, **options, window=2)) == [100] * 4
    assert counts(follow(seen.replace(members=(0, 1)), 8, **options))[-1] in range(13, 26)


def test_free_communication_among_equals_takes_all_and_a_huge_update_takes_one(observe):
    n = 8
    free = equal(observe, n)
    assert counts(follow(free, 6, patience=1))[-1] == n
    hub_bandwidth = np.r_[np.inf, np.full(n - 1, 1e6)]
    huge = observe(
        throughput=np.linspace(100, 101, n),
        rtt_s=np.r_[0, np.full(n - 1, 0.1)],
        up=hub_bandwidth,
        down=hub_bandwidth,
        update_bytes=10**12,
    )
    made = follow(huge, 6, patience=1, initial_count=3)
    assert made[-1].members == (0,)


def test_pooled_work_goes_by_speed(observe):
    seen = observe(throughput=[300.0, 100.0], delay_s=[0.5, 0.25])
    made = decide(seen, work="pooled")
    assert dict(zip(made.members, made.work.steps, strict=True)) == {0: 30, 1: 10}
    assert made.predicted_round_s == pytest.approx(1.5)
