"""How long an exchange takes in the star of links, around a ring, and in a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from powertrip.selection.checks import FloatArray, IntArray
from powertrip.selection.types import ExchangeModel

_LONGEST_PAIR_S = 1e6
"""A pair that needs longer than this for one update counts as having no link."""


def star_delays_s(
    rtt_s: FloatArray,
    up: FloatArray,
    down: FloatArray,
    *,
    update_bytes: int,
    min_delay_s: float,
    correction: float = 1.0,
) -> FloatArray:
    """Time of one exchange between each site and the hub.

    ``T_i = correction * (rtt + D/up + D/down)``, at least `min_delay_s`, so that the hub's own
    site, whose link is free, is not worth any weakness.

    Parameters
    ----------
    rtt_s, up, down
        Round-trip time to the hub, bytes/s to and from it; shapes [n].
    update_bytes
        The size D of an update.
    min_delay_s
        Lower bound of every delay.
    correction
        Measured exchange time divided by the modelled one.

    Returns
    -------
    Seconds, shape [n]; infinite where no bytes pass.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        delay_s = correction * (rtt_s + update_bytes / up + update_bytes / down)
    return np.maximum(delay_s, min_delay_s)


@dataclass(frozen=True)
class PairExchange:
    """An exchange whose time depends on the whole set: each link carries parts of the update.

    Parameters
    ----------
    model
        ``ring``: 2(k-1) steps around the members in their order, each as long as its slowest hop,
        ``rtt/2 + (D/k)/bandwidth``. ``mesh``: reduce-scatter and all-gather, two phases, each as
        long as the slowest pair; what a site's port carries in all is not limited.
    latency_s, update_s
        Half the round-trip time, and the time that a whole update takes, from row to column;
        shape [n, n], infinite where there is no link, 0 on the diagonal.
    min_delay_s, correction
        As in `star_delays_s`.
    """

    model: ExchangeModel
    latency_s: FloatArray
    update_s: FloatArray
    min_delay_s: float
    correction: float
    _known: dict[bytes, FloatArray] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        model: ExchangeModel,
        rtt_s: FloatArray,
        bandwidth: FloatArray,
        *,
        update_bytes: int,
        min_delay_s: float,
        correction: float,
    ) -> PairExchange:
        """Build it from round-trip times and bytes/s from row to column, shape [n, n]."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            update_s = update_bytes / bandwidth
            linked = rtt_s / 2 + update_s <= _LONGEST_PAIR_S
        latency_s = np.where(linked, rtt_s / 2, np.inf)
        update_s = np.where(linked, update_s, np.inf)
        for matrix in (latency_s, update_s):
            np.fill_diagonal(matrix, 0.0)
        return cls(model, latency_s, update_s, min_delay_s, correction)

    def prefixes_s(self, order: IntArray) -> FloatArray:
        """Exchange among the first k sites of `order`, at index k - 1; seconds, in O(N^3) or less.

        Infinite where a link that it needs is missing.
        """
        key = order.tobytes()
        if key not in self._known:  # one decision asks for the same order again and again
            between = np.ix_(order, order)
            model = _ring_s if self.model == "ring" else _mesh_s
            seconds = model(self.latency_s[between], self.update_s[between])
            self._known[key] = np.maximum(self.correction * seconds, self.min_delay_s)
        return self._known[key]

    def set_s(self, members: IntArray) -> float:
        """Exchange among `members`, in seconds, in O(N^2) or less."""
        between = np.ix_(members, members)
        model = _ring_set_s if self.model == "ring" else _mesh_set_s
        seconds = model(self.latency_s[between], self.update_s[between])
        return max(self.correction * seconds, self.min_delay_s)

    def connected(self, order: IntArray) -> IntArray:
        """Return `order` without the sites that lack a link to one before them that stays."""
        linked = np.isfinite(self.latency_s)
        linked &= linked.T
        able, kept = np.full(linked.shape[0], True), []
        for site in order.tolist():
            if able[site]:
                kept.append(site)
                able &= linked[site]
        return np.array(kept, dtype=np.int64)


@dataclass(frozen=True)
class Exchange:
    """How long members exchange, by whichever model.

    Parameters
    ----------
    delay_s
        Seconds for one exchange with the hub, shape [n]; infinite without a link.
    pairs
        The exchange, where it goes around a ring or through a mesh; None in the star.
    """

    delay_s: FloatArray
    pairs: PairExchange | None

    @classmethod
    def of(
        cls,
        model: ExchangeModel,
        star: tuple[FloatArray, FloatArray, FloatArray],
        between: tuple[FloatArray, FloatArray] | None,
        *,
        update_bytes: int,
        min_delay_s: float,
        correction: float = 1.0,
    ) -> Exchange:
        """Build it from the links.

        Parameters
        ----------
        model
            Which model; the star where `between` is None.
        star
            Round-trip times to the hub, bytes/s to and from it; shapes [n].
        between
            Round-trip times, and bytes/s from row to column; shapes [n, n].
        update_bytes, min_delay_s, correction
            As in `star_delays_s`.
        """
        pairs = None
        if model != "star" and between is not None:
            pairs = PairExchange.of(
                model,
                *between,
                update_bytes=update_bytes,
                min_delay_s=min_delay_s,
                correction=correction,
            )
        delay_s = star_delays_s(
            *star, update_bytes=update_bytes, min_delay_s=min_delay_s, correction=correction
        )
        return cls(delay_s, pairs)

    def delays_s(self, members: Sequence[int] | IntArray) -> FloatArray:
        """Exchange of each of `members`, once it has trained; seconds, shape [k]."""
        order = np.asarray(members, dtype=np.int64)
        if self.pairs is None:
            return np.asarray(self.delay_s[order])
        return np.full(order.size, self.pairs.set_s(order))

    def set_s(self, members: Sequence[int] | IntArray) -> float:
        """Exchange among `members`, in this order, if all have trained at once; seconds."""
        return float(self.delays_s(members).max())


def _ring_s(latency_s: FloatArray, update_s: FloatArray) -> FloatArray:
    n = latency_s.shape[0]
    k = np.arange(1, n + 1)
    ahead = (np.arange(n - 1), np.arange(1, n))
    hops_s = np.zeros((n, n))
    hops_s[:, 1:] = latency_s[ahead] + update_s[ahead] / k[:, None]
    open_s = np.where(np.tri(n, dtype=np.bool_), hops_s, 0.0).max(axis=1)
    closing_s = np.r_[0.0, latency_s[1:, 0] + update_s[1:, 0] / k[1:]]
    return np.asarray(2.0 * (k - 1) * np.maximum(open_s, closing_s))


def _ring_set_s(latency_s: FloatArray, update_s: FloatArray) -> float:
    k = latency_s.shape[0]
    if k == 1:
        return 0.0
    hop = np.arange(k), np.roll(np.arange(k), -1)
    return float(2.0 * (k - 1) * (latency_s[hop] + update_s[hop] / k).max())


def _mesh_s(latency_s: FloatArray, update_s: FloatArray) -> FloatArray:
    ks = range(1, latency_s.shape[0] + 1)
    return np.array([_mesh_set_s(latency_s[:k, :k], update_s[:k, :k]) for k in ks])


def _mesh_set_s(latency_s: FloatArray, update_s: FloatArray) -> float:
    return 2.0 * float((latency_s + update_s / latency_s.shape[0]).max())
