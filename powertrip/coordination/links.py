"""How the sites of one machine are joined, as every process of the job is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Links:
    """The result of the search for emulated links.

    Attributes
    ----------
    backend
        ``kernel`` or ``userspace`` for emulated links, ``off`` or ``none`` for the machine's own
        network.
    reason
        Why, in one line.
    socket_path
        Where the link daemon listens; None without emulated links.
    """

    backend: str
    reason: str
    socket_path: str | None = None


REAL_LINKS = Links("off", "backend off: the network is left alone")
