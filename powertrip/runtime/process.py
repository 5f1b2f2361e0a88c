"""The two kinds of child process that a supervisor starts: a site, and the coordinator.

``python -m powertrip.runtime.process site|coordinator``, with the setup on standard input.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from powertrip.config import Config
from powertrip.coordination.membership import HUB, site_of_rank
from powertrip.coordination.messages import Failure, LinksGone, StopRequest
from powertrip.coordination.run_dir import make_run_dir, reopen_run_dir
from powertrip.coordination.setup import Setup
from powertrip.errors import PowerTripError
from powertrip.runtime.attendance import Attendance
from powertrip.runtime.control import ControlPlane, Outbox, job_store
from powertrip.runtime.coordinator import Coordinator
from powertrip.runtime.emulation import LinkWatch
from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.manifest import latest, set_aside
from powertrip.runtime.memory import earlier_run, note_run, recall
from powertrip.runtime.presences import RunOver, attend, declare_over, roll_call
from powertrip.runtime.probing import own_address
from powertrip.runtime.seal import Seal
from powertrip.runtime.secret import load_secret
from powertrip.runtime.signals import StopSignals
from powertrip.runtime.site import Site
from powertrip.runtime.supervisor import INCARNATION_VARIABLE, RUN_VARIABLE
from powertrip.telemetry.telemetry import Telemetry


def complain(text: str) -> None:
    """Tell the user of an error, on standard error."""
    print(f"powertrip: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _stop_requests(outbox: Outbox, site: int) -> StopSignals:
    """Pass requests to stop on to the coordinator."""

    def request_stop(number: int) -> None:
        # Without the store the main thread ends by itself.
        with suppress(ControlPlaneError):
            outbox.send(StopRequest(site=site, signal=number))

    return StopSignals(request_stop)


def run_coordinator(setup: Setup) -> int:
    """Run the coordinator; returns the exit code of the run."""
    store = job_store(host_store=True)
    term = int(os.environ.get(INCARNATION_VARIABLE, "0"))
    secret = load_secret(setup.config, setup.base_dir)
    run = bytes.fromhex(os.environ[RUN_VARIABLE])
    plane = ControlPlane(job_store, Seal(secret, run=run, incarnation=term))
    links_outbox = plane.outbox()

    def tell(reason: str) -> None:
        links_outbox.send(LinksGone(text=reason))

    # torchrun sends SIGTERM as soon as a site has failed: the reason must be told all the same.
    with _stop_requests(plane.outbox(), HUB), ExitStack() as links:
        try:
            watch = None
            if setup.links.socket_path is not None:
                watch = links.enter_context(LinkWatch(setup.links.socket_path, tell))
            memory = recall(store, plane.seal) if term else None
            found = latest(Path(setup.resume)) if setup.resume and memory is None else None
            if memory is not None:
                run_dir = Path(memory.run_dir)
            elif found is None:
                run_dir = make_run_dir(setup.config)
            else:
                run_dir = reopen_run_dir(Path(setup.resume or ""), setup.config)
                set_aside(run_dir, found)
            note_run(str(run_dir.resolve()))
            resume_round = None if found is None else found.manifest.round
            if memory is not None:
                resume_round = memory.round
            with Telemetry(setup.config.telemetry, run_dir, resume_round) as telemetry:
                coordinator = Coordinator(
                    setup,
                    setup.build_world(),
                    plane,
                    telemetry,
                    begin_schedule=None if watch is None else watch.begin_schedule,
                    resume=found,
                    come_back=memory,
                    term=term,
                )
                with roll_call(setup, coordinator, plane, secret=secret, run=run):
                    summary = coordinator.run()
        except PowerTripError as error:
            complain(str(error))
            return error.exit_code
        finally:
            declare_over(store)
        if setup.json_summary:
            print(summary.model_dump_json(), flush=True)  # noqa: T201
    assert summary.exit_code is not None
    return summary.exit_code


def run_site(setup: Setup, index: int) -> int:
    """Run one site; returns its exit code, 0 whenever it has ended as it was told to."""
    incarnation = int(os.environ.get(INCARNATION_VARIABLE, "0"))
    secret = load_secret(setup.config, setup.base_dir)
    try:
        with attend(setup, job_store(), index, incarnation, secret=secret) as attendance:
            seal = Seal(secret, run=attendance.run, site=index, incarnation=incarnation)
            plane = ControlPlane(job_store, seal, sites=len(setup.config.sites.selected))
            return _take_part(setup, index, plane, attendance, incarnation)
    except RunOver:
        return 0  # the run has ended while this process was starting


def _take_part(
    setup: Setup, index: int, plane: ControlPlane, attendance: Attendance, incarnation: int
) -> int:
    """Be a site that the coordinator has admitted, and tell it of any failure."""
    outbox = plane.outbox()

    def tell(failure: Failure) -> None:
        try:
            outbox.send(failure)
        except ControlPlaneError as error:
            complain(f"site {index} cannot tell the coordinator: {error}\n  {failure.text}")

    try:
        with _stop_requests(plane.outbox(), index):
            site = Site(
                setup,
                setup.build_world(),
                index,
                plane,
                local_rank=int(os.environ["LOCAL_RANK"]),
                local_processes=int(os.environ["LOCAL_WORLD_SIZE"]),
                incarnation=incarnation,
                attendance=attendance,
                probe_address=_probe_address(setup.config),
            )
            site.run()
    except PowerTripError as error:
        tell(Failure.of(error, index, incarnation=incarnation))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 (whatever a user's own task raises)
        traceback.print_exc()
        text = f"{error}; its traceback is on standard error"
        kind = type(error).__name__
        tell(Failure(site=index, error=kind, text=text, exit_code=1, incarnation=incarnation))
        return 1
    return 0


def _probe_address(config: Config) -> str | None:
    # On the modelled clock decisions do not see what is measured: runs must not differ by it.
    if not config.exchange.probe.enabled or config.selection.clock == "modelled":
        return None
    return own_address((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))


def main() -> int:
    """Run as the role that the only argument names."""
    role = sys.argv[1]
    setup = Setup.decode(sys.stdin.buffer.read())
    try:
        if setup.resume is None and (run_dir := earlier_run()) is not None:
            setup = replace(setup, resume=run_dir)
        if role == "site":
            return run_site(setup, site_of_rank(int(os.environ["RANK"])))
        return run_coordinator(setup)
    except PowerTripError as error:
        complain(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
