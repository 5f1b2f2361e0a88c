"""Settings of the sites together, the network between them and the world's rules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from powertrip.settings import Settings
from powertrip.world.fleet import FleetSettings, fleet_sites
from powertrip.world.site_settings import SiteSettings


class SitesSettings(Settings):
    """The sites that may take part: those that are listed, then those of the fleet."""

    list: tuple[SiteSettings, ...] = ()
    """Sites one by one. The coordinator's is the first of all sites."""

    fleet: FleetSettings | None = None
    """Many sites in a few words; null means only those that are listed."""

    count: int | None = Field(default=None, ge=1)
    """The number of sites to use, the first ones; null means all."""

    @property
    def selected(self) -> tuple[SiteSettings, ...]:
        """The sites in use: the first `count` of the list and the fleet."""
        fleet = () if self.fleet is None else fleet_sites(self.fleet)
        return (*self.list, *fleet)[: self.count]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.list and self.fleet is None:
            raise ValueError("there are no sites; list them one by one, or describe a fleet")
        names = [site.name for site in self.list]
        if names and self.fleet is not None:
            names += [site.name for site in fleet_sites(self.fleet)]
        repeated = [name for name, times in Counter(names).items() if times > 1]
        if repeated:
            raise ValueError(
                f"several sites have the same name ({', '.join(map(repr, repeated))}); "
                "give each its own"
            )
        known = len(self.list) + (0 if self.fleet is None else self.fleet.count)
        if self.count is not None and self.count > known:
            raise ValueError(
                f"count is {self.count} but there are only {known} sites; "
                "lower it, list more sites or enlarge the fleet"
            )
        return self


Matrix = tuple[tuple[float | None, ...], ...]


class _Network(Settings):
    bandwidth_scale: float = Field(default=1.0, gt=0, le=1e6)
    """What every bandwidth is multiplied by: at 0.001 a small model's update takes as long as one
    a thousand times larger does on the links as they are."""


class MatrixNetwork(_Network):
    """Explicit matrices: row i, column j is the way from site i to site j."""

    kind: Literal["matrix"] = "matrix"
    """The model of the network between the sites."""

    rtt_s: Matrix
    """The round-trip times in seconds, one row a site; null where there is no link. The diagonal
    is ignored."""

    bandwidth_bps: Matrix
    """The bandwidths in bits per second, one row a site; null or 0 where there is no link. The
    diagonal is ignored."""

    @model_validator(mode="after")
    def _square(self) -> Self:
        for name, matrix in (("rtt_s", self.rtt_s), ("bandwidth_bps", self.bandwidth_bps)):
            if not matrix:
                raise ValueError(f"{name} is empty; write one row a site")
            for i, row in enumerate(matrix):
                if len(row) != len(matrix):
                    raise ValueError(
                        f"{name} has {len(matrix)} rows, but its row {i} has {len(row)} entries; "
                        "write one row and one column a site"
                    )
                for j, value in enumerate(row):
                    if i != j and value is not None and value < 0:
                        raise ValueError(
                            f"{name}[{i}][{j}] is {value:g}; write a number that is not negative, "
                            "or null where there is no link"
                        )
        if len(self.rtt_s) != len(self.bandwidth_bps):
            raise ValueError(
                f"rtt_s is {len(self.rtt_s)} x {len(self.rtt_s)} but bandwidth_bps is "
                f"{len(self.bandwidth_bps)} x {len(self.bandwidth_bps)}; write both for the same "
                "sites"
            )
        return self


class TableNetwork(_Network):
    """Measurements between cloud regions, in the form of the Skyplane project's tables."""

    kind: Literal["table"] = "table"
    """The model of the network between the sites."""

    latency_csv: Path | None = None
    """A CSV file with at least the columns `src_region,dst_region,avg_rtt` (milliseconds); null
    means the packaged table of 27 GCP regions."""

    throughput_csv: Path | None = None
    """A CSV file with at least the columns `src_region,dst_region` and the received bits per
    second; null means the packaged table of 27 GCP regions."""

    same_region_rtt_s: float = Field(default=0.001, ge=0)
    """The round-trip time between two sites in one region, in seconds."""

    same_region_bandwidth_bps: float = Field(default=10e9, gt=0)
    """The bandwidth between two sites in one region, in bits per second."""


class DistanceNetwork(_Network):
    """Round-trip times and bandwidths from the great-circle distances between the sites, by a
    model fitted to the measurements between 27 GCP regions."""

    kind: Literal["distance"] = "distance"
    """The model of the network between the sites."""


NetworkSettings = Annotated[
    MatrixNetwork | TableNetwork | DistanceNetwork, Field(discriminator="kind")
]


class WorldSettings(Settings):
    """How power becomes speed, and how fast the traces go by."""

    power_mode: Literal["gpus", "caps"] = "gpus"
    """How a site spends its power: `gpus` runs as many GPUs at full power as the budget feeds,
    `caps` lowers the power cap of the GPUs along the measured curve."""

    whole_gpus: bool = False
    """Whether only whole GPUs can run; false lets a fraction of a GPU do a fraction of the
    work."""

    time_scale: float = Field(default=1.0, gt=0)
    """The seconds of the power traces that go by in one second of the run."""
