"""What the coordinator knows of a run, and what follows: a round is committed, or done again.

The coordinator's side of docs/protocol.md, without clocks, messages on their way or a store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from powertrip.coordination.attempt import Attempt
from powertrip.coordination.messages import Begin, Broken, Report
from powertrip.coordination.roster import Roster

_MOST_FAILURES = 5  # of exchanges among members that are all there, without a commit in between

Verdict = Literal["wait", "settle", "done", "failed"]


@dataclass(frozen=True)
class Again:
    """Who does a round again.

    Attributes
    ----------
    members
        Who is left of the members, in their order; none where others must be chosen.
    holders
        Sites that are there and hold the last commit.
    lost
        Members that are left out.
    standby
        The generation whose standby group they go on with; None where they build one.
    """

    members: tuple[int, ...]
    holders: frozenset[int]
    lost: tuple[int, ...]
    standby: int | None


class Rounds:
    """Round after round, attempt after attempt.

    Parameters
    ----------
    roster
        Who is there.
    hub
        Site beside which the coordinator is.
    """

    def __init__(self, roster: Roster, hub: int) -> None:
        self.roster, self._hub = roster, hub
        self._holders: dict[int, int] = {}
        self._digest: str | None = None
        self._reporters: dict[int, int] = {}
        self._attempt: Attempt | None = None
        self._early: list[tuple[Report | Broken, int]] = []
        self._failures = 0

    @property
    def attempt(self) -> Attempt:
        """The present attempt."""
        assert self._attempt is not None
        return self._attempt

    def hold(self, sites: Iterable[int], digest: str | None = None) -> None:
        """The present processes of these sites hold the last commit, and no others.

        Parameters
        ----------
        digest
            Of the commit, where others may turn out to hold it as well.
        """
        self._digest = digest
        self._holders = {site: self.roster.incarnation(site) for site in sites}

    def holders(self, round_: int) -> frozenset[int]:
        """Sites that are there and hold the last commit: if possible none that is left out."""
        there = self._processes() - self.roster.gone
        return there - self.roster.away(round_) or there

    def _processes(self) -> frozenset[int]:
        """Sites that hold the last commit, unless they are gone for good."""
        known = self._holders.items()
        return frozenset(s for s, number in known if number == self.roster.incarnation(s))

    def begin(self, begin: Begin, round_: int) -> Attempt:
        """Another attempt: at the next round, or at the same one by another generation."""
        before = self._attempt
        if before is not None and set(before.begin.members) != set(begin.members):
            self.roster.forget_standbys()
        self._attempt = attempt = Attempt(begin, round_)
        self._reporters = {}
        early, self._early = self._early, []
        for mail, process in early:
            self._take(mail, process)
        return attempt

    def report(self, report: Report) -> None:
        """Take in a member's report, of this attempt or of one to come."""
        self._take(report, self.roster.incarnation(report.site))

    def fail(self, broken: Broken) -> None:
        """Take in that a member's exchange has failed, in this attempt or in one to come."""
        self._take(broken, self.roster.incarnation(broken.site))

    def _take(self, mail: Report | Broken, process: int) -> None:
        """Take in what a site's process has sent: another one may be there by now."""
        if isinstance(mail, Report):
            if self.attempt.report(mail):
                self._reporters[mail.site] = process
        elif self.attempt.fail(mail) and mail.digest is not None and mail.digest == self._digest:
            self._holders[mail.site] = process  # a newcomer may have got the model before
        # Members go on while the coordinator is away.
        generation, round_ = self.attempt.begin.generation, self.attempt.round
        if mail.generation >= generation and (mail.round, mail.generation) > (round_, generation):
            self._early.append((mail, process))

    @property
    def behind(self) -> bool:
        """Whether members have done rounds that come after the present one."""
        return any(isinstance(mail, Report) for mail, _ in self._early)

    def lose(self, site: int, incarnation: int, announced: int) -> bool:
        """A process is gone or silent; whether it had been there. See `Roster.lose`."""
        return self.roster.lose(site, incarnation, announced)

    def arrive(self, site: int, incarnation: int, announced: int) -> bool:
        """A process is ready, or is heard again; whether its site had been gone.

        Parameters
        ----------
        announced
            The newest generation that has been announced: where the process is another one than
            before, its site takes part in none up to it.
        """
        if incarnation > self.roster.incarnation(site):
            self.roster.lose(site, incarnation, announced)
        return self.roster.arrive(site, incarnation)

    def verdict(self) -> Verdict:
        """How the present attempt stands.

        Returns
        -------
        Verdict
            "done": all that are left have reported it. "failed": it is to be done again. "settle":
            it will be, but members that have not been heard yet may say within moments what they
            have waited for. "wait": for more reports, or for somebody who holds the last commit.
        """
        attempt = self.attempt
        for site in self.roster.missing(attempt.round, attempt.begin.generation):
            attempt.lose(site)
        if attempt.complete:
            return "done"
        if not attempt.failed:
            return "wait"
        if not self.holders(attempt.round) and (attempt.waiting or self._processes()):
            return "wait"
        return "failed" if attempt.lost or not attempt.waiting else "settle"

    def accuse(self) -> tuple[int, ...] | None:
        """All members are there, and yet some have said nothing in time, or an exchange has failed.

        Returns
        -------
        tuple of int or None
            Those that are left out from here on, for some rounds: nobody where nobody is known, or
            all would be; None where the exchange has failed too often.
        """
        attempt, keeper = self.attempt, self._keeper()
        self._failures += 1
        if attempt.failed:
            culprits = attempt.culprits(self._hub, spare=keeper)
        else:
            culprits = frozenset(attempt.waiting)
        if not culprits and self._failures > 1:
            # Nobody knows who it is: those who say nothing, came last, or rank last are likeliest.
            newcomers = frozenset(transfer.newcomer for transfer in attempt.begin.transfers)
            guesses = (attempt.waiting, newcomers.intersection(attempt.left), attempt.left[-1:])
            culprits = frozenset(next(filter(None, guesses), ())) - {keeper}
        if self._failures > _MOST_FAILURES:
            return None
        if culprits.issuperset(attempt.left):
            return ()
        self.roster.leave_out(culprits, attempt.round)
        return tuple(sorted(culprits))

    def _keeper(self) -> int | None:
        """A site that holds the last commit, and goes on whatever is said of it."""
        attempt = self.attempt
        holders = self.holders(attempt.round)
        ranked = (*(site for site in attempt.left if site in holders), *sorted(holders))
        return next(iter(ranked), None)

    def again(self) -> Again | None:
        """Who does the round again; None where nobody is left who holds the last commit."""
        attempt = self.attempt
        holders = self.holders(attempt.round)
        if not holders:
            return None
        self.roster.pardon(holders)
        left = attempt.left
        # Newcomers are in no standby group, and one alone needs none.
        usable = len(left) > 1 and holders.issuperset(left)
        standby = self.roster.take_standby(left)
        return Again(
            members=left,
            holders=holders,
            lost=tuple(site for site in attempt.begin.members if site not in left),
            standby=standby if usable else None,
        )

    def commit(self) -> list[Report]:
        """The attempt is done: its reports, in the members' order; who has sent them holds it."""
        reports = self.attempt.reports
        self._holders = {report.site: self._reporters[report.site] for report in reports}
        self._digest = reports[0].digest
        self._failures = 0
        for report in reports:
            self.roster.note_standby(report.site, report.standby)
        return reports
