"""The share of a round that is neither local training nor exchange.

Run with ``python -m benchmarks.round_overhead``: the default scenario on this machine, with all
sites as members and with the sites that `powertrip` chooses. A machine that is busy with other work
shows in the overhead. Rebuilds and evaluation are no part of a round: they are shown beside it, as
means over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from powertrip.telemetry.events import Event, Rebuild, Round

LIMIT = 0.05
"""Share of a round that the overhead may take."""

_POLICIES = ("all", "powertrip")


def events_of(policy: str, count: int, overrides: Sequence[str]) -> list[Event]:
    """Run the job for a number of rounds and return its events.

    Raises
    ------
    SystemExit
        The job failed.
    """
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "powertrip.train", f"selection.policy={policy}"]
        command += ["goal.accuracy=null", f"goal.max_rounds={count}", "telemetry.metrics.port=0"]
        command += [*overrides, f"runtime.run_dir={runs}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
        (log,) = Path(runs).glob(f"*/{EVENT_LOG}")
        return list(read_events(log))


def main() -> int:
    """Print a line for each policy; 1 if the overhead is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    options = parser.parse_intermixed_args()
    worst = 0.0
    heads = ("members", "round", "local", "exchange", "overhead", "rebuilds", "evaluation")
    shown = "".join(f"{head:>11}" for head in (*heads, "share", "p90"))
    print(f"{'policy':<10}{shown}   ms, and overhead as a share of the round")
    for policy in _POLICIES:
        log = events_of(policy, options.rounds, options.overrides)
        rounds = [event for event in log if isinstance(event, Round)]
        shares = [event.overhead_s / event.duration_s for event in rounds]
        share = statistics.median(shares)
        worst = max(worst, share)
        times_s = [
            statistics.median(getattr(event, name) for event in rounds)
            for name in ("duration_s", "local_s", "exchange_s", "overhead_s")
        ]
        rebuilds_s = sum(event.seconds for event in log if isinstance(event, Rebuild))
        times_s.append(rebuilds_s / len(rounds))
        times_s.append(statistics.mean(event.eval_s for event in rounds))
        members = statistics.mean(len(event.members) for event in rounds)
        p90 = statistics.quantiles(shares, n=10)[-1]
        columns = [f"{members:11.1f}", *(f"{1e3 * time_s:11.1f}" for time_s in times_s)]
        print(f"{policy:<10}{''.join(columns)}{share:11.1%}{p90:11.1%}", flush=True)
    print(f"median share {'over' if worst >= LIMIT else 'under'} {LIMIT:.0%}")
    return int(worst >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
