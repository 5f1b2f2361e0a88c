"""The links between the sites: round-trip times and bandwidths, each way for itself."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powertrip.world.errors import NetworkError, PlaceError
from powertrip.world.files import PACKAGED
from powertrip.world.geo import coordinates, great_circle_m, similar
from powertrip.world.link_tables import region_links
from powertrip.world.settings import DistanceNetwork, MatrixNetwork, TableNetwork
from powertrip.world.site_settings import SiteSettings
from powertrip.world.sources import Context
from powertrip.world.steps import Floats

# Warnings name this many pairs of sites before they only count the others.
_NAMED_PAIRS = 5


@dataclass(frozen=True, eq=False)
class Star:
    """The links between n sites and a hub.

    Parameters
    ----------
    rtt_s
        [n] round-trip times in seconds; infinite where there is no link.
    up, down
        [n] bandwidths in bytes per second, site to hub and hub to site; 0 where there is no link.
    reachable
        [n] whether a site has a link to the hub and one back.
    """

    rtt_s: Floats
    up: Floats
    down: Floats
    reachable: npt.NDArray[np.bool_]


class Links(ABC):
    """The links between n sites; row i, column j is the way from i to j.

    The hub, or a site to itself, has the round-trip time 0 and an infinite bandwidth.
    """

    @abstractmethod
    def matrices(self) -> tuple[Floats, Floats]:
        """Return round-trip times in seconds and bandwidths in bytes per second ([n, n] each)."""

    @abstractmethod
    def star(self, hub: int) -> Star:
        """Return the links to and from a hub."""


class TabledLinks(Links):
    """Links looked up by the place of each site, of which there may be fewer than sites.

    Parameters
    ----------
    rtt_s, bandwidth
        [p, p] links between places, in seconds and bytes per second; the diagonal holds between
        different sites at one place. Infinite and 0 where there is no link.
    place
        [n] the place of each site.
    """

    def __init__(self, rtt_s: Floats, bandwidth: Floats, place: npt.NDArray[np.intp]) -> None:
        self._rtt_s = rtt_s
        self._bandwidth = bandwidth
        self._place = place

    def matrices(self) -> tuple[Floats, Floats]:
        pairs = np.ix_(self._place, self._place)
        return _with_diagonal(self._rtt_s[pairs], self._bandwidth[pairs])

    def star(self, hub: int) -> Star:
        there = self._place[hub]
        return _star(
            hub,
            rtt_s=self._rtt_s[self._place, there],
            up=self._bandwidth[self._place, there],
            down=self._bandwidth[there, self._place],
        )


class ModelledLinks(Links):
    """Links that follow from the distances: `rtt = a + b d` and `bandwidth = c / (1 + d/e)`.

    The four numbers are fitted by scripts/fit_distance_model.py.

    Parameters
    ----------
    places
        [n, 2] latitudes and longitudes in degrees.
    bandwidth_scale
        What every bandwidth is multiplied by.
    """

    def __init__(self, places: Floats, bandwidth_scale: float = 1.0) -> None:
        self._places = places
        fit = json.loads((PACKAGED / "distance_model.json").read_text())
        self._base_s, self._s_per_m = fit["rtt_base_s"], fit["rtt_s_per_m"]
        self._base = fit["bandwidth_base_bps"] / 8 * bandwidth_scale
        self._half_m = fit["bandwidth_half_m"]

    def matrices(self) -> tuple[Floats, Floats]:
        return _with_diagonal(*self._at(great_circle_m(self._places[:, None], self._places)))

    def star(self, hub: int) -> Star:
        rtt_s, bandwidth = self._at(great_circle_m(self._places, self._places[hub]))
        return _star(hub, rtt_s=rtt_s, up=bandwidth, down=bandwidth.copy())

    def _at(self, distance_m: Floats) -> tuple[Floats, Floats]:
        return (
            self._base_s + self._s_per_m * distance_m,
            self._base / (1 + distance_m / self._half_m),
        )


def build_links(
    settings: MatrixNetwork | TableNetwork | DistanceNetwork,
    sites: Sequence[SiteSettings],
    context: Context,
) -> tuple[Links, tuple[str, ...]]:
    """Build the links between the sites.

    Returns
    -------
    tuple
        The links, and warnings about missing ones.

    Raises
    ------
    NetworkError
        If the matrices are too small or a table lacks a region or a pair.
    PlaceError
        If distances are needed and the place of a site is not known.
    """
    if isinstance(settings, MatrixNetwork):
        return _matrix_links(settings, sites)
    if isinstance(settings, TableNetwork):
        return _table_links(settings, sites, context)
    return _distance_links(settings, sites), ()


def _matrix_links(
    settings: MatrixNetwork, sites: Sequence[SiteSettings]
) -> tuple[Links, tuple[str, ...]]:
    n, size = len(sites), len(settings.rtt_s)
    if size < n:
        raise NetworkError(
            f"network: the matrices are {size} x {size}, but there are {n} sites; write one row "
            "and one column a site, or lower sites.count"
        )
    rtt_s = np.array(settings.rtt_s, dtype=np.float64)[:n, :n]
    bandwidth = np.array(settings.bandwidth_bps, dtype=np.float64)[:n, :n] / 8
    bandwidth *= settings.bandwidth_scale
    none = np.isnan(rtt_s) | np.isnan(bandwidth) | (bandwidth == 0)
    np.fill_diagonal(none, False)
    rtt_s, bandwidth = np.where(none, np.inf, rtt_s), np.where(none, 0.0, bandwidth)
    place = np.arange(n)
    names = [f"site {site.name!r}" for site in sites]
    return TabledLinks(rtt_s, bandwidth, place), _missing_links(bandwidth, place, names.__getitem__)


def _table_links(
    settings: TableNetwork, sites: Sequence[SiteSettings], context: Context
) -> tuple[Links, tuple[str, ...]]:
    homeless = [site.name for site in sites if site.region is None]
    if homeless:
        raise NetworkError(
            f"network: the site {homeless[0]!r} has no region, which the table needs; name its "
            "region, or use the network kind distance"
        )
    links = region_links(settings, context)
    regions = sorted({site.region for site in sites if site.region is not None})
    for region in regions:
        if region not in links.regions:
            raise NetworkError(
                f"network: the region {region!r} is not in {links.source}; "
                f"{similar(region, links.regions)}"
            )
    rtt_s, bandwidth = links.matrices(regions)
    np.fill_diagonal(rtt_s, settings.same_region_rtt_s)
    np.fill_diagonal(bandwidth, settings.same_region_bandwidth_bps / 8)
    bandwidth *= settings.bandwidth_scale
    number = {region: i for i, region in enumerate(regions)}
    place = np.array([number[site.region or ""] for site in sites], dtype=np.intp)

    def name(place: int) -> str:
        inside = [site.name for site in sites if site.region == regions[place]]
        if len(inside) == 1:
            return f"site {inside[0]!r}"
        return f"the {len(inside)} sites in {regions[place]}"

    return TabledLinks(rtt_s, bandwidth, place), _missing_links(bandwidth, place, name)


def _distance_links(settings: DistanceNetwork, sites: Sequence[SiteSettings]) -> Links:
    places = coordinates(sites)
    unknown = np.flatnonzero(np.isnan(places[:, 0]))
    if unknown.size:
        site = sites[unknown[0]]
        where = "no region" if site.region is None else f"the unknown region {site.region!r}"
        raise PlaceError(
            f"network: the site {site.name!r} has {where} and no coordinates; write its lat and lon"
        )
    return ModelledLinks(places, settings.bandwidth_scale)


def _missing_links(
    bandwidth: Floats, place: npt.NDArray[np.intp], name: Callable[[int], str]
) -> tuple[str, ...]:
    """Describe the pairs of places that lack a link in one direction at least."""
    linked = (bandwidth > 0) & (bandwidth.T > 0)
    np.fill_diagonal(linked, True)
    neighbours = linked @ np.bincount(place, minlength=linked.shape[0]) - 1
    isolated = np.flatnonzero(neighbours == 0)
    if isolated.size == linked.shape[0]:
        isolated = isolated[:0]
    warnings = [
        f"{name(int(i))} is unreachable and left out: the bandwidth to or from every other site "
        "is 0"
        for i in isolated
    ]
    linked[isolated, :] = linked[:, isolated] = True
    pairs = np.argwhere(np.triu(~linked))
    warnings += [
        f"{name(int(i))} and {name(int(j))} cannot exchange: the bandwidth one way or both is 0"
        for i, j in pairs[:_NAMED_PAIRS]
    ]
    if len(pairs) > _NAMED_PAIRS:
        warnings.append(f"{len(pairs) - _NAMED_PAIRS} more pairs of sites cannot exchange")
    return tuple(warnings)


def _with_diagonal(rtt_s: Floats, bandwidth: Floats) -> tuple[Floats, Floats]:
    np.fill_diagonal(rtt_s, 0.0)
    np.fill_diagonal(bandwidth, np.inf)
    return rtt_s, bandwidth


def _star(hub: int, *, rtt_s: Floats, up: Floats, down: Floats) -> Star:
    rtt_s[hub], up[hub], down[hub] = 0.0, np.inf, np.inf
    return Star(rtt_s, up, down, (up > 0) & (down > 0))
