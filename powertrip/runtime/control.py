"""The control plane: an ordered log from the coordinator, an inbox to it, both in the job's store.

Each user (thread) has a client connection of its own: a store client serves one call at a time.
The store asks nobody who they are; `powertrip.runtime.seal` does.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from queue import Empty, SimpleQueue

import torch.distributed as dist

from powertrip.coordination.messages import Entry, Mail, Stop
from powertrip.runtime.errors import ControlPlaneError, CoordinatorSilent, FellBehind
from powertrip.runtime.seal import Seal, SealBroken, Seen, new_way
from powertrip.runtime.wire import decode_entry, decode_opened

ENTRIES_KEPT = 64
"""Entries of the log that stay readable; sites follow it at once, so a few would do."""

_BACKLOG = 4096
_LENGTH_KEY = "log/length"
_LENGTH_DIGITS = 18
_SLICE_S = 10.0
"""How long a wait on the store lasts before its thread looks whether it should end. What comes just
then is a round trip late, so it is longer than the limits after which a round is done again."""
_CLOSE_S = 3.0

StoreFactory = Callable[[], dist.Store]


def job_store(
    *, host_store: bool = False, attempts: bool = False, timeout_s: float = 60.0
) -> dist.Store:
    """Connect to the store that torchrun's agent serves, from the environment that it sets.

    Parameters
    ----------
    host_store
        Serve the store from this process where no agent does (a launcher other than torchrun).
    attempts
        What all attempts of the job see, and not this one alone.
    timeout_s
        Seconds to wait for the server.

    Raises
    ------
    ControlPlaneError
        Nothing answers.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = host_store and not agent_serves
    with store_errors(f"reaching the store at {address}:{port}"):
        store = dist.TCPStore(
            address,
            port,
            is_master=serves,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=_listen(address, port) if serves else None,
        )
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    attempt = "all" if attempts else os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"powertrip/{run}/{attempt}", store)


def _listen(address: str, port: int) -> int | None:
    """A socket that listens at the store's address alone; None, for all of this machine's, where
    that is a name or not its own (behind a translation of addresses, for example)."""
    try:
        host = ipaddress.ip_address("127.0.0.1" if address == "localhost" else address)
        family = socket.AF_INET if host.version == 4 else socket.AF_INET6
        listener = socket.create_server((str(host), port), family=family, backlog=_BACKLOG)
    except ValueError:
        return None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise ControlPlaneError(
            f"serving the store at {address}:{port} failed: {error.strerror or error}"
        ) from error
    return listener.detach()


@contextmanager
def store_errors(doing: str) -> Iterator[None]:
    """Turn what the store raises into an error of ours.

    Raises
    ------
    ControlPlaneError
        The store cannot be reached, or does not answer.
    """
    try:
        yield
    except dist.DistError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ControlPlaneError(f"{doing} failed: {reason}") from error


@dataclass(frozen=True)
class ControlPlane:
    """How one process comes to the control plane.

    Attributes
    ----------
    connect
        Makes a store client.
    seal
        What its messages are sealed with, and those of the others.
    sites
        How many sites there are, to refuse what speaks of others; None believes any number.
    """

    connect: StoreFactory
    seal: Seal = field(default_factory=Seal)
    sites: int | None = None

    def outbox(self) -> Outbox:
        """Another way to the coordinator's inbox, for one thread."""
        return Outbox(self.connect(), seal=self.seal)


def _ignore(entry: Entry | None) -> None:
    """Nobody listens."""


class Log:
    """The coordinator's side of the log: appends, and deletes what all have long read.

    Parameters
    ----------
    store
        A client of its own.
    seal
        What its entries are sealed with.
    start
        Index of the first entry that it appends.
    """

    def __init__(self, store: dist.Store, *, seal: Seal | None = None, start: int = 0) -> None:
        self._store, self._seal = store, seal or Seal()
        self.length = start

    def go_on(self, entry: Entry, position: int) -> None:
        """Go on with a log that another process has begun.

        Parameters
        ----------
        entry, position
            The last entry that it meant to publish, and its index; it is published where it is not.
        """
        self.length = position
        with store_errors("reading the coordinator's log"):
            if not self._store.check([f"log/{position}"]):
                self.append(entry)
            while self._store.check([f"log/{self.length}"]):
                self.length += 1

    def append(self, entry: Entry) -> None:
        """Publish an entry to all sites."""
        sealed = self._seal.close_entry(self.length, entry.encode())
        with store_errors("publishing to the sites"):
            self._store.set(f"log/{self.length}", sealed)
            self._store.set(_LENGTH_KEY, str(self.length + 1))
            if self.length >= ENTRIES_KEPT:
                self._store.delete_key(f"log/{self.length - ENTRIES_KEPT}")
        self.length += 1


class LogReader:
    """A site's side of the log: a thread that follows it, so that news arrive during training.

    Parameters
    ----------
    plane
        The control plane; the thread has a store client of its own.
    site
        This site's name, for errors.
    silence_limit_s
        How long the coordinator may say nothing.
    start
        Entry to begin with.
    on_entry
        Called by the thread with every entry as soon as it is there, and with None where the log
        cannot be read any more.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        site: str,
        silence_limit_s: float,
        start: int = 0,
        on_entry: Callable[[Entry | None], None] | None = None,
    ) -> None:
        self._plane = plane
        self._on_entry = on_entry or _ignore
        self._site = site
        self._limit_s = silence_limit_s
        self._start = start
        self._queue: SimpleQueue[Entry | ControlPlaneError | None] = SimpleQueue()
        self._closed = threading.Event()
        self.stop_seen = threading.Event()
        """Set as soon as the log says that the run ends, or cannot be read any more."""
        self._thread = threading.Thread(target=self._follow, name="log-reader", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            plane, store = self._plane, self._plane.connect()
            store.set_timeout(timedelta(seconds=_SLICE_S))
            index = self._start
            while not self._closed.is_set():
                try:
                    # Not `wait` first, which `get` does by itself: far sites pay a trip for it.
                    data = store.get(f"log/{index}")
                except dist.DistStoreError:
                    # Nothing new in this slice; a lost connection is another error.
                    self._check_place(store, index)
                    continue
                if self._closed.is_set():
                    return
                entry = decode_entry(plane.seal.open_entry(index, data), plane.sites)
                if isinstance(entry, Stop):
                    self.stop_seen.set()
                self._on_entry(entry)
                self._queue.put(entry)
                if isinstance(entry, Stop):  # the last entry there is
                    return
                index += 1
        except ControlPlaneError as error:
            self._give_up(error)
        except dist.DistError as error:
            self._give_up(ControlPlaneError(f"the job's store is gone: {error}"))

    def _check_place(self, store: dist.Store, index: int) -> None:
        """See that the entry that is waited for is one to come, and not one that was deleted."""
        if not store.check([_LENGTH_KEY]):
            return
        told = store.get(_LENGTH_KEY)
        length = int(told) if len(told) <= _LENGTH_DIGITS and told.isdigit() else 0
        if length - index > ENTRIES_KEPT:
            raise FellBehind(self._site, length - index)

    def _give_up(self, error: ControlPlaneError) -> None:
        self.stop_seen.set()
        self._on_entry(None)
        self._queue.put(error)

    def look_up(self) -> None:
        """Have `next` return without an entry; from any thread."""
        self._queue.put(None)

    def next(self) -> Entry | None:
        """Wait for the next entry; None after `look_up`.

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
        """End the thread; one that is in the middle of a wait on the store ends with that."""
        self._closed.set()
        self._thread.join(timeout=_CLOSE_S)


class Outbox:
    """A process's way to the coordinator's inbox.

    Parameters
    ----------
    store
        A client of its own.
    seal
        What its messages are sealed with; it says whose they are.
    """

    def __init__(self, store: dist.Store, *, seal: Seal | None = None) -> None:
        self._store, self._seal = store, seal or Seal()
        self._way, self._sent = new_way(), 0

    def send(self, message: Mail) -> None:
        """Put a message into the coordinator's inbox."""
        self._sent += 1
        sealed = self._seal.close_mail(self._way, self._sent, message.encode())
        with store_errors("reporting to the coordinator"):
            self._store.queue_push("inbox", sealed)


class Inbox:
    """The coordinator's inbox: all sites' messages in the order of their arrival.

    What no process of this run has sent, or not to this place, is dropped and counted.

    Parameters
    ----------
    store
        A client of its own.
    seal
        What the messages must be sealed with.
    sites
        How many sites there are, to drop what speaks of others; None believes any number.
    warn
        Called with the first message of each kind that is dropped, in words.

    Attributes
    ----------
    dropped
        How many messages were dropped, by what was wrong with them.
    """

    def __init__(
        self,
        store: dist.Store,
        *,
        seal: Seal | None = None,
        sites: int | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._store, self._seal = store, seal or Seal()
        self._sites, self._warn = sites, warn
        self._seen = Seen()
        self.dropped: Counter[str] = Counter()

    def receive(self, timeout_s: float) -> Mail | None:
        """The next message, or None when none came in time."""
        until_s = time.monotonic() + timeout_s
        while True:
            data = self._pop(until_s - time.monotonic())
            if data is None:
                return None
            try:
                opened = self._seal.open_mail(data)
                self._seen.take(opened)
                return decode_opened(opened, self._sites)
            except SealBroken as error:
                self._drop(error)
            if time.monotonic() >= until_s:
                return None

    def _pop(self, timeout_s: float) -> bytes | None:
        with store_errors("reading the coordinator's inbox"):
            self._store.set_timeout(timedelta(seconds=max(timeout_s, 0.001)))
            try:
                return self._store.queue_pop("inbox")
            except dist.DistStoreError:
                return None

    def _drop(self, error: SealBroken) -> None:
        self.dropped[error.fault] += 1
        if self._warn is not None and self.dropped[error.fault] == 1:
            self._warn(
                f"a message in the coordinator's inbox was dropped: {error.text} (said once)"
            )


def delete_prefix(store: dist.Store, prefix: str) -> int:
    """Delete all of a run's keys below `prefix`; returns how many there were."""
    with store_errors("tidying the store"):
        keys = [key for key in store.list_keys() if key.startswith(f"{prefix}/")]
        for key in keys:
            store.delete_key(key)
    return len(keys)
