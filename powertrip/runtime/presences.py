"""The presence of a run's processes: what the coordinator's and a site's process each set up."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from powertrip.coordination.messages import Back, Gone
from powertrip.coordination.setup import Setup
from powertrip.errors import PowerTripError
from powertrip.runtime.attendance import Attendance
from powertrip.runtime.control import Outbox, job_store, store_errors
from powertrip.runtime.coordinator import Coordinator
from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.presence import RollCall
from powertrip.runtime.secret import load_secret
from powertrip.runtime.supervisor import PRESENCE_VARIABLE
from powertrip.telemetry.telemetry import Telemetry

_PORT_KEY, _OVER_KEY = "presence/port", "presence/over"
_STARTS_S = 30.0
"""Silence that is borne of a process that loads its data, as the coordinator's own start is."""


class RunOver(PowerTripError):
    """The run has ended before this process could take part."""


@contextmanager
def roll_call(setup: Setup, coordinator: Coordinator, telemetry: Telemetry) -> Iterator[None]:
    """Admit the sites' processes, and tell the coordinator who comes and goes."""
    listener = socket.socket(fileno=int(os.environ[PRESENCE_VARIABLE]))
    store = job_store()
    outbox = Outbox(store)

    def tell(mail: Gone | Back) -> None:
        outbox.send(mail)

    with listener:
        calls = RollCall(
            listener,
            secret=load_secret(setup.config, setup.base_dir),
            sites=len(setup.config.sites.selected),
            limit_s=_STARTS_S,
            tell=tell,
            grant=coordinator.log_position,
            warn=coordinator.warn,
        )
        try:
            coordinator.watch(calls.set_limit)
            with store_errors("telling the sites where the coordinator is"):
                store.set(_PORT_KEY, str(listener.getsockname()[1]))
            yield
        finally:
            calls.close()


def declare_over(store: dist.Store) -> None:
    """Let processes that come late know that there is nothing left to do."""
    with store_errors("telling the sites that the run is over"):
        store.set(_OVER_KEY, "1")


@contextmanager
def attend(
    setup: Setup, store: dist.Store, site: int, incarnation: int
) -> Iterator[Attendance]:
    """Make a site's process known to the coordinator.

    Raises
    ------
    RunOver
        The run has ended.
    """
    limit_s = setup.config.runtime.start_limit_s
    with store_errors("asking for the coordinator"):
        if store.check([_OVER_KEY]):
            raise RunOver
        store.set_timeout(timedelta(seconds=limit_s))
        port = int(store.get(_PORT_KEY))
    try:
        attendance = Attendance(
            (os.environ["MASTER_ADDR"], port),
            secret=load_secret(setup.config, setup.base_dir),
            site=site,
            incarnation=incarnation,
            limit_s=_STARTS_S,
            start_limit_s=limit_s,
        )
    except ControlPlaneError:
        if store.check([_OVER_KEY]):
            raise RunOver from None
        raise
    try:
        yield attendance
    finally:
        attendance.close()
