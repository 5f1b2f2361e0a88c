"""What the sites of the model do, step by step; see protocol_model."""

from __future__ import annotations

import torch

from powertrip.coordination.messages import Begin, Broken, Commit, Report
from powertrip.runtime.replica import Trained
from tests.runtime.protocol_parts import (
    COMMON,
    Blocked,
    Mesh,
    ModelSite,
    Violation,
    digits,
    update_of,
)


class Sites:
    """The part of `World` that stands for the sites' own loops, `Site._serve` above all."""

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
                f"I3: site {site.index} goes on from {digits(site.params)}, not round {round_}"
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
                standby=max(ready, default=None), **COMMON,
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
                    digest=site.digest_after(site.round - 1),
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
