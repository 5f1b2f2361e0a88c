"""What a site has been told by the coordinator's log, and what that means for its present work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from powertrip.coordination.messages import (
    Begin,
    Commit,
    Entry,
    Hurry,
    Probe,
    Recall,
    Save,
    Stop,
)
from powertrip.runtime.control import ControlPlane, LogReader


class Orders:
    """A site's reading of the log, in the order in which it needs it; owns the log's reader.

    News arrive in a thread of the reader while the site trains. Those that make its present
    training pointless, or ask for its end, set `cut` at once.

    Parameters
    ----------
    plane
        The control plane.
    site, name
        The site's number and name.
    silence_limit_s
        How long the coordinator may say nothing.
    start
        Entry of the log to begin with.
    on_begin
        Called in the reader's thread with every generation as soon as it is announced.
    on_commit
        Called with the number of a round when its commit is read.
    on_probe
        Called when the links are to be measured.
    on_save
        Called when the state after a commit is to be saved.
    on_recall
        Called in the reader's thread when another process of the coordinator asks what it has not
        taken in.
    on_change
        Called in the reader's thread when what the site does may be for nothing from then on.
    alone
        Whether the coordinator is away.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        site: int,
        name: str,
        silence_limit_s: float,
        start: int = 0,
        on_begin: Callable[[Begin], None],
        on_commit: Callable[[int], None],
        on_probe: Callable[[Probe], None],
        on_save: Callable[[Save], None],
        on_recall: Callable[[], None],
        on_change: Callable[[], None],
        alone: Callable[[], bool],
    ) -> None:
        self._site, self._on_change = site, on_change
        self._on_begin, self._on_commit, self._on_probe = on_begin, on_commit, on_probe
        self._on_save, self._on_recall, self._alone = on_save, on_recall, alone
        self.stop: Stop | None = None
        """The log's last entry, once it is read."""
        self.limit_s: float | None = None
        """Seconds that a round may take; None while nothing is known."""
        self.cut = threading.Event()
        """Set when local training is to end with the step in hand."""
        self._committed = 0
        self._upcoming: Begin | None = None
        self._lock = threading.Lock()
        self._redo: Begin | None = None
        self._training: int | None = None
        self._hurry = False
        self._reader = LogReader(
            plane,
            site=name,
            silence_limit_s=silence_limit_s,
            start=start,
            on_entry=self._announced,
        )

    def next_generation(self) -> Begin | None:
        """Wait for a generation that follows the present one; None when the run has ended.

        One that a newer one has superseded, as far as has been announced, is passed over: its
        groups are not there any more.
        """
        while self.stop is None and (self._upcoming is None or self.relieved_of(self._upcoming)):
            self._read()
        begin = self._upcoming
        if self.stop is not None:
            return None
        assert begin is not None
        self._upcoming = begin.following
        if begin.limit_s is not None:
            self.limit_s = begin.limit_s
        if begin.redo:
            self._commit(begin.first_round - 1)
        return begin

    def forget_upcoming(self) -> None:
        """The round before the next generation has failed, so that it will not come to pass."""
        if self._upcoming is not None and not self._upcoming.redo:
            self._upcoming = None

    @property
    def relieved(self) -> bool:
        """Whether another generation follows, or the run has ended."""
        return self._upcoming is not None or self.stop is not None

    @property
    def next_members(self) -> frozenset[int] | None:
        """The members of the generation that follows; None where none is known yet."""
        return None if self._upcoming is None else frozenset(self._upcoming.members)

    def await_commit(self, round_: int, begin: Begin, *, doing: int) -> bool:
        """Wait until a round is committed, before one that is being done goes on.

        While the coordinator is away, its members go on without commits to the end of the interval:
        who enters the next exchange has done this round, so none is ever two exchanges ahead of
        another.

        Returns
        -------
        bool
            False where the run has ended, or the round is done again by another generation than
            `begin`.
        """
        while not self.relieved_of(begin) and self._committed < round_:
            if self._alone() and doing < begin.first_round + begin.rounds:
                break
            self._read()
        return not self.relieved_of(begin)

    def relieved_of(self, begin: Begin) -> bool:
        """Whether the run has ended, or a newer generation than `begin` does its round again."""
        if self.stop is not None:
            return True
        with self._lock:
            return self._redo is not None and self._redo.generation > begin.generation

    @property
    def ends(self) -> bool:
        """Whether the run has ended; said before the site has read so far."""
        return self._reader.stop_seen.is_set()

    def pointless(self, begin: Begin) -> bool:
        """Whether an exchange of a generation cannot succeed any more, or is not wanted."""
        return self.ends or self.relieved_of(begin)

    def train(self, round_: int, begin: Begin) -> bool:
        """Local training of a round begins; False where it would be for nothing."""
        with self._lock:
            redo = self._redo
            if redo is not None and redo.generation > begin.generation:
                return False
            self._training = round_
            if not self._hurry and not self.ends:
                self.cut.clear()
        return True

    def trained(self, begin: Begin) -> bool:
        """Local training has ended; False where it was cut short, and is worth nothing."""
        with self._lock:
            round_, self._training = self._training, None
            redo = self._redo
            return redo is None or redo.generation <= begin.generation or self._keeps(redo, round_)

    def _keeps(self, redo: Begin, round_: int | None) -> bool:
        return self._site in redo.members and redo.first_round == round_

    def _announced(self, entry: Entry | None) -> None:
        """In the reader's thread, before the entry can be read."""
        begin = entry.begin if isinstance(entry, Commit) else entry
        if isinstance(begin, Begin):
            self._on_begin(begin)
            if begin.following is not None:
                self._on_begin(begin.following)
            if begin.redo:
                with self._lock:
                    self._redo = begin
                    if not self._keeps(begin, self._training):
                        self.cut.set()
                self._on_change()
        elif isinstance(entry, Recall):
            self._on_recall()
        elif entry is None or isinstance(entry, Hurry | Stop):
            with self._lock:
                self._hurry = True
                self.cut.set()
            self._on_change()

    def look_up(self) -> None:
        """Have whoever waits for an entry see whether the coordinator is away; from any thread."""
        self._reader.look_up()

    def _read(self) -> None:
        entry = self._reader.next()
        if entry is None:
            return
        if isinstance(entry, Commit):
            self._upcoming = entry.begin or self._upcoming
            if entry.limit_s is not None:
                self.limit_s = entry.limit_s
            if entry.save is not None:
                self._on_save(entry.save)
            self._commit(entry.round)
        elif isinstance(entry, Begin):
            self._upcoming = entry
        elif isinstance(entry, Stop):
            self.stop = entry
        elif isinstance(entry, Probe):
            self._on_probe(entry)

    def _commit(self, round_: int) -> None:
        self._committed = max(self._committed, round_)
        self._on_commit(round_)

    def close(self) -> None:
        """End the reader; bounded."""
        self._reader.close()
