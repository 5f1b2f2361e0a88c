from __future__ import annotations

import select
import time
from collections.abc import Iterator

import pytest

from netem.engines.timer import Timer


@pytest.fixture
def timer() -> Iterator[Timer]:
    timer = Timer()
    yield timer
    timer.close()


def readable(timer: Timer, timeout_s: float = 0.0) -> bool:
    return bool(select.select([timer], [], [], timeout_s)[0])


def test_it_is_readable_from_its_time_on(timer: Timer) -> None:
    at_s = time.monotonic() + 0.05
    timer.arm(at_s)
    assert readable(timer, 10)
    assert 0 <= time.monotonic() - at_s < 1
    assert readable(timer)


def test_a_time_that_has_passed_is_at_once_and_none_is_never(timer: Timer) -> None:
    timer.arm(0.0)
    assert readable(timer, 1)
    timer.arm(None)
    assert not readable(timer)


def test_a_later_time_replaces_an_earlier_one(timer: Timer) -> None:
    timer.arm(time.monotonic() - 1)
    assert readable(timer, 1)
    timer.arm(time.monotonic() + 60)
    assert not readable(timer)


def test_closing_twice_is_harmless(timer: Timer) -> None:
    timer.close()
    timer.close()
