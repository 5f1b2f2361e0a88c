"""Builds the process groups of generations to come while the site is busy with its rounds."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist

from powertrip.coordination.messages import Begin
from powertrip.exchange.errors import ExchangeError
from powertrip.exchange.group import Backend, Group
from powertrip.exchange.sums import Algorithm
from powertrip.runtime.control import StoreFactory

_CLOSE_LIMIT_S = 5.0  # every site builds what was announced, so nobody is waited for much longer

Purpose = Literal["members", "standby", "handover"]


@dataclass(frozen=True)
class _Order:
    generation: int
    members: tuple[int, ...]
    purpose: Purpose


class GroupBuilder:
    """One site's groups, built as soon as the log announces them.

    A set of members that follows itself keeps its group. Where nobody who stays holds the model,
    those who leave hand it over in a group apart ("handover"). Behind each new group a second one
    of the same members is built ("standby"), with which those that are left go on where an
    exchange has failed: a group of which a member is gone is of no more use.

    Parameters
    ----------
    connect
        Makes store clients, as many as groups are built at once. They are kept for the groups to
        come: torch's store looks up the name of every peer that connects, and serves nobody
        while it waits for that.
    site, name
        The site's number and name.
    backend, algorithm, timeout_s
        Of every group.
    """

    def __init__(
        self,
        connect: StoreFactory,
        *,
        site: int,
        name: str,
        backend: Backend,
        algorithm: Algorithm,
        timeout_s: float,
    ) -> None:
        self._connect = connect
        self._site, self._name = site, name
        self._backend, self._algorithm, self._timeout_s = backend, algorithm, timeout_s
        self._standing: tuple[int, ...] = ()
        self._redo = 0
        self._lock = threading.Lock()
        self._built: dict[_Order, Future[Group]] = {}
        self._threads: list[threading.Thread] = []
        self._clients: list[dist.Store] = []
        self._closed = False

    def announce(self, begin: Begin) -> None:
        """Start to build what this site needs for a generation; to be called in the log's order.

        A round that is done again ends what was under way for it and beyond.
        """
        same = set(begin.members) == set(self._standing) and not begin.redo
        self._standing = begin.members
        orders = [] if same or begin.standby is not None else [_order(begin, "members")]
        if outsiders(begin):
            orders.insert(0, _order(begin, "handover"))
        if not same and self._divisible(begin):
            orders.append(_order(begin, "standby"))
        with self._lock:
            if self._closed:
                return
            if begin.redo:
                self._redo = begin.generation
                self._cancel(keep=begin.standby)
            orders = [order for order in orders if self._site in order.members]
            for order in orders:
                self._built[order] = Future()
            if not orders:
                return
            futures = [self._built[order] for order in orders]
            thread = threading.Thread(
                target=self._work, args=(orders, futures), name="group-builder", daemon=True
            )
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()

    def members(self, begin: Begin, limit_s: float) -> Group | None:
        """The group of a generation's members; None where the standing one is still theirs.

        Raises
        ------
        ExchangeError
            It could not be built in time, or the generation is superseded.
        """
        if begin.standby is None:
            return self._take(_order(begin, "members"), limit_s)
        with self._lock:
            found = [o for o in self._built if (o.generation, o.purpose) == _standby(begin)]
            standby = self._built.pop(found[0]) if found else None
        if standby is None:
            raise self._error(begin.generation, "the standby group is not there")
        return standby.result(0).among(begin.members, generation=begin.generation, site=self._site)

    def handover(self, begin: Begin, limit_s: float) -> Group | None:
        """The group in which those who leave hand the model over; None where nobody must.

        Raises
        ------
        ExchangeError
            It could not be built in time, or the generation is superseded.
        """
        return self._take(_order(begin, "handover"), limit_s)

    @property
    def standby(self) -> int | None:
        """The generation of the newest standby group that is ready; None where there is none."""
        with self._lock:
            ready = [
                order.generation
                for order, future in self._built.items()
                if order.purpose == "standby" and future.done() and future.exception() is None
            ]
        return max(ready, default=None)

    def drop_standbys(self, before: int) -> None:
        """Close the standby groups of generations before this one, whose members have changed."""
        with self._lock:
            self._discard(
                [o for o in self._built if o.purpose == "standby" and o.generation < before]
            )

    def _divisible(self, begin: Begin) -> bool:
        return self._algorithm == "mesh" and len(begin.members) > 2

    def _take(self, order: _Order, limit_s: float) -> Group | None:
        with self._lock:
            future = self._built.get(order)
            if future is None and order.generation < self._redo:
                raise self._error(order.generation, "its generation is superseded")
        if future is None:
            return None
        with suppress(FutureTimeout):
            future.exception(limit_s)
        late = self._error(order.generation, f"not all members came within {limit_s:.1f} s")
        _fail(future, late)
        with self._lock:
            if self._built.pop(order, None) is None:  # cancelled meanwhile, and closed
                raise self._error(order.generation, "its generation is superseded")
        return future.result()

    def _cancel(self, keep: int | None) -> None:
        """End what is under way; who waits for it learns of it at once."""
        self._discard(
            [o for o in self._built if not (o.purpose == "standby" and o.generation == keep)]
        )

    def _discard(self, orders: list[_Order]) -> None:
        for order in orders:
            future = self._built.pop(order)
            _fail(future, self._error(order.generation, "its generation is superseded"))
            future.add_done_callback(_close)

    def _error(self, generation: int, reason: str) -> ExchangeError:
        return ExchangeError(
            "building the process group", site=self._name, generation=generation, reason=reason
        )

    def _work(self, orders: list[_Order], futures: list[Future[Group]]) -> None:
        for order, future in zip(orders, futures, strict=True):
            try:
                client = self._client()
                group = Group(
                    client,
                    generation=order.generation,
                    members=order.members,
                    site=self._site,
                    name=self._name,
                    backend=self._backend,
                    algorithm=self._algorithm,
                    timeout_s=self._timeout_s,
                    purpose=order.purpose,
                )
            except Exception as error:  # noqa: BLE001 (whoever takes the group is told)
                _fail(future, error)
                continue
            with self._lock:
                self._clients.append(client)
            try:
                future.set_result(group)
            except InvalidStateError:  # nobody wants it any more
                group.close()

    def _client(self) -> dist.Store:
        with self._lock:
            if self._clients:
                return self._clients.pop()
        return self._connect()

    def close(self) -> None:
        """Close the groups that nobody has taken, and end the threads."""
        with self._lock:
            self._closed = True
            self._discard(list(self._built))
            threads, self._clients = self._threads, []
        for thread in threads:
            thread.join(_CLOSE_LIMIT_S)


def outsiders(begin: Begin) -> set[int]:
    """Sites that give the model to newcomers and are no members themselves."""
    return {t.donor for t in begin.transfers} - set(begin.members)


def _order(begin: Begin, purpose: Purpose) -> _Order:
    members = begin.members
    if purpose == "handover":
        members = (*sorted(outsiders(begin)), *members)
    return _Order(begin.generation, members, purpose)


def _standby(begin: Begin) -> tuple[int | None, Purpose]:
    return begin.standby, "standby"


def _fail(future: Future[Group], error: Exception) -> bool:
    """Let a future fail; False where it is done already."""
    with suppress(InvalidStateError):
        future.set_exception(error)
        return True
    return False


def _close(future: Future[Group]) -> None:
    if future.exception() is None:
        future.result().close()
