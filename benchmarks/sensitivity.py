"""How the time to a target depends on the settings of `powertrip` and `together`, on simulated
learning curves whose kappa (10) and h0 (5) are known.

24 unequal sites, far and near; each changes its speed every minute (20 %), decisions see speeds and
delays with 10 % noise, gains are measured with 10 % noise. Every line is one setting away from the
defaults; the figures are times relative to those of the defaults, in the same world: the median
over the seeds, and from the smallest to the largest.

Run with `python -m benchmarks.sensitivity [SEEDS]`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.simulated_curves import Outcome, World, run, sites
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
    name, value
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
    policies: tuple[str, ...] = BOTH
    settings: dict[str, Any] = field(default_factory=dict)
    prior: float = KAPPA
    learn: bool = True
    h0: float = H0
    interval: int = 4


def variants() -> Iterator[Variant]:
    """Yield what is tried, in the order of the table."""
    options: list[tuple[str, tuple[str, ...], list[Any]]] = [
        ("margin", BOTH, [0.0, 0.01, 0.05, 0.1, 0.2]),
        ("seat_margin", BOTH, [0.0, 0.2, 0.4]),
        ("patience", POWERTRIP, [1, 3, 5]),
        ("window", POWERTRIP, [1, 4, 24]),
        ("initial_count", POWERTRIP, [2, 12, 24]),
        ("ranking", POWERTRIP, ["power-to-cost", "power-to-cost-linear"]),
        ("projector", POWERTRIP, ["log"]),
        ("work", POWERTRIP, ["pooled", "together"]),
        ("min_delay_s", BOTH, [0.001, 0.1]),
        ("min_delay_s, power-to-cost", POWERTRIP, [0.001, 0.01, 0.1]),
    ]
    for name, policies, values in options:
        for value in values:
            settings = {name.split(",")[0]: value}
            if name.endswith("power-to-cost"):
                settings["ranking"] = "power-to-cost"
            yield Variant(name, str(value), policies, settings)
    for rounds in (1, 2, 8, 16):
        yield Variant("adjustment_interval", str(rounds), interval=rounds)
    for factor, words in ((1 / 3, "a third"), (3.0, "three times")):
        yield Variant("kappa, learned", f"from {words}", prior=KAPPA * factor)
        yield Variant("kappa, kept", words, prior=KAPPA * factor, learn=False)
    for factor, words in ((0.5, "half"), (2.0, "twice")):
        yield Variant("h0", words, TOGETHER, h0=H0 * factor)


class _Kept(KappaEstimator):
    """Does not learn."""

    def __init__(self, kappa: float) -> None:
        super().__init__(kappa)
        self._kept = kappa

    @property
    def kappa(self) -> float:
        return self._kept


def outcome(policy: str, variant: Variant, seed: int) -> Outcome:
    """Run a policy in the world of a seed, whose hub has a free link."""
    there = sites(seed, h0=H0)
    rtt_s = np.where(np.arange(there.sites) == there.hub, 0.0, there.rtt_s)
    world = World(there.replace(rtt_s=rtt_s), KAPPA, seed, noise=0.1, movement=0.2)
    estimator = KappaEstimator(variant.prior) if variant.learn else _Kept(variant.prior)
    settings = SelectionSettings(policy=policy, **variant.settings)
    return run(
        build_policy(settings),
        world,
        estimator=estimator,
        h0=variant.h0,
        interval=variant.interval,
    )


def main() -> None:
    """Print the table, as Markdown."""
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
    usual = {
        policy: [outcome(policy, Variant("", ""), seed) for seed in seeds] for policy in BOTH
    }
    for policy in BOTH:
        changes = np.mean([run.changes / run.decisions for run in usual[policy]])
        seconds = np.median([run.seconds for run in usual[policy]])
        print(f"{policy}: {seconds:.0f} s, {100 * changes:.0f} % of decisions change members")
    print("\n| setting | value | " + " | ".join(BOTH) + " |\n|---|---|---|---|")
    for variant in variants():
        cells = []
        for policy in BOTH:
            if policy not in variant.policies:
                cells.append("")
                continue
            ratios = [
                outcome(policy, variant, seed).seconds / usual[policy][seed].seconds
                for seed in seeds
            ]
            cells.append(f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"| {variant.name} | {variant.value} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
