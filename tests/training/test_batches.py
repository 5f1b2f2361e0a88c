"""Batches are a pure function of seed, site, round and step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powertrip.training.batches import Batches


@given(
    count=st.integers(1, 40),
    size=st.integers(1, 50),
    calls=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=20),
)
def test_any_order_of_asking_gives_the_same_batches(
    count: int, size: int, calls: list[tuple[int, int]]
) -> None:
    used = Batches(np.arange(count), size, seed=1, site=2)
    for round_index, step in calls:
        fresh = Batches(np.arange(count), size, seed=1, site=2)
        batch = used.batch(round_index, step)
        assert len(batch) == size
        assert np.array_equal(batch, fresh.batch(round_index, step))


def test_a_pass_takes_every_sample_once_before_any_twice() -> None:
    batches = Batches(np.arange(100, 110), 4, seed=0, site=0)
    drawn = np.concatenate([batches.batch(7, step) for step in range(5)])
    assert sorted(drawn[:10].tolist()) == list(range(100, 110))
    assert sorted(drawn[10:].tolist()) == list(range(100, 110))
    assert drawn[:10].tolist() != drawn[10:].tolist()


def test_seeds_sites_and_rounds_differ() -> None:
    def first(seed: int, site: int, round_index: int) -> list[int]:
        batches = Batches(np.arange(1000), 8, seed=seed, site=site)
        return batches.batch(round_index, 0).tolist()

    drawn = [first(0, 0, 0), first(1, 0, 0), first(0, 1, 0), first(0, 0, 1)]
    assert len(set(map(tuple, drawn))) == 4


def test_a_site_without_samples() -> None:
    with pytest.raises(ValueError, match="site 3 has no samples"):
        Batches(np.arange(0), 4, seed=0, site=3)
