"""The entry point of ``mainspring``. An error is one line and an exit code, never a traceback."""

import difflib
import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.cli import exits
from mainspring.cli.help import HELP_OPTIONS, arrange
from mainspring.core.model.base.errors import Invalid, MainspringError

if TYPE_CHECKING:
    application: typer.Typer

#: The commands that each module registers, in the order of the help.
_MODULES = {
    "cli.processes": ("up", "scheduler", "worker", "api"),
    "features.jobs.commands.submit": ("jobs",),
    "features.jobs.commands.jobs": ("jobs",),
    "features.jobs.commands.ticks": ("jobs",),
    "features.jobs.commands.explain": ("jobs",),
    "features.jobs.commands.versions": ("jobs",),
    "features.schedules.commands.schedules": ("schedules",),
    "features.tasks.commands": ("tasks",),
    "features.workflows.commands": ("workflows",),
    "features.runs.commands": ("runs",),
    "features.dead_letters.commands.groups": ("dead-letters", "replays"),
    "features.queues.commands": ("queues",),
    "features.calendars.commands.calendars": ("calendars",),
    "features.workers.commands.workers": ("workers",),
    "features.workers.commands.schedulers": ("schedulers",),
    "features.data_centers.commands": ("datacenters",),
    "features.events.commands": ("events",),
    "features.alerts.commands": ("alerts",),
    "cli.top": ("top",),
    "features.usage.commands": ("usage", "budgets"),
    "cli.client.profiles": ("profiles",),
    "features.schedules.commands.plan": ("plan", "apply"),
    "features.move.commands": ("move",),
    "features.backup.commands.backup": ("backup",),
    "features.backup.commands.restore": ("restore",),
    "features.archive.commands": ("archive",),
    "features.doctor.commands": ("doctor",),
    "features.drill.commands": ("drill",),
    "cli.store": ("migrate", "promote"),
    "cli.servers": ("store",),
    "features.access.commands.keys": ("keys",),
    "features.access.commands.tenants": ("tenants",),
    "features.schedules.commands.cron": ("cron",),
    "features.forecast.commands": ("forecast",),
    "features.capacity.commands": ("capacity",),
    "features.schedules.commands.convert": ("convert",),
    "cli.bench": ("bench",),
    "cli.about": ("version", "completion", "help"),
}
#: Commands that start a process or change a whole installation. They are never suggested for a misspelled word.
_ACTING = frozenset({*_MODULES["cli.processes"], "apply", "bench", "drill", "migrate", "move", "promote", "restore"})

#: Commands of groups that only read. Others, such as ``jobs restore``, are not suggested for a misspelled word, either.
_READING = frozenset(
    "diff explain history list logs next preview review show verify versions".split()  # noqa: SIM905
)
_QUOTED = re.compile(r"'([^']+)'")


def build_application(word: str = "") -> typer.Typer:
    """Build the command line with the command ``word`` alone, or with all commands if there is no such command.

    A process that runs one command does not import the others.
    """
    application = typer.Typer(
        name="mainspring",
        help=_root.__doc__,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": HELP_OPTIONS},
    )
    application.callback()(_root)
    known = {"--version"}.union(*_MODULES.values())
    for name, commands in _MODULES.items():
        if word in commands or word not in known:
            import_module(f"mainspring.{name}").register(application)
    return application


def build_command(word: str = "") -> Any:
    """Build the command line of ``build_application`` with its help arranged."""
    command = typer.main.get_command(build_application(word))
    arrange(command)
    return command


def __getattr__(name: str) -> Any:
    """Provide ``application``: the command line with all commands."""
    if name == "application":
        return build_application()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _print_version(wanted: bool) -> None:
    if wanted:
        from mainspring.cli.about import show_version

        show_version()
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show version, commit, Python, time zones and schema.",
        ),
    ] = False,
) -> None:
    """Run jobs now, later or on a schedule, and keep a record of every run."""


def main() -> None:
    try:
        # Shell completion needs all commands.
        completes = "_MAINSPRING_COMPLETE" in os.environ
        command = build_command("" if completes or len(sys.argv) < 2 else sys.argv[1])
        # In standalone mode, typer shows the help if there are no arguments. It also draws a box around its errors, so
        # use it only for that.
        status = command(standalone_mode=len(sys.argv) < 2)
        sys.stdout.flush()
    except Invalid as error:
        from mainspring.cli.typed import name_as_typed

        status = _print_error(str(name_as_typed(error, sys.argv[1:])), exits.find_exit_code(error))
    except MainspringError as error:
        status = _print_error(str(error), exits.find_exit_code(error))
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # The reader of the pipe, such as head, has closed it. Redirect stdout, so that the flush at exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Typer exits with the same code if the pipe breaks before the output ends.
        status = exits.FAILED
    except Exception as error:
        # An error of typer, or of click in older versions, about options.
        if not hasattr(error, "format_message"):
            raise
        message = _suggest(error.format_message())
        # For a group without a command, the help was printed and the message is empty.
        status = _print_error(message, exits.BAD_INPUT) if message else exits.BAD_INPUT
    sys.exit(status)


def _suggest(message: str) -> str:
    """Return the message on one line. For an unknown first word, suggest only commands that are safe to try."""
    # Lists of choices have one choice on each line.
    message = message.replace(":\n\t", ": ").replace(",\n\t", ", ")
    words = sys.argv[2:] if sys.argv[1:2] == ["help"] else sys.argv[1:]
    known = {command for commands in _MODULES.values() for command in commands}
    in_group = bool(words) and words[0] in known
    word = words[in_group] if len(words) > in_group else ""
    unknown = f"No such command '{word}'."
    if not message.startswith(unknown):
        return message
    safe = _READING.intersection(_QUOTED.findall(message[len(unknown) :])) if in_group else known - _ACTING
    listing = f"mainspring help {words[0]}" if in_group else "mainspring help"
    close = difflib.get_close_matches(word, sorted(safe), 1)
    return f"{unknown} " + (f"Did you mean '{close[0]}'?" if close else f"'{listing}' lists the commands.")


def _print_error(message: str, status: int) -> int:
    typer.echo(f"mainspring: {'; '.join(message.splitlines())}", err=True)
    return status
