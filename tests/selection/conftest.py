"""Observations to decide on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from powertrip.selection import Observation


def make_observation(**fields: Any) -> Observation:
    """Build an observation from a few fields; the others get plain values.

    `delay_s` is a short way to give links whose exchange takes that long (correction 1).
    """
    delay_s = fields.pop("delay_s", None)
    throughput = np.asarray(fields.pop("throughput", [100.0, 50.0, 200.0]), dtype=float)
    n = throughput.size
    if delay_s is not None:
        fields |= {"rtt_s": delay_s, "up": np.full(n, np.inf), "down": np.full(n, np.inf)}
    plain = {
        "time_s": 0.0,
        "round": 0,
        "generation": 0,
        "hub": 0,
        "power_w": throughput * 10,
        "throughput": throughput,
        "full_speed": np.full(n, max(throughput.max(), 1.0)),
        "samples": np.full(n, 100),
        "rtt_s": np.full(n, 0.1),
        "up": np.full(n, 1e6),
        "down": np.full(n, 2e6),
        "reachable": np.full(n, True),
        "distance_m": np.full(n, np.nan),
        "communication_correction": 1.0,
        "update_bytes": 1_000_000,
        "batch_size": 10,
        "base_steps": 20,
        "interval_rounds": 4,
        "members": (),
        "previous": None,
        "gains": np.array([]),
        "rebuild_s": 0.0,
        "seed": 7,
    }
    return Observation(**plain | fields)


@st.composite
def observations(draw: st.DrawFn, least_sites: int = 1) -> Observation:
    """Draw observations of up to 12 sites, some of them without power or link, without ties."""
    n = draw(st.integers(least_sites, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.floats(0.1, 4))
    full_speed = np.exp(rng.normal(5, spread, n))
    fraction = rng.uniform(0.05, 1, n) * (rng.random(n) > 0.15)
    bandwidth = np.exp(rng.normal(17, spread, (2, n))) * (rng.random((2, n)) > 0.05)
    reachable = rng.random(n) > 0.1
    survivor = int(rng.integers(n))
    fraction[survivor], bandwidth[:, survivor], reachable[survivor] = 0.5, 1e7, True
    full_speed[survivor] = 150.0
    return make_observation(
        generation=draw(st.integers(0, 1000)),
        hub=int(rng.integers(n)),
        power_w=full_speed * fraction * rng.uniform(5, 20, n),
        throughput=full_speed * fraction,
        full_speed=full_speed,
        rtt_s=np.where(reachable, rng.uniform(0.001, 0.3, n), np.inf),
        up=bandwidth[0],
        down=bandwidth[1],
        reachable=reachable,
        distance_m=np.where(rng.random(n) > 0.2, rng.uniform(0, 1e7, n), np.nan),
        communication_correction=draw(st.floats(0.1, 10)),
        update_bytes=draw(st.integers(1, 10**10)),
        batch_size=draw(st.integers(1, 512)),
        base_steps=rng.integers(1, 500, n),
        interval_rounds=draw(st.integers(1, 20)),
        members=tuple(rng.permutation(n)[: rng.integers(n + 1)].tolist()),
        gains=rng.normal(0, draw(st.floats(0, 1e6)), draw(st.integers(0, 30))),
        rebuild_s=draw(st.floats(0, 1e4)),
        seed=draw(st.integers(-5, 2**70)),
    )


@pytest.fixture(scope="session")
def observe() -> Callable[..., Observation]:
    """Return `make_observation`."""
    return make_observation


@pytest.fixture(scope="session")
def any_observation() -> Callable[..., st.SearchStrategy[Observation]]:
    """Return the strategy `observations`."""
    return observations
