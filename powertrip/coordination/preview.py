"""What a run of a scenario would decide, without training anything."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

import numpy as np

from powertrip.config import Config
from powertrip.coordination.messages import Ready
from powertrip.coordination.observer import Observer
from powertrip.coordination.setup import Setup, data_folder
from powertrip.errors import InputError
from powertrip.exchange.codec import packed_bytes
from powertrip.selection.deadlines import expected_steps
from powertrip.selection.outlook import Outlook, look
from powertrip.selection.policy import build_policy
from powertrip.selection.ranking import RANKINGS
from powertrip.selection.types import Decision, Observation
from powertrip.telemetry.events import Candidate
from powertrip.telemetry.plan_table import Plan, PlanMember, PlanSite
from powertrip.training.flat import initial_model
from powertrip.training.partition import partition
from powertrip.training.task import load_task
from powertrip.world.world import World


class UnknownMember(InputError):
    """A site that should be a member at present is none of the scenario's, or stands twice."""


def plan_run(setup: Setup, *, time_s: float = 0.0, members: Sequence[str] = ()) -> Plan:
    """Decide once, as the coordinator of a run would.

    The links are the network model of the scenario, and nothing is measured: gains, corrections and
    losses are what they are before the first round. What only a simulation reads is not used; a
    warning says so where it would change the links' load.

    Parameters
    ----------
    setup
        The resolved scenario.
    time_s
        Run time of the decision, in seconds.
    members
        Names of the members at present; none at the start of a run.

    Raises
    ------
    UnknownMember
        If a name is no site of the scenario, or stands twice.
    InputError
        If the task, the data or the world cannot be made from the scenario.
    SelectionError
        If the policy cannot decide: no site is usable, or it needs what only a simulation knows.
    """
    config = setup.config
    world = setup.build_world()
    current = _numbers(world, members)
    observation = Observer(world, config, expected_ready(setup)).observe(
        time_s=time_s, next_round=1, generation=1, members=current, previous=None
    )
    decision = build_policy(config.selection).decide(observation)
    outlook = look(observation, config.selection)
    return Plan(
        name=config.name,
        time_s=time_s,
        time_scale=config.world.time_scale,
        policy=decision.policy,
        ranking=config.selection.ranking,
        exchange_model=observation.exchange_model,
        hub=world.names[observation.hub],
        bandwidth_scale=config.network.bandwidth_scale,
        update_bytes=observation.update_bytes,
        current=tuple(members),
        warnings=(*world.warnings, *_otherwise_simulated(config, observation)),
        sites=_sites(world, config, observation, outlook, decision),
        candidates=tuple(Candidate(**line.to_json()) for line in decision.candidates),
        members=_members(world, observation, outlook, decision),
        rounds=decision.rounds,
        predicted_round_s=decision.predicted_round_s,
        reason=decision.reason,
    )


def expected_ready(setup: Setup) -> list[Ready]:
    """What the sites of a run would report before it begins, in their order.

    Where `exchange.backend` is auto, gloo is assumed: which GPUs a run will have is not known here.
    """
    config = setup.config
    task = load_task(config.task, data_dir=data_folder(), base_dir=setup.base_dir, seed=config.seed)
    shares = partition(config.partition, task, len(config.sites.selected), config.seed)
    model = initial_model(task, seed=config.seed)
    return [
        Ready(
            site=site,
            samples=len(share),
            steps=config.training.steps_per_round(len(share)),
            update_bytes=packed_bytes(config.exchange.codec, model.update_bytes),
            digest="",
            backend="nccl" if config.exchange.backend == "nccl" else "gloo",
        )
        for site, share in enumerate(shares)
    ]


def _otherwise_simulated(config: Config, observation: Observation) -> tuple[str, ...]:
    """Warn where `powertrip simulate` would plan with updates of another size than a run."""
    if config.simulation.update_bytes is None:
        return ()
    simulated = packed_bytes(config.exchange.codec, config.simulation.update_bytes)
    if simulated == observation.update_bytes:
        return ()
    return (
        f"simulation.update_bytes: powertrip simulate counts an update as {simulated} bytes; this "
        f"is the plan of a real run, whose model has {observation.update_bytes}",
    )


def _numbers(world: World, members: Sequence[str]) -> tuple[int, ...]:
    numbers = {name: number for number, name in enumerate(world.names)}
    for place, name in enumerate(members):
        if name not in numbers:
            near = difflib.get_close_matches(name, numbers, n=1)
            known = ", ".join(world.names[:10]) + (", ..." if len(world.names) > 10 else "")
            hint = f"did you mean {near[0]}?" if near else f"the sites are {known}"
            raise UnknownMember(f"there is no site {name!r}; {hint}")
        if name in members[:place]:
            raise UnknownMember(f"site {name} stands twice among the members; name it once")
    return tuple(numbers[name] for name in members)


def _sites(
    world: World, config: Config, observation: Observation, outlook: Outlook, decision: Decision
) -> tuple[PlanSite, ...]:
    terms = outlook.terms
    cost = RANKINGS[config.selection.ranking](terms)
    rank = {site: place for place, site in enumerate(outlook.order.tolist(), start=1)}
    others = [site for site in range(observation.sites) if site not in rank]

    def link(value: np.float64) -> float | None:
        return float(value) if math.isfinite(value) and value > 0 else None

    return tuple(
        PlanSite(
            site=world.names[site],
            rank=rank.get(site),
            chosen=site in decision.members,
            power_w=float(observation.power_w[site]),
            throughput=float(observation.throughput[site]),
            speed_share=_share(observation.throughput[site], observation.full_speed[site]),
            rtt_s=link(observation.rtt_s[site]),
            to_hub=link(observation.up[site]),
            from_hub=link(observation.down[site]),
            own_round_s=float(terms.own_s[site]) if np.isfinite(terms.own_s[site]) else None,
            score=float(1 / cost[site]) if site in rank else None,
            why_not=None if site in rank else _why_not(observation, outlook, site),
        )
        for site in [*rank, *others]
    )


def _share(part: np.float64, whole: np.float64) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _why_not(observation: Observation, outlook: Outlook, site: int) -> str:
    if observation.samples[site] == 0:
        return "no training data"
    if not observation.reachable[site]:
        return "no link to the hub"
    if observation.power_w[site] == 0:
        return "no power"
    if observation.throughput[site] == 0:
        return "too little power to train"
    if not outlook.terms.usable[site]:
        return "a round would take it decades"
    return "no link to a site that is better ranked"


def _members(
    world: World, observation: Observation, outlook: Outlook, decision: Decision
) -> tuple[PlanMember, ...]:
    sites = np.array(decision.members, dtype=np.int64)
    steps = expected_steps(observation, decision)
    exchange_s = outlook.terms.delays_s(sites)
    local_s = np.array(decision.work.deadline_s or steps * outlook.terms.step_s[sites])
    own_s = outlook.terms.round_of(local_s, exchange_s)
    waits_s = np.maximum(decision.predicted_round_s - own_s, 0.0).round(6)
    return tuple(
        PlanMember(
            site=world.names[site],
            steps=int(steps[place]),
            deadline_s=decision.work.deadline_s[place] if decision.work.deadline_s else None,
            local_s=float(local_s[place]),
            exchange_s=float(exchange_s[place]),
            waits_s=float(waits_s[place]),
        )
        for place, site in enumerate(decision.members)
    )
