from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.engines.shaper import UNLIMITED_QUEUE_BYTES, Shaper
from netem.plan import Link

FRAME = b"frame"


def arrivals(shaper: Shaper) -> list[float]:
    return [one.arrives_s for one in shaper.held]


def take_all(shaper: Shaper) -> None:
    while shaper.held:
        shaper.arrived(shaper.held.popleft())


def test_a_packet_waits_for_its_own_bytes_and_travels_for_the_delay() -> None:
    shaper = Shaper(Link(delay_s=0.02, rate_bps=8e6), seed=1)
    assert shaper.offer(FRAME, 1000, 1, now_s=5.0)
    assert not shaper.offer(FRAME, 500, 1, now_s=5.0)
    assert arrivals(shaper) == pytest.approx([5.021, 5.0215])


def test_an_idle_link_does_not_save_up() -> None:
    shaper = Shaper(Link(rate_bps=8e6), seed=1)
    shaper.offer(FRAME, 1000, 1, now_s=0.0)
    shaper.offer(FRAME, 1000, 1, now_s=10.0)
    assert arrivals(shaper) == pytest.approx([0.001, 10.001])


def test_an_unlimited_link_only_delays() -> None:
    shaper = Shaper(Link(delay_s=0.1), seed=1)
    for now_s in (0.0, 0.0, 0.05):
        shaper.offer(FRAME, 1_000_000, 1, now_s)
    assert arrivals(shaper) == pytest.approx([0.1, 0.1, 0.15])


@pytest.mark.parametrize("delay_s", [0.001, 0.025, 0.2])
def test_a_full_queue_drops_the_last_and_holds_two_round_trips(delay_s: float) -> None:
    shaper = Shaper(Link(delay_s=delay_s, rate_bps=1e9), seed=1)
    packets = 200_000
    for _ in range(packets):
        shaper.offer(FRAME, 1500, 1, now_s=0.0)
    kept = len(shaper.held)
    assert shaper.dropped == packets - kept > 0
    assert kept * 1500 == pytest.approx(125e6 * (4 * delay_s + 0.05), rel=0.01)
    take_all(shaper)
    assert (shaper.bytes, shaper.packets) == (kept * 1500, kept)


def test_a_queue_is_sized_for_the_way_back_as_well() -> None:
    shaper = Shaper(Link(delay_s=0.01, rate_bps=1e9), seed=1)
    shaper.size_queue(shaper.longest_s + 0.09)
    for _ in range(40_000):
        shaper.offer(FRAME, 1500, 1, now_s=0.0)
    assert len(shaper.held) * 1500 == pytest.approx(125e6 * (2 * 0.1 + 0.05), rel=0.01)


def test_an_unlimited_link_holds_a_bounded_number_of_bytes() -> None:
    shaper = Shaper(Link(delay_s=60), seed=1)
    size_bytes = 65_535
    for _ in range(2 * UNLIMITED_QUEUE_BYTES // size_bytes):
        shaper.offer(FRAME, size_bytes, 1, now_s=0.0)
    assert len(shaper.held) == UNLIMITED_QUEUE_BYTES // size_bytes + 1
    take_all(shaper)
    assert shaper.offer(FRAME, size_bytes, 1, now_s=61.0)


@given(
    jitter_s=st.floats(0, 0.05),
    rate_bps=st.none() | st.floats(1e6, 1e9),
    gaps_s=st.lists(st.floats(0, 0.01), min_size=2, max_size=50),
)
def test_packets_never_overtake_each_other(
    jitter_s: float, rate_bps: float | None, gaps_s: list[float]
) -> None:
    link = Link(delay_s=0.05, jitter_s=jitter_s, rate_bps=rate_bps)
    shaper = Shaper(link, seed=3)
    sent_s = list(itertools.accumulate(gaps_s))
    for now_s in sent_s:
        shaper.offer(FRAME, 1500, 1, now_s)
    times = arrivals(shaper)
    assert times == sorted(times)
    assert all(arrives_s >= now_s for arrives_s, now_s in zip(times, sent_s, strict=True))


def test_jitter_spreads_the_delay_evenly_on_both_sides() -> None:
    shaper = Shaper(Link(delay_s=0.05, jitter_s=0.01), seed=4)
    delays_s = []
    for second in range(2000):
        shaper.offer(FRAME, 100, 1, now_s=float(second))
        delays_s.append(shaper.held[-1].arrives_s - second)
    assert min(delays_s) == pytest.approx(0.04, abs=0.0002)
    assert max(delays_s) == pytest.approx(0.06, abs=0.0002)
    assert sum(delays_s) / len(delays_s) == pytest.approx(0.05, abs=0.0005)


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.5])
@pytest.mark.parametrize("packets", [1, 44])
def test_the_share_that_is_lost_is_what_was_asked_for(loss: float, packets: int) -> None:
    shaper = Shaper(Link(loss=loss), seed=5)
    passed = 0
    for _ in range(100_000 // packets):
        passed += sum(count for _, count in shaper.survivors(packets))
    offered = 100_000 // packets * packets
    assert shaper.dropped + passed == offered
    assert shaper.dropped / offered == pytest.approx(loss, rel=0.1)


def test_runs_of_survivors_are_apart_and_within() -> None:
    shaper = Shaper(Link(loss=0.3), seed=6)
    for _ in range(200):
        dropped = shaper.dropped
        runs = shaper.survivors(20)
        kept = [number for first, count in runs for number in range(first, first + count)]
        assert kept == sorted(set(kept))
        assert set(kept) <= set(range(20))
        assert len(kept) + shaper.dropped - dropped == 20


def test_no_loss_and_nothing_but_loss() -> None:
    assert Shaper(Link(loss=0), seed=7).survivors(3) == [(0, 3)]
    nothing = Shaper(Link(loss=1), seed=7)
    assert nothing.survivors(3) == []
    assert nothing.dropped == 3


def test_the_same_seed_loses_the_same_packets() -> None:
    lost = [
        [shaper.survivors(10) for _ in range(100)]
        for shaper in (Shaper(Link(loss=0.2), seed="a b") for _ in range(2))
    ]
    assert lost[0] == lost[1]
    other = Shaper(Link(loss=0.2), seed="b a")
    assert [other.survivors(10) for _ in range(100)] != lost[0]


def test_a_new_rate_holds_for_what_waits_and_not_for_what_travels() -> None:
    shaper = Shaper(Link(delay_s=0.1, rate_bps=8e6), seed=8)
    for _ in range(3):
        shaper.offer(FRAME, 1000, 1, now_s=0.0)
    shaper.change(Link(delay_s=0.1, rate_bps=8e5), now_s=0.0015)
    # The first had left; the second was leaving and begins again, at 10 ms for 1,000 bytes.
    assert arrivals(shaper) == pytest.approx([0.101, 0.1115, 0.1215])
    shaper.offer(FRAME, 1000, 1, now_s=0.002)
    assert arrivals(shaper)[-1] == pytest.approx(0.1315)


def test_a_shorter_delay_does_not_let_later_packets_overtake() -> None:
    shaper = Shaper(Link(delay_s=1.0), seed=9)
    shaper.offer(FRAME, 1000, 1, now_s=0.0)
    shaper.change(Link(delay_s=0.01), now_s=0.5)
    shaper.offer(FRAME, 1000, 1, now_s=0.6)
    shaper.offer(FRAME, 1000, 1, now_s=2.0)
    assert arrivals(shaper) == pytest.approx([1.0, 1.0, 2.01])


def test_a_cut_loses_what_is_held_and_what_comes_until_it_is_back() -> None:
    shaper = Shaper(Link(delay_s=1.0, rate_bps=1e6), seed=10)
    shaper.offer(FRAME, 60_000, 40, now_s=0.0)
    shaper.change(Link(delay_s=1.0, up=False), now_s=0.1)
    assert not shaper.held
    assert shaper.dropped == 40
    assert not shaper.offer(FRAME, 1000, 1, now_s=0.2)
    assert shaper.dropped == 41
    shaper.change(Link(delay_s=0.01, rate_bps=8e6), now_s=0.3)
    assert shaper.offer(FRAME, 1000, 1, now_s=0.3)
    assert arrivals(shaper) == pytest.approx([0.311])


def test_what_could_not_be_delivered_counts_as_dropped() -> None:
    shaper = Shaper(Link(), seed=11)
    shaper.offer(FRAME, 1000, 2, now_s=0.0)
    shaper.lost(shaper.held.popleft())
    assert (shaper.bytes, shaper.packets, shaper.dropped) == (0, 0, 2)
