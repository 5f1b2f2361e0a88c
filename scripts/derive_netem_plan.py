"""Derive the emulation plan of the eight regions from the measured links between them.

`python scripts/derive_netem_plan.py` reads powertrip/scenarios/eight-regions.yaml for the sites
and powertrip/world/data/gcp_wan.csv for their links, and writes configs/netem/eight-regions.yaml:
half of each round trip as the delay each way, the measured rates, and the scale that makes the
fastest of them at most 200 Mbit/s, which one machine can emulate for all pairs at once.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import yaml

from netem.plan import Plan

ROOT = Path(__file__).parents[1]
SCENARIO = ROOT / "powertrip/scenarios/eight-regions.yaml"
TABLE = ROOT / "powertrip/world/data/gcp_wan.csv"
TARGET = ROOT / "configs/netem/eight-regions.yaml"
MOST_BPS = 200e6

HEAD = """\
# Eight cloud regions as Google's network links them: half of the measured round trip each way, and
# the measured rates, scaled down to what one machine can emulate.
# Made by scripts/derive_netem_plan.py. The round trips of a pair were measured from either end and
# differ at times: what a pair gets is their mean.
"""


def main() -> None:
    scenario = yaml.safe_load(SCENARIO.read_text())
    regions = {site["name"]: site["region"] for site in scenario["sites"]["list"]}
    with TABLE.open(newline="") as file:
        rows = {(r["src_region"], r["dst_region"]): r for r in csv.DictReader(file)}

    links = []
    for src, src_region in regions.items():
        for dst, dst_region in regions.items():
            if src != dst:
                row = rows[src_region, dst_region]
                delay_s, rate_bps = float(row["rtt_s"]) / 2, float(row["bandwidth_bps"])
                links.append((src, dst, delay_s, rate_bps))
    fastest_bps = max(rate_bps for *_, rate_bps in links)
    digits = 1 - math.floor(math.log10(MOST_BPS / fastest_bps))
    scale = math.floor(MOST_BPS / fastest_bps * 10**digits) / 10**digits

    lines = [f"sites: [{', '.join(regions)}]", f"rate_scale: {scale:g}", "links:"]
    lines += [
        f"  - {{src: {src}, dst: {dst}, both: false, delay_s: {delay_s:.6f}, "
        f"rate_bps: {rate_bps / 1e6:.0f}e6}}"
        for src, dst, delay_s, rate_bps in links
    ]
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(HEAD + "\n".join(lines) + "\n")
    plan = Plan.load(TARGET)
    rates_bps = [plan.link(*pair).rate_bps or math.inf for pair in plan.pairs()]
    print(f"{len(links)} links of {min(rates_bps) / 1e6:.1f} to {max(rates_bps) / 1e6:.1f} Mbit/s")


if __name__ == "__main__":
    main()
