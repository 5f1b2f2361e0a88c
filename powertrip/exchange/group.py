"""The process group of one generation: built from a store, owned by the site, closed by it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

import torch
import torch.distributed as dist

from powertrip.exchange.errors import BackendUnusable, ExchangeError
from powertrip.exchange.sums import Algorithm, Awaited, MeshSum, RingSum, Sum

Backend = Literal["gloo", "nccl"]

_TIMED_OUT = "timed out"  # what Gloo says of a wait that it has given up


def _nobody() -> None:
    return None


def _reason(error: RuntimeError) -> str:
    """The first line of what the library says, without its source's path and its advice."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*\.\w+:\d+\]\s*", "", first).split(". This is typically")[0]


def store_prefix(generation: int) -> str:
    """The store keys of a generation's group all begin with this, so that they can be deleted."""
    return f"group/{generation}"


def choose_backend(
    wanted: Literal["auto", "gloo", "nccl"],
    device: torch.device,
    *,
    own_gpu: bool,
    own_host: bool = False,
) -> Backend:
    """NCCL moves tensors of a GPU that no other process uses; Gloo moves everything else.

    Parameters
    ----------
    wanted
        The setting `exchange.backend`.
    device
        Where this process trains.
    own_gpu
        Whether no other process trains on it.
    own_host
        Whether NCCL takes this process for the only one of a machine (``NCCL_HOSTID``), and so does
        not mind others on the same GPU; auto does not rely on it.

    Raises
    ------
    BackendUnusable
        NCCL is asked for, and would fail or hang.
    """
    possible = device.type == "cuda" and dist.is_nccl_available()
    usable = possible and own_gpu
    if wanted == "nccl" and not (possible and (own_gpu or own_host)):
        raise BackendUnusable(
            f"exchange.backend is nccl, but this process trains on {device}"
            + ("" if own_gpu else ", which other processes use as well")
            + "; nccl needs one GPU a process: write auto or gloo"
        )
    if wanted == "auto":
        return "nccl" if usable else "gloo"
    return wanted


def choose_algorithm(wanted: Literal["auto", "ring", "mesh"], backend: Backend) -> Algorithm:
    """A mesh where Gloo moves the tensors: NCCL knows its own hardware best.

    Raises
    ------
    BackendUnusable
        A mesh is asked for, and NCCL is the backend.
    """
    if wanted == "auto":
        return "mesh" if backend == "gloo" else "ring"
    if wanted == "mesh" and backend != "gloo":
        raise BackendUnusable(
            f"exchange.algorithm is mesh, which needs gloo, and the backend is {backend}; write "
            "exchange.algorithm: ring or exchange.backend: gloo"
        )
    return wanted


class Group:
    """Collectives among the members of one generation.

    A torch process group without the default ("world") group: only a store client is needed, so
    sites outside the generation take no part in building it.

    Parameters
    ----------
    store
        Any store that all the members reach; a group of one needs none.
    generation
        The number of the decision; it separates the keys of successive groups.
    members
        The sites' indices in the order of the decision. `site` is one of them.
    site
        This process's own site.
    name
        This site's name, for errors.
    algorithm
        How sums are made.
    purpose
        A second group of the same generation needs another purpose.

    Raises
    ------
    ExchangeError
        A member did not come within `timeout_s`.
    """

    def __init__(
        self,
        store: dist.Store | None,
        *,
        generation: int,
        members: Sequence[int],
        site: int,
        name: str,
        backend: Backend,
        timeout_s: float,
        algorithm: Algorithm = "ring",
        purpose: str = "members",
    ) -> None:
        self.generation = generation
        self.members = tuple(members)
        self.rank = self.members.index(site)
        self.size = len(self.members)
        self.bytes_sent = 0
        self.bytes_received = 0
        """By `receive` alone."""
        self._name = name
        self._backend = backend
        self._algorithm = algorithm
        self._ranks = tuple(range(self.size))
        self._timeout = timedelta(seconds=timeout_s)
        self._group: Any = None
        self._sums: list[GroupSum] = []
        if self.size > 1:
            assert store is not None
            prefixed = dist.PrefixStore(f"{store_prefix(generation)}/{purpose}", store)
            self._group = self._guard("building the process group", lambda: self._build(prefixed))

    @property
    def divisible(self) -> bool:
        """Whether some of the members can go on with the connections of this group."""
        return self._algorithm == "mesh" and self.size > 1

    def among(self, members: Sequence[int], *, generation: int, site: int) -> Group:
        """The group of those of its members that are left, over the connections of this one.

        This group is of no more use afterwards. The connections to the others stay open, and idle.

        Parameters
        ----------
        members
            Some of this group's, this site among them.
        generation
            Of the new group.
        site
            This process's own site.

        Raises
        ------
        ValueError
            The group is not `divisible`, or closed.
        """
        if not self.divisible or self._group is None:
            raise ValueError("only an open group that adds up in a mesh can go on with a part")
        left = Group(
            None,
            generation=generation,
            members=(site,),
            site=site,
            name=self._name,
            backend=self._backend,
            timeout_s=self._timeout.total_seconds(),
            algorithm=self._algorithm,
        )
        left.members = tuple(members)
        left.rank, left.size = left.members.index(site), len(members)
        left._ranks = tuple(self._ranks[self.members.index(member)] for member in members)
        left._group, self._group = self._group, None
        return left

    def _build(self, store: dist.Store) -> Any:
        if self._backend == "gloo":
            # All addresses in one request, which has the store's own limit: by default Gloo fetches
            # one after the other.
            os.environ["GLOO_ENABLE_STORE_V2_API"] = "1"
            store.set_timeout(self._timeout)
            return dist.ProcessGroupGloo(store, self.rank, self.size, self._timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(store, self.rank, self.size, options)

    def sum(self, tensor: torch.Tensor, *, channel: int = 0) -> GroupSum:
        """Sums over the members of `tensor`, in place; every member ends with the same bits.

        Parameters
        ----------
        tensor
            One dimension.
        channel
            From 0; sums that are under way at the same time need different ones.
        """
        found = GroupSum(self, tensor, channel)
        self._sums.append(found)
        return found

    def _new_sum(self, tensor: torch.Tensor, channel: int) -> Sum | None:
        if self.size == 1:
            return None
        limit_s = self._timeout.total_seconds()
        if self._algorithm == "ring":
            return RingSum(self._group, self.size, tensor, limit_s)
        tags = (1 + 2 * channel, 2 + 2 * channel)
        return MeshSum(self._group, self.rank, self._ranks, tensor, limit_s, tags)

    def send(self, tensor: torch.Tensor, to_site: int, *, timeout_s: float | None = None) -> None:
        """Send `tensor` to one member, which may take it as late as `timeout_s`."""
        peer, staged = self._ranks[self.members.index(to_site)], self.staged(tensor)
        limit = self._timeout if timeout_s is None else timedelta(seconds=timeout_s)
        self._run("send", staged, limit, lambda: self._group.send([staged], peer, 0))
        self.bytes_sent += tensor.nbytes

    def receive(
        self, tensor: torch.Tensor, from_site: int, *, timeout_s: float | None = None
    ) -> None:
        """Fill `tensor` with what a member sends, which it may do as late as `timeout_s`."""
        peer, staged = self._ranks[self.members.index(from_site)], self.staged(tensor)
        limit = self._timeout if timeout_s is None else timedelta(seconds=timeout_s)
        awaited = Awaited(self.members.index(from_site), adds=True)
        self._run(
            "receive", staged, limit, lambda: self._group.recv([staged], peer, 0), lambda: awaited
        )
        if staged is not tensor:
            tensor.copy_(staged)
        self.bytes_received += tensor.nbytes

    def staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` where the backend can move it: itself, or a copy."""
        return tensor.cpu() if self._backend == "gloo" else tensor

    def _run(
        self,
        action: str,
        staged: torch.Tensor,
        limit: timedelta,
        start: Callable[[], dist.Work],
        awaited: Callable[[], Awaited | None] = _nobody,
    ) -> None:
        def wait() -> None:
            start().wait(limit)
            if staged.is_cuda:
                torch.cuda.current_stream(staged.device).synchronize()

        self._guard(action, wait, awaited)

    def _guard(
        self, action: str, call: Callable[[], Any], awaited: Callable[[], Awaited | None] = _nobody
    ) -> Any:
        try:
            return call()
        except RuntimeError as error:  # torch has no narrower type for a lost peer or a timeout
            # Its frames hold what keeps the connections open, and peers would wait on this site.
            error.__traceback__ = None
            reason = _reason(error)
            # A peer that has closed its connection may only have given up on another one.
            late = awaited() if _TIMED_OUT in reason.lower() else None
            raise ExchangeError(
                action,
                site=self._name,
                generation=self.generation,
                reason=reason,
                awaited=None if late is None else self.members[late.place],
                adds=late is not None and late.adds,
            ) from error

    def close(self) -> None:
        """Drop the connections at once: peers that still wait on this site learn of it."""
        for each in self._sums:
            each.drop()
        group, self._group = self._group, None
        if group is not None:
            with suppress(RuntimeError):  # a group whose peer died has nothing left to shut down
                group.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class GroupSum:
    """Sums over the members of a group, one after the other, of the same tensor.

    `run` makes one. Its steps are there to be taken apart, so that a sum that is not urgent costs
    no time: `expect` the addends of others, `begin` by sending one's own, `forward` the sum of
    one's part, `finish`. All members take the same steps in the same order.

    Parameters
    ----------
    group
        Whose members.
    tensor, channel
        See `Group.sum`.

    Raises
    ------
    ExchangeError
        By any step.
    """

    def __init__(self, group: Group, tensor: torch.Tensor, channel: int) -> None:
        self.group, self._tensor = group, tensor
        self._staged = group.staged(tensor)
        self._sum = group._new_sum(self._staged, channel)
        self._dropped = False

    def run(self, limit_s: float | None = None) -> None:
        """Make a sum at once, in `limit_s` or within the group's own limit."""
        if limit_s is not None:
            self.bound(limit_s)
        self.begin()
        self.forward()
        self.finish()

    def bound(self, limit_s: float) -> None:
        """Let the next sum take so long, from `begin` on, and no longer."""
        if (total := self._of_several()) is not None:
            total.bound(limit_s)

    def expect(self) -> None:
        """Get ready for what the others send; the tensor may be filled after that."""
        if (total := self._of_several()) is not None:
            self._step(total, total.expect)

    def begin(self) -> None:
        """Send this member's addend; the tensor is not to be touched until `finish`."""
        if (total := self._of_several()) is not None:
            if self._staged is not self._tensor:
                self._staged.copy_(self._tensor)
            self._step(total, total.begin)

    def forward(self) -> None:
        """Wait for the addends to this member's part, and send on its sum."""
        if (total := self._of_several()) is not None:
            self._step(total, total.forward)

    def finish(self) -> None:
        """Wait until the tensor holds the sum."""
        if (total := self._of_several()) is not None:
            self.group.bytes_sent += self._step(total, total.finish)
            if self._staged is not self._tensor:
                self._tensor.copy_(self._staged)

    def _step(self, total: Sum, call: Callable[[], Any]) -> Any:
        return self.group._guard("all-reduce", call, lambda: total.awaited)

    def _of_several(self) -> Sum | None:
        """What makes the sum; None in a group of one."""
        if self._dropped:
            raise ValueError("the group of this sum is closed")
        return self._sum

    def drop(self) -> None:
        """Let go of the connections; for the group, when it closes."""
        self._dropped = True
        if self._sum is not None:
            self._sum.drop()
