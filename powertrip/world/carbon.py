"""What the sites' electricity costs: grams CO2e and money, hour by hour.

The tables' second 0 is their first row's time, so `offset_s` says which hour of them the run starts
at; `time_scale` and `after_end` hold as they do for power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from powertrip.errors import InputError
from powertrip.world.feeds import FeedBank
from powertrip.world.files import PACKAGED, Table
from powertrip.world.geo import region_zones
from powertrip.world.site_settings import (
    BuiltinCarbon,
    ConstantCarbon,
    ConstantPrice,
    CsvCarbon,
    CsvPrice,
    ElectricityMapsCarbon,
    HourlySettings,
    SiteSettings,
)
from powertrip.world.sources.base import Context, Feed, load_each
from powertrip.world.steps import StepFunction, constant
from powertrip.world.trace import trace_from_samples

JOULES_PER_KWH = 3.6e6
PACKAGED_CARBON = PACKAGED / "grid_carbon.csv"
TIME = "timestamp_utc"
MAPS_TIME = "Datetime (UTC)"
_MAPS_ZONE = "zone id"
# The life-cycle column has had three names; the case of all of them has changed too.
_MAPS_VALUES = {
    "lifecycle": ("(lca)", "(life cycle)", "(life cycle assessment)"),
    "direct": ("(direct)",),
}
_MAPS_PREFIX = "carbon intensity"

# line, time as it stands there, value as it stands there
Rows = list[tuple[int, str, str]]


def carbon_feeds(sites: Sequence[SiteSettings], context: Context) -> FeedBank | None:
    """Load the carbon intensities of n sites, in grams CO2e per joule.

    Returns
    -------
    FeedBank or None
        0 at the sites that give none; None if no site gives any.

    Raises
    ------
    TraceError
        With one line for each different problem, naming the sites.
    """
    if all(site.carbon is None for site in sites):
        return None
    return FeedBank(load_each("carbon", sites, lambda site: _carbon_feed(site, context)))


def price_feeds(sites: Sequence[SiteSettings], context: Context) -> FeedBank | None:
    """Load the prices of a joule at n sites; see `carbon_feeds`."""
    if all(site.price is None for site in sites):
        return None
    return FeedBank(load_each("price", sites, lambda site: _price_feed(site, context)))


def _carbon_feed(site: SiteSettings, context: Context) -> Feed:
    settings = site.carbon
    if settings is None or isinstance(settings, ConstantCarbon):
        return _constant_feed(0.0 if settings is None else settings.g_per_kwh, context)
    if isinstance(settings, BuiltinCarbon):
        packaged = CsvCarbon(path=PACKAGED_CARBON, **settings.model_dump(exclude={"kind"}))
        return _zone_feed(packaged, site, context)
    if isinstance(settings, ElectricityMapsCarbon):
        return _maps_feed(settings, site, context)
    return _zone_feed(settings, site, context)


def _price_feed(site: SiteSettings, context: Context) -> Feed:
    settings = site.price
    if settings is None or isinstance(settings, ConstantPrice):
        return _constant_feed(0.0 if settings is None else settings.per_kwh, context)
    return _zone_feed(settings, site, context)


def _constant_feed(per_kwh: float, context: Context) -> Feed:
    one = context.once(("constant",), lambda: constant(1.0))
    return Feed(one, per_kwh / JOULES_PER_KWH)


def _zone_feed(settings: CsvCarbon | CsvPrice, site: SiteSettings, context: Context) -> Feed:
    """Read one column of a table with a column a zone."""
    table = context.table(settings.path, (TIME,))
    zone = _one_of([name for name in table.header if name != TIME], settings, site, table)
    time, value = table.column(TIME), table.column(zone)

    def rows() -> Rows:
        return [(line, fields[time], fields[value]) for line, fields in table.rows]

    return _hourly_feed(table, settings, TIME, zone, zone, rows, context)


def _maps_feed(settings: ElectricityMapsCarbon, site: SiteSettings, context: Context) -> Feed:
    """Read the rows of one zone of a file of Electricity Maps."""
    table = context.table(settings.path, (MAPS_TIME,))
    column = _maps_column(table, settings)
    time, value = table.column(MAPS_TIME), table.column(column)
    at = next((i for i, name in enumerate(table.header) if name.lower() == _MAPS_ZONE), None)
    zone = None
    if at is not None:
        zones = context.once(
            ("zones", table.path),
            lambda: list(dict.fromkeys(fields[at].strip() for _, fields in table.rows)),
        )
        zone = _one_of(zones, settings, site, table)

    def rows() -> Rows:
        return [
            (line, fields[time], fields[value])
            for line, fields in table.rows
            if at is None or fields[at].strip() == zone
        ]

    return _hourly_feed(table, settings, MAPS_TIME, column, zone, rows, context)


def _maps_column(table: Table, settings: ElectricityMapsCarbon) -> str:
    for name in table.header:
        words = name.lower()
        if words.startswith(_MAPS_PREFIX) and words.endswith(_MAPS_VALUES[settings.emissions]):
            return name
    endings = " or ".join(_MAPS_VALUES[settings.emissions])
    raise InputError(
        f"{table.path}, line 1: there is no column of the {settings.emissions} carbon intensity, "
        f"whose name ends with {endings}; export the file again, or change carbon.emissions"
    )


def _one_of(zones: list[str], settings: HourlySettings, site: SiteSettings, table: Table) -> str:
    """Return the zone that the settings name, or the only one there is, or the site's region's."""
    wanted = settings.zone
    if wanted is None and len(zones) == 1:
        return zones[0]
    if wanted is None:
        wanted = region_zones().get(site.region or "")
    if wanted in zones:
        return str(wanted)
    shown = ", ".join(zones[:8]) + (f" and {len(zones) - 8} more" if len(zones) > 8 else "")
    problem = "holds no zone" if not zones else f"holds {shown}"
    hint = "name one of them" if wanted is None else f"{wanted!r} is none of them"
    raise InputError(f"{table.path} {problem}; as zone, {hint}")


def _hourly_feed(
    table: Table,
    settings: HourlySettings,
    time: str,
    column: str,
    zone: str | None,
    rows: Callable[[], Rows],
    context: Context,
) -> Feed:
    key = (table.path, column, zone, settings.after_end, settings.max_gap_s)
    trace = context.once(("hourly", *key), lambda: _trace(table, settings, time, column, rows()))
    return Feed(trace, 1 / JOULES_PER_KWH, settings.offset_s)


def _trace(
    table: Table, settings: HourlySettings, time: str, column: str, rows: Rows
) -> StepFunction:
    """Make a trace per kWh of the rows that have a value; second 0 is the first row's time."""
    lines: list[int] = []
    times: list[float] = []
    values: list[float] = []
    origin_s: float | None = None
    for line, time_text, text in rows:
        at_s = _seconds(table, line, time, time_text)
        origin_s = at_s if origin_s is None else min(origin_s, at_s)
        if not text.strip():
            continue
        value = table.number(line, column, text)
        if value < 0:
            raise InputError(f"{table.path}, line {line}: {column} is {text}; write 0 or more")
        lines.append(line)
        times.append(at_s)
        values.append(value)
    if origin_s is None or not times:
        raise InputError(f"{table.path}: the column {column} is empty; take another zone or file")
    return trace_from_samples(
        [at_s - origin_s for at_s in times],
        values,
        after_end=settings.after_end,
        max_gap_s=settings.max_gap_s,
        origin_s=0.0,
        source=f"{table.path}, {column}",
        lines=lines,
    )


def _seconds(table: Table, line: int, column: str, text: str) -> float:
    """Return the seconds since 1970 of a time in ISO 8601, which is in UTC unless it says so."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InputError(
            f"{table.path}, line {line}: {column} is {text!r}; write a time such as "
            "2022-01-01T00:00:00Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
