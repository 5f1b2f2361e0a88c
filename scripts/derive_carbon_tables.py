"""Derive the packaged table of carbon intensities, and the grid zones of the cloud regions.

`python scripts/derive_carbon_tables.py DATA` reads DATA/carbon and writes two files into
powertrip/world/data: grid_carbon.csv, the hours of 1 to 7 May 2022 in whole gCO2e/kWh, and
region_zones.csv, the zones of Google's regions.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

TARGET = Path(__file__).parents[1] / "powertrip/world/data"
TIME = "timestamp_utc"
FIRST, BEHIND = "2022-05-01", "2022-05-08"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the raw data folder")
    folder = parser.parse_args().data / "carbon"
    with (folder / "em2022_hourly_gcp_zones_derived.csv").open(newline="") as file:
        week = [row for row in csv.DictReader(file) if FIRST <= row[TIME] < BEHIND]
    zones = [name for name in week[0] if name != TIME]
    rows = [[row[TIME], *(f"{float(row[zone]):.0f}" for zone in zones)] for row in week]
    _write(TARGET / "grid_carbon.csv", [[TIME, *zones], *rows])
    with (folder / "gcp_region_to_zone.csv").open(newline="") as file:
        known = sorted([f"gcp:{row['gcp_region']}", row["zone"]] for row in csv.DictReader(file))
    _write(TARGET / "region_zones.csv", [["region", "zone"], *known])
    print(f"{len(week)} hours of {len(zones)} zones; the zones of {len(known)} regions")


def _write(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
