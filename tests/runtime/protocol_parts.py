"""What the model of the commit protocol is made of; see protocol_model."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import signature
from types import SimpleNamespace

import torch

from powertrip.coordination.membership import plan_transfers
from powertrip.coordination.messages import Begin, Commit
from powertrip.runtime import orders as orders_module
from powertrip.runtime.orders import Orders
from powertrip.runtime.replica import Replica

SITES = 3
_DIGIT = 3  # bits: an update may be counted seven times before it is taken for another one
COMMON = {
    "steps": 1, "samples": 1, "loss": 0.0, "loss_rms": 0.0, "local_s": 1.0, "lag_s": 0.0,
    "exchange_s": 1.0, "evaluation_s": 0.0, "bytes_sent": 0, "update_norm": 0.0,
    "validation": None, "test": None, "rebuild_s": 0.0, "joined_bytes": 0,
}  # fmt: skip


def update_of(site: int, round_: int) -> int:
    return 1 << _DIGIT * ((round_ - 1) * SITES + site)


def digits(params: int) -> dict[tuple[int, int], int]:
    """How often each update, by round and site, is in a model."""
    found, place = {}, 0
    while params:
        if count := params % (1 << _DIGIT):
            found[place // SITES + 1, place % SITES] = count
        params >>= _DIGIT
        place += 1
    return found


class Violation(AssertionError):
    """The protocol breaks one of its promises."""


class Blocked(Exception):
    """The site has read all there is."""


class _Reader:
    """In place of the thread that follows the log."""

    def __init__(self) -> None:
        self.queue: tuple = ()
        self.stop_seen = SimpleNamespace(is_set=lambda: False)

    def next(self):
        if not self.queue:
            raise Blocked
        entry, self.queue = self.queue[0], self.queue[1:]
        return entry


class _Flag:
    """An event that can be copied."""

    def __init__(self) -> None:
        self.on = False

    def set(self) -> None:
        self.on = True

    def clear(self) -> None:
        self.on = False


class _Adding:
    """An outer optimizer that adds, and counts."""

    def __init__(self, state: torch.Tensor) -> None:
        self.state = state

    def step(self, vector: torch.Tensor, mean: torch.Tensor) -> None:
        vector.add_(mean)
        self.state.add_(1)


def _ignored(*news) -> None:
    """Nobody here needs to know."""


_CONTAINERS: dict[type, tuple[str, ...]] = {}


def copied(thing):
    """A copy of an object and of what it keeps in containers; nothing that is in those."""
    kind = type(thing)
    new = object.__new__(kind)
    new.__dict__ = own = vars(thing).copy()
    names = _CONTAINERS.get(kind)
    if names is None:
        names = _CONTAINERS[kind] = tuple(
            name for name, value in own.items() if isinstance(value, dict | set | list)
        )
    for name in names:
        own[name] = own[name].copy()
    return new


@dataclass
class Mesh:
    """The connections of one process group, and what travels over them in one round."""

    needed: frozenset[int]
    arrived: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)
    sent: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    round: int = 0
    addends: dict[int, int] = field(default_factory=dict)
    got: set[tuple[int, int, int]] = field(default_factory=set)
    """Phase, sender, receiver."""

    def key(self):
        return (
            self.needed, frozenset(self.arrived), frozenset(self.broken),
            tuple(sorted(self.sent.items())), self.round, tuple(sorted(self.addends.items())),
            frozenset(self.got),
        )  # fmt: skip


class Plan:
    """In place of the course: whose turn it is by a script, as far as they are there."""

    def __init__(self, script: tuple[tuple[int, ...], ...]) -> None:
        self._script = script
        self._count = 0
        self.round = 0
        self.current: Begin | None = None
        self.following: Begin | None = None
        self.early = False

    def start(self) -> Begin:
        self.current = self.following = self._begin(self._script[0], range(SITES), 1)
        return self.current

    def ahead(self, away) -> Begin | None:
        self.current, following = self.following, self.following
        first = self.round + 2
        early, self.early = self.early, False
        if first > len(self._script):
            return None
        members = self._chosen(first, away)
        if not members or (members == following.members and not early):
            return None
        self.following = self._begin(members, following.members, first)
        return self.following

    def redo(self, members, holders, standby) -> Begin:
        self.current = self.following = self._begin(
            members, holders, self.round + 1, redo=True, standby=standby
        )
        self.early = True
        return self.current

    def anew(self, holders, away) -> Begin:
        members = self._chosen(self.round + 1, away) or tuple(sorted(holders))
        return self.redo(members, holders, None)

    def _chosen(self, round_: int, away) -> tuple[int, ...]:
        chosen = tuple(site for site in self._script[round_ - 1] if site not in away)
        return chosen or tuple(site for site in range(SITES) if site not in away)

    def _begin(self, members, holders, first, *, redo=False, standby=None) -> Begin:
        self._count += 1
        return Begin(
            generation=self._count, members=members, steps=(1,) * len(members), deadline_s=None,
            first_round=first, transfers=plan_transfers(members, holders), redo=redo,
            standby=standby, clock_s=0.0,
        )  # fmt: skip


class ModelSite:
    """One process of a site: `Site` without its training."""

    def __init__(self, index: int, incarnation: int, read: int) -> None:
        self.index, self.incarnation, self.read = index, incarnation, read
        self.alive, self.frozen = True, False
        self.phase = "next"
        self.begin: Begin | None = None
        self.round = 0
        self.group: int | None = None
        self.standing: tuple[int, ...] = ()
        self.building: dict[int, int] = {}
        """Which mesh this site has begun to build for a generation."""
        self.standbys: set[int] = set()
        self.base = 0
        self.seen: tuple | None = None
        vector, state = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        self.replica = Replica(f"site-{index}", vector, _Adding(state))
        deaf = {name: _ignored for name in signature(Orders).parameters if name.startswith("on_")}
        self.orders = Orders(
            None, site=index, name=f"site-{index}", silence_limit_s=1, alone=lambda: False,
            **deaf | {"on_commit": self.replica.confirm},
        )  # fmt: skip
        self.orders.cut = _Flag()

    @property
    def params(self) -> int:
        return int(self.replica.vector)

    @property
    def digest(self) -> str:
        return f"{self.params}/{int(self.replica.outer_state)}"

    def digest_after(self, round_: int) -> str | None:
        """As `Replica.digest_after`."""
        replica = self.replica
        if replica.round == round_:
            return self.digest
        if replica.round == round_ + 1 and replica._before is not None:
            return "/".join(str(int(tensor)) for tensor in replica._before)
        return None

    def copy(self) -> ModelSite:
        new = copied(self)
        new.seen = None
        new.replica = replica = copied(self.replica)
        replica.vector = self.replica.vector.clone()
        replica._outer = _Adding(self.replica._outer.state.clone())
        replica._spare = tuple(tensor.clone() for tensor in self.replica._spare)
        if self.replica._before is self.replica._spare:
            replica._before = replica._spare
        elif self.replica._before is not None:
            replica._before = tuple(tensor.clone() for tensor in self.replica._before)
        new.orders = copied(self.orders)
        new.orders.cut = copied(self.orders.cut)
        new.orders._reader = copied(self.orders._reader)
        new.orders._on_commit = replica.confirm
        return new

    def key(self):
        if self.seen is None:
            self.seen = self._key()
        return self.seen

    def _key(self):
        if not self.alive:
            return (self.incarnation,)
        replica, orders = self.replica, self.orders
        before = replica._before
        return (
            self.incarnation, self.frozen, self.phase, self.round, self.base,
            0 if self.begin is None else self.begin.generation,
            self.group, self.standing, tuple(sorted(self.building.items())),
            frozenset(self.standbys), self.read, len(orders._reader.queue),
            self.params, int(replica.outer_state), replica.round,
            None if before is None else (int(before[0]), int(before[1])),
            tuple((r, int(t.update), t.result) for r, t in sorted(replica._kept.items())),
            orders._committed, orders.cut.on, orders._training,
            None if orders._upcoming is None else orders._upcoming.generation,
            None if orders._redo is None else orders._redo.generation,
        )  # fmt: skip


_ENTRY_KEYS: dict[int, tuple] = {}
_ENTRIES: list = []


def entry_key(entry):
    """A log entry as something that can be compared quickly."""
    found = _ENTRY_KEYS.get(id(entry))
    if found is None:
        begin = entry.begin if isinstance(entry, Commit) else entry
        found = (
            (entry.kind, entry.round) if isinstance(entry, Commit) else (entry.kind, 0),
            None
            if begin is None
            else (
                begin.generation, begin.members, begin.first_round, begin.redo, begin.standby,
                tuple((t.donor, t.newcomer) for t in begin.transfers),
            ),
        )  # fmt: skip
        _ENTRY_KEYS[id(entry)] = found
        _ENTRIES.append(entry)  # so that its id stays its own
    return found


def install(monkeypatch) -> None:
    """Let `Orders` read what the model hands it."""
    monkeypatch.setattr(orders_module, "LogReader", lambda *args, **settings: _Reader())
