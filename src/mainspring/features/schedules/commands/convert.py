"""``mainspring convert``: converts schedules of other schedulers to a file for ``mainspring apply``."""

import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mainspring.cli.output import AsJson, echo_json, make_console
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.schedules.cron import load_zone
from mainspring.features.schedules import file as schedule_file
from mainspring.features.schedules.commands.converters.conversion import Conversion, RefusedEntry, TranslatedEntry

#: The exit code if some entries could not be converted.
INCOMPLETE = 3
_EXIT_CODES = (
    "Exit codes: 0: everything was translated; 3: some entries were refused, as the report explains; "
    "2: the source is unreadable."
)

Output: TypeAlias = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The schedules file to write. Default: stdout.", show_default=False),
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only report what would be written.")]
Zone: TypeAlias = Annotated[
    str | None,
    typer.Option("--tz", help="The time zone for entries without one. Default: UTC.", show_default=False),
]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--json``."""

    translated: list[TranslatedEntry]
    refused: list[RefusedEntry]
    notes: list[str]


def register(application: typer.Typer) -> None:
    group = typer.Typer(
        name="convert", help="Convert schedules of other schedulers to a schedules file.", no_args_is_help=True
    )
    for name, command in (
        ("crontab", crontab),
        ("celery-beat", celery_beat),
        ("apscheduler", apscheduler),
        ("kubernetes", kubernetes),
    ):
        group.command(name, epilog=_EXIT_CODES)(command)
    application.add_typer(group)


def crontab(
    source: Annotated[str, typer.Argument(help="A crontab file; - reads stdin, such as the output of crontab -l.")],
    system: Annotated[bool, typer.Option("--system", help="Lines have a user, as in /etc/crontab.")] = False,
    task: Annotated[
        str | None,
        typer.Option("--task", help="The task that receives the commands. Default: shell.", show_default=False),
    ] = None,
    tz: Zone = None,
    output: Output = None,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Convert a crontab. Its commands become payloads of the task shell.

    Examples:

    crontab -l | mainspring convert crontab - --tz Europe/Paris --output schedules.yaml

    mainspring convert crontab /etc/crontab --system --dry-run
    """
    from mainspring.features.schedules.commands.converters import crontab as converter

    _check_zone(tz)
    _write_output(
        converter.convert(_read(source), system=system, timezone=tz, task=task), source, output, dry_run, json
    )


def celery_beat(
    source: Annotated[str, typer.Argument(help="module:celery_app, or a Python file with beat_schedule.")],
    tz: Zone = None,
    output: Output = None,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Convert the beat schedule of Celery. The source is imported; if Celery is not installed, a file is read as text.

    Examples:

    mainspring convert celery-beat project.celery:app --output schedules.yaml

    mainspring convert celery-beat settings.py --dry-run
    """
    from mainspring.features.schedules.commands.converters import celery_beat as converter

    _check_zone(tz)
    _write_output(converter.convert(source, timezone=tz), source, output, dry_run, json)


def apscheduler(
    source: Annotated[str, typer.Argument(help="module:scheduler.")],
    tz: Zone = None,
    output: Output = None,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Convert the jobs of an APScheduler 3. The module is imported, so run this where the scheduler runs.

    Example: mainspring convert apscheduler project.jobs:scheduler --output schedules.yaml
    """
    from mainspring.features.schedules.commands.converters import apscheduler as converter

    _check_zone(tz)
    _write_output(converter.convert(source, timezone=tz), source, output, dry_run, json)


def kubernetes(
    source: Annotated[str, typer.Argument(help="A file of manifests; - reads stdin.")],
    tz: Zone = None,
    output: Output = None,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Convert CronJobs of manifests. Commands become payloads of the task shell; images cannot be converted.

    Example: kubectl get cronjobs -o yaml | mainspring convert kubernetes - --output schedules.yaml
    """
    from mainspring.features.schedules.commands.converters import kubernetes as converter

    _check_zone(tz)
    where = "stdin" if source == "-" else source
    _write_output(converter.convert(_read(source), where=where, timezone=tz), source, output, dry_run, json)


def _check_zone(tz: str | None) -> None:
    if tz is not None:
        load_zone(tz, "--tz")


def _read(source: str) -> str:
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise Invalid("source", f"{source} cannot be read: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid("source", f"{source} is not UTF-8") from None


def _write_output(found: Conversion, source: str, output: Path | None, dry_run: bool, as_json: bool) -> None:
    """Write the file and the report. The report goes to stdout, or to stderr if stdout has the file."""
    entries = [
        schedule_file.Entry(entry.fields, [f"from {entry.where}", *entry.warnings]) for entry in found.translated
    ]
    text = schedule_file.format_file(entries, [f"translated from {'stdin' if source == '-' else source}", *found.notes])
    if output is not None and not dry_run:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Invalid("--output", f"{output} cannot be written: {error.strerror}") from None
    if as_json:
        echo_json(
            Report(
                translated=found.translated,
                refused=found.refused,
                notes=found.notes,
            )
        )
    elif output is None and not dry_run:
        typer.echo(text, nl=False)
        _print_report(Console(stderr=True, highlight=False, markup=False, emoji=False), found)
    else:
        _print_report(make_console(), found)
    if found.refused:
        raise typer.Exit(INCOMPLETE)


def _print_report(out: Console, found: Conversion) -> None:
    lines = Table.grid(padding=(0, 2, 0, 0))
    for entry in found.translated:
        when = entry.fields.get("cronExpression") or f"every {entry.fields.get('every')}"
        lines.add_row(Text("ok", "green"), Text(f"{entry.where}: {entry.name}  {when}"))
        for warning in entry.warnings:
            lines.add_row(Text("changed", "yellow"), Text(warning))
    for refusal in found.refused:
        lines.add_row(Text("refused", "red"), Text(f"{refusal.where}: {refusal.what}"))
        lines.add_row("", Text(refusal.why))
    for note in found.notes:
        lines.add_row("note", Text(note))
    out.print(lines)
    out.print(f"{len(found.translated)} translated, {len(found.refused)} refused")
