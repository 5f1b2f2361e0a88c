"""How the time to a target depends on the policy, and on the settings of `powertrip` and
`together`, on simulated learning curves whose kappa and h0 are known.

Run with `python -m benchmarks.sensitivity [SEEDS]`. The first table has 24 unequal sites in a world
that stands still, and times relative to that of the best fixed plan in hindsight: the median over
the seeds, and the largest.

In the second, kappa is 10 and h0 5; each site changes its speed every minute (20 %), decisions see
speeds and delays with 10 % noise, and the hub is a weak site (a fifth of the speed) with a free
link. Every line is one setting away from the defaults; the figures are times relative to those of
the defaults in the same world: the median over the seeds, and from the smallest to the largest.

In both, gains are measured with 10 % noise, and kappa is learned.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.simulated_curves import (
    Outcome,
    World,
    best_fixed_s,
    best_static_s,
    run,
    sites,
)
from powertrip.selection import SelectionSettings, build_policy
from powertrip.selection.kappa import KappaEstimator

KAPPA, H0 = 10.0, 5.0
BOTH = ("powertrip", "together")
POWERTRIP, TOGETHER = BOTH[:1], BOTH[1:]


@dataclass(frozen=True)
class Variant:
    """One setting away from the defaults.

    Parameters
    ----------
    name, value, default
        In words, for the table.
    policies
        Those that read the setting.
    settings
        What is written.
    prior, learn, h0, interval
        What kappa is taken for at first, whether it is then learned, what h0 is taken for, and the
        rounds between two decisions.
    """

    name: str
    value: str
    default: str = ""
    policies: tuple[str, ...] = BOTH
    settings: dict[str, Any] = field(default_factory=dict)
    prior: float = KAPPA
    learn: bool = True
    h0: float = H0
    interval: int = 4


def variants() -> Iterator[Variant]:
    """Yield what is tried, in the order of the table."""
    options: list[tuple[str, tuple[str, ...], list[Any], dict[str, Any]]] = [
        ("margin", BOTH, [0.0, 0.01, 0.03, 0.05, 0.1, 0.2], {}),
        ("seat_margin", BOTH, [0.0, 0.1, 0.2, 0.4], {}),
        ("patience", POWERTRIP, [1, 2, 3, 5], {}),
        ("window", POWERTRIP, [1, 2, 4, 24], {}),
        ("initial_count", POWERTRIP, [2, 12, 24], {}),
        ("ranking", POWERTRIP, ["power-to-cost", "power-to-cost-linear"], {}),
        ("projector", POWERTRIP, ["log", "oracle"], {}),
        ("work", POWERTRIP, ["pooled", "together"], {}),
        ("min_delay_s", BOTH, [0.001, 0.1], {}),
        ("min_delay_s", POWERTRIP, [0.001, 0.01, 0.1], {"ranking": "power-to-cost"}),
    ]
    usual = SelectionSettings()
    for name, policies, values, others in options:
        default = getattr(usual, name)
        label = f"`{name}`" + "".join(f", `{value}`" for value in others.values())
        for value in values:
            if value != default or others:
                settings = {name: value} | others
                shown = "null" if default is None else str(default)
                yield Variant(label, str(value), shown, policies, settings)
    for rounds in (1, 2, 8, 16):
        yield Variant("`adjustment_interval`", str(rounds), "4", interval=rounds)
    for learn, label in ((True, "kappa, learned from"), (False, "kappa, kept")):
        for factor, words in ((1 / 3, "a third"), (3.0, "three times")):
            prior = KAPPA * factor
            yield Variant(label, words, "the true one, learned", prior=prior, learn=learn)
    for factor, words in ((0.5, "half"), (2.0, "twice")):
        yield Variant("h0", words, "the true one", TOGETHER, h0=H0 * factor)


class _Kept(KappaEstimator):
    """Does not learn."""

    def __init__(self, kappa: float) -> None:
        super().__init__(kappa)
        self._kept = kappa

    @property
    def kappa(self) -> float:
        return self._kept


def outcome(policy: str, variant: Variant, seed: int) -> Outcome:
    """Run a policy in the world of a seed."""
    there = sites(seed, h0=H0)
    hub = np.arange(there.sites) == there.hub
    there = there.replace(
        rtt_s=np.where(hub, 0.0, there.rtt_s),
        throughput=there.throughput * np.where(hub, 0.2, 1.0),
    )
    world = World(there, KAPPA, seed, noise=0.1, movement=0.2)
    estimator = KappaEstimator(variant.prior) if variant.learn else _Kept(variant.prior)
    settings = SelectionSettings(policy=policy, **variant.settings)
    return run(
        build_policy(settings),
        world,
        estimator=estimator,
        h0=variant.h0,
        interval=variant.interval,
    )


def by_policy(seeds: range) -> None:
    """Print the times of policies over those of the best fixed plan, as Markdown."""
    options: dict[str, dict[str, Any]] = {
        "`together`": {"policy": "together"},
        "`powertrip`, deadlines": {"policy": "powertrip", "work": "together"},
        "`powertrip`": {"policy": "powertrip"},
        "`powertrip`, `log`": {"policy": "powertrip", "projector": "log"},
        "preset `paper`": {"preset": "paper"},
    }
    names = [*options, "best `static-k` with deadlines", "best `static-k`"]
    print("| kappa, h0 | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    for kappa in (3.0, 10.0, 40.0):
        for h0 in (5.0, 10.0):
            worlds = [World(sites(seed, h0=h0), kappa, seed) for seed in seeds]
            least_s = np.array([best_fixed_s(world.sites, kappa) for world in worlds])
            cells = []
            for settings in options.values():
                policy = build_policy(SelectionSettings(**settings))
                over = np.array([run(policy, world).seconds for world in worlds]) / least_s
                cells.append(f"{np.median(over):.2f} ({over.max():.2f})")
            for work in ("together", "straggler"):
                best_s = [best_static_s(world.sites, kappa, work) for world in worlds]
                cells.append(f"{np.median(best_s / least_s):.2f}")
            print(f"| {kappa:g}, {h0:g} | " + " | ".join(cells) + " |", flush=True)


def by_setting(seeds: range) -> None:
    """Print the times with other settings over those with the defaults, as Markdown."""
    usual = {policy: [outcome(policy, Variant("", ""), seed) for seed in seeds] for policy in BOTH}
    print("| setting | default | " + " | ".join(f"`{policy}`" for policy in BOTH) + " |")
    print("|---|---|---|---|")
    for (name, default), tried in groupby(variants(), lambda v: (v.name, v.default)):
        cells: dict[str, list[str]] = {policy: [] for policy in BOTH}
        for variant in tried:
            for policy in variant.policies:
                over = [
                    outcome(policy, variant, seed).seconds / usual[policy][seed].seconds
                    for seed in seeds
                ]
                times = f"{np.median(over):.2f} ({min(over):.2f} to {max(over):.2f})"
                cells[policy].append(f"{variant.value}: {times}")
        columns = " | ".join("; ".join(cells[policy]) for policy in BOTH)
        print(f"| {name} | {default} | {columns} |", flush=True)
    for policy in BOTH:
        changes = np.mean([made.changes / made.decisions for made in usual[policy]])
        seconds = np.median([made.seconds for made in usual[policy]])
        print(f"{policy}: {seconds:.0f} s, {100 * changes:.0f} % of decisions change members")


def main() -> None:
    """Print the tables."""
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
    by_policy(seeds)
    print()
    by_setting(seeds)


if __name__ == "__main__":
    main()
