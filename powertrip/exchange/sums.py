"""Sums over the members of a group, in steps, so that what needs no waiting can be done ahead."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch

Algorithm = Literal["ring", "mesh"]

_FOLLOWS_S = 0.2
"""How much longer a part of the sum is waited for than an addend: whoever misses an addend gives up
first, and can say whose it is."""
_SHORTEST_S = 1e-3  # of a wait: what has arrived already is never late


class Connections(Protocol):
    """What a sum needs of a torch process group."""

    def allreduce(self, tensors: list[torch.Tensor]) -> Any: ...

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any: ...

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any: ...


@dataclass(frozen=True)
class Awaited:
    """A member that another one waits for.

    Attributes
    ----------
    place
        Of the member, among the members.
    adds
        Whether its addend is waited for, which it sends without waiting for anybody, or its part of
        the sum, which it can send only when it has all addends.
    """

    place: int
    adds: bool


class Sum(Protocol):
    """One sum after the other over the members, of the tensor that the constructor was given.

    The steps of a sum come in the order `expect` (which may be left out), `begin`, `forward`,
    `finish`; every member takes them in the same order. Errors are those of the process group.
    """

    @property
    def awaited(self) -> Awaited | None:
        """What is waited for, or was when a step failed; None where that cannot be told."""
        ...

    def bound(self, limit_s: float) -> None:
        """Let the next sum take so long, from `begin` on, and no longer."""
        ...

    def expect(self) -> None:
        """Get ready to receive, before the tensor is filled."""
        ...

    def begin(self) -> None:
        """Send what this member adds; the tensor is not to be touched until `finish`."""
        ...

    def forward(self) -> None:
        """Wait for what others add to this member's part, and send on its sum."""
        ...

    def finish(self) -> int:
        """Wait until the tensor holds the sum; returns the bytes that this member has sent."""
        ...

    def drop(self) -> None:
        """Let go of the group and of all that is under way; nothing comes after that."""
        ...


class RingSum:
    """The all-reduce of the collectives library: a ring, in Gloo as in NCCL."""

    def __init__(self, group: Connections, size: int, tensor: torch.Tensor, limit_s: float) -> None:
        self._group: Connections | None = group
        self._size, self._tensor = size, tensor
        self._limit = timedelta(seconds=limit_s)
        self._work: Any = None

    @property
    def awaited(self) -> None:
        """The library does not say."""
        return None

    def bound(self, limit_s: float) -> None:
        """Set the limit of the next all-reduce."""
        self._limit = timedelta(seconds=limit_s)

    def expect(self) -> None:
        """Nothing can be done ahead."""

    def begin(self) -> None:
        """Start the all-reduce."""
        assert self._group is not None
        self._work = self._group.allreduce([self._tensor])

    def forward(self) -> None:
        """Nothing to do: the library does both."""

    def finish(self) -> int:
        """Wait for the all-reduce."""
        self._work.wait(self._limit)
        if self._tensor.is_cuda:
            torch.cuda.current_stream(self._tensor.device).synchronize()
        # A ring sends each of the k chunks twice, but for its own.
        return 2 * (self._size - 1) * self._tensor.nbytes // self._size

    def drop(self) -> None:
        """Let go of the group and of the work, which holds its connections."""
        self._group, self._work = None, None


class MeshSum:
    """Reduce-scatter and all-gather straight between all pairs of members.

    Member j adds up the j-th of k parts, and sends the sum to all: two steps of half a round trip
    with the farthest member, where a ring takes ``2(k-1)`` steps. Each part is added up in one
    place, in the order of the ranks, so every member ends with the same bits.

    The receives are posted ahead (`expect`): Gloo sends nothing before the other side has asked for
    it, which costs half a round trip a step where it is not done long before.

    Parameters
    ----------
    group
        A Gloo process group.
    rank
        This member's place among the members.
    ranks
        The members' ranks in the process group, in order: all of them, or those that are left.
    tensor
        What is added up, in place; on the CPU, one dimension.
    limit_s
        How long a sum may take from `begin` on, where `bound` does not say.
    tags
        Two numbers that no other sum of the group uses at the same time.
    """

    def __init__(
        self,
        group: Connections,
        rank: int,
        ranks: Sequence[int],
        tensor: torch.Tensor,
        limit_s: float,
        tags: tuple[int, int],
    ) -> None:
        self._group: Connections | None = group
        self._rank, self._ranks = rank, tuple(ranks)
        self._size = size = len(ranks)
        self._limit_s = limit_s
        self._ends_s = 0.0
        self._tags = tags
        self._awaited: Awaited | None = None
        bounds = [tensor.numel() * part // size for part in range(size + 1)]
        self._parts = [tensor[bounds[j] : bounds[j + 1]] for j in range(size)]
        own = self._parts[rank]
        self._added = torch.empty((size, own.numel()), dtype=tensor.dtype)
        # Nearest neighbours in rank first would make all members send to the same one at once.
        self._others = [(rank + step) % size for step in range(1, size)]
        self._adding: dict[int, Any] = {}
        self._gathering: dict[int, Any] = {}
        self._sending: list[Any] = []

    @property
    def awaited(self) -> Awaited | None:
        """The member that the present step waits for."""
        return self._awaited

    def bound(self, limit_s: float) -> None:
        """Set the limit of the next sum."""
        self._limit_s = limit_s

    def expect(self) -> None:
        """Post all receives.

        Part j of the tensor is received into the place that this member's addend is sent from: its
        sum exists only once the addend has arrived at j.
        """
        if self._adding or self._gathering:
            return
        assert self._group is not None
        if self._added.numel():
            self._adding = {
                j: self._group.recv([self._added[j]], self._ranks[j], self._tags[0])
                for j in self._others
            }
        self._gathering = {
            j: self._group.recv([self._parts[j]], self._ranks[j], self._tags[1])
            for j in self._others
            if self._parts[j].numel()
        }

    def begin(self) -> None:
        """Send every other member its part."""
        self.expect()
        self._ends_s = time.monotonic() + self._limit_s
        self._added[self._rank].copy_(self._parts[self._rank])
        self._send((j, self._parts[j], self._tags[0]) for j in self._others)

    def forward(self) -> None:
        """Add up this member's part, and send it to every other."""
        self._receive(self._adding, adds=True)
        own = self._parts[self._rank]
        torch.sum(self._added, dim=0, out=own)
        self._send((j, own, self._tags[1]) for j in self._others)

    def finish(self) -> int:
        """Wait for the other parts, and until everything is sent."""
        self._receive(self._gathering, adds=False)
        for work in self._sending:
            work.wait(self._left(_FOLLOWS_S))
        self._sending = []
        own = self._parts[self._rank].nbytes
        whole = sum(part.nbytes for part in self._parts)
        return whole - own + own * (self._size - 1)

    def drop(self) -> None:
        """Let go of the group and of what is under way, which holds its connections."""
        self._group = None
        self._adding, self._gathering, self._sending = {}, {}, []

    def _send(self, messages: Iterable[tuple[int, torch.Tensor, int]]) -> None:
        assert self._group is not None
        self._sending += [
            self._group.send([part], self._ranks[j], tag)
            for j, part, tag in messages
            if part.numel()
        ]

    def _receive(self, works: dict[int, Any], *, adds: bool) -> None:
        for j, work in works.items():
            self._awaited = Awaited(j, adds)
            work.wait(self._left(0.0 if adds else _FOLLOWS_S))
        works.clear()
        self._awaited = None

    def _left(self, longer_s: float) -> timedelta:
        left_s = self._ends_s + longer_s - time.monotonic()
        return timedelta(seconds=max(left_s, _SHORTEST_S))
