"""Settings of one site: its place, its hardware, and the sources of its power and their cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from powertrip.settings import Settings

MOST_STEPS = 10_000_000
"""Steps of the longest synthetic trace."""

AfterEnd = Literal["loop", "hold", "zero"]
GpuName = Literal["v100", "a40"]
DomainName = Literal["cella_pdu6", "cella_pdu7", "cella_pdu8"]


class ConstantPower(Settings):
    """The same power at all times."""

    kind: Literal["constant"] = "constant"
    """The source of the power available to training."""

    watts: float = Field(ge=0)
    """The power available to training at this site, in watts."""


class TraceSettings(Settings):
    """What all power traces have in common."""

    offset_s: float = Field(default=0.0, ge=0)
    """The trace second at which the run starts, in seconds."""

    after_end: AfterEnd = "loop"
    """What follows the end of the trace: `loop` starts it again, `hold` keeps the last value,
    `zero` switches the site off."""


class FileTraceSettings(TraceSettings):
    """What all traces that are read from files have in common."""

    max_gap_s: float = Field(default=3600.0, gt=0)
    """The longest time between two samples in seconds: a longer one is an error, and samples
    missing from a shorter one are filled in by linear interpolation."""


class CsvPower(FileTraceSettings):
    """Watts from a CSV file with the columns `time_s,site,watts`."""

    kind: Literal["csv"] = "csv"
    """The source of the power available to training."""

    path: Path
    """The CSV file; a relative path is looked for beside the configuration file, then in the
    data folder (POWERTRIP_DATA)."""

    site: str | None = None
    """The value in the file's `site` column that belongs to this site; null means the site's
    name."""


class Share(Settings):
    """What part of the power that a site leaves unused its training may have."""

    share: float = Field(default=1.0, gt=0, le=1)
    """The fraction of the unused power that training may have."""


class UnusedShare(Share):
    """A site whose training lives on what the rest of the site leaves unused."""

    capacity_w: float = Field(gt=0)
    """The power capacity of the site in watts, of which a utilisation is the used fraction."""


class GooglePower(FileTraceSettings, UnusedShare):
    """Power left unused in a domain of Google's PowerData2019 trace, read from its file."""

    kind: Literal["google"] = "google"
    """The source of the power available to training."""

    path: Path
    """A PowerData2019 file, official (`.csv` or `.csv.gz`) or reduced to `time` and
    `measured_power_util`; a relative path is looked for beside the configuration file, then in
    the data folder (POWERTRIP_DATA)."""

    pdu: str | None = None
    """The power domain to take from the file (its `pdu` column); null if the file holds only
    one."""


class BuiltinPower(TraceSettings, UnusedShare):
    """Power left unused in a domain of Google's PowerData2019 trace, from the packaged table: the
    first week of May 2019 in means over 15 minutes."""

    kind: Literal["builtin"] = "builtin"
    """The source of the power available to training."""

    domain: DomainName
    """The power domain, `cella_pdu6`, `cella_pdu7` or `cella_pdu8`."""


class SyntheticProcess(TraceSettings):
    """A utilisation that is an autoregressive process of order 1."""

    mean: float = Field(default=0.72, ge=0, le=1)
    """The mean utilisation, as a fraction of the capacity."""

    std: float = Field(default=0.023, ge=0)
    """The standard deviation of the utilisation, as a fraction of the capacity."""

    step_correlation: float = Field(default=0.98, ge=0, lt=1)
    """The correlation of the utilisation with itself one step later."""

    site_correlation: float = Field(default=0.0, ge=0, le=1)
    """The correlation between the utilisations of any two synthetic sites with the same seed, steps
    and correlations."""

    step_s: float = Field(default=300.0, gt=0)
    """The time between two values in seconds."""

    duration_s: float = Field(default=86400.0, gt=0)
    """The length of the trace in seconds."""

    seed: int | None = Field(default=None, ge=0)
    """The seed of the process; null means the seed of the run. Sites differ by their names."""

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.duration_s < self.step_s:
            raise ValueError(
                f"duration_s ({self.duration_s:g}) is shorter than one step_s ({self.step_s:g}); "
                "make it at least one step"
            )
        if self.duration_s / self.step_s > MOST_STEPS:
            raise ValueError(
                f"duration_s ({self.duration_s:g}) has more than {MOST_STEPS} steps of step_s "
                f"({self.step_s:g}); make it shorter, or the steps longer"
            )
        return self


class SyntheticPower(SyntheticProcess, UnusedShare):
    """Power left unused at a site whose utilisation is an autoregressive process of order 1."""

    kind: Literal["synthetic"] = "synthetic"
    """The source of the power available to training."""


PowerSettings = Annotated[
    ConstantPower | CsvPower | GooglePower | BuiltinPower | SyntheticPower,
    Field(discriminator="kind"),
]


class ZoneSettings(FileTraceSettings):
    """What all hours of a grid zone have in common."""

    zone: str | None = None
    """The zone, in Electricity Maps' names; null if there is only one, or means the zone of the
    site's region (known of Google's)."""

    max_gap_s: float = Field(default=21600.0, gt=0)
    """The longest time between two rows in seconds: a longer one is an error, and hours missing
    from a shorter one are filled in by linear interpolation."""


class HourlySettings(ZoneSettings):
    """What all tables of a grid's hours have in common."""

    path: Path
    """The CSV file; a relative path is looked for beside the configuration file, then in the
    data folder (POWERTRIP_DATA)."""


class ConstantCarbon(Settings):
    """The same carbon intensity at all times."""

    kind: Literal["constant"] = "constant"
    """The source of the carbon intensity."""

    g_per_kwh: float = Field(ge=0)
    """The carbon intensity of the site's electricity, in grams CO2e per kWh."""


class BuiltinCarbon(ZoneSettings):
    """Grams CO2e per kWh from the packaged table: 1 to 7 May 2022 in 32 zones of Google's
    regions."""

    kind: Literal["builtin"] = "builtin"
    """The source of the carbon intensity."""


class CsvCarbon(HourlySettings):
    """Grams CO2e per kWh from a CSV file with the column `timestamp_utc` and one a zone."""

    kind: Literal["csv"] = "csv"
    """The source of the carbon intensity."""


class ElectricityMapsCarbon(HourlySettings):
    """Grams CO2e per kWh from a CSV file of Electricity Maps' data portal, as it is exported."""

    kind: Literal["electricity-maps"] = "electricity-maps"
    """The source of the carbon intensity."""

    emissions: Literal["lifecycle", "direct"] = "lifecycle"
    """Whether the emissions of building plants and fetching fuel count (`lifecycle`), or only
    those of generation (`direct`)."""


CarbonSettings = Annotated[
    ConstantCarbon | BuiltinCarbon | CsvCarbon | ElectricityMapsCarbon, Field(discriminator="kind")
]


class ConstantPrice(Settings):
    """The same price of electricity at all times."""

    kind: Literal["constant"] = "constant"
    """The source of the price."""

    per_kwh: float = Field(ge=0)
    """The price of a kWh, in the same currency at all sites."""


class CsvPrice(HourlySettings):
    """Prices of a kWh from a CSV file with the column `timestamp_utc` and one a zone."""

    kind: Literal["csv"] = "csv"
    """The source of the price."""


PriceSettings = Annotated[ConstantPrice | CsvPrice, Field(discriminator="kind")]


class SiteSettings(Settings):
    """One site: where it is, what it has and what feeds it."""

    name: str = Field(min_length=1)
    """The name of the site, unique among the sites."""

    region: str | None = Field(default=None, min_length=1)
    """The cloud region of the site, such as `gcp:us-west1`: its place in the table network, and
    its coordinates unless `lat` and `lon` say otherwise."""

    lat: float | None = Field(default=None, ge=-90, le=90)
    """The latitude of the site in degrees north; null means that of the region."""

    lon: float | None = Field(default=None, ge=-180, le=180)
    """The longitude of the site in degrees east; null means that of the region."""

    gpus: int = Field(default=8, ge=1)
    """The number of GPUs at the site."""

    gpu: GpuName = "v100"
    """The GPU whose measured curve of speed against power cap holds in power mode `caps`, `v100`
    or `a40`."""

    rated_w: float = Field(default=250.0, gt=0)
    """The power of one GPU at full speed, in watts."""

    samples_per_s: float = Field(gt=0)
    """The training speed of the whole site at full power, in samples per second."""

    power: PowerSettings
    """The source of the power available to training."""

    carbon: CarbonSettings | None = None
    """The carbon intensity of the site's electricity; null counts as none."""

    price: PriceSettings | None = None
    """The price of the site's electricity; null counts as free."""

    @model_validator(mode="after")
    def _whole_place(self) -> Self:
        if (self.lat is None) != (self.lon is None):
            given, missing = ("lat", "lon") if self.lon is None else ("lon", "lat")
            raise ValueError(f"{given} is given without {missing}; write both, or neither")
        return self
