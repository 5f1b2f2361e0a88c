"""Whose time a run counts: the one on the clock, or the one of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from powertrip.coordination import snapshots
from powertrip.coordination.accounts import RoundAccount, RoundTimes
from powertrip.coordination.errors import SitesStalled
from powertrip.coordination.messages import Begin, Report
from powertrip.coordination.observer import Observer


class Timekeeper(Protocol):
    """Tells the time of the run, and what a round has taken."""

    def start(self) -> None:
        """The training begins: before that, the clock stands at 0."""

    def now_s(self) -> float:
        """Seconds on the training clock."""

    def announce(
        self, generation: int, *, rebuild: bool, meanwhile: Begin | None, round_: int
    ) -> float:
        """The clock that a new generation is told of.

        Parameters
        ----------
        generation
            Its number.
        rebuild
            Whether it needs a new group.
        meanwhile, round_
            The generation of the one round that comes before it, and its number; None and 0 for
            the first generation.
        """

    def account(self, begin: Begin, reports: Sequence[Report]) -> RoundAccount:
        """A round has ended: how long it took. To be called once for every round, in order."""

    def snapshot(self) -> dict[str, Any]:
        """The clock's state as strict JSON."""

    def restore(self, state: object, *, passed_s: float) -> None:
        """Go on from a snapshot, in place of `start`.

        Parameters
        ----------
        state
            What `snapshot` gave.
        passed_s
            Seconds since then that belong to the run; a clock that moves by rounds has no use for
            them.

        Raises
        ------
        SnapshotUnreadable
            It is malformed, or of another kind of clock.
        """


class ModelledTime:
    """The time that everything takes by the model, so that equal seeds make equal runs.

    Parameters
    ----------
    observer
        Knows the model of a round and what a rebuild costs.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._now_s = 0.0
        self._rebuilds: set[int] = set()

    def start(self) -> None:
        """Nothing to do: this clock moves by rounds."""

    def now_s(self) -> float:
        """Seconds on the modelled clock."""
        return self._now_s

    def announce(
        self, generation: int, *, rebuild: bool, meanwhile: Begin | None, round_: int
    ) -> float:
        """The clock at the beginning of the generation's first round.

        Raises
        ------
        SitesStalled
            By the model the round before it never ends.
        """
        if rebuild:
            self._rebuilds.add(generation)
        clock_s = self._now_s
        if meanwhile is not None:
            trains_s = clock_s + self._rebuild_s(meanwhile, round_)
            clock_s = trains_s + self._round_s(meanwhile, trains_s, round_)
        return clock_s + (self._observer.rebuild_s if rebuild else 0.0)

    def account(self, begin: Begin, reports: Sequence[Report]) -> RoundAccount:
        """Advance the clock by the modelled round.

        Raises
        ------
        SitesStalled
            By the model the round never ends.
        """
        model = self._observer.round_model
        start_s = self._now_s
        rebuild_s = self._rebuild_s(begin, reports[0].round)
        trains_s = start_s + rebuild_s
        round_s = self._round_s(begin, trains_s, reports[0].round)
        local_s = tuple(model.local_s(begin, report.site, trains_s) for report in reports)
        self._now_s = trains_s + round_s
        times = RoundTimes(
            local_s=max(local_s),
            exchange_s=round_s - max(local_s),
            evaluation_s=max(report.evaluation_s for report in reports),
            rebuild_s=rebuild_s,
        )
        return RoundAccount(start_s, self._now_s, times, local_s)

    def snapshot(self) -> dict[str, Any]:
        """The clock, and which generations need a new group."""
        return {"modelled_s": self._now_s, "rebuilds": sorted(self._rebuilds)}

    def restore(self, state: object, *, passed_s: float) -> None:
        """Go on from a snapshot; raises `SnapshotUnreadable`."""
        seen = snapshots.fields("clock", state, "modelled_s", "rebuilds")
        self._now_s = snapshots.number("clock.modelled_s", seen["modelled_s"], 0.0)
        self._rebuilds = set(snapshots.counts("clock.rebuilds", seen["rebuilds"]))

    def _rebuild_s(self, begin: Begin, round_: int) -> float:
        rebuilt = begin.generation in self._rebuilds and round_ == begin.first_round
        return self._observer.rebuild_s if rebuilt else 0.0

    def _round_s(self, begin: Begin, trains_s: float, round_: int) -> float:
        if stalled := self._observer.round_model.stalled(begin, trains_s):
            raise SitesStalled(stalled, round_)
        return self._observer.round_model.round_s(begin, trains_s)
