"""``mainspring``: errors are one line and an exit code of their own, never a traceback."""

import os
import sys
from typing import Annotated

import typer

import mainspring
from mainspring.bootstrap.versions import about
from mainspring.cli import (
    archive,
    backup,
    bench,
    calendars,
    capacity,
    convert,
    cron,
    datacenters,
    dead_letters,
    doctor,
    drill,
    events,
    exits,
    explain,
    forecast,
    jobs,
    keys,
    move,
    notify,
    plan,
    processes,
    profiles,
    queues,
    runs,
    servers,
    store,
    tenants,
    top,
    usage,
    versions,
    workers,
    workflows,
)
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
jobs.register(application)
explain.register(application)
versions.register(application)
workflows.register(application)
runs.register(application)
dead_letters.register(application)
queues.register(application)
calendars.register(application)
workers.register(application)
datacenters.register(application)
events.register(application)
notify.register(application)
top.register(application)
usage.register(application)
profiles.register(application)
plan.register(application)
move.register(application)
backup.register(application)
archive.register(application)
doctor.register(application)
drill.register(application)
store.register(application)
servers.register(application)
keys.register(application)
tenants.register(application)
cron.register(application)
forecast.register(application)
capacity.register(application)
convert.register(application)
bench.register(application)


def _version(wanted: bool) -> None:
    if wanted:
        # The version first and alone: scripts read it.
        typer.echo("\n".join([f"mainspring {mainspring.__version__}", *about()]))
        raise typer.Exit


@application.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show version, commit, Python and schema, and exit."
        ),
    ] = False,
) -> None:
    """Runs work now, later or on a schedule, and can show that it did."""


def main() -> None:
    try:
        # Alone, typer shows the help for no arguments, and a box around each of its own errors.
        status = application(standalone_mode=len(sys.argv) < 2)
        sys.stdout.flush()
    except MainspringError as error:
        status = _say(str(error), exits.code_of(error))
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # Whoever read us, such as head, has enough. Nor is what is still unwritten to be tried when we exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # As typer has it for more than fits a buffer.
        status = exits.FAILED
    except Exception as error:
        # What typer, or click in its older versions, says about options.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        # Of a noun without a verb the help was shown, and there is nothing more to say.
        status = _say(message, exits.BAD_INPUT) if message else exits.BAD_INPUT
    sys.exit(status)


def _say(message: str, status: int) -> int:
    typer.echo(f"mainspring: {'; '.join(message.splitlines())}", err=True)
    return status
