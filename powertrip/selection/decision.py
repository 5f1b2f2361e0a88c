"""What a policy answers: a `Decision`, with the members' `Work` and the table of `Candidate`s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from powertrip.selection import checks
from powertrip.selection.checks import field_names
from powertrip.selection.errors import RecordError

MOST = 1e18
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
            checks.each_within("work.deadline_s", deadline_s, 0, MOST)
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
        return cls(**checks.json_object("work", obj, field_names(cls)))


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
        for name in field_names(type(self))[1:-1]:
            value = checks.real(f"candidate.{name}", getattr(self, name))
            object.__setattr__(self, name, value)
        if not isinstance(self.chosen, bool):
            raise RecordError(f"candidate.chosen: expected true or false, got {self.chosen!r}")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with one key per field."""
        return {name: getattr(self, name) for name in field_names(type(self))}

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Undo `to_json`; raises `RecordError`."""
        return cls(**checks.json_object("candidate", obj, field_names(cls)))


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
        return {name: getattr(self, name) for name in field_names(type(self))} | {
            "members": list(self.members),
            "work": self.work.to_json(),
            "candidates": [candidate.to_json() for candidate in self.candidates],
        }

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Undo `to_json`; raises `RecordError`."""
        fields = checks.json_object("decision", obj, field_names(cls))
        table = checks.from_json_list("decision.candidates", fields["candidates"])
        return cls(
            **fields
            | {
                "work": Work.from_json(fields["work"]),
                "candidates": tuple(Candidate.from_json(line) for line in table),
            }
        )
