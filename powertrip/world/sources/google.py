"""Power left unused in a domain of Google's PowerData2019 trace (CC-BY 4.0).

The files are described at https://github.com/google/cluster-data/blob/master/PowerData2019.md:
utilisations, as fractions of an undisclosed capacity, over intervals of five minutes.
"""

from __future__ import annotations

from powertrip.errors import InputError
from powertrip.world.files import Table
from powertrip.world.site_settings import GooglePower, SiteSettings
from powertrip.world.sources.base import Context, Feed, one_by_one
from powertrip.world.steps import StepFunction
from powertrip.world.trace import trace_from_samples

COLUMNS = ("time", "measured_power_util")
FLAGS = ("bad_measurement_data", "bad_production_power_data")
_FLAG_VALUES = {"true": True, "false": False}
STEP_S = 300.0
_MICROSECOND = 1e-6


def _load(_site: SiteSettings, settings: GooglePower, context: Context) -> Feed:
    table = context.table(settings.path, COLUMNS)
    trace = context.once(
        ("google", table.path, settings.pdu, settings.after_end, settings.max_gap_s),
        lambda: _trace(table, settings),
    )
    return Feed(trace, settings.capacity_w * settings.share, settings.offset_s)


def _trace(table: Table, settings: GooglePower) -> StepFunction:
    """Return the unused fraction of the capacity; second 0 is the first time in the file."""
    rows = _rows_of_domain(table, settings.pdu)
    at_time, at_util = (table.column(name) for name in COLUMNS)
    flags = [(name, table.column(name)) for name in FLAGS if name in table.header]
    lines, times, unused = [], [], []
    origin = None
    for line, fields in rows:
        time = _microseconds(table, line, fields[at_time])
        origin = time if origin is None else min(origin, time)
        if sum(_flag(table, line, name, fields[at]) for name, at in flags):
            continue
        utilisation = table.number(line, COLUMNS[1], fields[at_util])
        if not 0 <= utilisation <= 1:
            raise InputError(
                f"{table.path}, line {line}: measured_power_util is {utilisation:g}; it must be a "
                "fraction from 0 to 1"
            )
        lines.append(line)
        times.append(time)
        unused.append(1 - utilisation)
    if origin is None or not times:
        raise InputError(f"{table.path}: every row is marked as bad; take another file")
    return trace_from_samples(
        [(time - origin) * _MICROSECOND for time in times],
        unused,
        after_end=settings.after_end,
        max_gap_s=settings.max_gap_s,
        step_s=STEP_S,
        origin_s=0.0,
        source=str(table.path),
        lines=lines,
    )


def _rows_of_domain(table: Table, pdu: str | None) -> list[tuple[int, list[str]]]:
    if "pdu" not in table.header:
        if pdu is None:
            return list(table.rows)
        raise InputError(f"{table.path} has no column pdu; leave power.pdu out")
    at = table.column("pdu")
    found = sorted({fields[at] for _, fields in table.rows})
    if pdu is None and len(found) > 1:
        raise InputError(
            f"{table.path} holds several power domains ({', '.join(found)}); name one as power.pdu"
        )
    if pdu is not None and pdu not in found:
        raise InputError(
            f"{table.path} has no power domain {pdu!r}; power.pdu must be one of {', '.join(found)}"
        )
    return [row for row in table.rows if pdu is None or row[1][at] == pdu]


def _microseconds(table: Table, line: int, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(
            f"{table.path}, line {line}: time is {text!r}; it must be a whole number of "
            "microseconds"
        ) from None


def _flag(table: Table, line: int, name: str, text: str) -> bool:
    value = _FLAG_VALUES.get(text.strip().lower())
    if value is None:
        raise InputError(f"{table.path}, line {line}: {name} is {text!r}; write true or false")
    return value


load_google = one_by_one(_load)
