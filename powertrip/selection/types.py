"""What a policy sees, an `Observation`; with what it answers, a `Decision`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

import numpy as np

from powertrip.selection import checks
from powertrip.selection.checks import BoolArray, FloatArray, IntArray, field_names
from powertrip.selection.decision import MOST, Candidate, Decision, Work
from powertrip.selection.errors import RecordError

__all__ = ["Candidate", "Decision", "ExchangeModel", "Observation", "Work"]

ExchangeModel = Literal["star", "ring", "mesh"]


def _left_out() -> Any:
    """An empty array, which stands for a field's plain values."""
    return np.empty(0)


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
    loss_rms
        Root of the mean squared training loss per sample in the site's last local training; NaN
        (the default) where it never trained.
    last_seen
        Round in which the site last took part; 0 (the default) where it never did.
    own_round_s
        Measured length of the site's own last round, training and exchange; NaN (the default)
        where there was none.
    update_norms, layer_norms
        Norm of the members' mean update in each round, oldest first, shape [r]; the same for each
        layer, shape [r, l]. Empty where they are not measured.
    kappa
        Number of members with which a round brings half of what ever more of them would bring.
    h0
        Local steps after which another step is worth half.
    used_power_w
        Watts that training draws now; `power_w` where it is left out.
    carbon_g_per_j, price_per_j
        Grams CO2e and money per joule now; default 0.
    power_history, history_step_s
        Watts so far, oldest first, shape [h, n], one row every so many seconds; default none.
    exchange_model
        How the members exchange: star, ring or mesh.
    pair_rtt_s, pair_bandwidth
        Round-trip times and bytes/s from row to column, shape [n, n], the diagonal ignored; no
        link is an infinite time or 0 bytes/s. None where only the star is known.
    measured_gains
        Gain of a round by number of members, as a simulation has measured it by running each
        from the same snapshot; keys are counts. For the projector `oracle` alone.
    overlap
        Whether an exchange goes on beside the training of the next round.

    Fields after `names` may be left out, and are missing in older logs.

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
    loss_rms: FloatArray = field(default_factory=_left_out)
    last_seen: IntArray = field(default_factory=_left_out)
    own_round_s: FloatArray = field(default_factory=_left_out)
    update_norms: FloatArray = field(default_factory=_left_out)
    layer_norms: FloatArray = field(default_factory=_left_out)
    kappa: float = 10.0
    h0: float = 10.0
    used_power_w: FloatArray = field(default_factory=_left_out)
    carbon_g_per_j: FloatArray = field(default_factory=_left_out)
    price_per_j: FloatArray = field(default_factory=_left_out)
    power_history: FloatArray = field(default_factory=_left_out)
    history_step_s: float = 0.0
    exchange_model: ExchangeModel = "star"
    pair_rtt_s: FloatArray | None = None
    pair_bandwidth: FloatArray | None = None
    measured_gains: Mapping[int, float] = field(default_factory=dict)
    overlap: bool = False

    def __post_init__(self) -> None:
        put = object.__setattr__
        n = len(checks.vector("observation.power_w", self.power_w))
        if n == 0:
            raise RecordError("observation.power_w: expected at least one site")
        for name in ("power_w", "throughput", "full_speed"):
            put(self, name, checks.floats(f"observation.{name}", getattr(self, name), n))
            checks.each_within(f"observation.{name}", getattr(self, name), 0, MOST)
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
        checks.each_within("observation.gains", self.gains, -MOST, MOST)

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
        if set(map(type, self.names)) - {str}:
            raise RecordError("observation.names: expected texts")
        if not (self.previous is None or isinstance(self.previous, Decision)):
            raise RecordError("observation.previous: expected a Decision or None")
        self._check_measured(n)
        self._check_exchange(n)

    def _check_measured(self, n: int) -> None:
        put = object.__setattr__
        plain = {
            "loss_rms": np.full(n, np.nan),
            "own_round_s": np.full(n, np.nan),
            "used_power_w": self.power_w,
            "carbon_g_per_j": np.zeros(n),
            "price_per_j": np.zeros(n),
        }
        for name, default in plain.items():
            value = getattr(self, name)
            value = checks.floats(f"observation.{name}", value if np.size(value) else default, n)
            may_be_nan = name in ("loss_rms", "own_round_s")
            known = np.nan_to_num(value, posinf=np.inf) if may_be_nan else value
            checks.each_within(f"observation.{name}", known, 0, MOST)
            put(self, name, value)
        last_seen = self.last_seen if np.size(self.last_seen) else np.zeros(n, dtype=np.int64)
        put(self, "last_seen", checks.whole_numbers("observation.last_seen", last_seen, n))
        checks.each_within("observation.last_seen", self.last_seen, 0)
        put(self, "update_norms", checks.floats("observation.update_norms", self.update_norms))
        put(self, "layer_norms", checks.table("observation.layer_norms", self.layer_norms))
        history = checks.table("observation.power_history", self.power_history, n)
        put(self, "power_history", history)
        for name in ("update_norms", "layer_norms", "power_history"):
            checks.each_within(f"observation.{name}", getattr(self, name), 0, MOST)
        for name, low, high in (
            ("kappa", 1e-6, 1e9),
            ("h0", 1e-6, 1e9),
            ("history_step_s", 0.0, 1e9),
        ):
            put(self, name, checks.real(f"observation.{name}", getattr(self, name), low, high))
        if not isinstance(self.measured_gains, Mapping):
            raise RecordError("observation.measured_gains: expected gains by number of members")
        gains = {
            checks.whole("observation.measured_gains", k, 1): checks.real(
                f"observation.measured_gains[{k}]", gain, -MOST, MOST
            )
            for k, gain in self.measured_gains.items()
        }
        put(self, "measured_gains", MappingProxyType(gains))

    def _check_exchange(self, n: int) -> None:
        if self.exchange_model not in get_args(ExchangeModel):
            raise RecordError(
                f"observation.exchange_model: expected one of {get_args(ExchangeModel)}, "
                f"got {self.exchange_model!r}"
            )
        if (self.pair_rtt_s is None) != (self.pair_bandwidth is None):
            raise RecordError("observation.pair_rtt_s and pair_bandwidth: expected both or neither")
        if not isinstance(self.overlap, bool):
            raise RecordError(f"observation.overlap: expected true or false, got {self.overlap!r}")
        for name in ("pair_rtt_s", "pair_bandwidth"):
            value = getattr(self, name)
            if value is None:
                continue
            matrix = checks.table(f"observation.{name}", value, n)
            if matrix.shape[0] != n:
                raise RecordError(f"observation.{name}: expected {n} rows, got {matrix.shape[0]}")
            between = np.where(np.eye(n, dtype=np.bool_), 0.0, matrix)
            checks.each_within(f"observation.{name}", between, 0)
            object.__setattr__(self, name, matrix)

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
        for name in field_names(type(self)):
            value = getattr(self, name)
            obj[name] = checks.to_json_list(value) if isinstance(value, np.ndarray) else value
        obj["members"], obj["names"] = list(self.members), list(self.names)
        obj["previous"] = None if self.previous is None else self.previous.to_json()
        obj["measured_gains"] = {str(k): gain for k, gain in self.measured_gains.items()}
        return obj

    @classmethod
    def from_json(cls, obj: object) -> Self:
        """Undo `to_json`; raises `RecordError`."""
        known = dataclasses.fields(cls)
        may_be_missing = {
            f.name
            for f in known
            if f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        }
        given = obj.keys() if isinstance(obj, Mapping) else set()
        wanted = [f.name for f in known if f.name in given or f.name not in may_be_missing]
        fields = checks.json_object("observation", obj, wanted)
        for name in (f.name for f in known if "Array" in str(f.type) and f.name in fields):
            if fields[name] is not None or not name.startswith("pair_"):
                fields[name] = checks.from_json_list(f"observation.{name}", fields[name])
        if fields["previous"] is not None:
            fields["previous"] = Decision.from_json(fields["previous"])
        if "measured_gains" in fields:
            fields["measured_gains"] = _counts_from_json(fields["measured_gains"])
        try:
            return cls(**fields)
        except (TypeError, ValueError, OverflowError) as error:  # of another type altogether
            raise RecordError(f"observation: {error}") from error


def _counts_from_json(obj: object) -> dict[int, Any]:
    if not isinstance(obj, Mapping) or not all(str(k).isdecimal() for k in obj):
        raise RecordError("observation.measured_gains: expected an object with counts as keys")
    return {int(k): gain for k, gain in obj.items()}
