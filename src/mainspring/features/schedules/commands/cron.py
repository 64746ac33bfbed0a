"""``mainspring cron explain``: what an expression means, its upcoming ticks, and the effect of clock changes."""

import asyncio
from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from mainspring.cli.client.command import ConfigOf, Key, Profile, StoreOf, Tenant, Url
from mainspring.cli.client.target import Target, choose_target, connect, decode_answer, quote_segment
from mainspring.cli.output import AsJson, build_table, echo_json, format_distance, make_console
from mainspring.config.runtime import system_time
from mainspring.core.model.base.instant import DAY, Instant, isoformat, parse_instant, to_datetime
from mainspring.core.model.schedules.calendar import WhenClosed
from mainspring.core.model.schedules.closed_periods import ClosedPeriods, CompiledCalendar
from mainspring.core.model.schedules.cron import (
    ClockChange,
    Cron,
    DstFold,
    DstGap,
    FieldRange,
    clock_changes,
    load_zone,
    parts,
)

_YEAR = 366 * DAY
_MAX_TICKS = 1_000


class UpcomingTick(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    local: str
    utc: str
    distance: str
    #: With calendars: when its run may start (``None`` if it is skipped), and why.
    starts: str | None = None
    reason: str = ""


class ClockChangeOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    at: str
    kind: str
    day: str
    times: tuple[str, ...]
    count: int
    rule: str
    words: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The output of ``--json``."""

    expression: str
    timezone: str
    words: str
    fields: list[FieldRange]
    dst_gap: str
    dst_fold: str
    #: Whether the DST rules apply. If not, the schedule goes by elapsed time.
    fixed_times: bool
    next_fires: list[UpcomingTick]
    clock_changes: list[ClockChangeOut]
    notes: list[str]


def register(application: typer.Typer) -> None:
    group = typer.Typer(name="cron", help="Explain cron expressions.", no_args_is_help=True)
    # With only one command, typer would omit its name.
    group.callback()(lambda: None)
    group.command("explain")(explain)
    application.add_typer(group)


def explain(
    expression: Annotated[
        str, typer.Argument(help="5 fields, 6 with seconds first, or a word such as @daily; in quotes.")
    ],
    tz: Annotated[str, typer.Option("--tz", help="The time zone, such as Europe/Paris.")] = "UTC",
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=_MAX_TICKS, help="How many ticks to show.")] = 5,
    start: Annotated[
        str | None, typer.Option("--from", help="Start at this time, such as 2026-12-31T23:59:59Z. Default: now.")
    ] = None,
    gap: Annotated[DstGap, typer.Option("--gap", help="What to do with times that daylight saving time skips.")] = (
        DstGap.RUN_AFTER
    ),
    fold: Annotated[
        DstFold, typer.Option("--fold", help="What to do with times that daylight saving time repeats.")
    ] = DstFold.ONCE,
    calendar: Annotated[
        list[str] | None,
        typer.Option("--calendar", help="Apply this calendar of the store or the API. Repeatable."),
    ] = None,
    when_closed: Annotated[
        WhenClosed, typer.Option("--when-closed", help="What to do with ticks while a calendar is closed.")
    ] = WhenClosed.SKIP,
    profile: Profile = None,
    url: Url = None,
    key: Key = None,
    store: StoreOf = None,
    config: ConfigOf = None,
    tenant: Tenant = None,
    json: AsJson = False,
) -> None:
    """Explain a cron expression in words, field by field, with its upcoming ticks and the effect of clock changes.

    Examples:

    mainspring cron explain "0 30 9 * * MON" --tz Europe/Paris

    mainspring cron explain "30 2 * * *" --tz Europe/Paris --gap skip -n 10

    mainspring cron explain @daily --json

    mainspring cron explain "0 9 * * *" --calendar weekends --when-closed after
    """
    after = system_time() if start is None else parse_instant(start, "--from")
    closed_periods = None
    if calendar:
        where = choose_target(profile, url, key, store, config, tenant)
        closed_periods = ClosedPeriods(asyncio.run(_load_calendars(where, calendar)), when_closed)
    found = build_explanation(expression, tz, gap, fold, after, count, closed_periods)
    if json:
        echo_json(found)
    else:
        _show_explanation(found)


async def _load_calendars(where: Target, names: list[str]) -> list[CompiledCalendar]:
    """Load the calendars from the API or the store that the options select."""
    # Import here: without calendars, none of it is needed.
    from mainspring.http.schemas.calendars import CalendarOut, read_calendar

    async with connect(where) as api:
        answers = [
            await api.ask("GET", f"/v1/calendars/{quote_segment(name)}", query={"tenant": api.tenant}) for name in names
        ]
    return [CompiledCalendar(read_calendar(decode_answer(answer, CalendarOut))) for answer in answers]


def build_explanation(
    expression: str,
    tz: str,
    gap: DstGap,
    fold: DstFold,
    after: Instant,
    count: int,
    closed_periods: ClosedPeriods | None = None,
) -> Explanation:
    cron = Cron.parse(expression, field="expression")
    zone = load_zone(tz, "--tz")
    ticks: list[UpcomingTick] = []
    tick = after
    while len(ticks) < count and (following := cron.next_after(tick, zone, gap, fold)) is not None:
        tick = following
        local = to_datetime(tick).astimezone(zone)
        at, reason = (tick, "") if closed_periods is None else closed_periods.place(tick)
        ticks.append(
            UpcomingTick(
                local=local.isoformat(),
                utc=isoformat(tick),
                distance=format_distance(tick - after),
                starts=None if at is None else isoformat(at),
                reason=reason,
            )
        )
    notes = []
    if any(term.startswith("H") for part in parts(cron) for term in part.written.split(",")):
        notes.append("H is resolved from the job's id; another value is shown here")
    if cron.either_day:
        notes.append("both day fields are restricted: a day that matches either one is enough")
    if not cron.fixed_times and tz != "UTC":
        notes.append("minute or hour begins with *: ticks follow elapsed time, and --gap and --fold have no effect")
    return Explanation(
        expression=cron.expression,
        timezone=tz,
        words=cron.describe(),
        fields=parts(cron),
        dst_gap=gap.value,
        dst_fold=fold.value,
        fixed_times=cron.fixed_times,
        next_fires=ticks,
        clock_changes=[
            _clock_change_out(change) for change in clock_changes(cron, zone, gap, fold, after, after + _YEAR)
        ],
        notes=notes,
    )


def _clock_change_out(change: ClockChange) -> ClockChangeOut:
    return ClockChangeOut(
        at=isoformat(change.at),
        kind=change.kind,
        day=change.day,
        times=change.times,
        count=change.count,
        rule=change.rule,
        words=change.words,
    )


def _show_explanation(found: Explanation) -> None:
    out = make_console()
    out.print(Text(f"{found.words}, {found.timezone}", style="bold"))
    out.print()
    fields = build_table("FIELD", "WRITTEN", "MEANS")
    for part in found.fields:
        fields.add_row(part.field, part.written, part.means)
    out.print(fields)
    out.print()
    ticks = build_table("NEXT", "UTC", "")
    for tick in found.next_fires:
        local = datetime.fromisoformat(tick.local)
        why = f"{'skipped' if tick.starts is None else f'starts {tick.starts}'}, {tick.reason}" if tick.reason else ""
        ticks.add_row(f"{local:%a %Y-%m-%d %H:%M:%S} {tick.local[19:]}", tick.utc, why or tick.distance)
    out.print(ticks)
    out.print()
    if found.clock_changes:
        changes = build_table("DAY", "CLOCK CHANGES WITHIN A YEAR")
        for change in found.clock_changes:
            changes.add_row(change.day, change.words)
        out.print(changes)
    else:
        out.print("No clock change within a year affects it.")
    for note in found.notes:
        out.print(Text(f"Note: {note}."))
