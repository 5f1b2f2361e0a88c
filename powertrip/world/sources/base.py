"""What every source of a trace works with and returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from powertrip.errors import InputError
from powertrip.world.errors import TraceError
from powertrip.world.files import Table, find_file, read_table
from powertrip.world.site_settings import SiteSettings
from powertrip.world.steps import StepFunction

Result = TypeVar("Result")


@dataclass(frozen=True)
class Feed:
    """What holds at one site, power first of all: `gain * trace(offset_s + trace seconds)`.

    Parameters
    ----------
    trace
        Watts, or what `gain` turns into watts (or grams per joule, or money per joule); sites
        share it where they can.
    gain
        Watts (grams per joule, money per joule) for each unit of the trace.
    offset_s
        The trace second at which the run starts.
    """

    trace: StepFunction
    gain: float = 1.0
    offset_s: float = 0.0


@dataclass(frozen=True)
class Context:
    """Where files lie, the seed of the run, and what was read for other sites already."""

    seed: int
    base_dir: Path
    data_dir: Path | None
    _read: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def table(self, path: Path, required: Sequence[str]) -> Table:
        """Read a CSV file named in the settings, once for all sites."""
        found = self.once(("file", path), lambda: find_file(path, self.base_dir, self.data_dir))
        return self.once(("table", found, *required), lambda: read_table(found, required))

    def once(self, key: tuple[object, ...], make: Callable[[], Result]) -> Result:
        """Return what `make` returned, or raised as InputError, at the first call with this key."""
        if key not in self._read:
            try:
                self._read[key] = make()
            except InputError as error:
                self._read[key] = error
        result: Result | InputError = self._read[key]
        if isinstance(result, InputError):
            raise result
        return result


Loader = Callable[[Sequence[SiteSettings], Context], list[Feed]]


def one_by_one(load: Callable[[SiteSettings, Any, Context], Feed]) -> Loader:
    """Make a loader of many sites from that of one (site, its power settings, context).

    The loader raises TraceError with one line for each different problem, naming the sites.
    """

    def load_all(sites: Sequence[SiteSettings], context: Context) -> list[Feed]:
        return load_each("power", sites, lambda site: load(site, site.power, context))

    return load_all


def load_each(
    what: str, sites: Sequence[SiteSettings], load: Callable[[SiteSettings], Feed]
) -> list[Feed]:
    """Load one feed a site.

    Parameters
    ----------
    what
        What the feeds are, for messages.

    Raises
    ------
    TraceError
        With one line for each different problem, naming the sites.
    """
    feeds: list[Feed] = []
    problems: dict[str, list[str]] = {}
    for site in sites:
        try:
            feeds.append(load(site))
        except InputError as error:
            problems.setdefault(str(error), []).append(site.name)
    if problems:
        raise TraceError(
            "\n".join(f"{what} of {_names(names)}: {text}" for text, names in problems.items())
        )
    return feeds


def _names(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more sites"
