"""Watts from a CSV file with the columns `time_s,site,watts`."""

from __future__ import annotations

from pathlib import Path

from powertrip.errors import InputError
from powertrip.world.files import Table
from powertrip.world.site_settings import CsvPower, SiteSettings
from powertrip.world.sources.base import Context, Feed, one_by_one
from powertrip.world.steps import StepFunction
from powertrip.world.trace import trace_from_samples

COLUMNS = ("time_s", "site", "watts")

# site -> (lines, times, watts)
Samples = dict[str, tuple[list[int], list[float], list[float]]]


def _load(site: SiteSettings, settings: CsvPower, context: Context) -> Feed:
    name = site.name if settings.site is None else settings.site
    table = context.table(settings.path, COLUMNS)
    trace = context.once(
        ("csv", table.path, name, settings.after_end, settings.max_gap_s),
        lambda: _trace(table, name, settings, context),
    )
    return Feed(trace, offset_s=settings.offset_s)


def _trace(table: Table, name: str, settings: CsvPower, context: Context) -> StepFunction:
    samples, origin_s = context.once(("csv", table.path), lambda: _split(table))
    if name not in samples:
        raise InputError(
            f"{table.path} has no rows for the site {name!r}; it has {_listing(samples)}: write "
            "one of them as power.site"
        )
    lines, times, watts = samples[name]
    return trace_from_samples(
        times,
        watts,
        after_end=settings.after_end,
        max_gap_s=settings.max_gap_s,
        origin_s=origin_s,
        source=f"{Path(table.path)}, site {name!r}",
        lines=lines,
    )


def _split(table: Table) -> tuple[Samples, float]:
    """Return the samples of each site, and the first time of the file, which is second 0."""
    samples: Samples = {}
    site = table.column("site")
    rows = zip(table.rows, table.numbers("time_s"), table.numbers("watts"), strict=True)
    for (line, fields), time, watts in rows:
        if watts < 0:
            raise InputError(
                f"{table.path}, line {line}: watts is {fields[table.column('watts')]}; write 0 "
                "or more"
            )
        lines, times, powers = samples.setdefault(fields[site].strip(), ([], [], []))
        lines.append(line)
        times.append(time)
        powers.append(watts)
    return samples, min(min(times) for _, times, _ in samples.values())


def _listing(samples: Samples) -> str:
    names = sorted(samples)
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


load_csv = one_by_one(_load)
