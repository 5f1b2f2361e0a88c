"""Where the sites lie, and how far apart."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from powertrip.world.files import PACKAGED, PACKAGED_LINKS, read_table
from powertrip.world.site_settings import SiteSettings
from powertrip.world.steps import Floats

EARTH_RADIUS_M = 6_371_008.8


@lru_cache(maxsize=1)
def region_coordinates() -> dict[str, tuple[float, float]]:
    """Return latitude and longitude in degrees of the packaged cloud regions, by their names."""
    table = read_table(PACKAGED / "region_coords.csv", ("region", "lat", "lon"))
    names = [fields[table.column("region")] for _, fields in table.rows]
    places = zip(table.numbers("lat"), table.numbers("lon"), strict=True)
    return dict(zip(names, places, strict=True))


@lru_cache(maxsize=1)
def measured_regions() -> frozenset[str]:
    """Return the regions between which the packaged table of links holds measurements."""
    table = read_table(PACKAGED_LINKS, ("src_region",))
    return frozenset(fields[table.column("src_region")] for _, fields in table.rows)


@lru_cache(maxsize=1)
def region_zones() -> dict[str, str]:
    """Return the grid zones, in Electricity Maps' names, of the regions of which they are known."""
    table = read_table(PACKAGED / "region_zones.csv", ("region", "zone"))
    region, zone = table.column("region"), table.column("zone")
    return {fields[region]: fields[zone] for _, fields in table.rows}


def coordinates(sites: Sequence[SiteSettings]) -> Floats:
    """Return latitude and longitude in degrees of n sites ([n, 2]), nan where they are unknown."""
    regions = region_coordinates()
    unknown = (np.nan, np.nan)
    return np.array(
        [
            (site.lat, site.lon)
            if site.lat is not None and site.lon is not None
            else regions.get(site.region or "", unknown)
            for site in sites
        ]
    ).reshape(-1, 2)


def great_circle_m(here: npt.ArrayLike, there: npt.ArrayLike) -> Floats:
    """Return the distances in metres between places on a sphere, by the haversine formula.

    Parameters
    ----------
    here, there
        [..., 2] latitudes and longitudes in degrees, of shapes that broadcast.
    """
    a = np.radians(np.asarray(here, dtype=np.float64))
    b = np.radians(np.asarray(there, dtype=np.float64))
    half = (b - a) / 2
    chord = (
        np.sin(half[..., 0]) ** 2
        + np.cos(a[..., 0]) * np.cos(b[..., 0]) * np.sin(half[..., 1]) ** 2
    )
    distance_m: Floats = 2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(np.minimum(chord, 1.0)))
    return distance_m


def similar(name: str, known: Iterable[str]) -> str:
    """Return the known names most like one that is not, as the end of a message."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3) or names[:3]
    return f"known are {len(names)} regions such as {', '.join(near)}"
