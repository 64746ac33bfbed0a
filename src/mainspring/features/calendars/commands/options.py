"""The options of calendars, and their parsers into request bodies."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.schedules.calendar import DAYS

Zone: TypeAlias = Annotated[
    str | None, typer.Option("--tz", help="The time zone, such as Europe/Paris. Default: UTC.", show_default=False)
]
ClosedDays: TypeAlias = Annotated[
    list[str] | None, typer.Option("--closed", help="A closed day of the week, such as sat. Repeatable.", metavar="DAY")
]
OpenHours: TypeAlias = Annotated[
    list[str] | None, typer.Option("--hours", help='Open hours, such as "mon-fri 09:00-17:00". Repeatable.')
]
Holidays: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--holiday", help="One or several closed days: 2026-12-24/2026-12-26=Christmas. Repeatable."),
]
Freezes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--freeze", help="A closed period: 2026-07-01T22:00:00Z/2026-07-02T02:00:00Z=move. Repeatable."),
]
AllJobs: TypeAlias = Annotated[bool, typer.Option("--all-jobs", help="Apply the calendar to all jobs of the tenant.")]
Tags: TypeAlias = Annotated[
    list[str] | None, typer.Option("--tag", help="Apply the calendar to jobs with this tag. Repeatable.")
]
Queues: TypeAlias = Annotated[
    list[str] | None, typer.Option("--queue", help="Apply the calendar to jobs of this queue. Repeatable.")
]
DefinitionFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("-f", "--file", help="The whole definition as JSON, as `show --json` prints it; - reads stdin."),
]
#: Fields of a calendar that the server sets.
_OUTPUT_ONLY = ("name", "tenant", "version", "madeBy", "madeAt", "deleted", "why")


def parse_open_hours(text: str) -> dict[str, object]:
    """Parse ``mon-fri 09:00-17:00`` or ``mon,wed 09:00-17:00``."""
    days, _, times = text.strip().rpartition(" ")
    start, _, end = times.partition("-")
    if not days or not end:
        raise Invalid("--hours", f"{text!r:.60} is not a list of days with times", 'for example "mon-fri 09:00-17:00"')
    found: list[str] = []
    for part in days.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise Invalid("--hours", f"{part!r:.40} is not a day or a range of days", ", ".join(DAYS))
        found += DAYS[DAYS.index(first) : DAYS.index(last or first) + 1]
    return {"days": found, "start": start, "end": end}


def parse_period(text: str, option: str, first: str, last: str) -> dict[str, str]:
    """Parse ``first/last=label``; the last day and the label are optional."""
    span, _, label = text.partition("=")
    start, _, end = span.partition("/")
    if not end and option == "--freeze":
        raise Invalid(option, f"{text!r:.60} has no end", "2026-07-01T22:00:00Z/2026-07-02T02:00:00Z")
    return {name: value for name, value in ((first, start), (last, end), ("label", label)) if value}


def read_text(file: Path, option: str) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.expanduser().read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(option, f"{file} cannot be read: {error}") from None


def read_definition(file: Path) -> dict[str, object]:
    """Read a calendar as ``show --json`` prints it."""
    try:
        found = msgspec.json.decode(read_text(file, "--file"), type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise Invalid("--file", f"is not JSON: {error}") from None
    why = found.get("why")
    return {**select_settable(found), **({"why": why} if why is not None else {})}


def select_settable(calendar: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a calendar that a request can set."""
    return {name: value for name, value in calendar.items() if name not in _OUTPUT_ONLY and value is not None}
