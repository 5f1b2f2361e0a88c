"""The facts at a time t: power, speed, carbon, price and links of all sites."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from powertrip.errors import ConfigError, InputError
from powertrip.world.carbon import carbon_feeds, price_feeds
from powertrip.world.errors import TraceError
from powertrip.world.feeds import FeedBank
from powertrip.world.geo import coordinates, great_circle_m
from powertrip.world.network import Links, Star, build_links
from powertrip.world.settings import NetworkSettings, SitesSettings, WorldSettings
from powertrip.world.sources import Context, load_feeds
from powertrip.world.steps import Floats, StepFunction, integral_of_product
from powertrip.world.throughput import PowerModel

# Segments of single sites' functions that are kept, some 50 bytes each. Beyond that they are made
# anew each time: sites are asked for in turn, so that giving up older ones would be no help.
_KEPT_SEGMENTS = 4_000_000


class World:
    """The sites, their power, its cost and their links; made by `build_world`, never changed.

    Times are run seconds; the trace second of a site at run second t is
    `offset_s + t * time_scale`. All arrays are over the n sites, in the order of the settings, and
    must not be written to.

    Attributes
    ----------
    names
        n names of the sites.
    full_speed
        [n] samples per second at full power.
    rated_w
        [n] watts at full power.
    warnings
        What a user should know about this world, one text each.
    """

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        full_speed: Floats,
        rated_w: Floats,
        places: Floats,
        feeds: FeedBank,
        carbon: FeedBank | None = None,
        price: FeedBank | None = None,
        model: PowerModel,
        links: Links,
        time_scale: float,
        warnings: tuple[str, ...],
    ) -> None:
        self.names = names
        self.full_speed = _frozen(full_speed)
        self.rated_w = _frozen(rated_w)
        self.warnings = warnings
        self._places = places
        self._feeds = feeds
        self._carbon = carbon
        self._price = price
        self._model = model
        self._links = links
        self._time_scale = time_scale
        self._matrices: tuple[Floats, Floats] | None = None
        self._functions: dict[int, tuple[StepFunction, StepFunction]] = {}
        self._kept_segments = 0

    def power_w(self, t_s: float) -> Floats:
        """Return the power available to training in watts ([n]).

        A time before the run is negative. What a trace has before the run is read from it; before
        its own beginning a trace that loops has its end, and another its first value.
        """
        return self._feeds.at(t_s * self._time_scale)

    def used_power_w(self, t_s: float) -> Floats:
        """Return the power that training draws in watts ([n]): at most `rated_w`."""
        return self._model.spend(self.power_w(t_s))[1]

    def fraction(self, t_s: float) -> Floats:
        """Return the fractions of full speed, from 0 to 1 ([n])."""
        return self._model.spend(self.power_w(t_s))[0]

    def throughput(self, t_s: float) -> Floats:
        """Return the training speeds in samples per second ([n])."""
        return self.full_speed * self.fraction(t_s)

    def samples_done(self, site: int, start_s: float, duration_s: float) -> float:
        """Return the samples that a site trains on in `duration_s` from `start_s` on."""
        return self._integral(site, 0, start_s, duration_s)

    def seconds_for(self, site: int, start_s: float, samples: float) -> float:
        """Return the seconds that a site takes for some samples from `start_s` on.

        The exact inverse of `samples_done`; infinite if the power never suffices.
        """
        begin_s = self._trace_second(site, start_s)
        function = self._functions_of(site)[0]
        return (function.reach(begin_s, samples * self._time_scale) - begin_s) / self._time_scale

    def energy_j(self, site: int, start_s: float, duration_s: float) -> float:
        """Return the energy in joules that a site draws in `duration_s` from `start_s` on."""
        return self._integral(site, 1, start_s, duration_s)

    def carbon_g_per_j(self, t_s: float) -> Floats:
        """Return the carbon intensities in grams CO2e per joule ([n]); 0 where none is given."""
        return self._rates(self._carbon, t_s)

    def price_per_j(self, t_s: float) -> Floats:
        """Return the prices of a joule ([n]) in the settings' currency; 0 where none is given."""
        return self._rates(self._price, t_s)

    def carbon_g(self, site: int, start_s: float, duration_s: float) -> float:
        """Return the grams CO2e for what a site draws in `duration_s` from `start_s` on."""
        return self._weighed(self._carbon, site, start_s, duration_s)

    def money(self, site: int, start_s: float, duration_s: float) -> float:
        """Return the price of what a site draws in `duration_s` from `start_s` on."""
        return self._weighed(self._price, site, start_s, duration_s)

    @property
    def rtt_s(self) -> Floats:
        """[n, n] round-trip times in seconds from i to j; infinite where there is no link."""
        return self._pairs()[0]

    @property
    def bandwidth(self) -> Floats:
        """[n, n] bandwidths in bytes per second from i to j; 0 where there is no link."""
        return self._pairs()[1]

    def star(self, hub: int) -> Star:
        """Return the links between each site and a hub."""
        return self._links.star(hub)

    def distance_m(self, hub: int) -> Floats:
        """Return the great-circle distances to a hub in metres ([n]), nan where unknown."""
        return great_circle_m(self._places, self._places[hub])

    def _pairs(self) -> tuple[Floats, Floats]:
        if self._matrices is None:
            rtt_s, bandwidth = self._links.matrices()
            self._matrices = _frozen(rtt_s), _frozen(bandwidth)
        return self._matrices

    def _trace_second(self, site: int, t_s: float) -> float:
        return float(self._feeds.offset_s[site]) + t_s * self._time_scale

    def _rates(self, bank: FeedBank | None, t_s: float) -> Floats:
        return np.zeros(len(self.names)) if bank is None else bank.at(t_s * self._time_scale)

    def _weighed(
        self, bank: FeedBank | None, site: int, start_s: float, duration_s: float
    ) -> float:
        """Integrate watts drawn times a rate, over run seconds."""
        _check_duration(duration_s)
        if bank is None:
            return 0.0
        feed = bank.site(site)
        total = integral_of_product(
            self._functions_of(site)[1],
            self._trace_second(site, start_s),
            feed.trace,
            feed.offset_s + start_s * self._time_scale,
            duration_s * self._time_scale,
        )
        return feed.gain * total / self._time_scale

    def _integral(self, site: int, which: int, start_s: float, duration_s: float) -> float:
        _check_duration(duration_s)
        begin_s = self._trace_second(site, start_s)
        end_s = begin_s + duration_s * self._time_scale
        return self._functions_of(site)[which].integral(begin_s, end_s) / self._time_scale

    def _functions_of(self, site: int) -> tuple[StepFunction, StepFunction]:
        """Return samples per second and watts drawn of a site, as functions of trace seconds."""
        found = self._functions.get(site)
        if found is None:
            feed = self._feeds.site(site)
            fraction, used_w = self._model.spend_at(site, feed.gain * feed.trace.values)
            found = (
                feed.trace.with_values(float(self.full_speed[site]) * fraction),
                feed.trace.with_values(used_w),
            )
            if self._kept_segments + feed.trace.values.size <= _KEPT_SEGMENTS:
                self._kept_segments += feed.trace.values.size
                self._functions[site] = found
        return found


def build_world(
    sites: SitesSettings,
    network: NetworkSettings,
    world: WorldSettings,
    *,
    seed: int,
    data_dir: Path | None,
    base_dir: Path,
) -> World:
    """Build the world that the settings describe.

    Parameters
    ----------
    sites, network, world
        The settings.
    seed
        Seed of the run, for synthetic power.
    data_dir
        The data folder (POWERTRIP_DATA), if there is one.
    base_dir
        The folder of the configuration file: relative paths are looked for here first.

    Raises
    ------
    InputError
        If a file, a trace or the network cannot be used: the problem, or a ConfigError with all
        of them.
    """
    selected = sites.selected
    context = Context(seed=seed, base_dir=base_dir, data_dir=data_dir)
    feeds, problems = load_feeds(selected, context)
    rates: list[FeedBank | None] = []
    for load in (carbon_feeds, price_feeds):
        try:
            rates.append(load(selected, context))
        except TraceError as error:
            problems += str(error).splitlines()
    links: Links | None = None
    warnings: tuple[str, ...] = ()
    try:
        links, warnings = build_links(network, selected, context)
    except InputError as error:
        if not problems:
            raise
        problems.append(str(error))
    if len(problems) == 1:
        raise TraceError(problems[0])
    if problems or links is None:
        raise ConfigError(problems, "the sites and the network")
    gpus = np.array([site.gpus for site in selected], dtype=np.float64)
    rated_w = np.array([site.rated_w for site in selected])
    return World(
        names=tuple(site.name for site in selected),
        full_speed=np.array([site.samples_per_s for site in selected]),
        rated_w=gpus * rated_w,
        places=coordinates(selected),
        feeds=FeedBank(feeds),
        carbon=rates[0],
        price=rates[1],
        model=PowerModel(
            gpus,
            rated_w,
            [site.gpu for site in selected],
            mode=world.power_mode,
            whole_gpus=world.whole_gpus,
        ),
        links=links,
        time_scale=world.time_scale,
        warnings=warnings,
    )


def _check_duration(duration_s: float) -> None:
    if not (duration_s >= 0 and math.isfinite(duration_s)):
        raise ValueError(f"a duration must be finite and not negative, not {duration_s} s")


def _frozen(array: Floats) -> Floats:
    array.setflags(write=False)
    return array
