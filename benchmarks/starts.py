"""Starts and stops in a row: each run ends by itself, and leaves nothing of itself behind.

Run with ``python -m benchmarks.starts --times 50``: two sites, emulated links, two rounds. Every
third one is stopped by SIGINT in the middle instead. The exit code is 1 if any was not clean.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from powertrip.chaos.job import Job
from powertrip.chaos.remains import Remains
from powertrip.telemetry.eventlog import EVENT_LOG

_OPTIONS = (
    "sites.count=2", "selection.policy=all", "telemetry.metrics.port=0", "training.local_steps=1",
    "goal.accuracy=null",
)  # fmt: skip
_START_LIMIT_S = 120.0


def one(folder: Path, *, interrupted: bool) -> list[str]:
    """Start and end a run; returns what was not as it should be, in words."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    job = Job(folder, temporary)
    remains = Remains(job.processes, temporary)
    try:
        job.start(None, [*_OPTIONS, f"goal.max_rounds={1000 if interrupted else 2}"])
        deadline_s = time.monotonic() + _START_LIMIT_S
        while job.code is None and time.monotonic() < deadline_s:
            remains.sample()
            if interrupted and any('"round"' in p.read_text() for p in _logs(job)):
                break
            time.sleep(0.1)
        code = job.stop() if interrupted else job.await_end()
    finally:
        job.kill()
    expected = 130 if interrupted else 0
    wrong = [] if code == expected else [f"exit code {code}, not {expected}: {job.last_words()}"]
    return wrong + remains.left(5.0)


def _logs(job: Job) -> list[Path]:
    return list(job.runs.glob(f"*/{EVENT_LOG}"))


def main() -> int:
    """Start and stop, again and again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    times = parser.parse_args().times
    seconds, failed = [], 0
    with tempfile.TemporaryDirectory() as base:
        for number in range(times):
            began_s = time.monotonic()
            wrong = one(Path(base) / str(number), interrupted=number % 3 == 2)
            seconds.append(time.monotonic() - began_s)
            failed += bool(wrong)
            print(f"{number + 1:3d} of {times}: {'; '.join(wrong) or 'clean'}", flush=True)
    print(f"{times - failed} of {times} clean, {statistics.median(seconds):.1f} s each (median)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
