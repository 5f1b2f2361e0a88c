from __future__ import annotations

import pytest

from powertrip.coordination.accounts import (
    RoundAccount,
    RoundTimes,
    agreed_digest,
    combine,
    measured_times,
    round_event,
)
from powertrip.coordination.errors import DigestMismatch
from powertrip.coordination.messages import Report, Tally

NAMES = ("paris", "rome", "oslo")


class Watts:
    """A world in which site i draws 100 (i + 1) watts, once the run has lasted a second."""

    names = NAMES

    def energy_j(self, site, start_s, duration_s):
        end_s = start_s + duration_s
        return 100.0 * (site + 1) * max(0.0, end_s - max(start_s, 1.0))

    def carbon_g(self, site, start_s, duration_s):
        return self.energy_j(site, start_s, duration_s) / 8

    def money(self, site, start_s, duration_s):
        return self.energy_j(site, start_s, duration_s) / 64


def report(site: int, **changes) -> Report:
    fields = {
        "site": site,
        "generation": 3,
        "round": 9,
        "steps": 4,
        "samples": 32,
        "loss": 0.5,
        "loss_rms": 0.6,
        "update_norm": 1.5,
        "local_s": 2.0,
        "lag_s": 0.0,
        "exchange_s": 1.0,
        "evaluation_s": 0.25,
        "bytes_sent": 1000,
        "digest": "aa",
        "validation": None,
        "test": None,
        "rebuild_s": 0.0,
        "joined_bytes": 0,
    }
    return Report(**fields | changes)


REPORTS = [
    report(
        2, steps=4, samples=40, loss=1.0, local_s=2.0, exchange_s=3.0, evaluation_s=0.1,
        rebuild_s=0.5, bytes_sent=700, validation=Tally(correct=8, loss_sum=3.0, count=10),
        test=Tally(correct=1, loss_sum=9.0, count=4),
    ),
    report(
        0, steps=8, samples=80, loss=0.25, local_s=4.0, exchange_s=1.0, evaluation_s=0.2,
        rebuild_s=0.4, bytes_sent=300, validation=Tally(correct=1, loss_sum=2.0, count=5),
        test=Tally(correct=5, loss_sum=1.0, count=6),
    ),
]  # fmt: skip


def test_the_slowest_trainer_and_the_shortest_exchange_make_the_critical_path():
    assert measured_times(REPORTS) == RoundTimes(
        local_s=4.0, exchange_s=1.0, evaluation_s=0.2, rebuild_s=0.5
    )


@pytest.mark.parametrize(("newcomers", "rebuild_s"), [((2,), 0.4), ((0,), 0.5), ((0, 2), 0.4)])
def test_a_rebuild_is_what_those_who_stay_have_waited(newcomers, rebuild_s):
    assert measured_times(REPORTS, newcomers).rebuild_s == rebuild_s


def test_equal_digests_agree():
    assert agreed_digest([report(0), report(1)], NAMES) == "aa"


def test_a_deviating_digest_names_the_site_round_and_generation():
    with pytest.raises(DigestMismatch) as caught:
        agreed_digest([report(0), report(1, digest="bb"), report(2)], NAMES)
    assert caught.value.sites == ("rome",)
    assert str(caught.value).startswith("generation 3, round 9: the parameters at rome differ")


def test_all_outside_the_majority_are_named():
    reports = [report(0, digest="x"), report(1), report(2, digest="y"), report(1)]
    with pytest.raises(DigestMismatch) as caught:
        agreed_digest(reports, NAMES)
    assert caught.value.sites == ("paris", "oslo")


@pytest.mark.parametrize(
    ("tallies", "expected"),
    [
        ([], (None, None)),
        ([None, None], (None, None)),
        ([Tally(correct=0, loss_sum=0, count=0)], (None, None)),
        ([Tally(correct=3, loss_sum=2, count=4), None], (0.75, 0.5)),
        (
            [Tally(correct=3, loss_sum=2, count=4), Tally(correct=0, loss_sum=4, count=2)],
            (0.5, 1.0),
        ),
    ],
)
def test_shares_of_an_evaluation_add_up(tallies, expected):
    assert combine(tallies) == expected


def test_the_event_of_a_round():
    account = RoundAccount(
        start_s=0.25, end_s=6.0, times=measured_times(REPORTS), local_s=(2.0, 4.0)
    )
    event = round_event(REPORTS, Watts(), account=account, predicted_round_s=5.0)
    assert (event.time_s, event.round, event.generation) == (6.0, 9, 3)
    assert event.members == ("oslo", "paris")
    # 5.75 s, of which 0.5 s rebuild, 4 s training and 1 s exchange.
    assert event.duration_s == pytest.approx(5.25)
    assert event.overhead_s == pytest.approx(0.25)
    assert (event.local_s, event.exchange_s, event.eval_s) == (4.0, 1.0, 0.2)
    # Training starts at 0.75 s and nothing is drawn in the first 0.25 s of it.
    assert [s.energy_j for s in event.sites] == pytest.approx([300 * 1.75, 100 * 3.75])
    assert [s.power_w for s in event.sites] == pytest.approx([300 * 1.75 / 2, 100 * 3.75 / 4])
    assert [s.step_s for s in event.sites] == [0.5, 0.5]
    assert event.energy_j == pytest.approx(900)
    assert (event.carbon_g, event.money) == pytest.approx((900 / 8, 900 / 64))
    assert event.bytes_sent == 1000
    assert event.train_loss == pytest.approx((40 * 1.0 + 80 * 0.25) / 120)
    assert (event.validation_accuracy, event.validation_loss) == pytest.approx((9 / 15, 5 / 15))
    assert (event.test_accuracy, event.test_loss) == pytest.approx((0.6, 1.0))
    assert event.predicted_round_s == 5.0
    assert event.digest == "aa"


def test_the_event_takes_training_times_from_the_account():
    account = RoundAccount(
        start_s=1.0, end_s=9.0, times=RoundTimes(6.0, 2.0, 0.0, 0.0), local_s=(6.0, 1.0)
    )
    event = round_event(REPORTS, Watts(), account=account, predicted_round_s=5.0)
    assert [(s.local_s, s.step_s, s.energy_j) for s in event.sites] == [
        (6.0, 1.5, 1800.0),
        (1.0, 0.125, 100.0),
    ]
    assert event.overhead_s == 0
    assert event.validation_loss == pytest.approx(5 / 15)


def test_members_that_differ_make_no_event():
    account = RoundAccount(0.0, 1.0, RoundTimes(1.0, 0.0, 0.0, 0.0), (1.0, 1.0))
    with pytest.raises(DigestMismatch):
        round_event(
            [report(0), report(1, digest="bb")], Watts(), account=account, predicted_round_s=1.0
        )
