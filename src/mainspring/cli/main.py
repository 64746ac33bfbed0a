"""``mainspring``: errors are one line and a non-zero exit, never a traceback."""

import sys
from typing import Annotated

import typer

import mainspring
from mainspring.cli import bench, keys, processes, schedules, store
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
schedules.register(application)
store.register(application)
keys.register(application)
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
        # Alone, typer shows the help for no arguments, and a box around each of its own errors.
        status = application(standalone_mode=len(sys.argv) < 2)
    except MainspringError as error:
        status = _say(str(error))
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        # What typer, or click in its older versions, says about options.
        if not hasattr(error, "format_message"):
            raise
        status = _say(error.format_message())
    sys.exit(status)


def _say(message: str) -> int:
    typer.echo(f"mainspring: {'; '.join(message.splitlines())}", err=True)
    return 2
