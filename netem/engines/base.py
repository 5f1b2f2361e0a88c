"""What the link daemon asks of a backend.

The daemon makes the engine by `netem.engines.build_engine`, which calls
`netem.engines.kernel.KernelEngine(plan, underlay)` or
`netem.engines.userspace.UserspaceEngine(plan, job)`; `job` is a short text that is unique to the
daemon on this machine. It then calls `set_link` for every ordered pair of sites, and `attach` and
`detach` as sites come and go, always from one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from netem.plan import Link


@dataclass(frozen=True)
class PairStats:
    """What an ordered pair of sites has sent since the engine began.

    Parameters
    ----------
    bytes
        IP bytes that left on the link, headers of the IP layer included.
    packets
        Packets that left on the link.
    dropped
        Packets lost on purpose, by a full queue or by a cut.
    """

    bytes: int
    packets: int
    dropped: int


class Engine(Protocol):
    """The links of one job on one machine.

    Attributes
    ----------
    name
        `kernel` or `userspace`.
    """

    name: str

    def attach(self, site: int, fd: int) -> None:
        """Connect a site, and take ownership of `fd` (also when this raises).

        Parameters
        ----------
        site
            The number of the site; not attached.
        fd
            `kernel`: the site's network namespace, empty but for `lo`, in which the engine makes
            `eth0` with the site's address, up. `userspace`: the site's TUN device, which the site
            has opened by `netem.tun.open_tun` (MTU 1500, VNET_HDR, TSO4) and configured.

        Raises
        ------
        netem.errors.NetemError
            When it cannot be done. The site is then not attached and nothing is left of the try.
        """

    def detach(self, site: int) -> None:
        """Disconnect a site whose process has gone, or does so now; no error if it is not there."""

    def set_link(self, src: int, dst: int, link: Link) -> None:
        """Shape what `src` sends to `dst`, at any time, before and after both are attached.

        `link` is final: its rate has the plan's scale in it. Changes apply in place, to what is
        sent from then on; packets under way may arrive as they would have.
        """

    def stats(self) -> dict[tuple[int, int], PairStats]:
        """Count per ordered pair (src, dst) of what was sent; pairs without traffic may lack."""

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `process` has work, or None: no data path.

        The descriptor stays the same for the engine's life (an epoll over all devices, say).
        """

    def process(self) -> None:
        """Move what can be moved now, and return without waiting, within a few milliseconds."""

    def next_timeout_s(self) -> float | None:
        """Return in how many seconds `process` must be called at the latest; None: no need."""

    def close(self) -> None:
        """Remove everything that the engine made; a second call does nothing."""
