"""Learning curves with a known kappa and h0, to run policies on."""

from __future__ import annotations

import numpy as np

from powertrip.selection.deadlines import best_round_s, whole_steps, worth
from powertrip.selection.kappa import KappaEstimator
from powertrip.selection.round_time import predicted_round_s, round_terms

TARGET = 200.0  # in steps' worth at saturation


def sites(observe, seed, n=24, h0=5.0):
    """Unequal sites, far and near, with steps of 10 to 100 ms."""
    rng = np.random.default_rng(seed)
    speed = rng.lognormal(0, 0.7, n) * 300
    return observe(
        throughput=speed,
        delay_s=rng.lognormal(-0.5, 0.8, n),
        full_speed=speed * 1.5,
        base_steps=20,
        h0=h0,
        rebuild_s=0.1,
    )


def progress(seen, members, round_s, kappa):
    """What a round brings; `seen.h0` is the true one."""
    terms = round_terms(seen, 0.01)
    local_s = round_s - terms.delay_s[members]
    steps = np.maximum(whole_steps(local_s, terms.step_s[members]), 1)
    return members.size / (members.size + kappa) * worth(steps, seen.h0).mean()


def seconds_to_target(policy, seen, kappa, seed=0, noise=0.1):
    """Run a policy that learns kappa from noisy halves; returns the time to the target."""
    rng = np.random.default_rng(seed)
    estimator = KappaEstimator()
    done = time_s = 0.0
    gains = []
    while done < TARGET:
        now = seen.replace(kappa=estimator.kappa, gains=gains)
        made = policy.decide(now)
        members = np.array(made.members)
        time_s += 0.0 if set(made.members) == set(now.members) else now.rebuild_s
        terms = round_terms(now, 0.01)
        for _ in range(made.rounds):
            if made.work.steps is None:
                brings = progress(now, members, made.predicted_round_s, kappa)
            else:
                steps = np.array(made.work.steps, dtype=float)
                mean = worth(steps, now.h0).mean()
                brings = members.size / (members.size + kappa) * mean
            time_s += predicted_round_s(terms, members, made.work)
            done += brings
            gains.append(brings * (1 + noise * rng.normal()))
            k, part = members.size, members.size // 2
            halves = brings * part * (k + kappa) / (k * (part + kappa))
            estimator.learn(k, part, halves * (1 + 0.7 * noise * rng.normal()), gains[-1])
            if done >= TARGET:
                break
        seen = seen.replace(
            members=made.members,
            previous=made,
            generation=seen.generation + 1,
            round=seen.round + made.rounds,
        )
    return time_s


def best_fixed_s(seen, kappa):
    """Shortest time to the target of any fixed plan: every prefix by steps, every length."""
    terms = round_terms(seen, 0.01)
    best = np.inf
    for round_s in np.geomspace(0.1, 100, 200):
        steps = whole_steps(round_s - terms.delay_s, terms.step_s)
        order = np.argsort(-steps, kind="stable")
        done = np.cumsum(worth(steps[order], seen.h0))
        k = np.arange(1, order.size + 1)
        each = np.where(steps[order] >= 1, done / (k + kappa), 0)
        if each.max() > 0:
            best = min(best, np.ceil(TARGET / each.max()) * round_s)
    return float(best + seen.rebuild_s)


def best_static_s(seen, kappa, work):
    """Shortest time to the target of the first k by their own round, over k."""
    terms = round_terms(seen, 0.01)
    order = np.argsort(terms.own_s)
    times_s = []
    for k in range(1, order.size + 1):
        members = order[:k]
        if work == "together":
            round_s = best_round_s(terms, members)
            each = progress(seen, members, round_s, kappa)
        else:
            round_s = terms.own_s[members].max()
            steps = terms.base_steps[members].astype(float)
            each = k / (k + kappa) * worth(steps, seen.h0).mean()
        times_s.append(np.ceil(TARGET / each) * round_s + seen.rebuild_s)
    return float(min(times_s))
