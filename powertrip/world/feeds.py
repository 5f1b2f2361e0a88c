"""The power, carbon or price of all sites at once: traces on the same times are read together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powertrip.world.sources.base import Feed
from powertrip.world.steps import AfterEnd, Floats, StepFunction, segment_at

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class _Bank:
    """Traces that have their times in common, and the m sites that read them."""

    times_s: Floats
    end_s: float
    after_end: AfterEnd
    values: Floats
    sites: Indices
    rows: Indices


class FeedBank:
    """The feeds of n sites, for reading at any trace second.

    Parameters
    ----------
    feeds
        One feed a site.
    """

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self.gain = np.array([feed.gain for feed in feeds])
        self.offset_s = np.array([feed.offset_s for feed in feeds])
        groups: dict[tuple[bytes, float, AfterEnd], list[int]] = {}
        contents: dict[int, bytes] = {}  # of arrays that many feeds share
        for site, feed in enumerate(feeds):
            trace = feed.trace
            if id(trace.times_s) not in contents:
                contents[id(trace.times_s)] = trace.times_s.tobytes()
            key = (contents[id(trace.times_s)], trace.end_s, trace.after_end)
            groups.setdefault(key, []).append(site)
        self._banks = tuple(_bank(feeds, members) for members in groups.values())
        self._place = np.empty((len(feeds), 2), dtype=np.intp)
        for number, bank in enumerate(self._banks):
            self._place[bank.sites, 0] = number
            self._place[bank.sites, 1] = bank.rows

    def at(self, elapsed_s: float) -> Floats:
        """Return the values ([n]) when `elapsed_s` trace seconds of the run went by."""
        found = np.empty(self.gain.size)
        for bank in self._banks:
            at_s = self.offset_s[bank.sites] + elapsed_s
            index, alive = segment_at(bank.times_s, bank.end_s, bank.after_end, at_s)
            found[bank.sites] = np.where(alive, bank.values[bank.rows, index], 0.0)
        found *= self.gain
        return found

    def site(self, site: int) -> Feed:
        """Return the feed of one site."""
        number, row = self._place[site]
        bank = self._banks[number]
        trace = StepFunction(bank.times_s, bank.values[row], bank.end_s, bank.after_end)
        return Feed(trace, float(self.gain[site]), float(self.offset_s[site]))


def _bank(feeds: Sequence[Feed], members: list[int]) -> _Bank:
    first = feeds[members[0]].trace
    rows: dict[int, int] = {}
    traces: list[Floats] = []
    for site in members:
        trace = feeds[site].trace
        if id(trace) not in rows:
            rows[id(trace)] = len(traces)
            traces.append(trace.values)
    return _Bank(
        times_s=first.times_s,
        end_s=first.end_s,
        after_end=first.after_end,
        values=np.array(traces),
        sites=np.array(members, dtype=np.intp),
        rows=np.array([rows[id(feeds[site].trace)] for site in members], dtype=np.intp),
    )
