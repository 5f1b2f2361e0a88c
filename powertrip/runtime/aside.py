"""Calls that may block for long, made in a thread, so that whoever waits can leave them behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")


class LeftBehind(Exception):
    """A call is not waited for any more; it goes on until its own limit."""


class Aside:
    """Makes one call after the other in a thread of its own.

    A wait for a member that is frozen cannot be ended from outside, only outlasted: it is left to
    its thread, and the next call gets another one.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] | None = None
        self._news = threading.Event()

    def look_up(self) -> None:
        """Have whoever waits see whether it should go on waiting; from any thread."""
        self._news.set()

    def call(
        self,
        work: Callable[[], _T],
        pointless: Callable[[], bool],
        abandoned: Callable[[], None],
    ) -> _T:
        """Make a call, and wait for its end.

        Parameters
        ----------
        work
            What to call.
        pointless
            Asked after every `look_up` whether the call is still worth waiting for.
        abandoned
            Called in the thread when a call that was left behind has ended: closes what it held.

        Raises
        ------
        LeftBehind
            It was not.
        """
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(
                target=_serve, args=(self._calls,), name="exchange", daemon=True
            ).start()
        future: Future[_T] = Future()
        future.add_done_callback(lambda _: self._news.set())
        self._calls.put((work, future))
        while not future.done():
            if pointless():
                self.close()
                future.add_done_callback(lambda _: abandoned())
                raise LeftBehind
            self._news.wait()
            self._news.clear()
        return future.result()

    def close(self) -> None:
        """End the thread, after the call that it is in."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)


def _serve(calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]) -> None:
    while (item := calls.get()) is not None:
        work, future = item
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 (whoever waits is told)
            future.set_exception(error)
        else:
            future.set_result(result)
        del work, future, item
