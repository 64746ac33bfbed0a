"""``mainspring``: errors are one line and a non-zero exit, never a traceback."""

import sys
from typing import Annotated

import typer

import mainspring
from mainspring.cli import bench, processes, store
from mainspring.domain.errors import MainspringError

application = typer.Typer(
    name="mainspring",
    help="Runs work now, later or on a schedule, and can show that it did.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
processes.register(application)
store.register(application)
bench.register(application)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mainspring {mainspring.__version__}")
        raise typer.Exit


@application.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Runs work now, later or on a schedule, and can show that it did."""


def main() -> None:
    try:
        application()
    except MainspringError as error:
        sys.exit(_say(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _say(error: MainspringError) -> int:
    typer.echo(f"mainspring: {error}", err=True)
    return 2
