"""How soon a run goes on after a site was killed or frozen, or a link cut, in an exchange.

Run with ``python -m benchmarks.recovery``: one run, whose sites are hit one after the other in the
middle of an exchange, each time when all are members again. Reads /proc, so Linux only.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from powertrip.chaos.injector import Injector
from powertrip.chaos.job import Job
from powertrip.chaos.schedule import Fault, Kind
from powertrip.chaos.watch import EventWatch
from powertrip.config import load_config
from powertrip.coordination.limits import TimeLimits
from powertrip.telemetry import events

SCENARIO = Path(__file__).parents[1] / "configs" / "chaos.yaml"
OVERRIDES = (
    "selection.policy=all", "selection.adjustment_interval=2", "network.bandwidth_scale=0.0002",
)  # fmt: skip
"""All sites are members, and an exchange is long enough to be hit."""
KILLED_S = 1.0
"""Most seconds from a site's death to the next committed round, without its exchange; the median of
all is compared."""
SLACK_S = 1.0
"""Most seconds beyond the derived limit of a round, without the exchange, for the others."""
REPORT_S = 0.1  # from the start of the members' next round until the coordinator commits this one
WAIT_S = 180.0
LASTS_S = {"freeze_site": 8.0, "cut_link": 8.0}


@dataclass(frozen=True)
class Trial:
    """One fault.

    Attributes
    ----------
    next_s
        Seconds from the fault to the next committed round.
    gap_s
        The longest time between two committed rounds while the fault lasted.
    exchange_s
        Exchange of the round that ends this time.
    limit_s
        The limit of a round as it was derived by then.
    broke
        Whether the exchange that was under way has failed.
    """

    next_s: float
    gap_s: float
    exchange_s: float
    limit_s: float
    broke: bool


class Bench:
    """A running job, and what it has told."""

    def __init__(self, job: Job, sites: int, limits: TimeLimits) -> None:
        self.sites, self._job, self._limits = sites, job, limits
        self._watch = EventWatch(job.runs)
        self._skip = True
        self._failed = False
        self.rounds: list[events.Round] = []
        self.failures: list[events.Failure] = []

    def look(self) -> list[events.Round]:
        """The rounds that were committed since the last look."""
        fresh = []
        for event in self._watch.read():
            if isinstance(event, events.Failure):
                self.failures.append(event)
                self._failed |= event.kind == "ExchangeFailed"
            elif isinstance(event, events.Rebuild):
                self._skip = True
            elif isinstance(event, events.Decision):
                self._skip, self._failed = self._skip or self._failed, False
            elif isinstance(event, events.Round):
                # As the coordinator does: a round after a change says nothing of the others.
                if not self._skip:
                    took_s = max(site.local_s + site.exchange_s for site in event.sites)
                    self._limits.learn(event.predicted_round_s, took_s)
                self._skip = False
                fresh.append(event)
        self.rounds += fresh
        return fresh

    def await_that(self, done: Callable[[], bool], what: str) -> None:
        """Wait for something.

        Raises
        ------
        SystemExit
            It does not come, or the job ends.
        """
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            self.look()
            if self._job.code is not None or time.monotonic() > deadline_s:
                sys.exit(f"{what} has not come:\n{self._job.last_words(40)}")
            time.sleep(0.005)

    def _settled(self) -> bool:
        last = self.rounds[-3:]
        return len(last) == 3 and all(len(round_.members) == self.sites for round_ in last)

    def amid_exchange(self) -> None:
        """Wait until the middle of an exchange of all sites, as the last rounds let expect it."""
        self.await_that(self._settled, "a round of all sites")
        known = len(self.rounds)
        self.await_that(lambda: len(self.rounds) > known, "another round")
        last = self.rounds[-1]
        middle = last.wall_time - REPORT_S + last.local_s + 0.5 * last.exchange_s
        time.sleep(max(0.0, middle - time.time()))

    def hit(self, injector: Injector, fault: Fault) -> Trial:
        """Do a fault in an exchange; what came of it."""
        self.amid_exchange()
        limit_s = self._limits.round_s(self.rounds[-1].predicted_round_s)
        failures = len(self.failures)
        injector.begin(fault)
        began = time.time()
        try:
            until = began + max(fault.lasts_s, 1.0)
            self.await_that(
                lambda: time.time() > until and self.rounds[-1].wall_time > began, "a round"
            )
        finally:
            injector.end(fault)
        after = [round_ for round_ in self.rounds if round_.wall_time > began]
        before = [round_ for round_ in self.rounds if round_.wall_time <= began]
        pairs = zip([before[-1], *after], after, strict=False)
        gap_s, longest = max(
            ((b.wall_time - a.wall_time, b) for a, b in pairs), key=lambda pair: pair[0]
        )
        broke = any(
            failure.kind == "ExchangeFailed" and failure.round == after[0].round
            for failure in self.failures[failures:]
        )
        return Trial(after[0].wall_time - began, gap_s, longest.exchange_s, limit_s, broke)


def main() -> int:
    """Print each trial and the medians; 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--freezes", type=int, default=5)
    parser.add_argument("--cuts", type=int, default=5)
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    options = parser.parse_intermixed_args()
    overrides = [*OVERRIDES, *options.overrides]
    config = load_config(SCENARIO, overrides)
    names = [site.name for site in config.sites.selected]
    limits = TimeLimits(config.runtime.shortest_limit_s, config.exchange.timeout_s)
    counts: dict[Kind, int] = {
        "kill_site": options.kills, "freeze_site": options.freezes, "cut_link": options.cuts,
    }  # fmt: skip
    done: dict[str, list[Trial]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tmp").mkdir()
        job = Job(Path(folder), Path(folder) / "tmp")
        injector = Injector(job.processes, Path(folder) / "faults.json")
        bench = Bench(job, len(names), limits)
        try:
            job.start(SCENARIO, overrides)
            number = 0
            for kind, count in counts.items():
                for turn in range(count):
                    number += 1
                    fault = Fault(number, 0.0, kind, _victims(kind, turn, len(names)),
                                  LASTS_S.get(kind, 0.0))  # fmt: skip
                    trial = bench.hit(injector, fault)
                    done.setdefault(kind, []).append(trial)
                    print(_line(fault.text(names), trial), flush=True)
            job.stop()
        finally:
            injector.close()
            job.kill()
    return report(done)


def _victims(kind: Kind, turn: int, sites: int) -> tuple[int, ...]:
    if kind == "cut_link":  # neither end is the hub
        first = 1 + turn % (sites - 1)
        return first, 1 + (turn + 1) % (sites - 1)
    return (turn % sites,)


def _line(what: str, trial: Trial) -> str:
    return (
        f"{what:<32} next round {trial.next_s:5.2f} s after it ({trial.exchange_s:.2f} s its "
        f"exchange), longest gap {trial.gap_s:5.2f} s, a round's limit {trial.limit_s:5.2f} s"
        + ("" if trial.broke else ", after its exchange")
    )


def report(done: dict[str, list[Trial]]) -> int:
    """Print the medians; 1 if a limit is broken."""
    wrong = 0
    for kind, trials in done.items():
        # The gap of a fault that has come too late for an exchange is that of the next one.
        hit = [trial for trial in trials if trial.broke or kind != "kill_site"]
        if not hit:
            print(f"{kind}: none has come in an exchange")
            continue
        if kind == "kill_site":
            values = [trial.next_s - trial.exchange_s for trial in hit]
            good = statistics.median(values) <= KILLED_S
            what = f"from the death to the next round without its exchange, limit {KILLED_S:g} s"
        else:
            values = [trial.gap_s - trial.exchange_s - trial.limit_s for trial in hit]
            good = max(values) <= SLACK_S
            what = (
                f"without a round, beyond a round's limit and the exchange, at most {SLACK_S:g} s"
            )
        print(
            f"{kind}: {len(hit)} of {len(trials)}: median "
            f"{statistics.median(values):.2f} s, {min(values):.2f} to {max(values):.2f} s {what}: "
            + ("held" if good else "BROKEN")
        )
        wrong += not good
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
