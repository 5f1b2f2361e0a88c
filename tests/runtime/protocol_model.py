"""The commit protocol in one thread: the objects of the runtime among links and a log that it fakes.

Real are what the coordinator decides with (`Rounds`, with `Roster` and `Attempt`), and what a site
obeys and goes back with (`Orders`, `Replica`). Course, groups and the site's loop have stand-ins
here. A model is one integer: an update adds one to the digit of its site and round, so that the sum
says whose updates are in it, and how often.

The coordinator takes every message at once. That loses nothing: sites hear of it by the log alone,
and when they read that is left to chance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import signature
from types import SimpleNamespace

import torch

from powertrip.coordination.membership import HUB, plan_transfers
from powertrip.coordination.messages import Begin, Broken, Commit, Report
from powertrip.coordination.roster import Roster
from powertrip.coordination.rounds import Rounds
from powertrip.runtime import orders as orders_module
from powertrip.runtime.orders import Orders
from powertrip.runtime.replica import Replica, Trained

SITES = 3
_DIGIT = 3  # bits: an update may be counted seven times before it is taken for another one
_WAITING = ("next", "start", "await")
_COMMON = {
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
        deaf = {
            name: _ignored for name in signature(Orders).parameters if name.startswith("on_")
        }
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


class World:
    """The coordinator, the sites, and what is between them."""

    def __init__(self, script, *, crashes=0, losses=0, freezes=0, late_gone=False) -> None:
        self.rounds_wanted = len(script)
        self.budget = {"crash": crashes, "lose": losses, "freeze": freezes}
        self.late_gone = late_gone
        self.plan = Plan(script)
        self.rounds = Rounds(Roster(), HUB)
        self.log: list = []
        self.groups: dict[int, int] = {}
        """Which mesh the members of a generation use."""
        self.meshes: dict[int, Mesh] = {}
        self.sites = [ModelSite(index, 0, 0) for index in range(SITES)]
        self.pending: set[tuple[int, int, str]] = set()
        self.lossy: tuple[int, int, int] | None = None
        """Phase, sender and receiver of the message that will be lost next."""
        self.committed: list[int] = [0]
        self.settling = False
        self.ended: str | None = None
        self.own: set = {"coordinator"}
        """What is not shared with the world that this is a copy of."""
        self.rounds_seen: tuple | None = None

        self.rounds.hold(range(SITES), self.sites[0].digest)
        self._publish(self.plan.start())
        self.rounds.begin(self.plan.current, 1)
        self._react()

    def copy(self) -> World:
        """A copy that shares its parts with this world, until it changes them."""
        new = copied(self)
        new.own = set()
        return new

    def _mine(self, index: int) -> ModelSite:
        if index not in self.own:
            self.own.add(index)
            self.sites[index] = self.sites[index].copy()
        return self.sites[index]

    def _mesh(self, number: int) -> Mesh:
        if ("mesh", number) not in self.own:
            self.own.add(("mesh", number))
            self.meshes[number] = copied(self.meshes[number])
        return self.meshes[number]

    def _coordinator(self) -> None:
        if "coordinator" not in self.own:
            self.own.add("coordinator")
            self.plan = copied(self.plan)
            self.rounds = copied(self.rounds)
            self.rounds.roster = copied(self.rounds.roster)
            self.rounds._attempt = copied(self.rounds._attempt)
            self.rounds_seen = None

    def key(self):
        """What two equal states have in common; all of the log that anybody will still read."""
        unread = min(
            (s.read - len(s.orders._reader.queue) for s in self.sites if s.alive), default=0
        )
        live = {site.group for site in self.sites if site.alive}
        for site in self.sites:
            live.update(site.building.values() if site.alive else ())
        return (
            self.ended, self.settling, self.lossy, tuple(self.budget.values()),
            tuple(self.committed), frozenset(self.pending), len(self.log),
            tuple(entry_key(entry) for entry in self.log[unread:]),
            entry_key(self.plan.current), entry_key(self.plan.following), self.plan.early,
            tuple(
                (number, mesh.key()) for number, mesh in self.meshes.items() if number in live
            ),
            self._rounds_key(), tuple(site.key() for site in self.sites),
        )  # fmt: skip

    def _rounds_key(self):
        if self.rounds_seen is None:
            self.rounds_seen = self.rounds_key()
        return self.rounds_seen

    def rounds_key(self):
        rounds, roster, attempt = self.rounds, self.rounds.roster, self.rounds.attempt
        return (
            tuple(sorted(rounds._holders.items())), tuple(sorted(rounds._reporters.items())), 
            tuple((m.site, m.generation, m.round, m.kind) for m in rounds._early),
            rounds._failures,
            frozenset(roster._gone), tuple(sorted(roster._barred_until.items())),
            tuple(sorted(roster._missed.items())), tuple(sorted(roster._incarnations.items())),
            tuple(sorted((s, g or 0) for s, g in roster._standbys.items())),
            attempt.begin.generation, attempt.round, frozenset(attempt._gone),
            tuple(sorted((s, r.digest) for s, r in attempt._reports.items())),
            tuple(sorted((s, b.awaited, b.adds) for s, b in attempt._broken.items() if b.awaited)),
            frozenset(attempt._broken),
        )  # fmt: skip

    # The coordinator.

    def _publish(self, entry) -> None:
        begin = entry.begin if isinstance(entry, Commit) else entry
        self.log.append(entry)
        if begin is None:
            return
        outside = {t.donor for t in begin.transfers} - set(begin.members)
        before = self.log_members(begin.generation - 1)
        if begin.redo or before is None or set(begin.members) != set(before):
            self.groups[begin.generation] = begin.generation
            mesh = Mesh(frozenset({*begin.members, *outside}))
            if begin.standby is not None:  # it is built already
                mesh.arrived = set(begin.members)
                mesh.broken = {index for index in begin.members if not self.sites[index].alive}
            self.meshes[begin.generation] = mesh
        else:
            self.groups[begin.generation] = self.groups[begin.generation - 1]

    def log_members(self, generation: int):
        for entry in self.log:
            begin = entry.begin if isinstance(entry, Commit) else entry
            if begin is not None and begin.generation == generation:
                return begin.members
        return None

    def _mail(self, mail) -> None:
        if self.ended:
            return
        self._coordinator()
        stale = mail.generation < self.rounds.attempt.begin.generation
        before = self.rounds_key() if stale else None
        if isinstance(mail, Report):
            self.rounds.report(mail)
        else:
            self.rounds.fail(mail)
        if stale and self.rounds_key() != before:
            raise Violation(f"I6: {mail.kind} of generation {mail.generation} changed something")
        self._react()

    def _react(self) -> None:
        """What the coordinator does whenever it has taken a message."""
        self.settling = False
        while not self.ended:
            verdict = self.rounds.verdict()
            if verdict == "done":
                self._commit()
            elif verdict == "failed":
                self._again()
            else:
                self.settling = verdict == "settle"
                return

    def _again(self) -> None:
        if not self.rounds.attempt.lost:
            if self.rounds.accuse() is None:
                raise Violation("I5: the run ends though its sites are there")
            if self.rounds.verdict() == "done":
                return
        again = self.rounds.again()
        if again is None:
            self.ended = "model lost"
            return
        round_ = self.rounds.attempt.round
        if again.members:
            begin = self.plan.redo(again.members, again.holders, again.standby)
        else:
            begin = self.plan.anew(again.holders, self.rounds.roster.away(round_))
        self._publish(begin)
        self.rounds.begin(begin, round_)

    def _commit(self) -> None:
        attempt = self.rounds.attempt
        reports = self.rounds.commit()
        found = {report.digest for report in reports}
        if len(found) != 1:
            raise Violation(f"I2: round {attempt.round} with {sorted(found)}")
        params, state = (int(part) for part in found.pop().split("/"))
        self._check_commit(attempt.round, params, state)
        self.committed.append(params)
        self.plan.round = attempt.round
        if self.plan.round == self.rounds_wanted:
            self.ended = "done"
            return
        away = self.rounds.roster.away(attempt.round + 2)
        after_next = self.plan.ahead(away)
        self._publish(
            Commit(generation=attempt.begin.generation, round=attempt.round, begin=after_next)
        )
        self.rounds.begin(self.plan.current, self.plan.round + 1)

    def _check_commit(self, round_: int, params: int, state: int) -> None:
        if round_ != len(self.committed):
            raise Violation(f"I2: round {round_} after {len(self.committed) - 1} rounds")
        added = digits(params - self.committed[-1]) if params >= self.committed[-1] else {}
        before, after = digits(self.committed[-1]), digits(params)
        if any(after.get(place) != count for place, count in before.items()):
            raise Violation(f"I4: round {round_} undoes work: {before} became {after}")
        if any(count > 1 for count in after.values()) or state != round_:
            raise Violation(f"I7: round {round_} counts twice: {after} in {state} steps")
        if not added or any(of != round_ for of, _ in added):
            raise Violation(f"I7: round {round_} adds {added}")

    # What can happen.

    def moves(self) -> list[tuple]:
        """All that can happen next but faults.

        Time limits run out where nothing else happens, the sites' own before the coordinator's.
        """
        if self.ended:
            return []
        found: list[tuple] = []
        if self.settling:
            found.append(("settled",))
        found += [("gone", *which) for which in sorted(self.pending)]
        for site in self.sites:
            if site.alive and not site.frozen:
                found += self._moves_of(site)
        if not found:
            found += [
                ("fail", site.index)
                for site in self.sites
                if site.alive and not site.frozen and site.phase in ("join", "forward", "finish")
            ]
        if not found:
            found.append(("deadline",))
        for site in self.sites:
            if not site.alive and (
                self.late_gone or (site.index, site.incarnation, "closed") not in self.pending
            ):
                found.append(("restart", site.index))
            if site.alive and site.frozen:
                found.append(("thaw", site.index))
        return found

    def calm(self, moves: list[tuple]) -> bool:
        """Whether nothing is amiss, nor will be: the order of what happens is of no account."""
        return not (
            any(self.budget.values())
            or self.pending
            or self.settling
            or any(site.frozen or not site.alive for site in self.sites)
            or any(move[0] in ("fail", "read", "deadline") for move in moves)
        )

    def faults(self) -> list[tuple]:
        if self.ended:
            return []
        up = [site.index for site in self.sites if site.alive]
        found: list[tuple] = []
        if self.budget["crash"]:
            found += [("crash", index) for index in up]
        if self.budget["freeze"]:
            found += [("freeze", index) for index in up if not self.sites[index].frozen]
        if self.budget["lose"] and self.lossy is None:
            found += [
                ("lose", phase, a, b)
                for phase in (1, 2)
                for a in up
                for b in up
                if a != b and self._sends(self.sites[a], phase, b)
            ]
        return found

    def _sends(self, site: ModelSite, phase: int, to: int) -> bool:
        """Whether a message of a phase is what a site sends next."""
        if site.frozen or site.begin is None or to not in site.begin.members:
            return False
        if site.index not in site.begin.members:
            return False
        return site.phase in (("training", "await") if phase == 1 else ("forward",))

    def _moves_of(self, site: ModelSite) -> list[tuple]:
        found: list[tuple] = []
        if self._unread(site):
            found.append(("read", site.index))
        if site.phase == "join":
            if self._can_join(site):
                found.append(("join", site.index))
            if self._join_fails(site):
                found.append(("fail", site.index))
        elif site.phase == "training":
            found.append(("trained", site.index))
        elif site.phase in ("forward", "finish"):
            mesh, others = self.meshes[site.group], self._others(site)
            phase = 1 if site.phase == "forward" else 2
            if all((phase, other, site.index) in mesh.got for other in others):
                found.append((site.phase, site.index))
            if mesh.broken.intersection(others) or site.orders.relieved_of(site.begin):
                found.append(("fail", site.index))
        return found

    def _waits(self, site: ModelSite) -> bool:
        up = site.alive and not site.frozen
        return up and site.phase in _WAITING and self._unread(site)

    def _unread(self, site: ModelSite) -> bool:
        return site.read < len(self.log)

    def _others(self, site: ModelSite) -> list[int]:
        return [member for member in site.begin.members if member != site.index]

    def _can_join(self, site: ModelSite) -> bool:
        begin = site.begin
        mesh = self.meshes[self.groups[begin.generation]]
        if begin.standby is None:
            if site.building.get(begin.generation) is None or mesh.arrived != mesh.needed:
                return False
        elif begin.standby not in site.standbys:
            return False
        donor = self._donor(site)
        return donor is None or (site.index in mesh.sent)

    def _donor(self, site: ModelSite) -> int | None:
        return next((t.donor for t in site.begin.transfers if t.newcomer == site.index), None)

    def _join_fails(self, site: ModelSite) -> bool:
        begin = site.begin
        if begin.standby is not None and begin.standby not in site.standbys:
            return True
        if begin.standby is None and site.building.get(begin.generation) is None:
            return True  # cancelled
        mesh = self.meshes[self.groups[begin.generation]]
        return bool(mesh.broken - {site.index})

    def happen(self, move: tuple) -> None:
        kind, *rest = move
        getattr(self, f"_{kind}")(*rest)
        # Who waits for news reads them at once; who trains or exchanges may be late.
        for index in range(SITES):
            while self._waits(self.sites[index]):
                self._read(index)

    def _settled(self) -> None:
        self._coordinator()
        self._again()
        self._react()

    _deadline = _settled

    def _gone(self, index: int, incarnation: int, reason: str) -> None:
        self.pending.discard((index, incarnation, reason))
        self._coordinator()
        self.rounds.lose(index, incarnation, self.plan.following.generation)
        self._react()

    def _crash(self, index: int) -> None:
        self.budget["crash"] -= 1
        site = self._mine(index)
        site.alive = False
        self.pending.add((index, site.incarnation, "closed"))
        self._break_groups(site)

    def _break_groups(self, site: ModelSite) -> None:
        for number, mesh in list(self.meshes.items()):
            if site.index in mesh.arrived:
                self._mesh(number).broken.add(site.index)

    def _restart(self, index: int) -> None:
        old = self.sites[index]
        self.sites[index] = ModelSite(index, old.incarnation + 1, len(self.log))
        self._coordinator()
        self.own.add(index)
        self.rounds.arrive(index, old.incarnation + 1, self.plan.following.generation)
        self.plan.early = True
        self._react()

    def _freeze(self, index: int) -> None:
        """A site is frozen for so long that it is found silent; for less, it is only slow."""
        self.budget["freeze"] -= 1
        self._mine(index).frozen = True
        self._gone(index, self.sites[index].incarnation, "silent")

    def _thaw(self, index: int) -> None:
        site = self._mine(index)
        site.frozen = False
        self._coordinator()
        if self.rounds.arrive(index, site.incarnation, self.plan.following.generation):
            self.plan.early = True
        self._react()

    def _lose(self, phase: int, sender: int, receiver: int) -> None:
        self.budget["lose"] -= 1
        self.lossy = (phase, sender, receiver)

    # A site.

    def _read(self, index: int) -> None:
        """The log's reader has the next entry."""
        site = self._mine(index)
        entry = self.log[site.read]
        site.read += 1
        begin = entry.begin if isinstance(entry, Commit) else entry
        if begin is not None:
            self._announce(site, begin)
        site.orders._announced(entry)
        site.orders._reader.queue += (entry,)
        self._go_on(site)

    def _announce(self, site: ModelSite, begin: Begin) -> None:
        """As `GroupBuilder.announce`."""
        same = set(begin.members) == set(site.standing) and not begin.redo
        site.standing = begin.members
        if begin.redo:
            for number in site.building.values():
                self._mesh(number).broken.add(site.index)
            site.building.clear()
            site.standbys &= {begin.standby}
        number = self.groups[begin.generation]
        mesh = self._mesh(number)
        if same or site.index not in mesh.needed:
            return
        if begin.standby is None:
            site.building[begin.generation] = number
        mesh.arrived.add(site.index)
        if len(begin.members) > 2 and site.index in begin.members:
            site.standbys.add(begin.generation)

    def _go_on(self, site: ModelSite) -> None:
        """What a site does by itself, until it waits, or others can see it."""
        while True:
            try:
                if site.phase == "next":
                    self._next(site)
                elif site.phase == "start":
                    self._start(site)
                elif site.phase == "await":
                    self._await(site)
                else:
                    return
            except Blocked:
                return

    def _next(self, site: ModelSite) -> None:
        begin = site.orders.next_generation()
        outside = any(t.donor == site.index for t in begin.transfers)
        if site.index not in begin.members and not outside:
            # Who has finished has sent all that the others need.
            if site.group is None or self.meshes[site.group].round > site.replica.round:
                self._leave(site)
            site.group = None
            return
        site.begin, site.round = begin, begin.first_round
        if begin.redo and self._donor(site) is None:
            self._back_to(site, begin.first_round - 1)
        elif self._donor(site) is None and site.replica.round != begin.first_round - 1:
            site.phase = "join"
            self._fail(site.index)
            return
        number = self.groups[begin.generation]
        fresh = number == begin.generation
        if not fresh and (site.group != number or site.building):
            raise Violation(f"site {site.index} has no group for generation {begin.generation}")
        site.phase = "join" if fresh else "start"

    def _back_to(self, site: ModelSite, round_: int) -> None:
        """`Replica.back_to`, which must end where the coordinator says that the site stood."""
        site.replica.back_to(round_)
        if site.params != self.committed[round_] or int(site.replica.outer_state) != round_:
            raise Violation(
                f"I3: site {site.index} goes on from {digits(site.params)} in place of round {round_}"
            )

    def _start(self, site: ModelSite) -> None:
        begin, orders = site.begin, site.orders
        known = orders.await_commit(site.round - 2, begin, doing=site.round)
        if not known or (site.round > begin.first_round and orders.relieved):
            site.phase = "next"
        elif site.replica.kept(site.round) is not None:
            site.phase = "await"
        elif site.orders.train(site.round, site.begin):
            site.phase, site.base = "training", site.params
        else:
            site.phase = "next"

    def _trained(self, index: int) -> None:
        site = self._mine(index)
        if site.orders.trained(site.begin):
            update = torch.tensor([update_of(index, site.round)])
            site.replica.keep(site.round, Trained(update, 1, site.base, 1.0, 0.0))
            site.phase = "await"
        else:
            site.phase = "next"
        site.base = 0
        self._go_on(site)

    def _await(self, site: ModelSite) -> None:
        if not site.orders.await_commit(site.round - 1, site.begin, doing=site.round):
            site.phase = "next"
            return
        trained = site.replica.kept(site.round)
        if trained.result != site.params:
            raise Violation(f"site {site.index} adds work that it has done on another model")
        if site.params != self.committed[site.round - 1]:
            raise Violation(f"I3: site {site.index} exchanges from what is not committed")
        mesh = self._mesh(site.group)
        if mesh.round != site.round:
            mesh.round, mesh.addends, mesh.got = site.round, {}, set()
        mesh.addends[site.index] = int(trained.update)
        self._send(mesh, 1, site)
        site.phase = "forward"

    def _send(self, mesh: Mesh, phase: int, site: ModelSite) -> None:
        for other in self._others(site):
            if self.lossy == (phase, site.index, other):
                self.lossy = None
            else:
                mesh.got.add((phase, site.index, other))

    def _forward(self, index: int) -> None:
        site = self._mine(index)
        self._send(self._mesh(site.group), 2, site)
        site.phase = "finish"

    def _finish(self, index: int) -> None:
        site = self._mine(index)
        begin = site.begin
        mesh = self.meshes[site.group]
        total = sum(mesh.addends[member] for member in begin.members)
        site.replica.step(site.round, torch.tensor([total]))
        ready = [g for g in site.standbys if self.meshes[g].arrived == self.meshes[g].needed]
        self._mail(
            Report(
                site=index, generation=begin.generation, round=site.round,
                digest=site.digest,
                standby=max(ready, default=None), **_COMMON,
            )
        )  # fmt: skip
        site.round += 1
        site.phase = "start"
        self._go_on(site)

    def _join(self, index: int) -> None:
        site = self._mine(index)
        begin = site.begin
        number = self.groups[begin.generation]
        mesh = self._mesh(number)
        replica = site.replica
        for transfer in begin.transfers:
            if transfer.donor == index:
                if replica.round != begin.first_round - 1:
                    raise Violation(f"site {index} gives away round {replica.round}")
                mesh.sent[transfer.newcomer] = (
                    site.params, int(replica.outer_state), replica.round
                )  # fmt: skip
        if index in mesh.sent and self._donor(site) is not None:
            params, state, _ = mesh.sent[index]
            replica.vector.fill_(params)
            replica.outer_state.fill_(state)
            replica.received(begin.first_round - 1)
        site.building.pop(begin.generation, None)
        if index not in begin.members:
            site.group = None
            site.phase = "next"
        else:
            site.group = number
            site.standbys = {
                g for g in site.standbys if g >= begin.generation and g != begin.standby
            }
            site.phase = "start"
        self._go_on(site)

    def _fail(self, index: int) -> None:
        """As `Site._break_off`."""
        site = self._mine(index)
        begin = site.begin
        awaited, adds = self._awaited(site)
        number = self.groups[begin.generation]
        if site.phase == "join":
            site.building.pop(begin.generation, None)
            self._mesh(number).broken.add(index)
        self._leave(site)
        site.phase = "next"
        if not site.orders.relieved_of(begin):
            site.orders.forget_upcoming()
            self._mail(
                Broken(
                    site=index, generation=begin.generation, round=site.round,
                    awaited=awaited, adds=adds, text="broken",
                    digest=site.digest if site.replica.round == site.round - 1 else None,
                )
            )  # fmt: skip
        self._go_on(site)

    def _awaited(self, site: ModelSite) -> tuple[int | None, bool]:
        """What a site can say of a time limit that has run out; nothing of a closed connection."""
        if site.phase not in ("forward", "finish"):
            return None, False
        mesh, others = self.meshes[site.group], self._others(site)
        if mesh.broken.intersection(others):
            return None, False
        phase = 1 if site.phase == "forward" else 2
        late = [other for other in others if (phase, other, site.index) not in mesh.got]
        return (late[0], phase == 1) if late else (None, False)

    def _leave(self, site: ModelSite) -> None:
        if site.group is not None:
            self._mesh(site.group).broken.add(site.index)
        site.group = None

    # What must hold in every state.

    def check(self) -> None:
        """I1: a commit is held by somebody, or the run has said that it is lost."""
        last = self.plan.round
        if self.ended == "done":
            return
        attempt = self.rounds.attempt
        known = self.rounds.holders(attempt.round)
        for index in known:
            site = self.sites[index]
            if site.alive and not self._holds(site, last):
                raise Violation(f"I1: site {index} does not hold round {last}")
        if self.ended == "model lost":
            left = [s.index for s in self.sites if s.alive and not s.frozen and self._holds(s, last)]
            if left:
                raise Violation(f"I1: the run gives up, and sites {left} hold round {last}")

    def holders(self) -> list[int]:
        return [s.index for s in self.sites if s.alive and self._holds(s, self.plan.round)]

    def _holds(self, site: ModelSite, round_: int) -> bool:
        replica, params = site.replica, self.committed[round_]
        if replica.round == round_ and site.params == params:
            return True
        before = replica._before
        return replica.round == round_ + 1 and before is not None and int(before[0]) == params


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


@dataclass(frozen=True)
class Explored:
    """What an exploration has seen."""

    states: int
    moves: int
    committed: int
    lost: int
    stuck: list[list[tuple]]


def explore(start: World, *, most_states: int = 10**7) -> Explored:
    """Try all that can happen, in every order, depth first.

    Raises
    ------
    Violation
        A promise is broken; its text says by which moves.
    """
    numbers = {start.key(): 0}
    parents: list[tuple[int, tuple] | None] = [None]
    onward: list[list[int]] = [[]]
    good: set[int] = set()
    held: list[bool] = [True]
    stack = [(0, start)]
    moves = committed = lost = 0
    while stack:
        number, world = stack.pop()
        if world.ended == "done":
            committed += 1
            good.add(number)
        lost += world.ended == "model lost"
        ordered = world.moves()
        if world.calm(ordered):
            del ordered[1:]
        for move, fault in [
            *((move, False) for move in ordered), *((move, True) for move in world.faults())
        ]:  # fmt: skip
            moves += 1
            after = world.copy()
            try:
                after.happen(move)
                after.check()
            except Exception as error:
                path = "\n".join(str(each) for each in [*path_to(parents, number), move])
                raise Violation(f"{type(error).__name__}: {error}\nafter\n{path}") from error
            key = after.key()
            found = numbers.get(key)
            if found is None:
                found = numbers[key] = len(parents)
                if found > most_states:
                    raise MemoryError(f"more than {most_states} states")
                parents.append((number, move))
                onward.append([])
                held.append(after.ended is None and bool(after.holders()))
                stack.append((found, after))
            if not fault:
                onward[number].append(found)
    stuck = [n for n in _not_leading_to(onward, good) if held[n]]
    return Explored(
        len(parents), moves, committed, lost, [path_to(parents, n) for n in stuck[:3]]
    )


def path_to(parents, number: int) -> list[tuple]:
    path = []
    while parents[number] is not None:
        number, move = parents[number]
        path.append(move)
    return path[::-1]


def _not_leading_to(onward: list[list[int]], good: set[int]) -> list[int]:
    backward: list[list[int]] = [[] for _ in onward]
    for number, following in enumerate(onward):
        for after in following:
            backward[after].append(number)
    reached, stack = set(good), list(good)
    while stack:
        for before in backward[stack.pop()]:
            if before not in reached:
                reached.add(before)
                stack.append(before)
    return [number for number in range(len(onward)) if number not in reached]


def install(monkeypatch) -> None:
    """Let `Orders` read what the model hands it."""
    monkeypatch.setattr(orders_module, "LogReader", lambda *args, **settings: _Reader())
