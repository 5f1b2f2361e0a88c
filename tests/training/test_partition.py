"""Every way of spreading samples over sites."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from powertrip.training.data import DatasetSource, source
from powertrip.training.errors import PartitionError
from powertrip.training.partition import partition
from powertrip.training.settings import PartitionSettings
from powertrip.training.task import Task


def task_of(labels: Any, **extra: Any) -> Task:
    targets = torch.as_tensor(labels)
    return cast(Task, SimpleNamespace(train=(torch.zeros(len(targets), 1), targets), **extra))


def random_task(count: int = 600, classes: int = 10, clients: int = 12) -> Task:
    rng = np.random.default_rng(0)
    return task_of(rng.integers(0, classes, count), clients=rng.integers(0, clients, count))


@given(
    kind=st.sampled_from(["iid", "dirichlet", "client", "shards"]),
    sites=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_every_sample_is_at_exactly_one_site(kind: Any, sites: int, seed: int) -> None:
    parts = partition(PartitionSettings(kind=kind, alpha=2.0), random_task(), sites, seed)
    assert len(parts) == sites
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "client", "shards", "shared"])
def test_equal_seeds_give_equal_parts(kind: Any) -> None:
    settings = PartitionSettings(kind=kind)
    first, again = (partition(settings, random_task(), 5, seed=4) for _ in range(2))
    assert all(map(np.array_equal, first, again))
    if kind in {"iid", "dirichlet", "shards"}:
        other = partition(settings, random_task(), 5, seed=5)
        assert not all(map(np.array_equal, first, other))


def test_iid_parts_differ_by_one_at_most() -> None:
    parts = partition(PartitionSettings(), task_of(range(11)), 4, seed=0)
    assert sorted(map(len, parts)) == [2, 3, 3, 3]


def test_shared_gives_everything_to_everyone_even_with_more_sites_than_samples() -> None:
    parts = partition(PartitionSettings(kind="shared"), task_of([0, 1]), 5, seed=0)
    assert [part.tolist() for part in parts] == [[0, 1]] * 5


def test_a_small_alpha_makes_the_sites_unlike() -> None:
    task = random_task(5000)
    labels = cast("tuple[torch.Tensor, torch.Tensor]", task.train)[1].numpy()

    def largest_share(alpha: float) -> float:
        parts = partition(PartitionSettings(kind="dirichlet", alpha=alpha), task, 5, seed=1)
        return float(np.mean([np.bincount(labels[p]).max() / len(p) for p in parts]))

    assert largest_share(0.1) > 0.3
    assert largest_share(1000.0) < 0.13


def test_shards_hold_few_labels_each() -> None:
    labels = np.repeat(np.arange(10), 20)
    parts = partition(PartitionSettings(kind="shards"), task_of(labels), 10, seed=0)
    assert all(len(part) == 20 for part in parts)
    assert all(len(np.unique(labels[part])) <= 2 for part in parts)


def test_clients_stay_whole_and_the_largest_goes_first() -> None:
    clients = np.repeat([30, 10, 20, 40], [5, 1, 3, 2])
    parts = partition(PartitionSettings(kind="client"), task_of(clients, clients=clients), 2, 0)
    # Sizes 5, 3, 2, 1: client 30 to site 0, 20 and then 40 to site 1, 10 to site 0 (5 against 5).
    assert [sorted(set(clients[part].tolist())) for part in parts] == [[10, 30], [20, 40]]


def test_labels_can_be_an_attribute_where_the_data_is_a_dataset() -> None:
    data = [(torch.zeros(1), 0.5)] * 6

    class Items:
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: int) -> Any:
            return data[index]

    bare = cast(Task, SimpleNamespace(train=Items()))
    assert isinstance(source(bare.train), DatasetSource)
    with pytest.raises(PartitionError, match="give the task an array `labels`"):
        partition(PartitionSettings(kind="shards"), bare, 3, 0)
    labelled = cast(Task, SimpleNamespace(train=Items(), labels=torch.tensor([0, 1, 2] * 2)))
    parts = partition(PartitionSettings(kind="shards", shards_per_site=1), labelled, 3, 0)
    assert sorted(part.tolist() for part in parts) == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("kind", "task", "sites", "said"),
    [
        ("iid", task_of([0, 1, 2]), 4, "3 training samples cannot be spread over 4 sites"),
        ("dirichlet", task_of([0] * 20), 15, r"leaves sites \d+, .* raise partition.alpha"),
        ("shards", task_of(range(5)), 5, "leaves .* lower partition.shards_per_site"),
        ("client", task_of([0, 1]), 2, "give the task an array `clients`"),
        ("client", task_of([0] * 4, clients=[1, 1, 2, 2]), 3, "2 clients .* over 3 sites"),
        ("client", task_of([0] * 4, clients=[1, 2]), 2, "one entry for each of the 4"),
        ("dirichlet", task_of([0.5, 1.5]), 1, "one label per training sample"),
    ],
)
def test_what_cannot_be_spread(kind: Any, task: Task, sites: int, said: str) -> None:
    settings = PartitionSettings(kind=kind, alpha=0.05)
    with pytest.raises(PartitionError, match=said):
        partition(settings, task, sites, seed=0)
