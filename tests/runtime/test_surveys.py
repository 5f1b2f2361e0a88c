from __future__ import annotations

from powertrip.coordination.messages import Probed
from powertrip.runtime.surveys import Surveys


def probed(site: int, number: int = 1, rtt_s: float | None = 0.1) -> Probed:
    return Probed(site=site, number=number, rtt_s=(rtt_s,) * 3, bandwidth=(1e6, None, 1e6))


def test_a_picture_is_complete_with_the_last_sites_measurement(three_sites):
    surveys = Surveys(three_sites.build_world(), sites=3)
    assert surveys.take(probed(2), 0.0) is None
    assert surveys.take(probed(0, rtt_s=None), 0.0) is None
    event = surveys.take(probed(1), 1.5)
    assert event is not None
    assert (event.time_s, event.first, event.hub) == (1.5, True, "paris")
    rows = {(row.src, row.dst): row for row in event.links}
    assert len(rows) == 6
    assert rows["paris", "oslo"].rtt_s is None
    assert rows["paris", "oslo"].bandwidth == 1e6
    assert rows["oslo", "paris"].rtt_s == 0.1
    assert rows["oslo", "paris"].model_rtt_s == 0.2
    assert rows["oslo", "paris"].model_bandwidth == 2e6
    assert rows["oslo", "rome"].bandwidth is None


def test_later_pictures_are_told_apart_and_one_that_never_completes_is_dropped(three_sites):
    surveys = Surveys(three_sites.build_world(), sites=2)
    assert surveys.take(probed(0, number=1), 0.0) is None
    assert surveys.take(probed(0, number=2), 0.0) is None
    later = surveys.take(probed(1, number=2), 9.0)
    assert later is not None
    assert not later.first
    assert surveys.take(probed(1, number=1), 10.0) is None
