"""Learning curves with a known kappa and h0, to run policies on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from powertrip.selection import Decision, Observation, Policy
from powertrip.selection.checks import IntArray
from powertrip.selection.deadlines import Crew, expected_steps, whole_steps, worth
from powertrip.selection.gain import saturation
from powertrip.selection.kappa import KappaEstimator
from powertrip.selection.round_time import predicted_round_s, round_terms

TARGET = 200.0  # in steps' worth at saturation


def sites(seed: int, n: int = 24, h0: float = 5.0) -> Observation:
    """Return unequal sites, far and near, with steps of 10 to 100 ms."""
    rng = np.random.default_rng(seed)
    speed = rng.lognormal(0, 0.7, n) * 300
    delay_s = rng.lognormal(-0.5, 0.8, n)
    return Observation(
        time_s=0.0,
        round=0,
        generation=0,
        hub=0,
        power_w=speed * 10,
        throughput=speed,
        full_speed=speed * 1.5,
        samples=np.full(n, 100),
        rtt_s=delay_s,
        up=np.full(n, np.inf),
        down=np.full(n, np.inf),
        reachable=np.full(n, True),
        distance_m=np.full(n, np.nan),
        communication_correction=1.0,
        update_bytes=1_000_000,
        batch_size=10,
        base_steps=np.full(n, 20),
        interval_rounds=4,
        members=(),
        previous=None,
        gains=np.empty(0),
        rebuild_s=0.1,
        seed=7,
        h0=h0,
    )


def progress(seen: Observation, members: IntArray, round_s: float, kappa: float) -> float:
    """Return what a round of deadlines brings; `seen.h0` is the true one."""
    crew = Crew.of(round_terms(seen, 0.01), members)
    each = worth(np.maximum(crew.steps(round_s), 1.0), seen.h0)
    return float(saturation(members.size, kappa) * each.mean())


@dataclass(frozen=True)
class World:
    """What is true, and how well it is seen.

    Parameters
    ----------
    sites
        Sites at their mean speed; its h0 is the true one.
    kappa
        The true one.
    seed
        Of all chance.
    gain_noise, noise
        Standard deviations, as fractions, of measured gains, and of the speeds and delays that a
        decision sees.
    movement, period_s
        Standard deviation of the sites' true speeds over time, as a fraction, and for how long they
        stay about the same.
    """

    sites: Observation
    kappa: float
    seed: int = 0
    gain_noise: float = 0.1
    noise: float = 0.0
    movement: float = 0.0
    period_s: float = 60.0

    def at(self, time_s: float) -> Observation:
        """Return the sites as they are at some time."""
        if not self.movement:
            return self.sites
        rng = np.random.default_rng([self.seed, int(time_s / self.period_s)])
        moved = np.exp(self.movement * rng.normal(size=self.sites.sites))
        return self.sites.replace(throughput=self.sites.throughput * moved)

    def gains(self) -> dict[int, float]:
        """Return what a round of the base work brings, by number of members."""
        each = float(worth(self.sites.base_steps.astype(float), self.sites.h0).mean())
        return {k: float(saturation(k, self.kappa) * each) for k in range(1, self.sites.sites + 1)}


@dataclass(frozen=True)
class Outcome:
    """The time to the target, the decisions but for the first, and how many changed members."""

    seconds: float
    decisions: int
    changes: int


def run(
    policy: Policy,
    world: World,
    *,
    estimator: KappaEstimator | None = None,
    h0: float | None = None,
    interval: int = 4,
) -> Outcome:
    """Run a policy that learns kappa from noisy halves, until the target is reached.

    Parameters
    ----------
    estimator
        Of kappa; with its usual prior where it is left out.
    h0
        What the policy takes for h0; the true one where it is left out.
    interval
        Rounds between two decisions.
    """
    rng = np.random.default_rng(world.seed)
    estimator = estimator or KappaEstimator()
    done = time_s = 0.0
    gains: list[float] = []
    previous: Decision | None = None
    changes = decisions = 0
    while done < TARGET:
        true = world.at(time_s).replace(interval_rounds=interval)
        speed, delay = np.exp(world.noise * rng.normal(size=(2, true.sites)))
        now = true.replace(
            throughput=true.throughput * speed,
            rtt_s=true.rtt_s * delay,
            kappa=estimator.kappa,
            h0=h0 or true.h0,
            gains=gains,
            measured_gains=world.gains(),
            round=len(gains),
            generation=decisions,
            members=previous.members if previous else (),
            previous=previous,
        )
        made = policy.decide(now)
        if previous is None or set(made.members) != set(previous.members):
            time_s += now.rebuild_s
            changes += previous is not None
        previous, decisions = made, decisions + 1
        members = np.array(made.members)
        k, part = members.size, members.size // 2
        for _ in range(made.rounds):
            true = world.at(time_s)
            steps = expected_steps(true, made).astype(float)
            brings = float(saturation(k, world.kappa) * worth(steps, true.h0).mean())
            time_s += predicted_round_s(round_terms(true, 0.01), members, made.work)
            done += brings
            gains.append(brings * (1 + world.gain_noise * rng.normal()))
            halves = brings * part * (k + world.kappa) / (k * (part + world.kappa))
            halves *= 1 + 0.7 * world.gain_noise * rng.normal()
            estimator.learn(k, part, halves, gains[-1])
            if done >= TARGET:
                break
    return Outcome(float(time_s), decisions - 1, changes)


def best_fixed_s(seen: Observation, kappa: float) -> float:
    """Return the shortest time to the target of any fixed plan: all prefixes, all lengths."""
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


def best_static_s(seen: Observation, kappa: float, work: str) -> float:
    """Return the shortest time to the target of the first k by their own round, over k."""
    terms = round_terms(seen, 0.01)
    order = np.argsort(terms.own_s)
    times_s = []
    for k in range(1, order.size + 1):
        members = order[:k]
        if work == "together":
            round_s = Crew.of(terms, members).best_round_s()
            each = progress(seen, members, round_s, kappa)
        else:
            round_s = terms.own_s[members].max()
            steps = terms.base_steps[members].astype(float)
            each = k / (k + kappa) * worth(steps, seen.h0).mean()
        times_s.append(np.ceil(TARGET / each) * round_s + seen.rebuild_s)
    return float(min(times_s))
