"""How a link is put into netem's terms and read back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.tcmsg import sched_netem

from netem.engines.qdisc import link_of, needs_netem, netem_options, queue_packets
from netem.errors import Unsupported
from netem.plan import Link

links = st.builds(
    Link,
    delay_s=st.floats(0.1, 10),
    jitter_s=st.floats(0, 0.1),
    loss=st.floats(0, 0.9),
    rate_bps=st.none() | st.floats(1000, 3e10),
)


class Held(dict[str, Any]):
    """Options of netem as the kernel would report those that pyroute2 sends."""

    def __init__(self, link: Link) -> None:
        sent = sched_netem.get_parameters(netem_options(link))
        self._attributes = dict(sent.pop("attrs"))
        super().__init__({name: int(value) for name, value in sent.items()})

    def get_attr(self, name: str) -> Any:
        return self._attributes.get(name)


@given(links)
def test_what_is_asked_is_read_back(link: Link) -> None:
    read = link_of(Held(link))
    assert read.delay_s == pytest.approx(link.delay_s, abs=1e-6)
    assert read.jitter_s == pytest.approx(link.jitter_s, abs=1e-6)
    assert read.loss == pytest.approx(link.loss, abs=1e-9)
    assert read.up
    if link.rate_bps is None:
        assert read.rate_bps is None
    else:
        assert read.rate_bps == pytest.approx(link.rate_bps, abs=8)


def test_a_cut_is_read_back_as_one() -> None:
    read = link_of(Held(Link(delay_s=0.01, loss=0.1, up=False)))
    assert (read.up, read.loss) == (False, 0.0)
    assert read.delay_s == pytest.approx(0.01)


def test_units() -> None:
    link = Link(delay_s=0.025, jitter_s=0.001, loss=0.005, rate_bps=100e6)
    options = netem_options(link)
    assert (options["delay"], options["jitter"]) == (25_000, 1000)
    assert options["loss"] == pytest.approx(0.5)
    assert options["rate"] == 12_500_000
    # (2 x 26 ms + 50 ms) x 12.5 MB/s in packets of 1,500 bytes.
    assert options["limit"] == 850


@given(links)
def test_a_queue_holds_more_than_what_is_under_way(link: Link) -> None:
    under_way = link.bandwidth_delay_bytes
    assert queue_packets(link) >= max(64, (under_way or 0) / 1500)


def test_jitter_without_a_rate_keeps_the_order_by_a_rate_that_limits_nothing() -> None:
    assert netem_options(Link(delay_s=0.02, jitter_s=0.01))["rate"] == 2**32 - 1
    assert netem_options(Link(delay_s=0.02))["rate"] == 0


def test_too_high_a_rate() -> None:
    with pytest.raises(Unsupported, match="rate_scale"):
        netem_options(Link(rate_bps=3.5e10))


@pytest.mark.parametrize(
    ("link", "needed"),
    [
        (Link(), False),
        (Link(delay_s=0.001), True),
        (Link(rate_bps=1e9), True),
        (Link(loss=0.01), True),
        (Link(up=False), True),
    ],
)
def test_plain_links_need_no_netem(link: Link, needed: bool) -> None:
    assert needs_netem(link) is needed
