import pytest

from powertrip.telemetry import words
from powertrip.telemetry.links import LinkWatch, overview_lines


@pytest.fixture
def names(story):
    return words.short_names(story.sites)


@pytest.fixture
def watch(story, names):
    watch = LinkWatch()
    watch.lines(story.links(), names)
    return watch


def test_all_links_in_two_lines(story):
    assert overview_lines(story.links()) == [
        "links: 56 of 56 pairs answer, RTT 10 ms to 70 ms, bandwidth 8 Mbit/s to 56 Mbit/s",
        "  median 1.02 of the model's RTT, 1.02 of its bandwidth",
    ]


def test_links_that_do_not_answer_are_counted_and_left_out(story):
    event = story.changed_links(3, rtt_s=None, bandwidth=None)
    assert overview_lines(event)[0].startswith("links: 53 of 56 pairs answer, RTT 10 ms")
    nothing = story.changed_links(56, rtt_s=None, bandwidth=None)
    assert overview_lines(nothing) == ["links: 0 of 56 pairs answer"]
    fast = story.changed_links(56, bandwidth=None)
    assert overview_lines(fast)[0].endswith("70 ms, bandwidths not measured")


def test_later_only_what_has_changed_by_a_third_is_told_and_once(story, names, watch):
    assert watch.lines(story.changed_links(1, rtt_s=0.013, bandwidth=0.8e6), names) == []
    changed = story.changed_links(1, rtt_s=0.014, bandwidth=0.5e6)
    assert watch.lines(changed, names) == [
        "links have changed: us-west1 to us-east1: RTT 10 ms to 14 ms, "
        "bandwidth 8 Mbit/s to 4 Mbit/s"
    ]
    assert watch.lines(changed, names) == []


def test_a_link_that_falls_silent_and_answers_again(story, names, watch):
    silent = story.changed_links(1, rtt_s=None, bandwidth=None)
    assert watch.lines(silent, names) == ["links have changed: us-west1 to us-east1: no answer"]
    assert watch.lines(silent, names) == []
    assert watch.lines(story.links(first=False), names) == [
        "links have changed: us-west1 to us-east1: answers again, RTT 10 ms"
    ]


def test_of_many_changes_three_are_named(story, names, watch):
    (line,) = watch.lines(story.changed_links(8, rtt_s=1.0), names)
    assert line.count(" to us-") + line.count("to europe-") == 3
    assert line.endswith("; and 5 other links")


def test_a_bandwidth_too_high_to_measure_is_no_change(story, names, watch):
    assert watch.lines(story.changed_links(5, bandwidth=None), names) == []
