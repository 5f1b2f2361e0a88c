import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powertrip.telemetry import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (math.inf, "never"),
        (0.0, "0 s"),
        (1e-38, "0.00 ms"),
        (0.00025, "0.25 ms"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9999, "1.00 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (99.94, "99.9 s"),
        (99.96, "1m 40s"),
        (187.4, "3m 07s"),
        (5999.0, "99m 59s"),
        (6000.0, "1h 40m"),
        (7500.0, "2h 05m"),
    ],
)
def test_durations(seconds, text):
    assert words.duration(seconds) == text


@given(st.floats(min_value=1e-3, max_value=3.5e6))
def test_a_duration_is_right_to_a_percent_and_fits_its_column(seconds):
    text = words.duration(seconds)
    assert len(text) <= 8
    factors = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    parts = text.replace("m ", " m ").replace("h ", " h ")
    if text.endswith(("m", "s")) and not text.endswith(("ms", " s")):
        parts = parts[:-1] + " " + parts[-1]
    numbers = parts.split()
    back = sum(
        float(n) * factors[unit] for n, unit in zip(numbers[::2], numbers[1::2], strict=True)
    )
    assert back == pytest.approx(seconds, rel=0.011)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (0, "0 B"),
        (7, "7 B"),
        (12.34, "12.3 B"),
        (999.4, "999 B"),
        (999.6, "1.00 kB"),
        (1234, "1.23 kB"),
        (45_600_000, "45.6 MB"),
        (7.89e12, "7.89 TB"),
        (-1500, "-1.50 kB"),
    ],
)
def test_quantities(value, text):
    assert words.quantity(value, "B") == text


def test_scores():
    assert words.score(0.9312, "test_accuracy") == "93.1 %"
    assert words.score(1.23456, "test_loss") == "1.235"
    assert words.score(None, "test_loss") == "-"


def test_counts():
    assert words.count(1, "site") == "1 site"
    assert words.count(0, "site") == "0 sites"


def test_a_list_of_names_says_how_many_it_leaves_out():
    names = ("oregon", "iowa", "tokyo")
    assert words.listed(names, 17) == "oregon iowa tokyo"
    assert words.listed(names, 16) == "oregon iowa +1"
    assert words.listed(names, 13) == "oregon +2"
    assert words.listed(names, 8) == ""


@given(st.lists(st.text("abc", min_size=1, max_size=5), min_size=1), st.integers(0, 40))
def test_a_list_of_names_never_exceeds_its_width(names, width):
    assert len(words.listed(names, width)) <= width


def test_short_names_lose_the_cloud_that_all_share():
    assert words.short_names(["gcp:us-west1", "gcp:us-east1"]) == {
        "gcp:us-west1": "us-west1",
        "gcp:us-east1": "us-east1",
    }
    assert words.short_names(["gcp:us-west1", "aws:us-east1"])["gcp:us-west1"] == "gcp:us-west1"
    assert words.short_names(["gcp:us-west1"]) == {"gcp:us-west1": "gcp:us-west1"}


def test_long_names_are_cut_unless_that_makes_them_equal():
    assert words.short_names(["northern-lights", "b"], limit=8)["northern-lights"] == "norther~"
    twins = ["northern-lights-1", "northern-lights-2"]
    assert words.short_names(twins, limit=8) == {name: name for name in twins}


@given(st.lists(st.text("ab:-1", min_size=1, max_size=12), unique=True), st.integers(2, 12))
def test_short_names_stay_different(names, limit):
    short = words.short_names(names, limit)
    assert list(short) == names
    assert len(set(short.values())) == len(names)
    assert all(short.values())
