"""Spread the training samples over the sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from powertrip.training.data import IntArray, TensorSource, source
from powertrip.training.errors import PartitionError
from powertrip.training.settings import PartitionSettings
from powertrip.training.task import Task


def partition(
    settings: PartitionSettings, task: Task, sites: int, seed: int
) -> tuple[IntArray, ...]:
    """Indices into the training split for each site.

    Every sample is at exactly one site, except with kind `shared`, where all sites hold all.

    Parameters
    ----------
    settings
        Kind of partition and its parameters.
    task
        Its training split is spread.
    sites
        Number of sites.
    seed
        Seed of the random choices.

    Returns
    -------
    tuple of ndarray
        One sorted array per site.

    Raises
    ------
    PartitionError
        If a site would be empty, or the task lacks the labels or clients that the kind needs.
    """
    count = len(source(task.train, "train"))
    if sites < 1:
        raise ValueError(f"{sites} sites")
    if count < sites and settings.kind != "shared":
        raise PartitionError(
            f"{count} training samples cannot be spread over {sites} sites; use fewer sites or "
            "partition.kind=shared"
        )
    rng = np.random.default_rng(seed)
    parts = _KINDS[settings.kind](settings, task, count, sites, rng)
    empty = [site for site, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise PartitionError(
            f"the {settings.kind} partition leaves {_named(empty)} of {sites} without a training "
            f"sample; {_REMEDIES[settings.kind]}"
        )
    return tuple(np.sort(part) for part in parts)


def _iid(
    settings: PartitionSettings, task: Task, count: int, sites: int, rng: np.random.Generator
) -> list[IntArray]:
    """Equal random parts; sizes differ by one at most."""
    return np.array_split(rng.permutation(count), sites)


def _dirichlet(
    settings: PartitionSettings, task: Task, count: int, sites: int, rng: np.random.Generator
) -> list[IntArray]:
    """Each class dealt in proportions drawn from a Dirichlet distribution.

    Source: Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification, 2019, arXiv:1909.06335, in the form of Yurochkin et al.,
    Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019 (one draw per class).
    """
    labels = _labels(task, count, "dirichlet")
    parts: list[list[IntArray]] = [[] for _ in range(sites)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(sites, settings.alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for site, piece in enumerate(np.split(members, cuts)):
            parts[site].append(piece)
    return [np.concatenate(pieces) for pieces in parts]


def _client(
    settings: PartitionSettings, task: Task, count: int, sites: int, rng: np.random.Generator
) -> list[IntArray]:
    """All samples of a client at one site: the largest client first, to the emptiest site."""
    clients = _per_sample(task, "clients", count)
    if clients is None:
        raise PartitionError(
            "the client partition needs to know whose each training sample is: give the task an "
            "array `clients`, or choose another partition.kind"
        )
    names, sizes = np.unique(clients, return_counts=True)
    if len(names) < sites:
        raise PartitionError(
            f"{len(names)} clients cannot be spread over {sites} sites; use at most "
            f"sites.count={len(names)} or another partition.kind"
        )
    held = np.zeros(sites, dtype=np.int64)
    site_of = np.zeros(len(names), dtype=np.int64)
    for client in np.argsort(-sizes, kind="stable"):
        site_of[client] = np.argmin(held)
        held[site_of[client]] += sizes[client]
    owner = site_of[np.searchsorted(names, clients)]
    return [np.flatnonzero(owner == site) for site in range(sites)]


def _shards(
    settings: PartitionSettings, task: Task, count: int, sites: int, rng: np.random.Generator
) -> list[IntArray]:
    """Samples in the order of their labels, cut into equal runs that are dealt at random.

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, AISTATS 2017, section 3 (two shards a site).
    """
    labels = _labels(task, count, "shards")
    shuffled = rng.permutation(count)
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    shards = np.array_split(ordered, sites * settings.shards_per_site)
    dealt = rng.permutation(len(shards)).reshape(sites, settings.shards_per_site)
    return [np.concatenate([shards[shard] for shard in hand]) for hand in dealt]


def _shared(
    settings: PartitionSettings, task: Task, count: int, sites: int, rng: np.random.Generator
) -> list[IntArray]:
    """Every site holds everything; their batches differ by the number of the site."""
    return [np.arange(count)] * sites


_KINDS: dict[
    str,
    Callable[[PartitionSettings, Task, int, int, np.random.Generator], list[IntArray]],
] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "client": _client,
    "shards": _shards,
    "shared": _shared,
}
_REMEDIES = {
    "iid": "use fewer sites",
    "dirichlet": "raise partition.alpha, use fewer sites, or choose another seed",
    "client": "use fewer sites",
    "shards": "lower partition.shards_per_site or use fewer sites",
    "shared": "give the task training samples",
}


def _labels(task: Task, count: int, kind: str) -> npt.NDArray[Any]:
    labels = _per_sample(task, "labels", count)
    if labels is not None:
        return labels
    train = source(task.train, "train")
    if isinstance(train, TensorSource):
        targets = train.targets
        if targets.dim() == 1 and not (targets.is_floating_point() or targets.is_complex()):
            return targets.cpu().numpy()
    raise PartitionError(
        f"the {kind} partition needs one label per training sample: give the task an array "
        "`labels`, or choose another partition.kind"
    )


def _per_sample(task: Task, name: str, count: int) -> npt.NDArray[Any] | None:
    value = getattr(task, name, None)
    if value is None:
        return None
    array = value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.shape != (count,):
        raise PartitionError(
            f"the task's `{name}` has shape {array.shape}; it needs one entry for each of the "
            f"{count} training samples"
        )
    return array


def _named(sites: list[int]) -> str:
    shown = ", ".join(str(site) for site in sites[:5])
    more = f" and {len(sites) - 5} more" if len(sites) > 5 else ""
    return f"{'site' if len(sites) == 1 else 'sites'} {shown}{more}"
