"""What must hold whatever happens to a run, checked from its events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from powertrip.chaos.schedule import ENDS_JOB, Fault
from powertrip.telemetry import events
from powertrip.telemetry.events import Event

SITE_LIMIT_S = 30.0
"""Seconds within which a round must be committed after a fault that ends no job."""
JOB_LIMIT_S = 120.0
"""The same after one that ends the job, which has to be started again."""
_COMES_BACK = frozenset({"kill_site", "freeze_site"})


@dataclass(frozen=True)
class Injected:
    """A fault that was done to a run.

    Attributes
    ----------
    fault
        Which.
    began, ended
        When it was done and undone, Unix seconds; equal where it cannot be undone.
    """

    fault: Fault
    began: float
    ended: float


@dataclass(frozen=True)
class Recovery:
    """What a run made of a fault.

    Attributes
    ----------
    injected
        The fault.
    next_s
        Seconds from the fault to the next committed round, of the resumed run where the job has
        ended; None where none has followed.
    stall_s
        The longest time without a committed round from this fault to the next one; None where no
        round has followed.
    """

    injected: Injected
    next_s: float | None
    stall_s: float | None

    @property
    def limit_s(self) -> float:
        """Seconds that both may be at most."""
        return JOB_LIMIT_S if self.injected.fault.kind in ENDS_JOB else SITE_LIMIT_S


def recoveries(log: Sequence[Event], faults: Sequence[Injected]) -> list[Recovery]:
    """How long each fault has kept a run from its next round.

    Parameters
    ----------
    log
        The run's events.
    faults
        In the order in which they were done.
    """
    commits = sorted(event.wall_time for event in log if isinstance(event, events.Round))
    resumptions = [event.wall_time for event in log if isinstance(event, events.Resumed)]
    ends = [following.began for following in faults[1:]] + [math.inf]
    found = []
    for injected, until in zip(faults, ends, strict=True):
        since = injected.began
        if injected.fault.kind in ENDS_JOB:  # which may commit a round before it has ended
            since = min((at for at in resumptions if at > since), default=math.inf)
        after = [commit for commit in commits if commit > since]
        if not after:
            found.append(Recovery(injected, None, None))
            continue
        starts = [injected.began, *after]
        gaps = [min(b, until) - a for a, b in zip(starts, after, strict=False) if a < until]
        found.append(Recovery(injected, after[0] - injected.began, max(gaps)))
    return found


def broken(log: Sequence[Event]) -> list[str]:
    """What does not hold of a run's events, in words.

    Parameters
    ----------
    log
        All that were told, in order: also those that a resumed run has taken back.
    """
    return [*_of_rounds(log), *_of_members(log), *_of_end(log)]


def not_recovered(found: Sequence[Recovery], names: Sequence[str]) -> list[str]:
    """Faults after which no round was committed in time, in words."""
    late = []
    for recovery in found:
        fault = recovery.injected.fault
        what = f"fault {fault.number}, {fault.text(names)}"
        if recovery.stall_s is None:
            late.append(f"no round was committed after {what}")
        elif recovery.stall_s > recovery.limit_s:
            late.append(
                f"{recovery.stall_s:.1f} s without a committed round after {what}; "
                f"{recovery.limit_s:g} s are the limit"
            )
    return late


def not_back(
    log: Sequence[Event], faults: Sequence[Injected], names: Sequence[str], *, within_s: float
) -> list[str]:
    """Sites that were killed or frozen and have not come back in time, in words.

    Whoever is hit again meanwhile, by a fault of its own or the end of the job, owes nothing.

    Parameters
    ----------
    log
        The run's events.
    faults
        What was done, in order.
    names
        Of the sites.
    within_s
        Seconds from the end of a fault.
    """
    end = max((event.wall_time for event in log), default=0.0)
    missing = []
    for place, injected in enumerate(faults):
        fault, until = injected.fault, injected.ended + within_s
        disturbed = any(
            other.fault.kind in ENDS_JOB or set(fault.sites) & set(other.fault.sites)
            for other in faults[place + 1 :]
            if other.began <= until
        )
        if fault.kind not in _COMES_BACK or disturbed or until >= end:
            continue
        name = names[fault.sites[0]]
        told = [event for event in log if injected.began <= event.wall_time <= until]
        gone = any(
            isinstance(e, events.Failure) and (e.kind, e.site) == ("SiteGone", name) for e in told
        )
        back = any(isinstance(e, events.SiteReturned) and e.site == name for e in told)
        if gone and not back:
            missing.append(f"{name} was not back {within_s:g} s after fault {fault.number}")
    return missing


def _of_rounds(log: Sequence[Event]) -> list[str]:
    """Rounds follow each other; none is lost but those beyond a checkpoint, and none is twice."""
    found = []
    last = saved = 0
    expected = {1}
    for event in log:
        if isinstance(event, events.Checkpoint):
            saved = max(saved, event.round)
        elif isinstance(event, events.Resumed):
            found += _lost_by(event, last=last, saved=saved)
            # What the coordinator had committed and not told yet it may tell now.
            expected = {event.round, event.round + 1} if event.round > last else {event.round + 1}
            last = event.round
            if event.checkpoint is not None:
                saved = event.round
        elif isinstance(event, events.Round):
            if event.round not in expected:
                found.append(f"round {event.round} was committed after round {last}")
            if not event.digest:
                found.append(f"round {event.round} has no digest")
            last, expected = event.round, {event.round + 1}
    found += [
        f"{event.text} (round {event.round})"
        for event in log
        if isinstance(event, events.Failure) and event.kind == "DigestMismatch"
    ]
    return found


def _lost_by(event: events.Resumed, *, last: int, saved: int) -> list[str]:
    if event.checkpoint is None and event.round < last:
        return [f"round {last} was committed, and the coordinator went on from {event.round}"]
    if event.round < saved:
        return [f"round {saved} was saved, and the run went on from {event.round}"]
    return []


def _of_members(log: Sequence[Event]) -> list[str]:
    """Only those who were chosen have taken part."""
    found = []
    chosen: dict[int, frozenset[str]] = {}
    for event in log:
        if isinstance(event, events.Decision):
            chosen[event.generation] = frozenset(event.members)
        elif isinstance(event, events.Round):
            strangers = set(event.members) - chosen.get(event.generation, frozenset())
            if strangers:
                found.append(
                    f"round {event.round}: {', '.join(sorted(strangers))} took part, and were not "
                    f"chosen for generation {event.generation}"
                )
            if {site.site for site in event.sites} != set(event.members):
                found.append(f"round {event.round}: its members are not those who have reported")
    return found


def _of_end(log: Sequence[Event]) -> list[str]:
    ends = [event for event in log if isinstance(event, events.RunEnded)]
    rounds = [event for event in log if isinstance(event, events.Round)]
    if not ends or not isinstance(log[-1], events.RunEnded):
        return ["the run has not told of its end"]
    end = ends[-1]
    found = []
    if rounds and (end.rounds, end.digest) != (rounds[-1].round, rounds[-1].digest):
        found.append(
            f"the run ended with {end.rounds} rounds and digest {end.digest}, its last round was "
            f"{rounds[-1].round} with {rounds[-1].digest}"
        )
    if end.outcome == "failed":
        texts = [event.text for event in log if isinstance(event, events.Failure)]
        found.append(f"the run failed: {texts[-1] if texts else 'nobody knows why'}")
    return found
