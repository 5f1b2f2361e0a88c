"""The command line: ``powertrip train`` and what surrounds it."""

from __future__ import annotations

import io
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from powertrip import __version__
from powertrip.errors import InputError, PowerTripError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Train one model across sites whose power and links change by the hour.",
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Scenario (YAML); default: the packaged one.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Settings that replace the file's."),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Common options."""


@app.command()
def config(config: ConfigOption = None, overrides: Overrides = None) -> None:
    """Print a scenario with every setting and its meaning; without a file, the default one."""
    from powertrip.config import dump_config, load_config

    typer.echo(dump_config(load_config(config, overrides or ())), nl=False)


@app.command()
def train(
    config: ConfigOption = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Go on with a run, from its last checkpoint and with its own settings.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="End standard output with the summary as a JSON line.")
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Train with one process a site on this machine, as torchrun would start them."""
    from powertrip.launcher import launch

    raise typer.Exit(launch(config, overrides or [], json_summary=json, resume=resume))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to; default: model.safetensors in the folder."),
    ] = None,
) -> None:
    """Write the model of a run's last checkpoint, and nothing else, as a file of safetensors."""
    from powertrip.runtime.export import export_model

    done = export_model(run, out)
    for sentence in done.skipped:
        typer.echo(f"powertrip: warning: {sentence}", err=True)
    typer.echo(f"{done.path}: {done.tensors} tensors, {done.bytes} bytes, round {done.round}")


Scenario = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SCENARIO] [KEY.SUB=VALUE]",
        help="Scenario (YAML; default: the packaged one), and settings that replace its own.",
    ),
]


@app.command()
def simulate(
    words: Scenario = None,
    config: ConfigOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="End standard output with the summary as a JSON line.")
    ] = False,
) -> None:
    """Run a scenario in virtual time: the sites really learn, and the time is worked out.

    No site has a process of its own and no packet is sent: rounds are as long as power, links and
    `simulation.timing` say. Decisions, event log and summary are those of a real run.
    """
    scenario, overrides = _scenario(words or [], config)

    from powertrip.simulation.starting import without_collection
    from powertrip.simulation.threads import one_thread_each

    one_thread_each()  # or the processes that train could not be forks of this one
    with without_collection():
        from powertrip.coordination.run_dir import make_run_dir
        from powertrip.coordination.setup import Setup, data_folder
        from powertrip.training.idx_files import reading_ahead

        setup = Setup.resolve(scenario, overrides)
        with reading_ahead(setup.config.task, data_dir=data_folder(), base_dir=setup.base_dir):
            from powertrip.runtime.signals import StopSignals
            from powertrip.simulation.engine import Simulation
            from powertrip.simulation.learner import build_learner
            from powertrip.telemetry.telemetry import Telemetry

    world = setup.build_world()
    signals: list[int] = []
    with (
        build_learner(setup) as learner,
        StopSignals(signals.append),
        Telemetry(setup.config.telemetry, make_run_dir(setup.config)) as telemetry,
    ):
        simulation = Simulation(
            setup, world, learner, telemetry, lambda: signals[0] if signals else None
        )
        summary = simulation.run()
    if json:
        typer.echo(summary.model_dump_json())
    raise typer.Exit(summary.exit_code or 0)


@app.command()
def calibrate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a real run, or its events.jsonl.")
    ],
) -> None:
    """Fit the simulator's constants to a recorded real run, and simulate it for comparison.

    Prints the section `simulation.timing` for the scenario, and says how well the simulated run
    then agrees with the real one: the mean length of a round, and the members of each decision.
    """
    from powertrip.simulation.calibrate import calibrated, read_run

    recorded = read_run(run)
    timing, found = calibrated(recorded)
    typer.echo("simulation:")
    values = ", ".join(f"{key}: {value:.3g}" for key, value in timing.model_dump().items())
    typer.echo(f"  timing: {{{values}}}")
    off = 100 * (found.simulated_round_s / found.real_round_s - 1)
    typer.echo(
        f"# mean round: {found.real_round_s:.3g} s really, {found.simulated_round_s:.3g} s "
        f"simulated ({off:+.1f} %); the same members in {found.same} of {found.decisions} decisions"
    )


_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
_LONGEST_S = 1e9


def run_seconds(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``15m``, ``2h`` or ``1h30m``.

    Raises
    ------
    InputError
        It is no such time, or one beyond 1e9 s.
    """
    found = _TIME.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise InputError(f"--at: {text!r} is no time; write seconds, or 15m, 2h, 1h30m")
    seconds = sum(
        float(part or 0) * unit_s
        for part, unit_s in zip(found.groups(), (3600, 60, 1), strict=True)
    )
    if seconds > _LONGEST_S:
        raise InputError(f"--at: {text!r} is more than {_LONGEST_S:g} s")
    return seconds


@app.command()
def plan(
    words: Scenario = None,
    config: ConfigOption = None,
    at: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Run time of the decision: seconds, or 15m, 2h. Power is read from the traces at "
            "this time multiplied by world.time_scale.",
        ),
    ] = "0",
    members: Annotated[
        str,
        typer.Option(
            metavar="SITE,SITE,...",
            help="The members at present, to see what a change costs and what margins hold; "
            "default: none, as at the start.",
        ),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Show what a run would decide, and why, without training.

    The ranking of the sites, the numbers of members that are compared, the members and their work.
    Links are the scenario's network model, and nothing is measured: a run that has measured its
    links and speeds may decide otherwise.
    """
    scenario, overrides = _scenario(words or [], config)

    from powertrip.coordination.preview import plan_run
    from powertrip.coordination.setup import Setup
    from powertrip.telemetry.plan_table import show_plan

    current = [name.strip() for name in members.split(",") if name.strip()]
    found = plan_run(Setup.resolve(scenario, overrides), time_s=run_seconds(at), members=current)
    if json:
        typer.echo(found.model_dump_json())
    else:
        show_plan(found, _terminal())


@app.command()
def replay(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or its events.jsonl.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="selection.KEY=VALUE", help="Settings that replace the run's own."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Short for selection.policy=...; default: the run's own policy."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON a decision.")] = False,
) -> None:
    """Show what another policy would have decided on a recorded run's observations.

    Each decision is judged by itself, from what the run had seen at that moment: its members, gains
    and measurements, whatever the other policy had chosen before. So this tells where policies
    differ, not how a run under the other one would have gone on. Only what a policy remembers of
    its last decision (such as its patience) is its own.
    """
    from powertrip.coordination.replay import replay as replayed
    from powertrip.telemetry.replay_table import show_replay

    changes = [*(overrides or []), *([] if policy is None else [f"selection.policy={policy}"])]
    decisions = replayed(run, changes)
    if json:
        for decision in decisions:
            typer.echo(decision.model_dump_json())
    else:
        folder = run if run.is_dir() else run.parent
        show_replay(folder.resolve().name, decisions, _terminal())


@app.command()
def experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment (YAML).")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Settings for all cells."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The file's small version, for a few minutes.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for everything; default: runs/NAME."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that run cells; default: one a core.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="Where cells run: processes (of this machine), dask or ray.")
    ] = "processes",
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", help="Keep each cell's event log, compressed.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run finished cells again, too.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells and run none.")
    ] = False,
) -> None:
    """Simulate a grid of policies, settings and seeds; write its tables and figures.

    What is finished is not run again: an experiment that was interrupted goes on where it was.
    """
    from powertrip.simulation.threads import one_thread_each

    one_thread_each()

    from powertrip.experiments.experiment import conduct

    conduct(
        file,
        _terminal(),
        quick=quick,
        overrides=overrides or [],
        out=out,
        workers=workers,
        backend=backend,
        keep_logs=keep_logs,
        fresh=fresh,
        dry_run=dry_run,
    )


@app.command()
def chaos(
    words: Scenario = None,
    config: ConfigOption = None,
    seed: Annotated[int, typer.Option(help="Of the schedule of faults.")] = 0,
    minutes: Annotated[
        float, typer.Option(min=0, help="How long; the time that a job takes to resume is extra.")
    ] = 20.0,
    faults: Annotated[
        str, typer.Option(metavar="KIND,KIND,...", help="Kinds of faults; default: all.")
    ] = "",
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Mean time between two faults.")
    ] = 15.0,
    torchrun: Annotated[
        bool, typer.Option("--torchrun", help="Start the job by torchrun, which starts it again.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New folder for everything; default: in runtime.run_dir."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the schedule, and do nothing.")
    ] = False,
) -> None:
    """Run a real job under faults: processes killed and frozen, links cut, updates spoilt.

    Prints each fault and how long the run took to commit its next round, and at the end whether all
    that must hold has held: exit code 0 or 1.
    """
    scenario, overrides = _scenario(words or [], config)

    from powertrip.chaos.command import Plan, conduct, new_folder
    from powertrip.chaos.schedule import parse_kinds

    plan = Plan(
        scenario=scenario,
        overrides=tuple(overrides),
        seed=seed,
        length_s=60 * minutes,
        every_s=every,
        kinds=parse_kinds(faults),
        torchrun=torchrun,
    )
    if dry_run:
        for fault in plan.schedule():
            typer.echo(f"{fault.at_s:7.1f} s  {fault.number}: {fault.text(plan.names)}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = conduct(plan, new_folder(plan) if out is None else out, typer.echo)
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


def _scenario(words: list[str], config: Path | None) -> tuple[Path | None, list[str]]:
    """Tell a scenario's path from settings, which hold a `=`."""
    paths = [Path(word) for word in words if "=" not in word]
    if config is not None:
        paths.append(config)
    if len(paths) > 1:
        raise InputError(
            f"{len(paths)} scenarios were named: {', '.join(map(str, paths))}; name one "
            "(settings are written KEY.SUB=VALUE)"
        )
    if paths and not paths[0].exists():
        raise InputError(f"there is no scenario {paths[0]} (settings are written KEY.SUB=VALUE)")
    return (paths[0] if paths else None), [word for word in words if "=" in word]


def _terminal() -> Console:
    from powertrip.telemetry.live import terminal

    if isinstance(sys.stdout, io.TextIOWrapper):  # a site's name may have letters that it lacks
        sys.stdout.reconfigure(errors="replace")
    return terminal(sys.stdout)


def main() -> None:
    """The console script."""
    try:
        app()
    except PowerTripError as error:
        typer.echo(f"powertrip: {error}", err=True)
        raise SystemExit(error.exit_code) from None
