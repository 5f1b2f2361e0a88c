"""How measurements are planned and judged; links themselves are checked in test_cli.py."""

import math

import pytest

from netem.check import (
    CAPACITY_BPS,
    PairReport,
    Probe,
    Tolerance,
    judge,
    loss_probe,
    rounds,
    rtt_probe,
    throughput_probe,
)
from netem.plan import Link, Plan


def probe(src: int, dst: int, rate_bps: float = 1e6, seconds: float = 1.0) -> Probe:
    return Probe(src, dst, "throughput", {}, seconds, rate_bps)


def report(link: Link, back: Link, **measured: float | None) -> PairReport:
    made = PairReport(
        "a", "b", link.up, link.delay_s + back.delay_s, link.rate_bps, link.loss, **measured
    )
    judge(made, link, back, 5000, Tolerance())
    return made


def test_rounds_keep_sites_apart_and_hold_every_probe_once() -> None:
    probes = [probe(src, dst) for src in range(8) for dst in range(8) if src != dst]
    made = rounds(probes)
    assert sorted((p.src, p.dst) for group in made for p in group) == sorted(
        (p.src, p.dst) for p in probes
    )
    for group in made:
        sites = [site for p in group for site in (p.src, p.dst)]
        assert len(sites) == len(set(sites))
    assert len(made) < len(probes) / 2


def test_rounds_stay_within_the_capacity_but_for_a_probe_alone() -> None:
    half = CAPACITY_BPS / 2
    made = rounds([probe(0, 1, half), probe(2, 3, half), probe(4, 5, 1.0), probe(6, 7, math.inf)])
    assert sorted(sorted(p.src for p in group) for group in made) == [[0, 2], [4], [6]]


def test_probes_fit_the_link_that_they_measure() -> None:
    plan = Plan.parse(
        {
            "sites": ["a", "b", "c"],
            "default": {"delay_s": 0.1, "rate_bps": 100e3},
            "links": [{"src": "a", "dst": "c", "rate_bps": 1e9, "loss": 0.01}],
        }
    )
    slow, fast = loss_probe(plan, 0, 1), loss_probe(plan, 0, 2)
    assert slow.arguments["packets_per_s"] * 8 * 48 < 100e3
    assert fast.arguments["count"] == 20_000
    assert rtt_probe(plan, 0, 1).arguments["timeout_s"] >= 0.8
    assert throughput_probe(plan, 0, 1).arguments == {
        "warmup_s": pytest.approx(2.4),
        "window_s": 10.0,
    }
    assert throughput_probe(plan, 0, 2).arguments["window_s"] == 1.0


def test_a_pair_as_asked_has_no_problem() -> None:
    link = Link(delay_s=0.05, rate_bps=100e6)
    made = report(link, link, rtt_s=0.1019, least_rtt_s=0.1004, rate_bps=95e6, loss=0.0)
    assert (made.problems, made.remarks) == ([], [])


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        ({"least_rtt_s": 0.1021, "rtt_s": 0.103}, "the round trip is off by more than 2.0 ms"),
        ({"least_rtt_s": 0.0979}, "the round trip is off by more than 2.0 ms"),
        ({"rate_bps": 89e6}, "the throughput is off by more than 10 %"),
        ({"rate_bps": 111e6}, "the throughput is off by more than 10 %"),
        ({"rate_bps": None}, "the throughput is off by more than 10 %"),
        ({"loss": 0.01}, "the loss is off by more than 0.13 %"),
        ({"rtt_s": None}, "no datagram came back"),
    ],
)
def test_what_is_off_is_told(measured: dict[str, float | None], text: str) -> None:
    link = Link(delay_s=0.05, rate_bps=100e6)
    good: dict[str, float | None] = {
        "rtt_s": 0.1,
        "least_rtt_s": 0.1,
        "rate_bps": 95e6,
        "loss": 0.0,
    }
    assert report(link, link, **(good | measured)).problems == [text]


def test_a_busy_machine_is_a_remark() -> None:
    link = Link(delay_s=0.05)
    made = report(link, link, rtt_s=0.105, least_rtt_s=0.1)
    assert made.problems == []
    assert made.remarks == ["the machine is busy, it adds 5.0 ms to most round trips"]


def test_jitter_is_allowed_for_and_judged_by_the_median() -> None:
    link, back = Link(delay_s=0.05, jitter_s=0.01), Link(delay_s=0.05)
    assert report(link, back, rtt_s=0.11, least_rtt_s=0.08).problems == []
    assert report(link, back, rtt_s=0.113, least_rtt_s=0.1).problems != []


def test_loss_is_judged_by_its_share_and_its_spread() -> None:
    link, back = Link(loss=0.05, rate_bps=1e8), Link()
    # A fifth is 1 %, three standard deviations of 5,000 datagrams 0.92 %.
    times = {"rtt_s": 0.0, "least_rtt_s": 0.0, "rate_bps": 1e6}
    assert report(link, back, loss=0.069, **times).problems == []
    assert report(link, back, loss=0.0695, **times).problems == [
        "the loss is off by more than 1.92 %"
    ]


def test_a_cut_pair_must_let_nothing_pass() -> None:
    cut = Link(up=False)
    assert report(cut, Link()).problems == []
    assert report(Link(), cut, rtt_s=0.01, least_rtt_s=0.01).problems == [
        "is cut, but datagrams pass"
    ]
