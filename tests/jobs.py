"""A whole run inside one process: the coordinator and the sites are threads around a real store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch.distributed as dist

from powertrip.config import default_path, load_config
from powertrip.coordination.messages import Failure, Gone, StopRequest
from powertrip.coordination.setup import Setup
from powertrip.errors import PowerTripError
from powertrip.runtime.control import ControlPlane
from powertrip.runtime.coordinator import Coordinator
from powertrip.runtime.seal import Seal
from powertrip.runtime.site import Site
from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from powertrip.telemetry.report import Summary
from powertrip.telemetry.telemetry import Telemetry

SECRET = b"what the threads of a test share"
QUICK = (
    "runtime.pacing=off",
    "selection.clock=modelled",
    "telemetry.metrics.enabled=false",
    "telemetry.console=none",
    "training.local_steps=2",
    "training.batch_size=8",
    "runtime.silence_limit_s=30",
)


class Killed(Exception):
    """Ends a site's thread as if its process were killed: its connections end, and it says nothing.

    To be raised anywhere in the site's work, after `tell_gone`.
    """


def tell_gone(site: Site) -> None:
    """Tell the coordinator what its own process would see when a site's is killed."""
    watch = ControlPlane(site._plane.connect, Seal(SECRET)).outbox()
    watch.send(Gone(site=site.index, incarnation=site.incarnation, reason="closed"))


@dataclass
class Job:
    """A finished run, and what is left of it."""

    summary: Summary
    run_dir: Path
    keys: list[str]
    site_errors: dict[int, PowerTripError] = field(default_factory=dict)

    @property
    def events(self) -> list[events.Event]:
        return list(read_events(self.run_dir / EVENT_LOG))

    def of(self, kind: type[events.Event]) -> list[events.Event]:
        return [event for event in self.events if isinstance(event, kind)]


class Jobs:
    """Runs jobs against one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._count = 0

    def connector(self, prefix: str) -> Callable[[], dist.Store]:
        return lambda: dist.PrefixStore(
            prefix, dist.TCPStore("127.0.0.1", self.server.port, is_master=False)
        )

    def run(
        self,
        *overrides: str,
        sabotage: Callable[[Site], None] | None = None,
        on_event: Callable[[events.Event, Callable[[], None]], None] | None = None,
    ) -> Job:
        """Run the default scenario, quickly, with overrides.

        `sabotage` may change every site before it starts; `on_event` sees every event, with a
        function that asks for a stop.
        """
        self._count += 1
        connect = self.connector(f"job-{self._count}")
        coordinators = ControlPlane(connect, Seal(SECRET))
        setup = Setup(
            config=load_config(None, [*QUICK, *overrides]), base_dir=default_path().parent
        )
        count = len(setup.config.sites.selected)
        run_dir = self.folder / f"run-{self._count}"
        run_dir.mkdir()
        errors: dict[int, PowerTripError] = {}

        def plane(index: int, incarnation: int = 0) -> ControlPlane:
            seal = Seal(SECRET, site=index, incarnation=incarnation)
            return ControlPlane(connect, seal, sites=count)

        def work(site: Site) -> None:
            try:
                site.run()
            except Killed:
                return
            except PowerTripError as error:
                errors[site.index] = error
                outbox = plane(site.index, site.incarnation).outbox()
                outbox.send(Failure.of(error, site.index))

        # One after the other: the initial model is drawn from torch's generator, which threads
        # share and processes do not.
        sites = [Site(setup, setup.build_world(), index, plane(index)) for index in range(count)]
        for site in sites:
            if sabotage:
                sabotage(site)
        threads = [threading.Thread(target=work, args=(site,), daemon=True) for site in sites]

        def start_again(index: int) -> None:
            """Another process of a site that was killed."""
            again = Site(
                setup, setup.build_world(), index, plane(index, 1),
                incarnation=1, log_start=coordinator.log_position(),
            )  # fmt: skip
            threads.append(threading.Thread(target=work, args=(again,), daemon=True))
            threads[-1].start()

        self.start_again = start_again
        with Telemetry(setup.config.telemetry, run_dir) as telemetry:
            if on_event:
                emit = telemetry.emit
                outbox = coordinators.outbox()

                def watched(event: events.Event) -> None:
                    emit(event)
                    on_event(event, lambda: outbox.send(StopRequest(site=0, signal=15)))

                telemetry.emit = watched  # type: ignore[method-assign]
            for thread in threads:
                thread.start()
            coordinator = Coordinator(setup, setup.build_world(), coordinators, telemetry)
            try:
                summary = coordinator.run()
            finally:
                for thread in threads:
                    thread.join(timeout=30)
                assert not any(thread.is_alive() for thread in threads)
        return Job(summary, run_dir, list(connect().list_keys()), errors)


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)
