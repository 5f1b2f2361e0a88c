from __future__ import annotations

import math
from dataclasses import replace

import pytest

from powertrip.config import default_path, load_config
from powertrip.coordination.preview import UnknownMember, plan_run
from powertrip.coordination.setup import Setup
from powertrip.errors import InputError
from powertrip.selection import POLICIES, MissingGains, NoUsableSite
from powertrip.telemetry import events
from powertrip.training.digits import Digits


def with_settings(setup: Setup, *overrides: str) -> Setup:
    return replace(setup, config=load_config(setup.base_dir / "three-sites.yaml", overrides))


@pytest.mark.parametrize("policy", ["powertrip", "together"])
def test_a_plan_is_the_first_decision_of_a_run(jobs, policy):
    settings = (f"selection.policy={policy}", "goal.max_rounds=1")
    job = jobs.run(*settings)
    (taken, *_) = job.of(events.Decision)
    quick = ("training.local_steps=2", "training.batch_size=8", "selection.clock=modelled")
    config = load_config(None, [*quick, *settings])
    plan = plan_run(Setup(config, default_path().parent))
    assert tuple(member.site for member in plan.members) == taken.members
    assert (plan.reason, plan.candidates) == (taken.reason, taken.candidates)
    assert plan.predicted_round_s == taken.predicted_round_s
    assert plan.update_bytes == taken.observation["update_bytes"]
    if policy == "together":
        assert tuple(member.deadline_s for member in plan.members) == taken.deadline_s
    else:
        assert tuple(member.steps for member in plan.members) == taken.steps


def test_the_numbers_of_three_sites(three_sites):
    plan = plan_run(
        with_settings(
            three_sites,
            "selection.policy=all",
            "selection.exchange_model=star",
            "training.local_steps=4",
        )
    )
    parameters = sum(p.numel() for p in Digits().build_model().parameters())
    update_bytes = 4 * (parameters + 1)
    assert plan.update_bytes == update_bytes
    # 4 steps of 10 samples at 100, 50 and 25 samples/s; the hub's link is free, but for the floor.
    delays_s = (0.05, 0.1 + 2 * update_bytes / 1e6, 0.2 + 1.5 * update_bytes / 1e6)
    own_s = tuple(
        40 / speed + delay_s for speed, delay_s in zip((100, 50, 25), delays_s, strict=True)
    )
    assert [site.site for site in plan.sites] == ["paris", "rome", "oslo"]
    assert [site.rank for site in plan.sites] == [1, 2, 3]
    assert [site.own_round_s for site in plan.sites] == pytest.approx(own_s)
    assert [site.score for site in plan.sites] == pytest.approx([1 / s for s in own_s])
    assert [site.speed_share for site in plan.sites] == pytest.approx([1, 0.5, 0.5])
    assert [site.rtt_s for site in plan.sites] == [None, 0.1, 0.2]
    assert [site.to_hub for site in plan.sites] == [None, 1e6, 2e6]
    assert [site.from_hub for site in plan.sites] == [None, 1e6, 1e6]
    assert plan.predicted_round_s == pytest.approx(own_s[2])
    parts = [(m.site, m.steps, m.deadline_s) for m in plan.members]
    assert parts == [("paris", 4, None), ("rome", 4, None), ("oslo", 4, None)]
    assert [m.exchange_s for m in plan.members] == pytest.approx(delays_s)
    waits_s = [own_s[2] - s for s in own_s]
    assert [m.waits_s for m in plan.members] == pytest.approx(waits_s, abs=1e-6)


def test_a_simulated_size_of_updates_is_not_planned_with_but_named(three_sites):
    real = plan_run(with_settings(three_sites))
    assert real.warnings == ()
    plan = plan_run(with_settings(three_sites, "simulation.update_bytes=1000000"))
    assert plan.update_bytes == real.update_bytes
    (warning,) = plan.warnings
    assert "1000000 bytes" in warning
    assert str(real.update_bytes) in warning
    same = plan_run(with_settings(three_sites, f"simulation.update_bytes={real.update_bytes}"))
    assert same.warnings == ()


def test_overlap_and_int8_count_in_a_plan(three_sites):
    plain = ("selection.policy=all", "selection.exchange_model=star", "training.local_steps=4")
    plan = plan_run(
        with_settings(three_sites, *plain, "exchange.overlap=true", "exchange.codec=int8")
    )
    numbers = sum(p.numel() for p in Digits().build_model().parameters()) + 1
    assert plan.update_bytes == numbers + 4 * math.ceil(numbers / 1024)
    delays_s = (0.05, 0.1 + 2 * plan.update_bytes / 1e6, 0.2 + 1.5 * plan.update_bytes / 1e6)
    own_s = [max(40 / speed, delay) for speed, delay in zip((100, 50, 25), delays_s, strict=True)]
    assert plan.predicted_round_s == pytest.approx(max(own_s))
    assert {m.site: m.waits_s for m in plan.members} == pytest.approx(
        dict(zip(("paris", "rome", "oslo"), (max(own_s) - s for s in own_s), strict=True)), abs=1e-6
    )


@pytest.mark.parametrize(
    ("override", "model"),
    [
        ("exchange.backend=auto", "mesh"),
        ("exchange.backend=nccl", "ring"),
        ("exchange.algorithm=ring", "ring"),
        ("selection.exchange_model=star", "star"),
    ],
)
def test_the_exchange_is_modelled_as_a_run_would_do_it(three_sites, override, model):
    setup = with_settings(three_sites, "selection.exchange_model=auto", override)
    assert plan_run(setup).exchange_model == model


def test_time_is_run_time_and_what_cannot_take_part_says_why(three_sites):
    plan = plan_run(with_settings(three_sites, "world.time_scale=2"), time_s=5.0)
    assert next(s for s in plan.sites if s.site == "oslo").power_w == 250
    plan = plan_run(
        with_settings(
            three_sites,
            "world.whole_gpus=true",
            "sites.list.1.power.watts=1",
            "selection.policy=all",
        ),
        time_s=20.0,
    )
    assert [(s.site, s.rank, s.why_not) for s in plan.sites] == [
        ("paris", 1, None),
        ("rome", None, "too little power to train"),
        ("oslo", None, "no power"),
    ]
    assert [s.chosen for s in plan.sites] == [True, False, False]


def test_a_site_without_a_link_says_so(three_sites):
    rtt = "network.rtt_s=[[0, null, 0.2], [null, 0, 1], [0.2, 1, 0]]"
    plan = plan_run(with_settings(three_sites, rtt))
    rome = plan.sites[-1]
    assert (rome.site, rome.why_not, rome.rtt_s) == ("rome", "no link to the hub", None)


@pytest.mark.parametrize("ranking", ["power-to-cost", "power-to-cost-linear"])
def test_scores_fall_with_the_rank(three_sites, ranking):
    plan = plan_run(with_settings(three_sites, f"selection.ranking={ranking}"))
    scores = [site.score for site in plan.sites]
    assert scores == sorted(scores, reverse=True)
    assert plan.ranking == ranking


def test_a_change_of_the_present_members_costs_a_rebuild(three_sites):
    plan = plan_run(with_settings(three_sites), members=("rome", "paris"))
    switch_s = {line.k: line.switch_s for line in plan.candidates}
    assert switch_s == {1: 0.25, 2: 0.0, 3: 0.25}
    assert plan.current == ("rome", "paris")


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_plans_at_any_time(three_sites, policy):
    setup = with_settings(three_sites, f"selection.policy={policy}")
    for time_s in (0.0, 15.0, 1e9):
        for members in ((), ("oslo",), ("oslo", "rome", "paris")):
            plan = plan_run(setup, time_s=time_s, members=members)
            assert plan.policy == policy
            assert plan.predicted_round_s > 0
            chosen = {site.site for site in plan.sites if site.chosen}
            assert chosen == {member.site for member in plan.members} != set()
            assert type(plan).model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (("paris", "rom"), "there is no site 'rom'; did you mean rome?"),
        (("x",), "there is no site 'x'; the sites are paris, rome, oslo"),
        (("rome", "rome"), "site rome stands twice among the members; name it once"),
    ],
)
def test_members_must_be_sites(three_sites, members, said):
    with pytest.raises(UnknownMember) as caught:
        plan_run(three_sites, members=members)
    assert str(caught.value) == said
    assert isinstance(caught.value, InputError)


def test_what_no_policy_can_decide_is_an_error_of_the_project(three_sites):
    oracle = with_settings(three_sites, "selection.policy=powertrip", "selection.projector=oracle")
    with pytest.raises(MissingGains, match="works in simulations only"):
        plan_run(oracle)
    dark = [f"sites.list.{site}.power.watts=0" for site in (0, 1)]
    with pytest.raises(NoUsableSite, match="0 have power"):
        plan_run(with_settings(three_sites, *dark), time_s=20.0)
