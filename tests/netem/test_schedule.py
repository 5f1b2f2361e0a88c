"""Changes in their order, at their times, over the links as they are by then."""

import pytest

from netem.errors import PlanError
from netem.plan import Change, Link, Plan
from netem.schedule import Schedule, in_words

PLAN = Plan(
    sites=("a", "b", "c"),
    default=Link(delay_s=0.01, rate_bps=1e9),
    rate_scale=0.1,
    schedule=(
        Change(at_s=90, src="a", dst="b", up=False),
        Change(at_s=60, src="a", dst="b", rate_bps=2e8),
        Change(at_s=90, src="a", dst="b", loss=0.5, both=False),
        Change(at_s=120, src="a", dst="b", up=True),
    ),
)


def test_changes_come_in_order_and_build_on_each_other():
    schedule = Schedule(PLAN, now_s=1000.0)
    assert schedule.next_s == 1060
    assert schedule.pop_due(1059.9) is None
    seen = []
    while (change := schedule.pop_due(1090)) is not None:
        seen.append(schedule.preview(change))
        schedule.commit(change)
    slow = Link(delay_s=0.01, rate_bps=2e7)
    cut = slow.model_copy(update={"up": False})
    lossy = cut.model_copy(update={"loss": 0.5})
    assert seen == [
        [(0, 1, slow), (1, 0, slow)],
        [(0, 1, cut), (1, 0, cut)],
        [(0, 1, lossy)],
    ]
    assert schedule.next_s == 1120
    links = {(src, dst): link for src, dst, link in schedule.links()}
    assert (links[0, 1], links[1, 0]) == (lossy, cut)
    assert links[0, 2] == Link(delay_s=0.01, rate_bps=1e8)
    assert schedule.pop_due(5000) is PLAN.schedule[3]
    assert schedule.next_s is None
    assert schedule.pop_due(5000) is None


def test_a_preview_holds_nothing():
    schedule = Schedule(PLAN, 0.0)
    before = schedule.links()
    schedule.preview(Change(src="all", dst="all", up=False))
    assert schedule.links() == before


def test_a_change_that_no_link_can_have():
    with pytest.raises(PlanError, match="more than its delay_s"):
        Schedule(PLAN, 0.0).preview(Change(src="a", dst="b", jitter_s=0.02))


def test_a_change_in_words():
    assert in_words(PLAN.schedule[2]) == "a -> b: loss 0.5"
    change = Change(src=0, dst="all", rate_bps=None, up=True)
    assert in_words(change) == "0 <-> all: rate_bps None, up True"
