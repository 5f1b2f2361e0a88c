"""What another policy would have decided on what a recorded run has observed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from powertrip.config import load_config
from powertrip.coordination.run_dir import recorded_files
from powertrip.errors import InputError
from powertrip.selection.errors import RecordError
from powertrip.selection.policy import build_policy
from powertrip.selection.settings import PRESETS, SelectionSettings
from powertrip.selection.types import Decision, Observation
from powertrip.telemetry import events
from powertrip.telemetry.eventlog import read_events
from powertrip.telemetry.replay_table import Answer, Replayed

OBSERVED = frozenset(
    (
        "adjustment_interval",
        "clock",
        "exchange_model",
        "h0",
        "kappa",
        "learn_kappa",
        "replan_min_rounds",
        "replan_threshold",
    )
)
"""Settings of the selection that act on what is observed, and when, not on what is made of it."""


class ReplayError(InputError):
    """A run cannot be replayed, or not with such settings; the message says what to do."""


def replay(run: Path, overrides: Sequence[str] = ()) -> Iterator[Replayed]:
    """Let a policy decide on each of a run's observations.

    Members, gains and all that was measured are those of the record, whatever the policy would
    have made of them: each decision is judged by itself. Only `Observation.previous`, by which a
    policy remembers, is its own last decision. A last line of the log that was cut short is left
    out.

    Parameters
    ----------
    run
        The run's folder, or its event log.
    overrides
        Texts ``selection.key=value`` on top of the run's own settings. A preset stands for all
        that any preset sets.

    Yields
    ------
    Replayed
        The decisions in their order, at least one.

    Raises
    ------
    NoRecordedRun
        There is no run.
    ReplayError
        Its log holds no decisions or no observations, or an override is of
        something that a replay cannot change.
    ConfigError
        The settings are wrong.
    EventLogError
        The log cannot be read.
    SelectionError
        The policy cannot decide: it needs what only a simulation knows.
    """
    log, settings_path = recorded_files(run)
    config = load_config(settings_path, _checked(overrides))
    policy = build_policy(config.selection)
    previous: Decision | None = None
    for event in read_events(log, tolerate_cut=True):
        if isinstance(event, events.Decision):
            observation = _observation(event, log)
            if previous is not None:
                observation = observation.replace(previous=previous)
            previous = policy.decide(observation)
            yield _compared(event, observation, previous)
    if previous is None:
        raise ReplayError(f"{log} holds no decision: the run ended before its first")


def _checked(overrides: Sequence[str]) -> list[str]:
    """The overrides with presets written out, since a run's file leaves nothing to them."""
    written: list[str] = []
    for text in overrides:
        key, _, value = text.partition("=")
        room, _, name = key.strip().partition(".")
        if room != "selection" or not name or name in OBSERVED:
            why = (
                "it acts on what the run has observed, which is recorded"
                if room == "selection" and name
                else "a replay changes the policy alone"
            )
            raise ReplayError(f"{key.strip()} cannot be replayed: {why}; write selection.KEY=VALUE")
        preset = PRESETS.get(value.strip()) if name == "preset" else None
        if preset is not None:
            fields = SelectionSettings.model_fields
            everything = {key for keys in PRESETS.values() for key in keys}
            plain = {key: fields[key].default for key in sorted(everything)}
            written = [_override(key, value) for key, value in (plain | preset).items()] + written
        written.append(text)
    return written


def _override(key: str, value: object) -> str:
    return f"selection.{key}={json.dumps(value)}"


def _observation(event: events.Decision, log: Path) -> Observation:
    where = f"decision {event.generation} in {log}"
    if not event.observation:
        raise ReplayError(
            f"{where} holds no observation: the PowerTrip that wrote it did not record what "
            "policies see; only runs of a later one can be replayed"
        )
    try:
        return Observation.from_json(event.observation)
    except RecordError as error:
        raise ReplayError(
            f"{where} cannot be replayed: {error}; replay it with the PowerTrip that wrote it"
        ) from error


def _compared(event: events.Decision, observation: Observation, decision: Decision) -> Replayed:
    names = observation.names or tuple(event.power_w)
    members = tuple(names[site] for site in decision.members)
    return Replayed(
        time_s=event.time_s,
        round=event.round,
        generation=event.generation,
        sites=names,
        then=Answer(
            policy=event.policy,
            members=event.members,
            steps=event.steps,
            deadline_s=event.deadline_s,
            predicted_round_s=event.predicted_round_s,
            reason=event.reason,
        ),
        now=Answer(
            policy=decision.policy,
            members=members,
            steps=decision.work.steps,
            deadline_s=decision.work.deadline_s,
            predicted_round_s=decision.predicted_round_s,
            reason=decision.reason,
        ),
        agree=set(members) == set(event.members),
    )
