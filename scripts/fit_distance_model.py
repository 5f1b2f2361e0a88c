"""Fit the distance model of round-trip time and bandwidth to the links between the GCP regions.

`python scripts/fit_distance_model.py DATA` reads DATA/wan and writes
powertrip/world/data/distance_model.json: with the great-circle distance d,

    rtt = a + b d               least sum of absolute errors, relative to the measured time
    bandwidth = c / (1 + d/e)   least sum of absolute errors of the logarithm

Absolute errors, because some of the measured times are far off (a few pings went astray).
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from powertrip.world.files import read_table
from powertrip.world.geo import great_circle_m
from powertrip.world.link_tables import latency_pairs, throughput_pairs

TARGET = Path(__file__).parents[1] / "powertrip/world/data/distance_model.json"
BANDS_KM = (0, 500, 1500, 4000, 8000, 12000, 20100)


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(sums, sums[-1] / 2)])


def fit_rtt(distance_m: np.ndarray, rtt_s: np.ndarray) -> tuple[float, float]:
    """For each b on a grid the best a is a weighted median of rtt - b d with weights 1/rtt."""
    best = (np.inf, 0.0, 0.0)
    for per_m in np.arange(10e-12, 20e-12, 0.005e-12) * 1e3:
        base = weighted_median(rtt_s - per_m * distance_m, 1 / rtt_s)
        error = float(np.sum(np.abs(rtt_s - base - per_m * distance_m) / rtt_s))
        best = min(best, (error, base, float(per_m)))
    return best[1], best[2]


def fit_bandwidth(distance_m: np.ndarray, bandwidth: np.ndarray) -> tuple[float, float]:
    """For each e on a grid the best log c is a median."""
    best = (np.inf, 0.0, 0.0)
    for half_m in np.arange(2e6, 60e6, 1e4):
        logs = np.log(bandwidth * (1 + distance_m / half_m))
        centre = float(np.median(logs))
        best = min(best, (float(np.sum(np.abs(logs - centre))), np.exp(centre), float(half_m)))
    return float(best[1]), best[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the raw data folder")
    wan = parser.parse_args().data / "wan"

    pair = ("src_region", "dst_region")
    rtts = latency_pairs(read_table(wan / "skyplane_latency_2022-04.csv", pair))
    bandwidths = throughput_pairs(
        read_table(wan / "skyplane_gcp_intracloud_throughput_2022-04.csv", pair)
    )
    table = read_table(wan / "region_coords.csv", ("region", "lat", "lon"))
    names = [fields[table.column("region")] for _, fields in table.rows]
    places = dict(
        zip(names, zip(table.numbers("lat"), table.numbers("lon"), strict=True), strict=True)
    )
    links = sorted(bandwidths)
    distance_m = great_circle_m(
        [places[here] for here, _ in links], [places[there] for _, there in links]
    )
    rtt_s = np.array([rtts[link] for link in links])
    bandwidth = np.array([bandwidths[link] for link in links])

    base_s, s_per_m = fit_rtt(distance_m, rtt_s)
    base_bps, half_m = fit_bandwidth(distance_m, bandwidth)
    fit = {
        "rtt_base_s": round(base_s, 5),
        "rtt_s_per_m": float(f"{s_per_m:.4g}"),
        "bandwidth_base_bps": round(base_bps, -7),
        "bandwidth_half_m": round(half_m, -4),
    }
    TARGET.write_text(json.dumps(fit, indent=2) + "\n")
    print(json.dumps(fit))

    rtt_model = base_s + s_per_m * distance_m
    bandwidth_model = base_bps / (1 + distance_m / half_m)
    print(
        f"{len(links)} links; median error of the model: "
        f"rtt {np.median(np.abs(rtt_model / rtt_s - 1)):.0%}, "
        f"bandwidth {np.median(np.abs(bandwidth_model / bandwidth - 1)):.0%}"
    )
    print("km             links  rtt ms (model)  Gbit/s (model)")
    for low, high in pairwise(BANDS_KM):
        inside = (distance_m >= low * 1e3) & (distance_m < high * 1e3)
        print(
            f"{low:6d} {high:6d} {inside.sum():6d}  {np.median(rtt_s[inside]) * 1e3:6.0f} "
            f"({np.median(rtt_model[inside]) * 1e3:4.0f})  "
            f"{np.median(bandwidth[inside]) / 1e9:6.1f} "
            f"({np.median(bandwidth_model[inside]) / 1e9:4.1f})"
        )


if __name__ == "__main__":
    main()
