"""Eight sites are cut into five and three: one side goes on, the one with the coordinator.

Run with ``python -m benchmarks.partition``. First the hub is among the five, then among the three.
While the sides are apart only sites of the hub's side may commit rounds, and they must; afterwards
all eight take part again. The exit code is 1 if anything else happens.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from powertrip.chaos.injector import Injector
from powertrip.chaos.job import Job
from powertrip.chaos.schedule import Fault
from powertrip.chaos.watch import EventWatch
from powertrip.config import load_config
from powertrip.telemetry import events

_SCENARIO = Path(__file__).parents[1] / "configs" / "chaos.yaml"
_OPTIONS = ("selection.policy=all", "training.local_steps=2")
_APART_S, _WAIT_S = 20.0, 120.0
_FEWEST = 3  # rounds of the side that goes on


class Partition:
    """A running job whose sites are cut apart, and what it tells."""

    def __init__(self, job: Job) -> None:
        self._job, self._watch = job, EventWatch(job.runs)
        self.rounds: list[events.Round] = []

    def look(self) -> None:
        """Take in what was committed since the last look."""
        self.rounds += [event for event in self._watch.read() if isinstance(event, events.Round)]

    def await_that(self, done: Callable[[], bool], what: str) -> None:
        """Wait for something; ends with an error if it does not come."""
        deadline_s = time.monotonic() + _WAIT_S
        while not done():
            self.look()
            if self._job.code is not None or time.monotonic() > deadline_s:
                sys.exit(f"{what} has not come:\n{self._job.last_words(40)}")
            time.sleep(0.1)

    def all_take_part(self) -> None:
        """Wait for a round of all eight."""
        count = len(self.rounds)
        self.await_that(
            lambda: any(len(r.members) == 8 for r in self.rounds[count:]), "a round of all eight"
        )

    def apart(self, injector: Injector, others: tuple[int, ...], names: tuple[str, ...]) -> bool:
        """Cut some sites off from the rest; whether one side alone went on."""
        self.all_take_part()
        count = len(self.rounds)
        fault = Fault(number=1, at_s=0.0, kind="partition", sites=others, lasts_s=_APART_S)
        with injector.during(fault):
            until_s = time.monotonic() + _APART_S
            while time.monotonic() < until_s:
                self.look()
                time.sleep(0.1)
        cut_off = {names[site] for site in others}
        # One round may have been exchanged already when the sides were parted.
        alone = [r for r in self.rounds[count:] if not cut_off & set(r.members)]
        mixed = [r for r in self.rounds[count + 1 :] if cut_off & set(r.members)]
        self.all_take_part()
        numbers = [r.round for r in self.rounds]
        held = len(alone) >= _FEWEST and len(mixed) <= 1
        held &= numbers == list(range(1, len(numbers) + 1))
        print(
            f"{8 - len(others)} with the coordinator, {len(others)} without: {len(alone)} rounds "
            f"by the first, {len(mixed)} with others, all eight again after that: "
            f"{'held' if held else 'BROKEN'}",
            flush=True,
        )
        return held


def main() -> int:
    """Cut them apart twice."""
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        (folder / "tmp").mkdir()
        job = Job(folder, folder / "tmp")
        injector = Injector(job.processes, folder / "faults.json")
        try:
            job.start(_SCENARIO, list(_OPTIONS))
            partition = Partition(job)
            partition.await_that(lambda: len(partition.rounds) >= 4, "the first rounds")
            names = tuple(site.name for site in load_config(_SCENARIO).sites.selected)
            held = [
                partition.apart(injector, others, names) for others in ((5, 6, 7), (3, 4, 5, 6, 7))
            ]
            job.stop()
        finally:
            injector.close()
            job.kill()
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
