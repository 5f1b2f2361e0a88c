"""Derive the packaged table of links between the GCP regions, and the regions' coordinates.

`python scripts/derive_wan_table.py DATA` reads DATA/wan and writes
powertrip/world/data/gcp_wan.csv (mean round-trip times of the Skyplane latency table, received
bits per second of its table of throughputs inside GCP, each direction for itself) and
powertrip/world/data/region_coords.csv.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from powertrip.world.files import read_table
from powertrip.world.link_tables import latency_pairs, throughput_pairs

PACKAGE = Path(__file__).parents[1] / "powertrip/world/data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the raw data folder")
    wan = parser.parse_args().data / "wan"

    pair = ("src_region", "dst_region")
    rtt_s = latency_pairs(read_table(wan / "skyplane_latency_2022-04.csv", pair))
    bandwidth_bps = throughput_pairs(
        read_table(wan / "skyplane_gcp_intracloud_throughput_2022-04.csv", pair)
    )
    with (PACKAGE / "gcp_wan.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*pair, "rtt_s", "bandwidth_bps"))
        for (here, there), bps in sorted(bandwidth_bps.items()):
            writer.writerow((here, there, f"{rtt_s[here, there]:.5f}", f"{bps / 1e6:.0f}e6"))
    regions = {name for names in bandwidth_bps for name in names}
    print(f"{len(bandwidth_bps)} links between {len(regions)} regions")

    coordinates = read_table(wan / "region_coords.csv", ("region", "lat", "lon", "source"))
    columns = [coordinates.column(name) for name in ("region", "lat", "lon", "source")]
    with (PACKAGE / "region_coords.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("region", "lat", "lon", "source"))
        for _, fields in sorted(coordinates.rows, key=lambda row: row[1][columns[0]]):
            writer.writerow([fields[at] for at in columns])
    print(f"coordinates of {len(coordinates.rows)} regions")


if __name__ == "__main__":
    main()
