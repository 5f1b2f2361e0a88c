"""Writes beside the training: one thread, one job at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from powertrip.runtime.durable import CheckpointUnwritable

_T = TypeVar("_T")

Done = Callable[[_T | CheckpointUnwritable], None]


class CheckpointSkipped(CheckpointUnwritable):
    """A later checkpoint was asked for before this one was begun."""


class CheckpointWriter:
    """Does jobs in a thread of its own; of those that wait, the newest alone.

    What a job fails with is handed to its `done`; any error that is not a `CheckpointUnwritable`
    becomes one. `done` is called once for every job, in the writer's thread; for a job that is not
    begun any more, in the thread that has submitted another.
    """

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._waiting: tuple[Callable[[], None], Callable[[CheckpointUnwritable], None]] | None
        self._waiting = None
        self._closed = self._busy = False
        self._thread = threading.Thread(target=self._work, name="checkpoint-writer", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a job is being done or waits."""
        with self._wake:
            return self._busy or self._waiting is not None

    def submit(self, fn: Callable[[], _T], done: Done[_T]) -> None:
        """Do a job as soon as the one before is done.

        Parameters
        ----------
        fn
            Writes, from copies that nobody else changes.
        done
            Is called with what it returns, or with why it has failed.
        """

        def job() -> None:
            result: _T | CheckpointUnwritable
            try:
                result = fn()
            except CheckpointUnwritable as error:
                result = error
            except Exception as error:  # noqa: BLE001 (whatever it is, who asked must be told)
                result = CheckpointUnwritable(f"{type(error).__name__}: {error}")
                result.__cause__ = error
            done(result)

        with self._wake:
            replaced, self._waiting = self._waiting, (job, done)
            closed = self._closed
            if closed:
                self._waiting = None
            self._wake.notify_all()
        if closed:
            done(CheckpointUnwritable("the writer of checkpoints is closed"))
        elif replaced is not None:
            replaced[1](CheckpointSkipped("a later checkpoint has come before this one was begun"))

    def close(self, limit_s: float) -> None:
        """Finish what was submitted, and end the thread; a second call does nothing.

        Raises
        ------
        CheckpointUnwritable
            It takes longer than `limit_s`; the thread is left behind, and ends with the process.
        """
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise CheckpointUnwritable(f"a checkpoint is not on disk after {limit_s:g} s")

    def _work(self) -> None:
        while True:
            with self._wake:
                self._busy = False
                self._wake.wait_for(lambda: self._waiting is not None or self._closed)
                if self._waiting is None:
                    return
                (job, _), self._waiting = self._waiting, None
                self._busy = True
            job()
