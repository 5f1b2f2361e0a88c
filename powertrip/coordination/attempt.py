"""One attempt of a generation's members at a round: who has done it, who cannot, what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from powertrip.coordination.messages import Begin, Broken, Report


class Attempt:
    """What the coordinator knows of a round that is being done.

    It is complete when every member that is still there has reported it; whoever is gone may have
    reported it too. It has failed when a member is gone without a report, or says that its exchange
    has: no group can go on without a member, so the others do the round again among themselves.

    Parameters
    ----------
    begin
        The generation.
    round_
        The round.
    gone
        Sites that are not there from the beginning.
    """

    def __init__(self, begin: Begin, round_: int, gone: Collection[int] = ()) -> None:
        self.begin, self.round = begin, round_
        self._reports: dict[int, Report] = {}
        self._broken: dict[int, Broken] = {}
        self._gone = {site for site in begin.members if site in gone}

    def report(self, report: Report) -> bool:
        """Take in a member's report; whether it is one of this attempt."""
        if not self._concerns(report):
            return False
        self._reports[report.site] = report
        return True

    def fail(self, broken: Broken) -> bool:
        """Take in that a member's exchange has failed; whether it is one of this attempt."""
        if not self._concerns(broken) or broken.site in self._reports:
            return False
        self._broken[broken.site] = broken
        return True

    def lose(self, site: int) -> None:
        """A site is gone; to be said of others than members as well."""
        if site in self.begin.members:
            self._gone.add(site)

    def _concerns(self, mail: Report | Broken) -> bool:
        return (mail.generation, mail.round) == (self.begin.generation, self.round) and (
            mail.site in self.begin.members
        )

    @property
    def left(self) -> tuple[int, ...]:
        """Members that are not gone, in their order."""
        return tuple(site for site in self.begin.members if site not in self._gone)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Members that are there and have not said anything of this round."""
        return tuple(s for s in self.left if s not in self._reports and s not in self._broken)

    @property
    def reports(self) -> list[Report]:
        """All reports, in the members' order."""
        return [self._reports[site] for site in self.begin.members if site in self._reports]

    @property
    def complete(self) -> bool:
        """Whether all members that are left have done the round."""
        left = self.left
        return bool(left) and all(site in self._reports for site in left)

    @property
    def lost(self) -> tuple[int, ...]:
        """Members that are gone without a report: the others cannot do the round."""
        return tuple(s for s in self.begin.members if s in self._gone and s not in self._reports)

    @property
    def failed(self) -> bool:
        """Whether this attempt cannot be completed."""
        return not self.complete and bool(self.lost or self._broken or not self.left)

    @property
    def accuses(self) -> bool:
        """Whether a member has named the site whose addend it misses."""
        return any(b.adds and b.awaited is not None for b in self._broken.values())

    def culprits(self, hub: int, *, spare: int | None = None) -> frozenset[int]:
        """Who is to be left out, of members that are all there: those that others waited for.

        A member that misses an addend knows whose it is. One that misses a part of the sum may only
        wait for somebody who waits himself, so what it says counts only where nobody knows more.
        Of two that accuse each other the link is broken: the one that is not the hub, or that the
        decision ranks lower, is left out.

        Parameters
        ----------
        hub
            Site beside which the coordinator is.
        spare
            A site that must not be left out, whoever waits for it: the others do.
        """
        told = [b for b in self._broken.values() if b.awaited is not None and b.awaited != b.site]
        pairs = {(b.site, b.awaited) for b in told if b.adds} or {(b.site, b.awaited) for b in told}
        ranks = {site: rank for rank, site in enumerate(self.begin.members)}
        found: set[int] = set()
        while pairs:
            # Each pair is a broken link: the fewest sites that have an end of every one.
            ends = Counter(end for pair in pairs for end in set(pair) if end is not None)
            accused = Counter(pair[1] for pair in pairs)
            worst = max(
                (site for site in ends if site != spare),
                key=lambda s: (ends[s], s != hub, accused[s], ranks.get(s, 0)),
            )
            found.add(worst)
            pairs = {pair for pair in pairs if worst not in pair}
        return frozenset(found)

    @property
    def text(self) -> str:
        """What the members say that went wrong."""
        return "; ".join(dict.fromkeys(broken.text for broken in self._broken.values()))
