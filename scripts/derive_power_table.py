"""Derive the packaged power table from three domains of Google's PowerData2019 trace.

`python scripts/derive_power_table.py DATA` reads DATA/google_power and writes
powertrip/world/data/google_power.csv: the utilisation in the first seven days of May 2019, in
means over 15 minutes. It also prints the statistics of the whole month, which are the defaults of
the synthetic power source.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parents[1] / "powertrip/world/data/google_power.csv"
DOMAINS = ("cella_pdu6", "cella_pdu7", "cella_pdu8")
STEP_S = 300
MEAN_OF = 3
DAYS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the raw data folder")
    data = parser.parse_args().data
    months = []
    for domain in DOMAINS:
        with (data / f"google_power/{domain}.csv").open() as file:
            rows = sorted(
                (int(r["time"]), float(r["measured_power_util"])) for r in csv.DictReader(file)
            )
        times, utilisation = np.array(rows).T
        if not np.all(np.diff(times) == STEP_S * 1e6):
            raise SystemExit(f"{domain}: the samples are not {STEP_S} s apart")
        months.append(utilisation)
        print(
            f"{domain}: mean {utilisation.mean():.3f}, standard deviation {utilisation.std():.4f}, "
            f"correlation over one step {np.corrcoef(utilisation[:-1], utilisation[1:])[0, 1]:.3f}"
        )
    between = np.corrcoef(months)[np.triu_indices(len(DOMAINS), 1)]
    print(f"correlation between domains {between.min():.2f} to {between.max():.2f}")

    week = np.array(months)[:, : DAYS * 86400 // STEP_S]
    means = week.reshape(len(DOMAINS), -1, MEAN_OF).mean(axis=2)
    with TARGET.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("time_s", *DOMAINS))
        for i, values in enumerate(means.T):
            writer.writerow((i * MEAN_OF * STEP_S, *(f"{value:.3f}" for value in values)))
    print(f"{means.shape[1]} rows in {TARGET}")


if __name__ == "__main__":
    main()
