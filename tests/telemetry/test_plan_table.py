from __future__ import annotations

import io

import pytest
from rich.console import Console

from powertrip.telemetry import events
from powertrip.telemetry.plan_table import Plan, PlanMember, PlanSite, show_plan


def plan(count: int = 3, **changes) -> Plan:
    """Sites of 100 samples/s; the first two are members, the last has no power."""
    sites = tuple(
        PlanSite(
            site=f"gcp:site-{number}",
            rank=number + 1 if number < count - 1 else None,
            chosen=number < 2,
            power_w=1500.0,
            throughput=75.0,
            speed_share=0.75,
            rtt_s=None if number == 0 else 0.1,
            to_hub=None if number == 0 else 2e6,
            from_hub=None if number == 0 else 1e6,
            own_round_s=1.25,
            score=0.8 if number < count - 1 else None,
            why_not=None if number < count - 1 else "no power",
        )
        for number in range(count)
    )
    candidates = tuple(
        events.Candidate(
            k=k, gain=1.0, compute_s=0.5, communication_s=0.25, round_s=0.75, switch_s=0.3,
            efficiency=1.0 / k, chosen=k == 2,
        )
        for k in range(1, count)
    )  # fmt: skip
    members = tuple(
        PlanMember(
            site=site.site, steps=16, deadline_s=None, local_s=0.5, exchange_s=0.25, waits_s=0.0
        )
        for site in sites
        if site.chosen
    )
    fields = {
        "name": "three",
        "time_s": 90.0,
        "time_scale": 900.0,
        "policy": "powertrip",
        "ranking": "round-time",
        "exchange_model": "star",
        "hub": "gcp:site-0",
        "bandwidth_scale": 0.001,
        "update_bytes": 24_700,
        "current": (),
        "warnings": (),
        "sites": sites,
        "candidates": candidates,
        "members": members,
        "rounds": 4,
        "predicted_round_s": 0.75,
        "reason": "start with 2 of 2 usable sites",
    }
    return Plan(**fields | changes)


def shown(plan: Plan, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    show_plan(plan, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_plan_tells_what_and_why():
    lines = shown(plan())
    assert lines[0] == "three: what powertrip decides at 90.0 s of a run, without training"
    assert lines[1] == (
        "3 sites, hub site-0; updates of 24.7 kB, exchange by star; trace time 22h 30m"
    )
    assert lines[2] == (
        "links: the scenario's network model (bandwidths x 0.001), none was measured"
    )
    assert lines[3] == "members at present: none, as before the first round"
    rows = [line.split() for line in lines]
    cells = ["site-1", "1.50", "kW", "75", "%", "100", "ms", "16", "Mbit/s", "1.25", "s", "0.8"]
    assert ["*", "2", *cells] in rows
    assert ["*", "1", "site-0", "1.50", "kW", "75", "%", "hub", "-", "1.25", "s", "0.8"] in rows
    assert "not usable: site-2 (no power)" in lines
    one = ["1", "1", "500", "ms", "250", "ms", "750", "ms", "300", "ms", "1", "200.0", "%"]
    assert one in rows
    assert ["*", "2", *one[1:-3], "0.5", "100.0", "%"] in rows
    assert ["site-0", "16", "500", "ms", "250", "ms", "0", "s"] in rows
    assert lines[-2:] == [
        "decision: 2 sites for 4 rounds of about 750 ms",
        "reason: start with 2 of 2 usable sites",
    ]
    assert not any("not the first" in line for line in lines)


def test_members_that_the_ranking_does_not_explain_are_explained():
    told = plan(4)
    (first, *_) = told.members
    other = told.model_copy(
        update={"members": (first, first.model_copy(update={"site": "gcp:site-2"}))}
    )
    assert "the members are not the first 2 of this ranking" in "\n".join(shown(other))


def test_deadlines_are_told_as_such():
    told = plan()
    members = tuple(m.model_copy(update={"deadline_s": m.local_s}) for m in told.members)
    text = "\n".join(shown(told.model_copy(update={"members": members})))
    assert "about steps  trains until" in text


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("count", [2, 8, 1000])
def test_lines_fit_and_long_tables_are_cut(count, width):
    lines = shown(plan(count, reason="because " * 40, warnings=("a " * 100,)), width)
    assert max(map(len, lines)) <= min(width, 110)
    assert ("from the hub" in "\n".join(lines)) == (width >= 90)
    if count == 1000:
        assert len(lines) < 120
        assert any(line.strip() == "and 960 more" for line in lines)
        assert sum(line.startswith("*") for line in lines) == 3


def test_a_file_gets_no_colours():
    assert "\x1b" not in "\n".join(shown(plan()))
