"""The command line: ``powertrip config``, ``powertrip train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from powertrip import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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
    json: Annotated[
        bool, typer.Option("--json", help="End standard output with the summary as a JSON line.")
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Train with one process a site on this machine, as torchrun would start them."""
    from powertrip.launcher import launch

    raise typer.Exit(launch(config, overrides or [], json_summary=json))


def main() -> None:
    """The console script."""
    from powertrip.errors import PowerTripError

    try:
        app()
    except PowerTripError as error:
        typer.echo(f"powertrip: {error}", err=True)
        raise SystemExit(error.exit_code) from None
