"""Median time of one decision of every policy, for 100 to 100,000 synthetic sites, on one core;
and of a decision among 100 sites with all the links between them, in a ring and in a mesh.

Run with `python benchmarks/selection_time.py [REPEATS]`.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from powertrip.selection import POLICIES, Observation, SelectionSettings, build_policy
from powertrip.selection.types import ExchangeModel

SITES = (100, 1_000, 10_000, 100_000)
MODELS: tuple[ExchangeModel, ...] = ("star", "ring", "mesh")


def synthetic(sites: int, seed: int = 0) -> Observation:
    """Return sites on a globe around a hub, each with 20 to 90 % of its power."""
    rng = np.random.default_rng(seed)
    full_speed = rng.lognormal(8, 0.5, sites)
    fraction = rng.uniform(0.2, 0.9, sites)
    distance_m = rng.uniform(0, 1.6e7, sites)
    bandwidth = rng.lognormal(19, 0.5, (2, sites))
    return Observation(
        time_s=0.0,
        round=0,
        generation=0,
        hub=0,
        power_w=fraction * 1e5,
        throughput=fraction * full_speed,
        full_speed=full_speed,
        samples=rng.integers(100, 10_000, sites),
        rtt_s=0.005 + distance_m / 7e7,
        up=bandwidth[0],
        down=bandwidth[1],
        reachable=rng.random(sites) > 0.01,
        distance_m=distance_m,
        communication_correction=1.0,
        update_bytes=100_000_000,
        batch_size=64,
        base_steps=20,
        interval_rounds=4,
        members=(),
        previous=None,
        gains=np.full(20, 0.01),
        rebuild_s=0.5,
        seed=0,
    )


def decision_s(policy: str, observation: Observation, repeats: int) -> float:
    """Return the median time of a decision that has a previous one to start from, in seconds."""
    chooser = build_policy(SelectionSettings(policy=policy, k=max(1, observation.sites // 4)))
    first = chooser.decide(observation)
    second = observation.replace(generation=1, members=first.members, previous=first)
    times_s = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        chooser.decide(second)
        times_s.append(time.perf_counter() - start_s)
    return float(np.median(times_s))


def linked(observation: Observation, model: ExchangeModel, seed: int = 0) -> Observation:
    """Return the same sites with links between all of them."""
    rng = np.random.default_rng(seed)
    pairs = (observation.sites, observation.sites)
    return observation.replace(
        exchange_model=model,
        pair_rtt_s=rng.uniform(0.005, 0.3, pairs),
        pair_bandwidth=rng.lognormal(19, 0.5, pairs),
    )


def main() -> None:
    """Print the tables, in milliseconds."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    observations = [synthetic(sites) for sites in SITES]
    print("policy".ljust(14) + "".join(f"{sites:>12,}" for sites in SITES) + "  sites; ms")
    for policy in POLICIES:
        times_s = [decision_s(policy, observation, repeats) for observation in observations]
        print(policy.ljust(14) + "".join(f"{1e3 * time_s:12.2f}" for time_s in times_s))
    print("100 sites".ljust(14) + "".join(f"{model:>12}" for model in MODELS))
    for policy in ("powertrip", "together"):
        times_s = [decision_s(policy, linked(observations[0], model), repeats) for model in MODELS]
        print(policy.ljust(14) + "".join(f"{1e3 * time_s:12.2f}" for time_s in times_s))


if __name__ == "__main__":
    main()
