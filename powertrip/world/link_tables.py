"""Measured links between cloud regions, from tables in the form of the Skyplane project's.

Skyplane: Jain et al., "Skyplane: Optimizing Transfer Cost and Throughput Using Cloud-Aware
Overlays", NSDI 2023; the tables are in its repository, skyplane-project/skyplane.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from powertrip.errors import InputError
from powertrip.world.errors import NetworkError
from powertrip.world.files import PACKAGED_LINKS, Table, read_table
from powertrip.world.settings import TableNetwork
from powertrip.world.sources import Context
from powertrip.world.steps import Floats

# The received rate is what arrived; its name differs between the tables (one is misspelt).
RECEIVED = (
    "throughput_received_bits_per_second",
    "throughput_received",
    "throughput_recieved",
    "bandwidth_bps",
)
_RTT = (("avg_rtt", 1e-3), ("rtt_s", 1.0))
_PAIR = ("src_region", "dst_region")

Pairs = dict[tuple[str, str], float]


@dataclass(frozen=True)
class RegionLinks:
    """What is known of the links between regions.

    Parameters
    ----------
    rtt_s, bandwidth
        Seconds and bytes per second by pairs of regions, from the first to the second.
    regions
        The regions that both tables know.
    source
        The names of the tables.
    """

    rtt_s: Pairs
    bandwidth: Pairs
    regions: frozenset[str]
    source: str

    def matrices(self, regions: Sequence[str]) -> tuple[Floats, Floats]:
        """Return the two matrices between r regions ([r, r]); 0 on the diagonals.

        Raises
        ------
        NetworkError
            If a pair is missing.
        """
        shape = (len(regions), len(regions))
        rtt_s, bandwidth = np.zeros(shape), np.zeros(shape)
        missing = []
        for i, here in enumerate(regions):
            for j, there in enumerate(regions):
                if i == j:
                    continue
                for what, pairs, matrix in (
                    ("latency", self.rtt_s, rtt_s),
                    ("throughput", self.bandwidth, bandwidth),
                ):
                    if (here, there) in pairs:
                        matrix[i, j] = pairs[here, there]
                    else:
                        missing.append(f"{what} from {here} to {there}")
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise NetworkError(
                f"network: {self.source} does not hold the {', the '.join(missing[:3])}{more}; "
                "add the rows, or use the network kind distance"
            )
        rtt_s[bandwidth == 0] = np.inf
        np.fill_diagonal(rtt_s, 0.0)
        return rtt_s, bandwidth


def region_links(settings: TableNetwork, context: Context) -> RegionLinks:
    """Read the tables that the settings name, the packaged one where they name none."""
    latency = _open(settings.latency_csv, context)
    throughput = _open(settings.throughput_csv, context)
    rtt_s = latency_pairs(latency)
    bandwidth = {pair: bps / 8 for pair, bps in throughput_pairs(throughput).items()}
    regions = {name for pair in rtt_s for name in pair}
    sources = dict.fromkeys(
        "the packaged table of GCP regions" if table.path == PACKAGED_LINKS else str(table.path)
        for table in (latency, throughput)
    )
    return RegionLinks(
        rtt_s,
        bandwidth,
        frozenset(regions & {name for pair in bandwidth for name in pair}),
        " and ".join(sources),
    )


def latency_pairs(table: Table) -> Pairs:
    """Return the mean round-trip times in seconds by pairs of regions."""
    for name, factor in _RTT:
        if name in table.header:
            return _pairs(table, name, factor)
    raise InputError(
        f"{table.path}, line 1: the header is {','.join(table.header)!r}; a latency table needs "
        "a column avg_rtt (milliseconds)"
    )


def throughput_pairs(table: Table) -> Pairs:
    """Return the received bits per second by pairs of regions."""
    for name in RECEIVED:
        if name in table.header:
            return _pairs(table, name, 1.0)
    raise InputError(
        f"{table.path}, line 1: the header is {','.join(table.header)!r}; a throughput table "
        f"needs a column {RECEIVED[0]}"
    )


def region_of(name: str) -> str:
    """Return the region of a zone: `gcp:us-east1-b` is in `gcp:us-east1`."""
    return re.sub(r"-[a-z]$", "", name.strip())


def _open(path: Path | None, context: Context) -> Table:
    return read_table(PACKAGED_LINKS, _PAIR) if path is None else context.table(path, _PAIR)


def _pairs(table: Table, value: str, factor: float) -> Pairs:
    """Return a column by pairs of regions.

    Rows of a network tier below PREMIUM, unsuccessful measurements and those inside a region are
    left out; what was measured more than once is averaged.
    """
    at_src, at_dst, at_value = (table.column(name) for name in (*_PAIR, value))
    tiers = [table.column(name) for name in ("src_tier", "dst_tier") if name in table.header]
    success = table.column("success") if "success" in table.header else None
    found: dict[tuple[str, str], list[float]] = {}
    for line, fields in table.rows:
        if any(fields[at] != "PREMIUM" for at in tiers):
            continue
        if success is not None and fields[success].strip().lower() != "true":
            continue
        pair = region_of(fields[at_src]), region_of(fields[at_dst])
        if pair[0] == pair[1]:
            continue
        number = table.number(line, value, fields[at_value])
        if number < 0:
            raise InputError(f"{table.path}, line {line}: {value} is {number:g}; write 0 or more")
        found.setdefault(pair, []).append(number * factor)
    return {pair: sum(numbers) / len(numbers) for pair, numbers in found.items()}
