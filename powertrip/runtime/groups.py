"""Builds the process groups of generations to come while the site is busy with its rounds."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

from powertrip.coordination.messages import Begin
from powertrip.exchange.group import Backend, Group
from powertrip.exchange.sums import Algorithm
from powertrip.runtime.control import StoreFactory

_CLOSE_LIMIT_S = 5.0  # every site builds what was announced, so nobody is waited for much longer


@dataclass(frozen=True)
class _Order:
    generation: int
    members: tuple[int, ...]
    purpose: str


class GroupBuilder:
    """One site's groups, built in the order in which the log announces them.

    A set of members that follows itself keeps its group. Where nobody who stays holds the model,
    those who leave hand it over in a group apart ("handover").

    Parameters
    ----------
    connect
        Makes the thread's own store client.
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
        self._orders: SimpleQueue[tuple[_Order, Future[Group]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._built: dict[_Order, Future[Group]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="group-builder", daemon=True)
        self._thread.start()

    def announce(self, begin: Begin) -> None:
        """Start to build what this site needs for a generation; to be called in the log's order."""
        same = set(begin.members) == set(self._standing)
        self._standing = begin.members
        orders = [] if same else [_members_order(begin)]
        if outsiders(begin):
            orders.insert(0, _handover_order(begin))
        with self._lock:
            for order in orders:
                if self._site in order.members and not self._closed:
                    self._built[order] = Future()
                    self._orders.put((order, self._built[order]))

    def members(self, begin: Begin) -> Group | None:
        """The group of a generation's members; None where the standing one is still theirs.

        Raises
        ------
        ExchangeError
            It could not be built.
        """
        return self._take(_members_order(begin))

    def handover(self, begin: Begin) -> Group | None:
        """The group in which those who leave hand the model over; None where nobody must.

        Raises
        ------
        ExchangeError
            It could not be built.
        """
        return self._take(_handover_order(begin))

    def _take(self, order: _Order) -> Group | None:
        with self._lock:
            future = self._built.pop(order, None)
        # Building is bounded by the group's own limit, and orders are few.
        return None if future is None else future.result()

    def _work(self) -> None:
        store = None
        while (item := self._orders.get()) is not None:
            order, future = item
            try:
                store = store or self._connect()
                group = Group(
                    store,
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
                future.set_exception(error)
            else:
                future.set_result(group)

    def close(self) -> None:
        """Close the groups that nobody has taken, and end the thread."""
        with self._lock:
            self._closed = True
            left, self._built = list(self._built.values()), {}
        for future in left:
            future.add_done_callback(_close)
        self._orders.put(None)
        self._thread.join(_CLOSE_LIMIT_S)


def outsiders(begin: Begin) -> set[int]:
    """Sites that give the model to newcomers and are no members themselves."""
    return {t.donor for t in begin.transfers} - set(begin.members)


def _members_order(begin: Begin) -> _Order:
    return _Order(begin.generation, begin.members, "members")


def _handover_order(begin: Begin) -> _Order:
    return _Order(begin.generation, (*sorted(outsiders(begin)), *begin.members), "handover")


def _close(future: Future[Group]) -> None:
    if future.exception() is None:
        future.result().close()
