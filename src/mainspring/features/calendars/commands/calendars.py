"""``mainspring calendars``: manage the calendars that close schedules."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, Raw, decode_answer, name_missing, quote_segment
from mainspring.cli.fields import Yes
from mainspring.cli.output import Output, confirm, print_details
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.features.calendars.commands.options import (
    AllJobs,
    ClosedDays,
    DefinitionFile,
    Freezes,
    Holidays,
    OpenHours,
    Queues,
    Tags,
    Zone,
    parse_open_hours,
    parse_period,
    read_definition,
    read_text,
    select_settable,
)

group = typer.Typer(
    name="calendars",
    help="Weekends, holidays, business hours and freezes, shared by schedules.",
    no_args_is_help=True,
)

CalendarName: TypeAlias = Annotated[str, typer.Argument(help="The name of the calendar.", metavar="NAME")]
Why: TypeAlias = Annotated[str, typer.Option("--why", help="The reason, kept with the version.", show_default=False)]
_MAX_LISTED = 10


def register(application: typer.Typer) -> None:
    application.add_typer(group)


class Calendar(msgspec.Struct, rename="camel"):
    name: str
    tenant: str
    version: int
    timezone: str
    closed_days: list[str]
    open_hours: list[dict[str, Any]]
    holidays: list[dict[str, str]]
    freezes: list[dict[str, str]]
    made_by: str
    made_at: str
    why: str = ""
    covers: dict[str, Any] | None = None

    @property
    def summary(self) -> str:
        """Summarize the closed periods in one line."""
        parts = [", ".join(self.closed_days)] if self.closed_days else []
        parts += [f"open {_format_hours(one)}" for one in self.open_hours]
        parts += [f"{len(self.holidays)} holidays"] if self.holidays else []
        parts += [f"{len(self.freezes)} freezes"] if self.freezes else []
        return "; ".join(parts)

    @property
    def scope(self) -> str:
        covers = self.covers
        if covers is None:
            return "jobs that reference it"
        if covers.get("all"):
            return "all jobs"
        return ", ".join(
            [f"tag {tag}" for tag in covers.get("tags", ())] + [f"queue {queue}" for queue in covers.get("queues", ())]
        )


class _CalendarList(msgspec.Struct):
    items: list[Calendar]


class _ClosedPeriod(msgspec.Struct):
    start: str
    end: str | None
    label: str = ""


class _PreviewOut(msgspec.Struct):
    closed: list[_ClosedPeriod]


@command(group, "list")
async def list_calendars(api: Client, out: Output) -> None:
    """List calendars: what they close, and which jobs they apply to.

    Example: mainspring calendars list
    """
    answer = await api.ask("GET", "/v1/calendars", query={"tenant": api.tenant})
    found = decode_answer(answer, _CalendarList).items

    def show() -> None:
        out.rows(
            ("CALENDAR", "VERSION", "ZONE", "APPLIES TO", "CLOSED"),
            [(one.name, str(one.version), one.timezone, one.scope, one.summary) for one in found],
            right=("VERSION",),
            empty="no calendars; to create one: mainspring calendars create weekends --closed sat --closed sun",
        )

    out.render(answer, [one.name for one in found], show)


@command(group, "show")
async def show_calendar(
    api: Client,
    out: Output,
    name: CalendarName,
    versions: Annotated[
        bool, typer.Option("--versions", help="List all versions with their authors and reasons.")
    ] = False,
) -> None:
    """Show a calendar, or its former versions with --versions.

    Examples:

    mainspring calendars show holidays-fr

    mainspring calendars show holidays-fr --versions --json
    """
    if versions:
        with name_missing("calendar", name):
            answer = await api.ask("GET", f"/v1/calendars/{quote_segment(name)}/versions", query={"tenant": api.tenant})
        found = decode_answer(answer, _CalendarList).items
        rows = [(str(one.version), out.time(one.made_at), one.made_by, one.summary, one.why) for one in found]
        headers = ("VERSION", "MADE", "BY", "CLOSED", "WHY")
        out.render(answer, [str(one.version) for one in found], lambda: out.rows(headers, rows, right=("VERSION",)))
        return
    with name_missing("calendar", name):
        answer = await api.ask("GET", f"/v1/calendars/{quote_segment(name)}", query={"tenant": api.tenant})
    out.render(answer, [name], lambda: _show_details(out, decode_answer(answer, Calendar)))


@command(group, "create", makes_store=True)
async def create_calendar(
    api: Client,
    out: Output,
    name: CalendarName,
    tz: Zone = None,
    closed: ClosedDays = None,
    hours: OpenHours = None,
    holiday: Holidays = None,
    freeze: Freezes = None,
    every_job: AllJobs = False,
    tag: Tags = None,
    queue: Queues = None,
    file: DefinitionFile = None,
    why: Why = "",
) -> None:
    """Create a calendar.

    Examples:

    mainspring calendars create weekends --tz Europe/Paris --closed sat --closed sun

    mainspring calendars create office --hours "mon-fri 09:00-17:00"

    mainspring calendars create move --freeze 2030-07-01T22:00:00Z/2030-07-02T02:00:00Z --all-jobs --why "we move"
    """
    body = _read_options(tz, closed, hours, holiday, freeze, every_job, tag, queue, file)
    try:
        answer = await _put(api, name, {**body, "expectedVersion": 0}, why)
    except Conflict:
        raise Conflict(f"calendar {name} exists; to change it: mainspring calendars update {name}") from None
    _report_saved(out, name, answer)


@command(group, "update")
async def update_calendar(
    api: Client,
    out: Output,
    name: CalendarName,
    tz: Zone = None,
    closed: ClosedDays = None,
    hours: OpenHours = None,
    holiday: Holidays = None,
    freeze: Freezes = None,
    every_job: AllJobs = False,
    tag: Tags = None,
    queue: Queues = None,
    file: DefinitionFile = None,
    why: Why = "",
) -> None:
    """Change a calendar; options that you omit keep their values. Every change is kept as a version.

    An option that can be repeated replaces its whole list.

    Examples:

    mainspring calendars update weekends --tz Europe/Berlin

    mainspring calendars update office --hours "mon-thu 09:00-17:00" --hours "fri 09:00-15:00" --why "short Fridays"
    """
    with name_missing("calendar", name):
        current = await api.ask("GET", f"/v1/calendars/{quote_segment(name)}", query={"tenant": api.tenant})
    body = _read_options(tz, closed, hours, holiday, freeze, every_job, tag, queue, file)
    if not body:
        raise Invalid("--closed", "no change given", "for example --closed sun, or a definition in --file")
    kept = {} if file is not None else select_settable(decode_answer(current, dict[str, object]))
    version = decode_answer(current, Calendar).version
    _report_saved(out, name, await _put(api, name, {**kept, **body, "expectedVersion": version}, why))


def _read_options(
    tz: str | None,
    closed: list[str] | None,
    hours: list[str] | None,
    holiday: list[str] | None,
    freeze: list[str] | None,
    every_job: bool,
    tag: list[str] | None,
    queue: list[str] | None,
    file: Path | None,
) -> dict[str, object]:
    """Return the fields of the definition that the options set."""
    given = {
        "timezone": tz,
        "closedDays": closed,
        "openHours": None if hours is None else [parse_open_hours(text) for text in hours],
        "holidays": None if holiday is None else [parse_period(text, "--holiday", "date", "until") for text in holiday],
        "freezes": None if freeze is None else [parse_period(text, "--freeze", "start", "end") for text in freeze],
        "covers": {"all": every_job, "tags": tag or [], "queues": queue or []} if every_job or tag or queue else None,
    }
    body: dict[str, object] = {field: value for field, value in given.items() if value is not None}
    if file is not None:
        if body:
            raise Invalid("--file", "replaces the whole definition", "omit the other options")
        body = read_definition(file)
    return body


def _report_saved(out: Output, name: str, answer: Raw) -> None:
    saved = decode_answer(answer, Calendar)
    out.render(answer, [name], lambda: out.print(f"calendar {name} saved as version {saved.version}: {saved.summary}"))


@command(group, "import", makes_store=True)
async def import_calendar(
    api: Client,
    out: Output,
    name: CalendarName,
    file: Annotated[Path, typer.Argument(help="An iCalendar file (.ics); - reads stdin.", metavar="FILE")],
    tz: Zone = None,
    why: Why = "",
) -> None:
    """Import holidays and freezes from an iCalendar file; they replace those of the calendar.

    Example: mainspring calendars import holidays-fr france.ics --tz Europe/Paris
    """
    body: dict[str, object] = {"ical": read_text(file, "FILE"), "why": why}
    if tz is not None:
        body["timezone"] = tz
    if api.tenant is not None:
        body["tenant"] = api.tenant
    answer = await api.ask("POST", f"/v1/calendars/{quote_segment(name)}/import", body=body, repeatable=True)
    _report_saved(out, name, answer)


@command(group, "delete")
async def delete_calendar(api: Client, out: Output, name: CalendarName, why: Why = "", yes: Yes = False) -> None:
    """Delete a calendar that no job uses.

    Example: mainspring calendars delete move --yes
    """
    confirm(f"delete calendar {name}", yes)
    body: dict[str, object] = {"why": why} if api.tenant is None else {"why": why, "tenant": api.tenant}
    answer = await api.ask("DELETE", f"/v1/calendars/{quote_segment(name)}", body=body)
    out.render(answer, [name], lambda: out.print(f"calendar {name} deleted"))


@command(group, "preview")
async def preview(
    api: Client,
    out: Output,
    name: CalendarName,
    since: Annotated[
        str | None, typer.Option("--from", help="Start at this time (RFC 3339). Default: now.", show_default=False)
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1_000, help="How many closed periods to show.")
    ] = _MAX_LISTED,
) -> None:
    """Show the next closed periods of a calendar.

    Example: mainspring calendars preview weekends -n 3 --utc
    """
    query = {"tenant": api.tenant, "since": since, "limit": count}
    answer = await api.ask("GET", f"/v1/calendars/{quote_segment(name)}/preview", query=query)

    def show() -> None:
        periods = decode_answer(answer, _PreviewOut).closed
        rows = [(period.start, period.end or "no end", period.label) for period in periods]
        out.rows(("CLOSED FROM", "TO", ""), rows)
        if len(periods) < count and (not periods or periods[-1].end is not None):
            out.report("no more within a year of the start; set a later --from to look further ahead")

    out.render(answer, [name], show)


async def _put(api: Client, name: str, body: dict[str, object], why: str) -> Raw:
    body = {**body, "why": why or body.get("why", "")}
    if api.tenant is not None:
        body["tenant"] = api.tenant
    return await api.ask("PUT", f"/v1/calendars/{quote_segment(name)}", body=body, repeatable=True)


def _show_details(out: Output, found: Calendar) -> None:
    holidays = [_format_period(one, "date", "until") for one in found.holidays]
    freezes = [_format_period(one, "start", "end") for one in found.freezes]
    print_details(
        out,
        [
            ("calendar", found.name),
            ("version", found.version),
            ("zone", found.timezone),
            ("applies to", found.scope),
            ("closed", ", ".join(found.closed_days)),
            ("open", "\n".join(_format_hours(one) for one in found.open_hours)),
            ("holidays", _format_list(holidays)),
            ("freezes", _format_list(freezes)),
            ("tenant", found.tenant),
            ("made", f"{found.made_at}  {out.time(found.made_at)} by {found.made_by}"),
            ("why", found.why),
        ],
    )


def _format_list(lines: list[str]) -> str:
    more = [f"and {len(lines) - _MAX_LISTED} more"] if len(lines) > _MAX_LISTED else []
    return "\n".join(lines[:_MAX_LISTED] + more)


def _format_period(one: dict[str, str], start: str, end: str) -> str:
    until = f" to {one[end]}" if one.get(end) else ""
    return f"{one[start]}{until}  {one.get('label', '')}".rstrip()


def _format_hours(one: dict[str, Any]) -> str:
    return f"{', '.join(one['days'])} {one['start']}-{one['end']}"
