"""Which sites can take part at present, as far as the coordinator knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from pydantic import BaseModel, ConfigDict

from powertrip.coordination.messages import Number

_BARRED_ROUNDS = 4
_MOST_DOUBLINGS = 4
MOST_REJECTIONS = 3
"""Rejected updates with which a site takes no part any more."""


class Record(BaseModel):
    """What is held against a site that is there.

    Attributes
    ----------
    site
        Its index.
    barred_until
        The round from which it may take part again.
    strikes
        How often it was waited for in vain.
    rejections
        How many of its updates were rejected.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    site: Number
    barred_until: Number = 0
    strikes: Number = 0
    rejections: Number = 0


class Roster:
    """Who is there, who is left out, and until when.

    A site whose process is gone, or silent, takes no part until it is back. One that is there but
    was waited for in vain is left out for a few rounds, twice as many each time: its link may be
    cut, or it may only have been slow. One whose updates were rejected again and again is left out
    for good.
    """

    def __init__(self) -> None:
        self._gone: set[int] = set()
        self._barred_until: dict[int, int] = {}
        self._strikes: Counter[int] = Counter()
        self._rejections: Counter[int] = Counter()
        self._incarnations: dict[int, int] = {}
        self._missed: dict[int, int] = {}
        self._standbys: dict[int, int | None] = {}

    def incarnation(self, site: int) -> int:
        """How many processes a site has had before the one that is known."""
        return self._incarnations.get(site, 0)

    def arrive(self, site: int, incarnation: int) -> bool:
        """A site's process is ready, or is heard again; whether it had been gone.

        A process that a later one has replaced says nothing.
        """
        if incarnation < self._incarnations.get(site, 0):
            return False
        self._incarnations[site] = incarnation
        was_gone = site in self._gone
        self._gone.discard(site)
        return was_gone

    def lose(self, site: int, incarnation: int, generation: int) -> bool:
        """A site's process is gone or silent; whether it had been there.

        Parameters
        ----------
        generation
            The newest that has been announced: the site takes part in none up to it any more, even
            if it is back before that begins.
        """
        if incarnation < self._incarnations.get(site, 0):
            return False
        self._incarnations[site] = incarnation
        was_there = site not in self._gone
        self._gone.add(site)
        self._missed[site] = generation
        self._standbys.pop(site, None)
        return was_there

    def leave_out(self, sites: Iterable[int], round_: int) -> None:
        """Leave sites out that are there and were waited for in vain in a round."""
        for site in sites:
            doublings = min(self._strikes[site], _MOST_DOUBLINGS)
            self._strikes[site] += 1
            self._barred_until[site] = round_ + _BARRED_ROUNDS * 2**doublings

    def reject(self, site: int) -> bool:
        """A site's update was rejected; whether it is left out for good from here on."""
        self._rejections[site] += 1
        return self._rejections[site] >= MOST_REJECTIONS

    def away(self, round_: int) -> frozenset[int]:
        """Sites that can take no part in a round, as things stand."""
        barred = {site for site, until in self._barred_until.items() if round_ < until}
        quarantined = {site for site, n in self._rejections.items() if n >= MOST_REJECTIONS}
        return frozenset(self._gone | barred | quarantined)

    @property
    def gone(self) -> frozenset[int]:
        """Sites whose process is not there, or not heard."""
        return frozenset(self._gone)

    def missing(self, round_: int, generation: int) -> frozenset[int]:
        """Sites that take no part in a round of a generation: away, or not there all the time."""
        missed = {site for site, since in self._missed.items() if since >= generation}
        return self.away(round_) | missed

    def pardon(self, sites: Iterable[int]) -> None:
        """Leave sites out no longer that were waited for in vain."""
        for site in sites:
            self._barred_until.pop(site, None)

    @property
    def records(self) -> tuple[Record, ...]:
        """What is held against sites, for another process of the coordinator."""
        return tuple(
            Record(
                site=site,
                barred_until=self._barred_until.get(site, 0),
                strikes=self._strikes[site],
                rejections=self._rejections[site],
            )
            for site in sorted({*self._barred_until, *self._strikes, *self._rejections})
        )

    def restore(self, records: Iterable[Record]) -> None:
        """Go on from the `records` of the coordinator's process before."""
        for record in records:
            self._barred_until[record.site] = record.barred_until
            self._strikes[record.site] = record.strikes
            self._rejections[record.site] = record.rejections

    def note_standby(self, site: int, generation: int | None) -> None:
        """A member has told of which generation it has a standby group."""
        self._standbys[site] = generation

    def forget_standbys(self) -> None:
        """The members have come into another group: what stood behind the one before is closed."""
        self._standbys.clear()

    def take_standby(self, members: Collection[int]) -> int | None:
        """The generation whose standby group all of these have, to be used once; None without."""
        found = {self._standbys.get(site) for site in members}
        self._standbys.clear()
        return found.pop() if len(found) == 1 else None
