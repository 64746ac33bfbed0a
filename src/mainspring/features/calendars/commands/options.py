"""Parses the calendar options of the command line into request bodies."""

import sys
from pathlib import Path

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.schedules.calendar import DAYS


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
    """Read a calendar as ``show --json`` prints it, without the fields that cannot be set."""
    try:
        found = msgspec.json.decode(read_text(file, "--file"), type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise Invalid("--file", f"is not JSON: {error}") from None
    output_only = ("name", "tenant", "version", "madeBy", "madeAt", "deleted")
    return {name: value for name, value in found.items() if name not in output_only and value is not None}
