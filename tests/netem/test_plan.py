"""Plans: what they resolve to, and that everything that is wrong in one is said at once."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from netem import plan as plan_module
from netem.errors import PlanError
from netem.plan import Change, Link, LinkFields, LinkTable, Plan, parse_change

REPO = Path(__file__).parents[2]


def problems_of(obj: object) -> tuple[str, ...]:
    with pytest.raises(PlanError) as caught:
        Plan.parse(obj)
    return caught.value.problems


def test_entries_replace_the_fields_they_name_in_order():
    plan = Plan.parse(
        {
            "sites": ["a", "b", "c"],
            "rate_scale": 0.5,
            "default": {"delay_s": 0.02, "rate_bps": 1e9},
            "links": [
                {"src": "a", "dst": "b", "delay_s": 0.05, "loss": 0.01},
                {"src": "b", "dst": "a", "both": False, "rate_bps": 2e8},
                {"src": 1, "dst": "all", "jitter_s": 0.001},
                {"src": "c", "dst": "a", "rate_bps": None},
            ],
        }
    )
    assert plan.link(0, 1) == Link(delay_s=0.05, loss=0.01, jitter_s=0.001, rate_bps=5e8)
    assert plan.link(1, 0) == Link(delay_s=0.05, loss=0.01, jitter_s=0.001, rate_bps=1e8)
    assert plan.link(1, 2) == Link(delay_s=0.02, jitter_s=0.001, rate_bps=5e8)
    assert plan.link(0, 2) == plan.link(2, 0) == Link(delay_s=0.02)


def test_the_example_in_the_documentation_is_a_plan():
    text = (plan_module.__doc__ or "").split("by code:")[1]
    plan = Plan.parse(yaml.safe_load(text))
    assert plan.link(1, 0).rate_bps == 2e9 * 0.04
    assert plan.schedule[1].replaced == {"up": False}


def test_rates_in_exponent_notation_without_a_point_are_numbers():
    plan = Plan.parse(yaml.safe_load("{sites: [a, b], default: {rate_bps: 200e6}}"))
    assert plan.link(0, 1).rate_bps == 200e6


def test_addresses():
    plan = Plan(sites=tuple(f"s{i}" for i in range(300)), subnet="10.99.0.0/16")
    assert plan.address(0) == "10.99.0.10"
    assert plan.address(299) == "10.99.1.53"
    assert (plan.prefix_length, plan.netmask) == (16, "255.255.0.0")
    assert len({plan.address(site) for site in range(300)}) == 300


def test_all_that_is_wrong_with_fields_is_said_at_once():
    found = problems_of(
        {
            "sites": ["a", "b"],
            "default": {"delay_s": -1, "speed": 3, "rate_bps": "fast"},
            "links": [{"src": "a", "dst": "b", "loss": 2}, {"src": 0, "dst": 1}],
            "subnet": "8.8.8.0/24",
        }
    )
    places = [problem.split(":")[0] for problem in found]
    assert places == [
        "default.delay_s",
        "default.rate_bps",
        "default.speed",
        "links.0.loss",
        "links.1",
        "subnet",
    ]


def test_all_that_does_not_fit_together_is_said_at_once():
    found = problems_of(
        {
            "sites": ["a", "b", "b", "all"],
            "links": [
                {"src": "a", "dst": "q", "loss": 0.1},
                {"src": "a", "dst": "a", "loss": 0.1},
            ],
            "schedule": [{"at_s": 1, "src": 7, "dst": "a", "up": False}],
            "subnet": "10.0.0.0/28",
        }
    )
    text = "\n".join(found)
    assert len(found) == 5
    assert "'all' cannot be a name" in text
    assert "b named more than once" in text
    assert "links.0.dst: there is no site 'q'; the sites are 0 to 3: a, b, b, all" in text
    assert "links.1: a link from 'a' to itself" in text
    assert "schedule.0.src: there is no site 7" in text


def test_a_subnet_must_hold_every_site():
    (problem,) = problems_of({"sites": list("abcdef"), "subnet": "10.0.0.0/28"})
    assert "room for 5 sites, not for 6" in problem
    assert Plan(sites=tuple("abcde"), subnet="10.0.0.0/28").address(4) == "10.0.0.14"


def test_more_jitter_than_delay_is_found_wherever_it_comes_from():
    base = {"sites": ["a", "b"], "default": {"delay_s": 0.01, "jitter_s": 0.01}}
    assert Plan.parse(base)
    entry = {"src": "a", "dst": "b", "delay_s": 0.005, "both": False}
    (problem,) = problems_of(base | {"links": [entry]})
    assert problem.startswith("links: a to b has a jitter_s of 0.01")
    (problem,) = problems_of(base | {"schedule": [entry | {"at_s": 3}]})
    assert problem.startswith("schedule.0: a to b would have a jitter_s of 0.01")
    (problem,) = problems_of({"sites": ["a", "b"], "default": {"jitter_s": 0.01}})
    assert problem.startswith("default.jitter_s")


def test_a_plan_of_one_site_is_a_plan():
    plan = Plan(sites=("alone",))
    assert list(plan.pairs()) == []
    assert plan.buffer_bytes(0) == plan_module.MIN_BUFFER_BYTES
    assert problems_of({"sites": []})


def test_files_that_cannot_be_plans_are_named(tmp_path: Path):
    missing = tmp_path / "none.yaml"
    with pytest.raises(PlanError, match=r"none\.yaml.*\n.*No such file"):
        Plan.load(missing)
    for name, content, reason in (
        ("list.yaml", b"[1, 2]", "is not a mapping"),
        ("broken.yaml", b"sites: [a", "is not YAML"),
        ("binary.yaml", b"\xff\xfe\x00", "is not a text file"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(PlanError, match=reason) as caught:
            Plan.load(path)
        assert caught.value.source == str(path)
        assert caught.value.exit_code == 2


def test_plans_are_frozen_and_take_no_other_fields():
    plan = Plan(sites=("a", "b"))
    with pytest.raises(ValidationError):
        plan.rate_scale = 2.0
    with pytest.raises(ValidationError):
        Plan(sites=("a",), rate="1")


@pytest.mark.parametrize("site", ["x", 2, -1])
def test_unknown_sites(site: int | str):
    plan = Plan(sites=("a", "b"))
    with pytest.raises(PlanError, match="there is no site"):
        plan.index(site)


def test_buffers_hold_twice_the_bandwidth_delay_product_of_the_longest_pair():
    plan = Plan(
        sites=("a", "b", "c"),
        default=Link(delay_s=0.025, rate_bps=1e9),
        links=(LinkFields(src="a", dst="c", delay_s=0.1),),
    )
    assert plan.buffer_bytes(1) == int(4 * 1e9 / 8 * 0.05)
    assert plan.buffer_bytes(0) == int(4 * 1e9 / 8 * 0.2)
    unlimited = Plan(sites=("a", "b"), default=Link(delay_s=10))
    assert unlimited.buffer_bytes(0) == plan_module.MAX_BUFFER_BYTES


def test_bytes_under_way():
    assert Link(delay_s=0.02, jitter_s=0.005, rate_bps=8e6).bandwidth_delay_bytes == 25_000
    assert Link(delay_s=0.02).bandwidth_delay_bytes is None


def test_a_table_changes_nothing_before_apply():
    plan = Plan(sites=("a", "b", "c"), default=Link(rate_bps=1e6))
    table = LinkTable(plan)
    cut = Change(src="b", dst="all", up=False)
    assert {(src, dst) for src, dst, _ in table.changed(cut)} == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert table.link(0, 1).up
    table.apply(cut)
    assert table.link(0, 1) == Link(rate_bps=1e6, up=False)
    assert table.link(0, 2).up
    with pytest.raises(PlanError, match="there is no site 'z'"):
        table.apply(Change(src="z", dst="a", up=False))


def test_a_change_says_null_and_nothing_apart():
    change = parse_change({"src": "a", "dst": "b", "rate_bps": None})
    assert change.replaced == {"rate_bps": None}
    assert parse_change(change.to_json()) == change
    with pytest.raises(PlanError, match="replaces nothing"):
        parse_change({"src": "a", "dst": "b"})
    with pytest.raises(PlanError):
        parse_change(None)


links = st.builds(
    Link,
    delay_s=st.floats(0.01, 60),
    jitter_s=st.floats(0, 0.01),
    loss=st.floats(0, 1),
    rate_bps=st.none() | st.floats(1000, 1e12),
    up=st.booleans(),
)


@given(default=links, rate=st.none() | st.floats(1000, 1e12), scale=st.floats(1e-3, 1000))
def test_a_plan_survives_the_wire(default: Link, rate: float | None, scale: float):
    plan = Plan(
        sites=("a", "b"),
        default=default,
        links=(LinkFields(src=0, dst="b", rate_bps=rate),),
        schedule=(Change(at_s=1.5, src="a", dst="all", up=True),),
        rate_scale=scale,
    )
    again = Plan.parse(yaml.safe_load(yaml.safe_dump(plan.to_json())))
    assert again == plan
    assert again.link(1, 0) == plan.link(1, 0)


def test_the_packaged_plan_is_the_measured_table_within_200_mbit():
    plan = Plan.load(REPO / "configs/netem/eight-regions.yaml")
    rates_bps = [plan.link(*pair).rate_bps or 0 for pair in plan.pairs()]
    assert len(rates_bps) == 56
    assert 100e6 < max(rates_bps) <= 200e6
    # us-central1 and asia-northeast1: 0.12434 s and 14441 Mbit/s in the table.
    link = plan.link(plan.index("iowa"), plan.index("tokyo"))
    assert link.delay_s == pytest.approx(0.06217)
    assert link.rate_bps == pytest.approx(14441e6 * plan.rate_scale)
