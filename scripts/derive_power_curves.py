"""Derive the packaged curves of GPU throughput against power cap from the zeus tables.

`python scripts/derive_power_curves.py DATA` reads DATA/gpu_power and writes
powertrip/world/data/power_curves.csv: ResNet-50 on ImageNet at the largest batch measured, its
time per epoch without a cap over that under each cap.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

TARGET = Path(__file__).parents[1] / "powertrip/world/data/power_curves.csv"
BATCH = {"v100": "360", "a40": "512"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the raw data folder")
    data = parser.parse_args().data
    with TARGET.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("gpu", "cap_w", "relative_cap", "relative_throughput"))
        for gpu, batch in BATCH.items():
            seconds = defaultdict(list)
            with (data / f"gpu_power/zeus_summary_power_{gpu}.csv").open() as table:
                for row in csv.DictReader(table):
                    if (row["network"], row["batch_size"]) == ("resnet50", batch):
                        seconds[int(row["power_limit"])].append(float(row["time_per_epoch"]))
            means = {cap: sum(times) / len(times) for cap, times in sorted(seconds.items())}
            rated = max(means)
            for cap, mean in means.items():
                fraction = means[rated] / mean
                writer.writerow((gpu, cap, f"{cap / rated:.6f}", f"{fraction:.4f}"))
                print(f"{gpu} {cap:4d} W  {fraction:.3f}")


if __name__ == "__main__":
    main()
