"""How noisy trials of half of the updates are: ``python -m benchmarks.half_trials``.

The first sites of the default scenario train its task in this process, a fixed number of steps
each. After every round many random halves are tried, of which a run draws one: the spread of
``ln r``, r the mean gain of two halves over that of all, is the noise that `KappaEstimator` has to
live with, and its mean says what kappa is at that stage of the training.
"""

from __future__ import annotations

import argparse
import math
import random

import numpy as np
import torch

from powertrip.config import Config, load_config
from powertrip.training.digits import Digits
from powertrip.training.evaluation import evaluate
from powertrip.training.flat import initial_model
from powertrip.training.local import LocalTrainer, Steps
from powertrip.training.outer import build_outer
from powertrip.training.partition import partition


def trials(config: Config, options: argparse.Namespace) -> None:
    """Train, and print one line a round."""
    task, seed, k = Digits(), config.seed, options.members
    shares = partition(config.partition, task, len(config.sites.selected), seed)
    model = initial_model(task, seed=seed)
    trainers = [
        LocalTrainer(task, shares[site], config.training, seed, site, model) for site in range(k)
    ]
    committed = model.vector.clone()
    outer = build_outer(config.outer, committed.numel(), model.parameters_size)
    draw = random.Random(seed)

    def loss(vector: torch.Tensor) -> float:
        model.vector.copy_(vector)
        return evaluate(task, model, "validation").loss

    for round_ in range(1, options.rounds + 1):
        updates = []
        for trainer in trainers:
            model.vector.copy_(committed)
            trainer.train(round_, Steps(options.steps))
            updates.append(committed - model.vector)
        every = torch.stack(updates)
        mean, before = every.mean(0), loss(committed)
        gain, ratios = before - loss(committed - mean), []
        for _ in range(options.halves):
            order = draw.sample(range(k), k)
            halves = order[: k // 2], order[k // 2 :]
            losses = [loss(committed - every[half].mean(0)) for half in halves]
            gain_half = before - sum(losses) / 2
            if gain > 0 and gain_half > 0:
                ratios.append(math.log(gain_half / gain))
        outer.step(committed, mean)
        r = math.exp(float(np.mean(ratios))) if ratios else math.nan
        kappa = k * (1 - r) / (2 * r - 1) if r > 0.5 else math.inf
        print(
            f"round {round_:3}  loss {before:.3f}  gain {gain:+.3f}  usable {len(ratios):3}  "
            f"spread of ln r {np.std(ratios) if ratios else math.nan:.2f}  kappa {kappa:.1f}",
            flush=True,
        )


def main() -> None:
    """Print the trials of some seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=6, help="number of sites (6)")
    parser.add_argument("--steps", type=int, default=4, help="local steps of each (4)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (15)")
    parser.add_argument("--halves", type=int, default=20, help="halves tried in a round (20)")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds (2)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(options.seeds):
        print(f"seed {seed}")
        trials(load_config(None, [f"seed={seed}"]), options)


if __name__ == "__main__":
    main()
