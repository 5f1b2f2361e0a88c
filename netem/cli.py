"""The command line: `python -m netem check|doctor|run|clean`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Links with the delay, rate, jitter and loss of a wide area network, on one machine.",
)

_DYING_S = 1.0


class Backend(StrEnum):
    """What shapes the links."""

    AUTO = "auto"
    KERNEL = "kernel"
    USERSPACE = "userspace"
    OFF = "off"


PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan's YAML file.")]
BackendOption = Annotated[
    Backend,
    typer.Option(help="auto takes the kernel where it can, and else the emulator in user space."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def _note(text: str) -> None:
    typer.echo(f"netem: {text}", err=True)


def _choose(backend: Backend) -> str:
    """Return the backend for links, and say which and why."""
    from netem.capabilities import choose_backend
    from netem.errors import Unsupported

    choice = choose_backend(backend.value)
    if choice.name == "none":
        raise Unsupported(choice.reason)
    _note(choice.reason)
    return choice.name


@app.command()
def check(
    plan: PlanArgument,
    backend: BackendOption = Backend.AUTO,
    as_json: JsonOption = False,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Share by which the throughput may differ.")
    ] = 0.1,
    rtt_tolerance: Annotated[
        float, typer.Option(min=0, help="Share by which the round trip may differ, or 1 ms.")
    ] = 0.02,
    loss_tolerance: Annotated[
        float, typer.Option(min=0, help="Share by which the loss may differ.")
    ] = 0.2,
) -> None:
    """Bring a plan up between throw-away sites, measure every pair, and compare.

    The links are those of the plan's start. Exit code 1 if any pair is off by more than the
    tolerance, with the reason in its row.
    """
    from netem.check import ProbeSites, Tolerance
    from netem.check import check as measure
    from netem.errors import DaemonLost, Unsupported
    from netem.launch import start_daemon
    from netem.plan import Plan

    # A change in the middle would be measured as an error.
    loaded = Plan.load(plan).model_copy(update={"schedule": ()})
    name = _choose(backend)
    if name == "off":
        raise Unsupported("there are no links to check with --backend off; name another")
    if len(loaded.sites) < 2:
        _note("a plan of one site has no links: nothing to check")
    limits = Tolerance(rate=tolerance, rtt=rtt_tolerance, loss=loss_tolerance)
    log = Path("/dev/null")
    with (
        start_daemon(loaded, name, log_path=log) as daemon,
        ProbeSites(daemon.socket_path, loaded) as sites,
    ):
        reports = measure(sites, loaded, limits, _note)
        off = sum(bool(report.problems) for report in reports)
        # A process that dies closes what it holds in turn: its links may be gone before the rest.
        if daemon.wait_lost(_DYING_S if off else 0.0):
            raise DaemonLost(
                f"the link daemon (process {daemon.pid}) has ended in the middle of the check"
            )
    if as_json:
        result: dict[str, Any] = {
            "backend": name,
            "rate_scale": loaded.rate_scale,
            "tolerance": asdict(limits),
            "off": off,
            "pairs": [asdict(report) for report in reports],
        }
        typer.echo(json.dumps(result, indent=2))
    else:
        from netem.tables import show_reports

        show_reports(reports, name, loaded.rate_scale)
    raise typer.Exit(1 if off else 0)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine can do, and what to install or allow for the rest.

    Exit code 1 if neither backend can work.
    """
    from netem.capabilities import choose_backend, detect

    found = detect()
    choice = choose_backend("auto", found)
    if as_json:
        result = {
            "backend": choice.name,
            "reason": choice.reason,
            "capabilities": found.to_json(),
        }
        typer.echo(json.dumps(result, indent=2))
    else:
        from netem.tables import show_capabilities

        show_capabilities(found, choice.reason)
    raise typer.Exit(1 if choice.name == "none" else 0)


@app.command()
def run(
    plan: PlanArgument,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="What every site runs.")
    ],
    backend: BackendOption = Backend.AUTO,
) -> None:
    """Run a command once per site, each in its own namespace with the plan's links.

    NETEM_SITE (number), NETEM_NAME, NETEM_ADDRESS and NETEM_SITES (all addresses, with commas
    between) are in its environment. The plan's schedule begins when all sites are up. A command
    that fails ends the others, and its exit code is this one's.
    """
    from netem.launch import start_daemon
    from netem.plan import Plan
    from netem.runner import Runner

    loaded = Plan.load(plan)
    name = _choose(backend)
    if command and command[0] == "--":
        command = command[1:]

    def write(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    if name == "off":
        raise typer.Exit(Runner(loaded, None, command, write).run())
    if loaded.rate_scale != 1:
        _note(f"rates are scaled by {loaded.rate_scale:g}")
    with start_daemon(loaded, name) as daemon:
        code = Runner(loaded, daemon, command, write).run()
    raise typer.Exit(code)


@app.command()
def clean() -> None:
    """Remove what jobs have left that were killed; what runs is not touched."""
    from netem.cleanup import clean as remove_leftovers

    removed = remove_leftovers()
    for leftover in removed:
        typer.echo(f"removed {leftover}")
    if not removed:
        typer.echo("nothing to remove")


def main() -> None:
    """Run the command line, and end with its exit code."""
    from netem.errors import NetemError

    try:
        app(prog_name="python -m netem")
    except NetemError as error:
        typer.echo(f"netem: {error}", err=True)
        raise SystemExit(error.exit_code) from None
