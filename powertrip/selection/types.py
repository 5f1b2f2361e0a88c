"""What a policy sees (`Observation`) and what it answers (`Decision`), with their JSON forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from powertrip.selection import checks
from powertrip.selection.checks import BoolArray, FloatArray, IntArray
from powertrip.selection.errors import RecordError

_MOST = 1e18
"""Largest watts, samples/s, gain or deadline: sums over sites must stay finite."""


@dataclass(frozen=True)
class Work:
    """The local work of each member in a round: whole steps, or a deadline.

    Exactly one of the two is given.

    Parameters
    ----------
    steps
        Local steps per member, in the order of the decision's members.
    deadline_s
        Seconds after the round's start at which the member's local training ends.

    Raises
    ------
    RecordError
        If both or neither are given, or a value is not positive.
    """

    steps: tuple[int, ...] | None = None
    deadline_s: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.deadline_s is None):
            raise RecordError("work: expected either steps or deadline_s")
        if self.steps is not None:
            steps = checks.vector("work.steps", self.steps, kinds="iu")
            checks.each_within("work.steps", steps, 1)
            object.__setattr__(self, "steps", tuple(steps.tolist()))
        else:
            deadline_s = checks.floats("work.deadline_s", self.deadline_s)
            checks.each_within("work.deadline_s", deadline_s, 0, _MOST)
            object.__setattr__(self, "deadline_s", tuple(deadline_s.tolist()))

    def __len__(self) -> int:
        return len(self.steps if self.steps is not None else self.deadline_s or ())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with both keys, one of them null."""
        return {
            "steps": None if self.steps is None else list(self.steps),
            "deadline_s": None if self.deadline_s is None else list(self.deadline_s),
        }

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Undo `to_json`; raises `RecordError`."""
        return cls(**checks.json_object("work", obj, _names(cls)))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One line of the table that a decision was made from: what k members would give and cost.

    Parameters
    ----------
    k
        Number of members.
    gain
        Projected progress of a round (decrease of the loss).
    compute_s, communication_s, round_s
        Predicted length of a round, and its two parts.
    switch_s
        What changing to these members costs once.
    efficiency
        Projected progress per second over an adjustment interval.
    chosen
        Whether this is what the decision took.
    """

    k: int
    gain: float
    compute_s: float
    communication_s: float
    round_s: float
    switch_s: float
    efficiency: float
    chosen: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checks.whole("candidate.k", self.k, 1))
        for name in _names(type(self))[1:-1]:
            value = checks.real(f"candidate.{name}", getattr(self, name))
            object.__setattr__(self, name, value)
        if not isinstance(self.chosen, bool):
            raise RecordError(f"candidate.chosen: expected true or false, got {self.chosen!r}")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with one key per field."""
        return {name: getattr(self, name) for name in _names(type(self))}

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Undo `to_json`; raises `RecordError`."""
        return cls(**checks.json_object("candidate", obj, _names(cls)))


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Which sites take part until the next decision, what they do, and why.

    Parameters
    ----------
    generation
        Number of the decision.
    policy
        Name of the policy that made it.
    members
        Site numbers, best ranked first.
    work
        Local work per member, in the order of `members`.
    rounds
        Rounds until the next decision.
    predicted_round_s
        Predicted length of a round.
    candidates
        The table that it was made from.
    reason
        The reason in plain words.
    streak
        Consecutive decisions, this one included, in which the same move was better without being
        made: positive for growing, negative for shrinking, 0 once a move is made.

    Raises
    ------
    RecordError
        If a field is out of range, or the work does not fit the members.
    """

    generation: int
    policy: str
    members: tuple[int, ...]
    work: Work
    rounds: int
    predicted_round_s: float
    candidates: tuple[Candidate, ...]
    reason: str
    streak: int = 0

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "generation", checks.whole("decision.generation", self.generation, 0))
        put(self, "members", checks.site_numbers("decision.members", self.members))
        put(self, "rounds", checks.whole("decision.rounds", self.rounds, 1))
        predicted = checks.real("decision.predicted_round_s", self.predicted_round_s, 0)
        put(self, "predicted_round_s", predicted)
        put(self, "candidates", tuple(self.candidates))
        put(self, "streak", checks.whole("decision.streak", self.streak))
        if not isinstance(self.policy, str) or not isinstance(self.reason, str):
            raise RecordError("decision.policy and decision.reason: expected texts")
        if not self.members:
            raise RecordError("decision.members: expected at least one site")
        if len(self.work) != len(self.members):
            raise RecordError(
                f"decision.work: expected one entry for each of {len(self.members)} members, "
                f"got {len(self.work)}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return a strict JSON object, as the event log holds it."""
        return {name: getattr(self, name) for name in _names(type(self))} | {
            "members": list(self.members),
            "work": self.work.to_json(),
            "candidates": [candidate.to_json() for candidate in self.candidates],
        }

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Undo `to_json`; raises `RecordError`."""
        fields = checks.json_object("decision", obj, _names(cls))
        table = checks.from_json_list("decision.candidates", fields["candidates"])
        return cls(
            **fields
            | {
                "work": Work.from_json(fields["work"]),
                "candidates": tuple(Candidate.from_json(line) for line in table),
            }
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """All that a policy may know when it decides. Arrays have one entry per site (n of them).

    Parameters
    ----------
    time_s, round, generation
        Run time, next round, and number of the decision to be made.
    hub
        Site that the star of links is centred on.
    power_w, throughput, full_speed
        Watts available now; samples/s now; samples/s at full power.
    samples
        Training samples held.
    rtt_s, up, down, reachable, distance_m
        Round-trip time to the hub, bytes/s to and from it (infinite for the hub itself), whether
        there is a link at all, great-circle distance (NaN where it is not known).
    communication_correction
        Measured exchange time divided by the modelled one, as learned so far.
    update_bytes
        Size of one update.
    batch_size
        Samples per local step.
    base_steps
        Local steps of each site as a member, before a work rule changes them; a number stands for
        the same at all of them.
    interval_rounds
        Rounds between two decisions.
    members
        Current members, empty at the first decision.
    previous
        The last decision, None at the first.
    gains
        Measured decrease of the validation loss in each round so far, oldest first; any length.
    rebuild_s
        What a rebuild of the process group costs.
    seed
        Seed of the run.
    names
        Names of the sites, for reasons in words; may be left out.

    Raises
    ------
    RecordError
        If a shape does not fit the number of sites, or a value is out of range.
    """

    time_s: float
    round: int
    generation: int
    hub: int
    power_w: FloatArray
    throughput: FloatArray
    full_speed: FloatArray
    samples: IntArray
    rtt_s: FloatArray
    up: FloatArray
    down: FloatArray
    reachable: BoolArray
    distance_m: FloatArray
    communication_correction: float
    update_bytes: int
    batch_size: int
    base_steps: IntArray
    interval_rounds: int
    members: tuple[int, ...]
    previous: Decision | None
    gains: FloatArray
    rebuild_s: float
    seed: int
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__
        n = len(checks.vector("observation.power_w", self.power_w))
        if n == 0:
            raise RecordError("observation.power_w: expected at least one site")
        for name in ("power_w", "throughput", "full_speed"):
            put(self, name, checks.floats(f"observation.{name}", getattr(self, name), n))
            checks.each_within(f"observation.{name}", getattr(self, name), 0, _MOST)
        put(self, "samples", checks.whole_numbers("observation.samples", self.samples, n))
        checks.each_within("observation.samples", self.samples, 0)
        base_steps = self.base_steps
        if np.ndim(base_steps) == 0:
            base_steps = np.full(n, checks.whole("observation.base_steps", base_steps))
        put(self, "base_steps", checks.whole_numbers("observation.base_steps", base_steps, n))
        checks.each_within("observation.base_steps", self.base_steps, 1)
        put(self, "reachable", checks.booleans("observation.reachable", self.reachable, n))
        for name in ("rtt_s", "up", "down"):
            put(self, name, checks.floats(f"observation.{name}", getattr(self, name), n))
            linked = np.where(self.reachable, getattr(self, name), 0.0)
            checks.each_within(f"observation.{name}", linked, 0)
        put(self, "distance_m", checks.floats("observation.distance_m", self.distance_m, n))
        put(self, "gains", checks.floats("observation.gains", self.gains))
        checks.each_within("observation.gains", self.gains, -_MOST, _MOST)

        lowest = {"round": 0, "generation": 0, "hub": 0, "seed": None}
        lowest |= dict.fromkeys(("update_bytes", "batch_size", "interval_rounds"), 1)
        for name, low in lowest.items():
            put(self, name, checks.whole(f"observation.{name}", getattr(self, name), low))
        put(self, "time_s", checks.real("observation.time_s", self.time_s))
        for name, lowest_real, high in (
            ("rebuild_s", 0.0, 1e9),
            ("communication_correction", 1e-9, 1e9),
        ):
            number = checks.real(f"observation.{name}", getattr(self, name), lowest_real, high)
            put(self, name, number)
        if self.hub >= n:
            raise RecordError(f"observation.hub: expected a site from 0 to {n - 1}")
        put(self, "members", checks.site_numbers("observation.members", self.members, n))
        put(self, "names", tuple(self.names))
        if self.names and len(self.names) != n:
            raise RecordError(f"observation.names: expected {n} names, got {len(self.names)}")
        if not (self.previous is None or isinstance(self.previous, Decision)):
            raise RecordError("observation.previous: expected a Decision or None")

    @property
    def sites(self) -> int:
        """Number of sites, n."""
        return int(self.power_w.size)

    @cached_property
    def member_sites(self) -> IntArray:
        """The current members as an array, shape [number of members]."""
        return np.array(self.members, dtype=np.int64)

    def listed(self, sites: Sequence[int], most: int = 5) -> str:
        """Return sites in words, by their names where these are known, e.g. "site 3"."""
        words = ", ".join(self.names[i] if self.names else f"site {i}" for i in sites[:most])
        return words + (f" and {len(sites) - most} more" if len(sites) > most else "")

    def replace(self, **changes: Any) -> Observation:
        """Return a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return a strict JSON object from which the decision can be made again."""
        obj: dict[str, Any] = {}
        for name in _names(type(self)):
            value = getattr(self, name)
            obj[name] = checks.to_json_list(value) if isinstance(value, np.ndarray) else value
        obj["members"], obj["names"] = list(self.members), list(self.names)
        obj["previous"] = None if self.previous is None else self.previous.to_json()
        return obj

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Undo `to_json`; raises `RecordError`."""
        fields = checks.json_object("observation", obj, _names(cls))
        for field in dataclasses.fields(cls):
            if "Array" in str(field.type):
                values = checks.from_json_list(f"observation.{field.name}", fields[field.name])
                fields[field.name] = values
        if fields["previous"] is not None:
            fields["previous"] = Decision.from_json(fields["previous"])
        return cls(**fields)


def _names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))
