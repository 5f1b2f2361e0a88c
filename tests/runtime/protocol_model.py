"""The commit protocol in one thread: the runtime's objects among links and a log that are faked.

Real are what the coordinator decides with (`Rounds`, with `Roster` and `Attempt`), and what a site
obeys and goes back with (`Orders`, `Replica`). Course, groups and the site's loop have stand-ins
here. A model is one integer: an update adds one to the digit of its site and round, so that the sum
says whose updates are in it, and how often.

The coordinator takes every message at once. That loses nothing: sites hear of it by the log alone,
and when they read that is left to chance.
"""

from __future__ import annotations

from powertrip.coordination.membership import HUB
from powertrip.coordination.messages import Commit, Report
from powertrip.coordination.roster import Roster
from powertrip.coordination.rounds import Rounds
from tests.runtime.protocol_parts import (
    SITES,
    Mesh,
    ModelSite,
    Plan,
    Violation,
    copied,
    digits,
    entry_key,
)
from tests.runtime.protocol_sites import Sites

_WAITING = ("next", "start", "await")


class World(Sites):
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
            tuple((m.site, m.generation, m.round, m.kind, n) for m, n in rounds._early),
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
            left = [
                s.index for s in self.sites if s.alive and not s.frozen and self._holds(s, last)
            ]
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
