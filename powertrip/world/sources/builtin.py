"""Power left unused in the domains of the packaged table (see data/README.md)."""

from __future__ import annotations

import numpy as np

from powertrip.world.files import PACKAGED, Table, read_table
from powertrip.world.site_settings import BuiltinPower, SiteSettings
from powertrip.world.sources.base import Context, Feed, one_by_one
from powertrip.world.steps import Floats, StepFunction

TABLE = PACKAGED / "google_power.csv"


def _load(_site: SiteSettings, settings: BuiltinPower, context: Context) -> Feed:
    table = context.once(("builtin",), lambda: read_table(TABLE, ("time_s",)))
    times_s = context.once(("builtin", "times"), lambda: np.array([*table.numbers("time_s")]))
    trace = context.once(
        ("builtin", settings.domain, settings.after_end),
        lambda: _trace(table, times_s, settings),
    )
    return Feed(trace, settings.capacity_w * settings.share, settings.offset_s)


def _trace(table: Table, times_s: Floats, settings: BuiltinPower) -> StepFunction:
    unused = 1 - np.array([*table.numbers(settings.domain)])
    end_s = float(2 * times_s[-1] - times_s[-2])
    return StepFunction(times_s, unused, end_s, settings.after_end)


load_builtin = one_by_one(_load)
