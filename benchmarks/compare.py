"""One scenario under several policies and seeds, side by side: ``python -m benchmarks.compare``.

Each cell is a run of the real job. A run that does not reach the target within its budget counts as
never; the median over the seeds is what to compare. A policy that takes `selection.k` sites is
written with it, `static-k=3`: the best of several k in hindsight is what a policy has to beat.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from powertrip.selection.policy import POLICIES
from powertrip.telemetry import words

COMPARED = (
    "together",
    "powertrip",
    *(f"static-k={k}" for k in (2, 3, 4, 5, 6)),
    "random-k=4",
    "centralized",
    "all",
)
"""This project's policy, the publication's, and the baselines; others by --policies."""

LIMIT_S = 900.0
"""Longest that one run may take, start and end included."""


def policy_and_k(text: str) -> str:
    """Check a policy's name, perhaps with a number of sites, as an argument."""
    name, _, k = text.partition("=")
    if name not in POLICIES or (k and not k.isdecimal()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no policy; write one of {', '.join(POLICIES)}, or static-k=3"
        )
    return text


def run(policy: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the job once and return its summary.

    Raises
    ------
    SystemExit
        The job failed, or was interrupted.
    """
    command = [sys.executable, "-m", "powertrip.train", "--json"]
    if options.config:
        command += ["--config", str(options.config)]
    name, _, k = policy.partition("=")
    command += [*options.overrides, f"selection.policy={name}", f"seed={seed}"]
    command += [f"selection.k={k}"] if k else []
    command += [f"runtime.run_dir={options.runs}", "telemetry.metrics.port=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def median_s(summaries: list[dict[str, Any]]) -> float | None:
    """Median time to the target; None where it is missed so often that the median is never."""
    never = float("inf")
    times = [never if s["time_to_target_s"] is None else s["time_to_target_s"] for s in summaries]
    median = statistics.median(times)
    return None if median == never else median


def table(results: dict[str, list[dict[str, Any]]]) -> Table:
    """The policies side by side, fastest first."""
    known = {policy: median_s(summaries) for policy, summaries in results.items()}
    best = min((time for time in known.values() if time is not None), default=None)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("policy")
    for name in ("time to target", "each seed", "to the best", "energy", "sites", "rounds"):
        shown.add_column(name, justify="right", no_wrap=True)
    for policy in sorted(results, key=lambda p: known[p] or float("inf")):
        summaries, time_s = results[policy], known[policy]
        shown.add_row(
            policy,
            "never" if time_s is None else words.duration(time_s),
            " ".join(
                "never" if s["time_to_target_s"] is None else f"{s['time_to_target_s']:.1f}"
                for s in summaries
            ),
            "-" if time_s is None or best is None else f"{time_s / best:.2f}",
            words.quantity(statistics.median(s["energy_j"] for s in summaries), "J"),
            f"{statistics.median(s['mean_members'] for s in summaries):.1f}",
            f"{statistics.median(s['rounds'] for s in summaries):.0f}",
        )
    return shown


def main() -> None:
    """Run all policies under all seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, help="scenario; default: the packaged one")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (3)")
    parser.add_argument("--policies", nargs="+", type=policy_and_k, default=COMPARED)
    parser.add_argument("--runs", type=Path, help="folder to keep the runs in; default: none")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    options = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as scratch:
        options.runs = options.runs or Path(scratch)
        results: dict[str, list[dict[str, Any]]] = {policy: [] for policy in options.policies}
        for seed in range(options.seeds):
            for policy in options.policies:
                summary = run(policy, seed, options)
                results[policy].append(summary)
                time_s = summary["time_to_target_s"]
                said = "never" if time_s is None else words.duration(time_s)
                print(f"seed {seed}  {policy:<14} {said}", flush=True)
    print()
    Console(width=max(80, Console().width)).print(table(results))


if __name__ == "__main__":
    main()
