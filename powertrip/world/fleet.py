"""Many sites in a few words: dealt over cloud regions, with power and speeds that differ.

Everything drawn at random comes from the fleet's own seed, one stream for each quantity, so the
first sites of a larger fleet are those of a smaller one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from powertrip.settings import Settings
from powertrip.world.geo import (
    EARTH_RADIUS_M,
    great_circle_m,
    measured_regions,
    region_coordinates,
    similar,
)
from powertrip.world.site_settings import (
    BuiltinPower,
    CarbonSettings,
    ConstantPower,
    DomainName,
    FileTraceSettings,
    GooglePower,
    GpuName,
    PowerSettings,
    PriceSettings,
    Share,
    SiteSettings,
    SyntheticPower,
    SyntheticProcess,
    TraceSettings,
)

PROVIDERS = ("gcp", "aws", "azure")
MEASURED = "measured"
# Azure's staging and canary regions lie where another of its regions does.
_NOT_FOR_CUSTOMERS = ("stg", "euap")
_DAY_S = 86400.0
# What of its power source is drawn for each site, or means something else for a site.
_OF_THE_FLEET = {"kind", "capacity_w", "shift_s", "domains", "paths", "seed"}


class Spread(Settings):
    """A positive number that differs from site to site; a plain number is the same at all. The
    first site, which is the hub, has the median: a typical one."""

    median: float = Field(gt=0)
    """The value that half of the sites exceed."""

    spread: float = Field(default=0.0, ge=0, le=3)
    """The standard deviation of the value's natural logarithm, which is normally distributed: at
    0.5 two thirds of the sites lie between 0.61 and 1.65 times the median; 0: all are equal."""

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return {"median": value} if plain else value


class _Shifted(Settings):
    shift_s: float = Field(default=7 * _DAY_S, ge=0)
    """Each site reads its trace from a second of its own, drawn evenly below this one and added to
    `offset_s`, so that sites with the same trace differ; 0: all begin at `offset_s`."""


class FleetShare(Share):
    """Sites whose training lives on what the rest of each site leaves unused."""

    capacity_w: Spread
    """The power capacity of a site in watts, of which a utilisation is the used fraction."""


class FleetConstant(Settings):
    """The same power at all times."""

    kind: Literal["constant"] = "constant"
    """The source of the power available to training."""

    watts: Spread
    """The power available to training at a site, in watts."""


class FleetBuiltin(TraceSettings, FleetShare, _Shifted):
    """Power left unused in domains of Google's PowerData2019 trace, from the packaged table."""

    kind: Literal["builtin"] = "builtin"
    """The source of the power available to training."""

    domains: tuple[DomainName, ...] = Field(
        default=("cella_pdu6", "cella_pdu7", "cella_pdu8"), min_length=1
    )
    """The power domains, of which each site is given one."""


class FleetGoogle(FileTraceSettings, FleetShare, _Shifted):
    """Power left unused in domains of Google's PowerData2019 trace, from its files."""

    kind: Literal["google"] = "google"
    """The source of the power available to training."""

    paths: tuple[Path, ...] = Field(min_length=1)
    """PowerData2019 files of one power domain each, of which each site is given one; relative
    paths are looked for beside the configuration file, then in the data folder (POWERTRIP_DATA).
    They hold a month: a `shift_s` of 2678400 uses all of it."""


class FleetSynthetic(SyntheticProcess, FleetShare):
    """Power left unused at sites whose utilisations are autoregressive processes of order 1; a
    `seed` of null means the fleet's."""

    kind: Literal["synthetic"] = "synthetic"
    """The source of the power available to training."""


FleetPower = Annotated[
    FleetConstant | FleetBuiltin | FleetGoogle | FleetSynthetic, Field(discriminator="kind")
]


class FleetSettings(Settings):
    """Many sites, dealt over cloud regions: each region is given one before any is given two."""

    count: int = Field(ge=1, le=1_000_000)
    """The number of sites. The first sites of a larger fleet are those of a smaller one."""

    regions: tuple[str, ...] = Field(default=("gcp",), min_length=1)
    """Where the sites are: providers (`gcp`, `aws`, `azure`: all their regions whose place is
    known), `measured` (the 27 GCP regions of the packaged table of links), regions such as
    `aws:us-east-1`, or a list of such words."""

    without: tuple[str, ...] = ()
    """What to leave out of the regions, in the same words."""

    hub: str | None = None
    """The region of the first site; null means the one with the least mean distance to the
    others."""

    scatter_m: float = Field(default=20_000.0, ge=0, le=1_000_000)
    """A region's first site is at the region's coordinates; the others are anywhere within this
    many metres of it."""

    gpus: int = Field(default=8, ge=1)
    """The number of GPUs at each site."""

    gpu: GpuName = "v100"
    """The GPU whose measured curve of speed against power cap holds in power mode `caps`, `v100`
    or `a40`."""

    rated_w: float = Field(default=250.0, gt=0)
    """The power of one GPU at full speed, in watts."""

    samples_per_s: Spread
    """The training speed of a whole site at full power, in samples per second."""

    power: FleetPower
    """The source of the power available to training."""

    carbon: CarbonSettings | None = None
    """The carbon intensity of the sites' electricity; null counts as none. Without a zone each
    site takes that of its region."""

    price: PriceSettings | None = None
    """The price of the sites' electricity; null counts as free. Without a zone each site takes
    that of its region."""

    seed: int = Field(default=0, ge=0)
    """The seed of all that is drawn for the fleet. It is not the run's, so that runs with other
    seeds learn otherwise at the same sites and can be compared in pairs; give another for other
    sites."""

    @field_validator("regions", "without", mode="before")
    @classmethod
    def _one_word_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("regions", "without")
    @classmethod
    def _known(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        places = region_coordinates()
        for word in words:
            if word not in places and word not in (*PROVIDERS, MEASURED):
                raise ValueError(
                    f"{word!r} is neither a provider ({', '.join(PROVIDERS)}), nor `{MEASURED}`, "
                    f"nor a region whose place is known; {similar(word, places)}"
                )
        return words

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        regions = used_regions(self)
        if not regions:
            raise ValueError("without leaves no region of the fleet; name fewer there")
        if self.hub is not None and self.hub not in regions:
            raise ValueError(
                f"hub is {self.hub!r}, which is not among the regions; {similar(self.hub, regions)}"
            )
        return self


def used_regions(fleet: FleetSettings) -> tuple[str, ...]:
    """Return the regions that `regions` and `without` leave, sorted."""
    return tuple(sorted(_named(fleet.regions) - _named(fleet.without)))


def deal_regions(fleet: FleetSettings) -> tuple[str, ...]:
    """Return the regions in the order in which they are given sites, the hub's first."""
    regions = used_regions(fleet)
    hub = fleet.hub
    if hub is None:
        places = np.array([region_coordinates()[name] for name in regions])
        mean_m = great_circle_m(places[:, None], places).mean(axis=1)
        hub = regions[int(np.argmin(mean_m))]
    others = [name for name in regions if name != hub]
    return (hub, *(others[i] for i in _stream(fleet, "regions").permutation(len(others))))


@lru_cache(maxsize=4)
def fleet_sites(fleet: FleetSettings) -> tuple[SiteSettings, ...]:
    """Return the sites of a fleet: ordinary sites, as they might have been listed one by one.

    A site has the name of its region without the provider; the second one there is `NAME.2`.
    """
    order = deal_regions(fleet)
    turns = np.arange(fleet.count) // len(order)
    regions = [order[i % len(order)] for i in range(fleet.count)]
    columns = zip(
        regions,
        turns.tolist(),
        _scattered(fleet, regions, turns > 0),
        _drawn(fleet, "samples_per_s", fleet.samples_per_s),
        _powers(fleet),
        strict=True,
    )
    return tuple(
        SiteSettings(
            name=_name(region, turn),
            region=region,
            lat=lat,
            lon=lon,
            gpus=fleet.gpus,
            gpu=fleet.gpu,
            rated_w=fleet.rated_w,
            samples_per_s=samples_per_s,
            power=power,
            carbon=fleet.carbon,
            price=fleet.price,
        )
        for region, turn, (lat, lon), samples_per_s, power in columns
    )


def _named(words: Sequence[str]) -> set[str]:
    """Return the regions that such words stand for."""
    found: set[str] = set()
    for word in words:
        if word == MEASURED:
            found |= measured_regions()
        elif word in PROVIDERS:
            names = (name for name in region_coordinates() if name.startswith(f"{word}:"))
            found |= {name for name in names if not name.endswith(_NOT_FOR_CUSTOMERS)}
        else:
            found.add(word)
    return found


def _name(region: str, turn: int) -> str:
    name = region.partition(":")[2]
    return f"{name}.{turn + 1}" if turn else name


def _powers(fleet: FleetSettings) -> list[PowerSettings]:
    power = fleet.power
    if isinstance(power, FleetConstant):
        return [ConstantPower(watts=watts) for watts in _drawn(fleet, "power", power.watts)]
    common = power.model_dump(exclude=_OF_THE_FLEET)
    capacities_w = _drawn(fleet, "power", power.capacity_w)
    if isinstance(power, FleetSynthetic):
        common["seed"] = fleet.seed if power.seed is None else power.seed
        return [SyntheticPower(**common, capacity_w=each) for each in capacities_w]
    shifts_s = np.floor(_stream(fleet, "shift").uniform(0.0, power.shift_s, fleet.count))
    traces = power.domains if isinstance(power, FleetBuiltin) else power.paths
    which = _stream(fleet, "trace").integers(len(traces), size=fleet.count)
    columns = zip(capacities_w, (power.offset_s + shifts_s).tolist(), which.tolist(), strict=True)
    del common["offset_s"]
    if isinstance(power, FleetBuiltin):
        return [
            BuiltinPower(**common, domain=power.domains[i], capacity_w=each, offset_s=offset_s)
            for each, offset_s, i in columns
        ]
    return [
        GooglePower(**common, path=power.paths[i], capacity_w=each, offset_s=offset_s)
        for each, offset_s, i in columns
    ]


def _scattered(
    fleet: FleetSettings, regions: Sequence[str], moved: npt.NDArray[np.bool_]
) -> list[tuple[float | None, float | None]]:
    """Return latitude and longitude of the moved sites, evenly over discs around their regions."""
    u, v = _stream(fleet, "scatter").random((fleet.count, 2)).T
    radius, angle = np.degrees(fleet.scatter_m * np.sqrt(u) / EARTH_RADIUS_M), 2 * np.pi * v
    lat, lon = np.array([region_coordinates()[name] for name in regions]).T
    lon = lon + radius * np.sin(angle) / np.cos(np.radians(lat))
    lat = np.clip(lat + radius * np.cos(angle), -90.0, 90.0)
    lon = (lon + 180.0) % 360.0 - 180.0
    places = zip(moved.tolist(), lat.round(4).tolist(), lon.round(4).tolist(), strict=True)
    return [(lat, lon) if moved else (None, None) for moved, lat, lon in places]


def _drawn(fleet: FleetSettings, what: str, spread: Spread) -> list[float]:
    """Draw a number for each site, to four digits, so that it is the same on every machine."""
    if spread.spread == 0:
        return [spread.median] * fleet.count
    normal = _stream(fleet, what).standard_normal(fleet.count)
    values = spread.median * np.exp(spread.spread * normal[1:])
    return [spread.median, *(float(f"{value:.4g}") for value in values)]


def _stream(fleet: FleetSettings, what: str) -> np.random.Generator:
    key = hashlib.blake2b(what.encode(), digest_size=8).digest()
    return np.random.default_rng([fleet.seed, int.from_bytes(key, "big")])
