"""The presence of a run's processes: what the coordinator's and a site's process each set up."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from powertrip.coordination.messages import Back, Gone
from powertrip.coordination.setup import Setup
from powertrip.errors import PowerTripError
from powertrip.runtime.attendance import Attendance
from powertrip.runtime.control import ControlPlane, store_errors
from powertrip.runtime.coordinator import Coordinator
from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.presence import RollCall
from powertrip.runtime.supervisor import PRESENCE_VARIABLE

_PORT_KEY = "presence/port"
_OVER = b"over"
_LAST_PORT = 65_535
_STARTS_S = 30.0
"""Silence that is borne of a process that loads its data, as the coordinator's own start is."""


class RunOver(PowerTripError):
    """The run has ended before this process could take part."""


@contextmanager
def roll_call(
    setup: Setup, coordinator: Coordinator, plane: ControlPlane, *, secret: bytes, run: bytes
) -> Iterator[None]:
    """Admit the sites' processes, and tell the coordinator who comes and goes.

    Parameters
    ----------
    setup
        The resolved scenario.
    coordinator
        Is told.
    plane
        The control plane, as the coordinator's process comes to it.
    secret
        What a site must know.
    run
        The run's number, which the sites are told.
    """
    listener = socket.socket(fileno=int(os.environ[PRESENCE_VARIABLE]))
    outbox, store = plane.outbox(), plane.connect()

    def tell(mail: Gone | Back) -> None:
        outbox.send(mail)

    with listener:
        calls = RollCall(
            listener,
            secret=secret,
            run=run,
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
        store.set(_PORT_KEY, _OVER.decode())


@contextmanager
def attend(
    setup: Setup, store: dist.Store, site: int, incarnation: int, *, secret: bytes
) -> Iterator[Attendance]:
    """Make a site's process known to the coordinator.

    Raises
    ------
    RunOver
        The run has ended.
    NotAdmitted
        The coordinator refuses this process, or is none that it may trust.
    ControlPlaneError
        Nobody says where the coordinator is, or nobody answers there.
    """
    limit_s = setup.config.runtime.start_limit_s
    store.set_timeout(timedelta(seconds=limit_s))
    port = _port(store)
    try:
        attendance = Attendance(
            (os.environ["MASTER_ADDR"], port),
            secret=secret,
            site=site,
            incarnation=incarnation,
            limit_s=_STARTS_S,
            start_limit_s=limit_s,
        )
    except ControlPlaneError:
        _port(store)  # the run may have ended meanwhile
        raise
    try:
        yield attendance
    finally:
        attendance.close()


def _port(store: dist.Store) -> int:
    """Where the coordinator listens for the sites."""
    with store_errors("asking for the coordinator"):
        told = store.get(_PORT_KEY)
    if told == _OVER:
        raise RunOver
    if not re.fullmatch(rb"[1-9]\d{0,4}", told) or (port := int(told)) > _LAST_PORT:
        raise ControlPlaneError(
            f"the store does not say where the coordinator listens, but {told[:20]!r}; someone "
            "else writes to it"
        )
    return port
