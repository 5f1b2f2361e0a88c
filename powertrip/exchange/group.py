"""The process group of one generation: built from a store, owned by the site, closed by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

import torch
import torch.distributed as dist

from powertrip.exchange.errors import BackendUnusable, ExchangeError

Backend = Literal["gloo", "nccl"]


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


class Group:
    """Collectives among the members of one generation.

    A torch process group without the default ("world") group: only a store client is needed, so
    sites outside the generation take no part in building it.

    Parameters
    ----------
    store
        Any store that all the members reach.
    generation
        The number of the decision; it separates the keys of successive groups.
    members
        The sites' indices in the order of the decision. `site` is one of them.
    site
        This process's own site.
    name
        This site's name, for errors.
    purpose
        A second group of the same generation needs another purpose.

    Raises
    ------
    ExchangeError
        A member did not come within `timeout_s`.
    """

    def __init__(
        self,
        store: dist.Store,
        *,
        generation: int,
        members: Sequence[int],
        site: int,
        name: str,
        backend: Backend,
        timeout_s: float,
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
        self._timeout = timedelta(seconds=timeout_s)
        self._group: Any = None
        if self.size > 1:
            prefixed = dist.PrefixStore(f"{store_prefix(generation)}/{purpose}", store)
            self._group = self._guard("building the process group", lambda: self._build(prefixed))

    def _build(self, store: dist.Store) -> Any:
        if self._backend == "gloo":
            return dist.ProcessGroupGloo(store, self.rank, self.size, self._timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(store, self.rank, self.size, options)

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """Sum `tensor` over the members, in place; every member ends with the same bits."""
        if self.size == 1:
            return
        self._run("all-reduce", tensor, lambda staged: self._group.allreduce([staged]))
        # A ring sends each of the k chunks twice, but for its own.
        self.bytes_sent += 2 * (self.size - 1) * tensor.nbytes // self.size

    def send(self, tensor: torch.Tensor, to_site: int) -> None:
        """Send `tensor` to one member."""
        peer = self.members.index(to_site)
        self._run("send", tensor, lambda staged: self._group.send([staged], peer, 0), out=False)
        self.bytes_sent += tensor.nbytes

    def receive(self, tensor: torch.Tensor, from_site: int) -> None:
        """Fill `tensor` with what a member sends."""
        peer = self.members.index(from_site)
        self._run("receive", tensor, lambda staged: self._group.recv([staged], peer, 0))
        self.bytes_received += tensor.nbytes

    def _run(
        self,
        action: str,
        tensor: torch.Tensor,
        start: Callable[[torch.Tensor], dist.Work],
        *,
        out: bool = True,
    ) -> None:
        staged = tensor.cpu() if self._backend == "gloo" else tensor

        def wait() -> None:
            start(staged).wait(self._timeout)
            if staged.is_cuda:
                torch.cuda.current_stream(staged.device).synchronize()

        self._guard(action, wait)
        if out and staged is not tensor:
            tensor.copy_(staged)

    def _guard(self, action: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as error:  # torch has no narrower type for a lost peer or a timeout
            reason = str(error).strip().splitlines()
            raise ExchangeError(
                action,
                site=self._name,
                generation=self.generation,
                reason=reason[0] if reason else type(error).__name__,
            ) from error

    def close(self) -> None:
        """Drop the connections at once: peers that still wait on this site learn of it."""
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
