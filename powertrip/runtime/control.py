"""The control plane: an ordered log from the coordinator, an inbox to it, both in the job's store.

Each user (thread) has a client connection of its own: a store client serves one call at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import Empty, SimpleQueue

import torch.distributed as dist

from powertrip.coordination.messages import Begin, Commit, Entry, Mail, Stop
from powertrip.runtime.errors import ControlPlaneError, CoordinatorSilent
from powertrip.runtime.wire import decode_entry, decode_mail

ENTRIES_KEPT = 64
"""Entries of the log that stay readable; sites follow it at once, so a few would do."""

_SLICE_S = 1.0  # how long a wait on the store lasts before its thread looks whether it should end

StoreFactory = Callable[[], dist.Store]


def job_store(*, host_store: bool = False, timeout_s: float = 60.0) -> dist.Store:
    """Connect to the store that torchrun's agent serves, from the environment that it sets.

    Parameters
    ----------
    host_store
        Serve the store from this process where no agent does (a launcher other than torchrun).
    timeout_s
        Seconds to wait for the server.

    Raises
    ------
    ControlPlaneError
        Nothing answers.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    with _store_errors(f"reaching the store at {address}:{port}"):
        store = dist.TCPStore(
            address,
            port,
            is_master=host_store and not agent_serves,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"powertrip/{run}/{attempt}", store)


@contextmanager
def _store_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except dist.DistError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ControlPlaneError(f"{doing} failed: {reason}") from error


class Log:
    """The coordinator's side of the log: appends, and deletes what all have long read."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        self._next = 0

    def append(self, entry: Entry) -> None:
        """Publish an entry to all sites."""
        with _store_errors("publishing to the sites"):
            self._store.set(f"log/{self._next}", entry.encode().decode())
            if self._next >= ENTRIES_KEPT:
                self._store.delete_key(f"log/{self._next - ENTRIES_KEPT}")
        self._next += 1


class LogReader:
    """A site's side of the log: a thread that follows it, so that news arrive during training.

    Parameters
    ----------
    connect
        Makes the thread's own store client.
    site
        This site's name, for errors.
    silence_limit_s
        How long the coordinator may say nothing.
    on_begin
        Called by the thread with every generation as soon as it is announced.
    """

    def __init__(
        self,
        connect: StoreFactory,
        *,
        site: str,
        silence_limit_s: float,
        on_begin: Callable[[Begin], None] | None = None,
    ) -> None:
        self._connect = connect
        self._on_begin = on_begin
        self._site = site
        self._limit_s = silence_limit_s
        self._queue: SimpleQueue[Entry | ControlPlaneError] = SimpleQueue()
        self._closed = threading.Event()
        self.stop_seen = threading.Event()
        """Set as soon as the log says that the run ends, or cannot be read any more."""
        self._thread = threading.Thread(target=self._follow, name="log-reader", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            store = self._connect()
            store.set_timeout(timedelta(seconds=_SLICE_S))
            index = 0
            while not self._closed.is_set():
                try:
                    # Not `wait` first, which `get` does by itself: far sites pay a trip for it.
                    data = store.get(f"log/{index}")
                except dist.DistStoreError:
                    continue  # nothing new in this slice; a lost connection is another error
                entry = decode_entry(data)
                begin = entry.begin if isinstance(entry, Commit) else entry
                if isinstance(begin, Begin) and self._on_begin is not None:
                    self._on_begin(begin)
                self._queue.put(entry)
                if isinstance(entry, Stop):  # the last entry there is
                    self.stop_seen.set()
                    return
                index += 1
        except ControlPlaneError as error:
            self._give_up(error)
        except dist.DistError as error:
            self._give_up(ControlPlaneError(f"the job's store is gone: {error}"))

    def _give_up(self, error: ControlPlaneError) -> None:
        self._queue.put(error)
        self.stop_seen.set()

    def next(self) -> Entry:
        """Wait for the next entry.

        Raises
        ------
        CoordinatorSilent
            None came within the limit.
        ControlPlaneError
            The store is gone, or holds no entry of ours.
        """
        try:
            item = self._queue.get(timeout=self._limit_s)
        except Empty:
            raise CoordinatorSilent(self._site, self._limit_s) from None
        if isinstance(item, ControlPlaneError):
            raise item
        return item

    def close(self) -> None:
        """End the thread; bounded by the length of one wait on the store."""
        self._closed.set()
        self._thread.join(timeout=5 * _SLICE_S)


class Outbox:
    """A site's way to the coordinator's inbox."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def send(self, message: Mail) -> None:
        """Put a message into the coordinator's inbox."""
        with _store_errors("reporting to the coordinator"):
            self._store.queue_push("inbox", message.encode().decode())


class Inbox:
    """The coordinator's inbox: all sites' messages in the order of their arrival."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def receive(self, timeout_s: float) -> Mail | None:
        """The next message, or None when none came in time."""
        with _store_errors("reading the coordinator's inbox"):
            self._store.set_timeout(timedelta(seconds=max(timeout_s, 0.001)))
            try:
                data = self._store.queue_pop("inbox")
            except dist.DistStoreError:
                return None
        return decode_mail(data)


def delete_prefix(store: dist.Store, prefix: str) -> int:
    """Delete all of a run's keys below `prefix`; returns how many there were."""
    with _store_errors("tidying the store"):
        keys = [key for key in store.list_keys() if key.startswith(f"{prefix}/")]
        for key in keys:
            store.delete_key(key)
    return len(keys)
