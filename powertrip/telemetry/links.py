"""Measured links in words: all of them at first, later those that have changed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from powertrip.telemetry import events, words

CHANGE = 4 / 3
"""Ratio beyond which a link counts as changed."""

PAIRS_SHOWN = 3


def rate(bandwidth: float | None) -> str:
    """Bytes per second as the bits per second by which links are known; `-` for None."""
    return words.quantity(None if bandwidth is None else 8 * bandwidth, "bit/s")


class LinkWatch:
    """Tells what is new about the links against what it has told last."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], events.LinkRow] = {}

    def lines(self, event: events.LinksMeasured, names: Mapping[str, str]) -> list[str]:
        """The lines for a measurement; none where nothing has changed.

        Parameters
        ----------
        event
            The measurement.
        names
            The sites' names for display.
        """
        links = {(link.src, link.dst): link for link in event.links}
        if not self._told:
            self._told = links
            return overview_lines(event)
        news = [
            (link, text)
            for pair, link in links.items()
            if (text := _change(self._told.get(pair), link)) is not None
        ]
        self._told.update({(link.src, link.dst): link for link, _ in news})
        if not news:
            return []
        parts = [
            f"{names.get(link.src, link.src)} to {names.get(link.dst, link.dst)}: {text}"
            for link, text in news[:PAIRS_SHOWN]
        ]
        if len(news) > PAIRS_SHOWN:
            parts.append(f"and {words.count(len(news) - PAIRS_SHOWN, 'other link')}")
        return ["links have changed: " + "; ".join(parts)]


def overview_lines(event: events.LinksMeasured) -> list[str]:
    """How many links answer, from what to what they are, and how far that is from the model."""
    answered = [link for link in event.links if link.rtt_s is not None]
    head = f"links: {len(answered)} of {words.count(len(event.links), 'pair')} answer"
    rtts = [link.rtt_s for link in answered if link.rtt_s is not None]
    bandwidths = [link.bandwidth for link in event.links if link.bandwidth is not None]
    if rtts:
        head += f", RTT {_range([words.duration(rtt) for rtt in _ends(rtts)])}"
    if bandwidths:
        head += f", bandwidth {_range([rate(bandwidth) for bandwidth in _ends(bandwidths)])}"
    elif rtts:
        head += ", bandwidths not measured"
    ratios: list[str] = []
    for name, pairs in (
        ("RTT", ((link.rtt_s, link.model_rtt_s) for link in event.links)),
        ("bandwidth", ((link.bandwidth, link.model_bandwidth) for link in event.links)),
    ):
        ratio = _median_ratio(pairs)
        if ratio is not None:
            whose = "its" if ratios else "the model's"
            ratios.append(f"{ratio:.2f} of {whose} {name}")
    return [head, f"  median {', '.join(ratios)}"] if ratios else [head]


def _change(before: events.LinkRow | None, link: events.LinkRow) -> str | None:
    """What is new about a link, if much is."""
    if before is None:
        return None
    if link.rtt_s is None:
        return None if before.rtt_s is None else "no answer"
    if before.rtt_s is None:
        return f"answers again, RTT {words.duration(link.rtt_s)}"
    parts = []
    if _apart(before.rtt_s, link.rtt_s):
        parts.append(f"RTT {words.duration(before.rtt_s)} to {words.duration(link.rtt_s)}")
    if before.bandwidth and link.bandwidth and _apart(before.bandwidth, link.bandwidth):
        parts.append(f"bandwidth {rate(before.bandwidth)} to {rate(link.bandwidth)}")
    return ", ".join(parts) or None


def _apart(before: float, after: float) -> bool:
    return max(before, after) > CHANGE * min(before, after)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _range(ends: Sequence[str]) -> str:
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _median_ratio(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    ratios = [measured / model for measured, model in pairs if measured is not None and model > 0]
    return statistics.median(ratios) if ratios else None
