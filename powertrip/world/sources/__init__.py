"""Power sources: one file each, found by the type of their settings."""

from __future__ import annotations

from collections.abc import Sequence

from powertrip.errors import InputError
from powertrip.world.site_settings import (
    BuiltinPower,
    ConstantPower,
    CsvPower,
    GooglePower,
    SiteSettings,
    SyntheticPower,
)
from powertrip.world.sources.base import Context, Feed, Loader
from powertrip.world.sources.builtin import load_builtin
from powertrip.world.sources.constant import load_constant
from powertrip.world.sources.csv_file import load_csv
from powertrip.world.sources.google import load_google
from powertrip.world.sources.synthetic import load_synthetic

SOURCES: dict[type, Loader] = {
    ConstantPower: load_constant,
    CsvPower: load_csv,
    GooglePower: load_google,
    BuiltinPower: load_builtin,
    SyntheticPower: load_synthetic,
}

__all__ = ["SOURCES", "Context", "Feed", "load_feeds"]


def load_feeds(sites: Sequence[SiteSettings], context: Context) -> tuple[list[Feed], list[str]]:
    """Load the power of all sites.

    Returns
    -------
    tuple
        One feed a site, in order, and the problems, one text each; the feeds are incomplete if
        there is a problem.
    """
    by_kind: dict[type, list[int]] = {}
    for i, site in enumerate(sites):
        by_kind.setdefault(type(site.power), []).append(i)
    feeds: dict[int, Feed] = {}
    problems: list[str] = []
    for kind, members in by_kind.items():
        try:
            loaded = SOURCES[kind]([sites[i] for i in members], context)
        except InputError as error:
            problems += str(error).splitlines()
        else:
            feeds.update(zip(members, loaded, strict=True))
    return [feeds[i] for i in sorted(feeds)], problems
