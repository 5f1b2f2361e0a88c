"""Train, validation and test never overlap and keep every group's proportions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.training.errors import TaskError
from powertrip.training.splits import split_indices


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 20), min_size=20, max_size=100),
    st.floats(0.05, 0.45),
    st.floats(0.05, 0.45),
)
def test_every_sample_is_in_exactly_one_split(
    groups: list[int], validation: float, test: float
) -> None:
    parts = split_indices(len(groups), validation=validation, test=test, groups=groups)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(groups)))
    labels = np.asarray(groups)
    for part, share in zip(parts[1:], (validation, test), strict=True):
        assert abs(len(part) - share * len(groups)) <= 1.5
        for key in set(groups):
            expected = share * (labels == key).sum()
            assert abs((labels[part] == key).sum() - expected) < 3


def test_each_group_is_split_in_the_same_proportions() -> None:
    groups = np.repeat([7, 8], [100, 300])
    train, validation, test = split_indices(400, validation=0.1, test=0.2, groups=groups)
    for part, expected in ((train, [70, 210]), (validation, [10, 30]), (test, [20, 60])):
        assert [int((groups[part] == key).sum()) for key in (7, 8)] == expected


def test_the_split_is_the_same_each_time_and_shuffled() -> None:
    first = split_indices(100, validation=0.1)
    assert all(map(np.array_equal, first, split_indices(100, validation=0.1)))
    assert not np.array_equal(first[1], split_indices(100, validation=0.1, seed=1)[1])
    assert len(first[2]) == 0


def test_too_few_samples() -> None:
    with pytest.raises(TaskError, match=r"3 samples are too few to set 0\.1 of them aside"):
        split_indices(3, validation=0.1)
    with pytest.raises(TaskError, match="none is left to train on"):
        split_indices(2, validation=0.5, test=0.49)
    with pytest.raises(TaskError, match="2 group labels were given for 3 samples"):
        split_indices(3, validation=0.5, groups=[0, 1])
