"""Power left unused where the utilisation is an autoregressive process of order 1.

The defaults are the statistics of Google's PowerData2019 domains (scripts/derive_power_table.py
prints them).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from powertrip.world.site_settings import SiteSettings, SyntheticPower
from powertrip.world.sources.base import Context, Feed
from powertrip.world.steps import AfterEnd, Floats, StepFunction


class _Process(NamedTuple):
    """What two sites must share to be generated together."""

    seed: int
    steps: int
    step_s: float
    step_correlation: float
    site_correlation: float
    after_end: AfterEnd


def load_synthetic(sites: Sequence[SiteSettings], context: Context) -> list[Feed]:
    """Generate the traces of all synthetic sites, those of one process at once.

    A site's trace depends on the seed, its settings and its name, not on which other sites there
    are.
    """
    groups: dict[_Process, list[int]] = {}
    powers: list[SyntheticPower] = []
    for i, site in enumerate(sites):
        assert isinstance(site.power, SyntheticPower)
        powers.append(site.power)
        groups.setdefault(_process(site.power, context.seed), []).append(i)

    feeds: list[Feed | None] = [None] * len(sites)
    for process, members in groups.items():
        unused = normal_processes(
            [sites[i].name for i in members],
            seed=process.seed,
            steps=process.steps,
            step_correlation=process.step_correlation,
            site_correlation=process.site_correlation,
        )
        unused *= -np.array([[powers[i].std] for i in members])
        unused += 1 - np.array([[powers[i].mean] for i in members])
        np.clip(unused, 0, 1, out=unused)
        times_s = np.arange(process.steps, dtype=np.float64) * process.step_s
        end_s = process.steps * process.step_s
        for row, i in enumerate(members):
            trace = StepFunction(times_s, unused[row], end_s, process.after_end)
            power = powers[i]
            feeds[i] = Feed(trace, power.capacity_w * power.share, power.offset_s)
    return [feed for feed in feeds if feed is not None]


def normal_processes(
    names: Sequence[str],
    *,
    seed: int,
    steps: int,
    step_correlation: float,
    site_correlation: float,
) -> Floats:
    """Generate stationary normal AR(1) processes of mean 0 and variance 1.

    `x[t] = a x[t-1] + sqrt(1 - a^2) e[t]`, where the innovations `e` of two sites have the
    correlation `site_correlation`, and so have the processes.

    Parameters
    ----------
    names
        n names, each with a random stream of its own.
    seed
        Seed of all streams.
    steps
        Number of values of each process.
    step_correlation
        `a`, the correlation over one step.
    site_correlation
        The correlation between two processes of the same seed.

    Returns
    -------
    ndarray
        [n, steps] values.
    """
    x = np.empty((len(names), steps))
    for row, name in enumerate(names):
        key = hashlib.blake2b(name.encode(), digest_size=8).digest()
        np.random.default_rng([seed, int.from_bytes(key, "big")]).standard_normal(out=x[row])
    if site_correlation > 0:
        x *= math.sqrt(1 - site_correlation)
        x += math.sqrt(site_correlation) * np.random.default_rng(seed).standard_normal(steps)
    x[:, 1:] *= math.sqrt(1 - step_correlation**2)
    for t in range(1, steps):
        x[:, t] += step_correlation * x[:, t - 1]
    return x


def _process(power: SyntheticPower, run_seed: int) -> _Process:
    return _Process(
        seed=run_seed if power.seed is None else power.seed,
        steps=int(power.duration_s // power.step_s),
        step_s=power.step_s,
        step_correlation=power.step_correlation,
        site_correlation=power.site_correlation,
        after_end=power.after_end,
    )
