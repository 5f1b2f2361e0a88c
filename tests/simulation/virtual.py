"""Runs in virtual time with learners of the tests' own, and failures at times of their choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from powertrip.config import default_path, dump_config, load_config
from powertrip.coordination.run_dir import CONFIG_FILE
from powertrip.coordination.setup import Setup
from powertrip.simulation import timing
from powertrip.simulation.engine import Simulation
from powertrip.simulation.learner import Learner
from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from powertrip.telemetry.report import Summary
from powertrip.telemetry.telemetry import Telemetry

QUICK = (
    "telemetry.metrics.enabled=false",
    "telemetry.console=none",
    "training.batch_size=10",
    "training.local_steps=4",
    "outer={kind: fedavg, lr: 1}",
    "goal.accuracy=1",
    "goal.max_rounds=8",
    "simulation.workers=0",
)

Stretch = tuple[float, float]


class Scheduled:
    """Outages that a test has written down: the stretches in which each site is gone."""

    def __init__(self, gone: Mapping[int, Sequence[Stretch]], sites: int) -> None:
        self._gone = [sorted(gone.get(site, ())) for site in range(sites)]

    def gone(self, time_s: float) -> npt.NDArray[np.bool_]:
        return np.array([self._end(site, time_s) is not None for site in range(len(self._gone))])

    def fails_s(self, site: int, start_s: float, end_s: float) -> float:
        if self._end(site, start_s) is not None:
            return start_s
        starts = [start for start, _ in self._gone[site] if start_s <= start <= end_s]
        return min(starts, default=math.inf)

    def back_s(self, time_s: float) -> float:
        ends = [self._end(site, time_s) for site in range(len(self._gone))]
        return min((end for end in ends if end is not None), default=time_s)

    def _end(self, site: int, time_s: float) -> float | None:
        return next((end for start, end in self._gone[site] if start <= time_s < end), None)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch):
    """Says when sites are gone, in place of chance: to be called before a clock is made."""

    def gone(stretches: Mapping[int, Sequence[Stretch]]) -> None:
        monkeypatch.setattr(
            timing, "Outages", lambda settings, *, seed, sites: Scheduled(stretches, sites)
        )

    return gone


@dataclass
class Run:
    """A finished simulation."""

    summary: Summary
    run_dir: Path

    @property
    def events(self) -> list[events.Event]:
        return list(read_events(self.run_dir / EVENT_LOG))

    def of(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def told(self) -> list[dict[str, Any]]:
        """The events without what may differ between equal runs."""
        apart = {"wall_time", "decide_s", "run_id", "run_dir"}
        return [event.model_dump(exclude=apart) for event in self.events]


@pytest.fixture
def run(tmp_path: Path):
    """Simulates a scenario with a learner that the test has made, and leaves a run's folder."""
    folders = (tmp_path / f"virtual-{number}" for number in count(1))

    def run(
        setup: Setup, learner: Learner, stopped: Callable[[], int | None] = lambda: None
    ) -> Run:
        run_dir = next(folders)
        run_dir.mkdir()
        (run_dir / CONFIG_FILE).write_text(dump_config(setup.config))
        with Telemetry(setup.config.telemetry, run_dir) as telemetry:
            simulation = Simulation(setup, setup.build_world(), learner, telemetry, stopped)
            return Run(simulation.run(), run_dir)

    return run


@pytest.fixture
def regions():
    """The eight regions of the default scenario, quickly and with overrides."""

    def regions(*overrides: str) -> Setup:
        return Setup(load_config(None, [*QUICK, *overrides]), default_path().parent)

    return regions
