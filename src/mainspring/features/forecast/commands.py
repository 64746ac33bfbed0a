"""``mainspring forecast``: runs per minute of the coming day, and the schedules that cause them."""

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from mainspring.cli.client.command import Profile
from mainspring.cli.client.target import open_runtime, store_settings
from mainspring.cli.options import Application, Config, Store, load_application
from mainspring.cli.output import AsJson, build_table, echo_json, make_console
from mainspring.config.runtime import system_time
from mainspring.config.settings import Settings
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import (
    HOUR,
    MINUTE,
    Instant,
    check_instant,
    format_duration,
    isoformat,
    parse_instant,
)
from mainspring.core.model.schedules.forecast import Forecast, Planned, Share
from mainspring.core.model.schedules.forecast import forecast as count
from mainspring.core.runtime.log import get_logger
from mainspring.core.scheduler.closed_times import ClosedTimes
from mainspring.features.forecast.service import read_planned

#: At most this many schedules are read, newest first; a note says that there are more.
MAX_SCHEDULES = 100_000
_MAX_HOURS = 24 * 31
_HEIGHT = 8
_WIDE_TERMINAL = 120
_BLOCKS = " ▁▂▃▄▅▆▇█"


class PeakOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    at: str
    runs: int
    makers: tuple[Share, ...]
    others: int


class ForecastOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """JSON output. ``perMinute`` has a number for each minute from ``start`` on."""

    start: str
    minutes: int
    runs: int
    schedules: int
    waiting: int
    #: Ticks that calendars skip, and ticks that they move.
    closed: int
    moved: int
    per_minute: list[int]
    peaks: list[PeakOut]
    totals: list[Share]
    notes: list[str]


def register(application: typer.Typer) -> None:
    application.command("forecast")(forecast)


def forecast(
    app: Application = None,
    hours: Annotated[int, typer.Option("--hours", min=1, max=_MAX_HOURS, help="How many hours to forecast.")] = 24,
    start: Annotated[
        str | None, typer.Option("--from", help="Start at this time, such as 2026-12-31T00:00:00Z. Default: now.")
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", help="Only schedules of this tenant. Default: all tenants.", show_default=False),
    ] = None,
    profile: Profile = None,
    store: Store = None,
    config: Config = None,
    json: AsJson = False,
) -> None:
    """Show the runs of each minute of the coming day, the peaks, and the schedules that cause them.

    It counts schedules in the store that are not paused, and runs that wait for their time, such as one-off jobs. With
    an application it counts the schedules in its code and needs no store.

    Examples:

    mainspring forecast

    mainspring forecast tasks:app --hours 48

    mainspring forecast --from 2026-12-31T00:00:00Z --json
    """
    begin = system_time() if start is None else parse_instant(start, "--from")
    check_instant(begin + hours * HOUR, "--from")
    notes: list[str] = []
    waiting: list[tuple[Instant, int]] = []
    if app is None:
        until = begin - begin % MINUTE + hours * HOUR
        planned, waiting = asyncio.run(
            _read_stored(store_settings(profile, store, config), tenant, begin, until, notes)
        )
    else:
        if store is not None or tenant is not None:
            raise Invalid("application", "cannot be combined with a store", "omit --store and --tenant")
        planned = [
            Planned(
                name=spec.name,
                schedule=spec.schedule,
                key=spec.name,
                minds=bool(spec.calendars),
                copies=len(spec.targets) or 1,
            )
            for spec, _ in load_application(app).schedules()
        ]
    found = count(planned, begin, hours * 60, waiting)
    notes += _list_notes(found, by_name=app is not None, planned=planned)
    if json:
        echo_json(_forecast_out(found, notes))
    else:
        _show_forecast(make_console(), found, notes)


async def _read_stored(
    settings: Settings, tenant: str | None, begin: Instant, until: Instant, notes: list[str]
) -> tuple[list[Planned], list[tuple[Instant, int]]]:
    # A missing store is an error: an empty forecast would be misleading.
    async with open_runtime(settings, makes_store=False) as runtime:
        closed_times = ClosedTimes(runtime.store, get_logger("mainspring.forecast"))
        data_centers = await runtime.store.datacenters()
        planned, more = await read_planned(runtime.store, closed_times, data_centers, tenant, MAX_SCHEDULES)
        if more:
            notes.append(f"there are more than {MAX_SCHEDULES:,} schedules; only the newest are counted")
        return planned, await runtime.store.due_by_minute(tenant, begin, until)


def _list_notes(found: Forecast, *, by_name: bool, planned: list[Planned]) -> list[str]:
    notes = []
    if found.jittered:
        longest = format_duration(found.longest_jitter)
        notes.append(f"{_count_schedules(found.jittered)} a jitter of up to {longest}: runs may start that much later")
    if found.closed or found.moved:
        notes.append(f"calendars skip {found.closed:,} ticks and move {found.moved:,}, counted by the minute")
    if by_name and any(one.minds for one in planned):
        notes.append("calendars are in the store and are not counted here")
    if found.fixed_delays:
        notes.append(f"{_count_schedules(found.fixed_delays)} a fixed delay: counted as if runs took no time")
    if by_name and any(
        "H" in one.schedule.expression.upper() for one in planned if hasattr(one.schedule, "expression")
    ):
        notes.append("H is resolved from the job's id in the store; the forecast uses another value")
    return notes + [f"unreadable schedule: {why}" for why in found.unreadable]


def _count_schedules(number: int) -> str:
    return f"{number:,} schedules have" if number > 1 else "1 schedule has"


def _forecast_out(found: Forecast, notes: list[str]) -> ForecastOut:
    return ForecastOut(
        start=isoformat(found.start),
        minutes=len(found.counts),
        runs=sum(found.counts),
        schedules=found.active,
        waiting=found.waiting,
        closed=found.closed,
        moved=found.moved,
        per_minute=found.counts,
        peaks=[
            PeakOut(at=isoformat(peak.at), runs=peak.runs, makers=peak.makers, others=peak.others)
            for peak in found.peaks
        ],
        totals=found.totals,
        notes=notes,
    )


def _show_forecast(out: Console, found: Forecast, notes: list[str]) -> None:
    minutes = len(found.counts)
    until = isoformat(found.start + minutes * MINUTE)
    runs = sum(found.counts)
    made = f"{found.active:,} schedule{'s' * (found.active != 1)}"
    if found.waiting:
        made += f" and {found.waiting:,} run{'s' * (found.waiting != 1)} already waiting"
    out.print(Text(f"{runs:,} run{'s' * (runs != 1)} of {made}", style="bold"))
    out.print(f"from {isoformat(found.start)} to {until}")
    if runs:
        out.print()
        for line in draw_chart(found.counts, found.start, out.width):
            out.print(Text(line), no_wrap=True, overflow="crop")
        out.print()
        peaks = build_table("PEAK (UTC)", "RUNS", "SCHEDULES", right=("RUNS",))
        for peak in found.peaks:
            shown = peak.makers if out.width >= _WIDE_TERMINAL else peak.makers[:3]
            makers = ", ".join(f"{maker.name} {maker.runs:,}" for maker in shown)
            others = peak.others + len(peak.makers) - len(shown)
            more = f" and {others:,} more" if others else ""
            peaks.add_row(isoformat(peak.at)[:16].replace("T", " "), f"{peak.runs:,}", makers + more)
        out.print(peaks)
        out.print()
        totals = build_table("SCHEDULE", "RUNS", right=("RUNS",))
        for share in found.totals:
            totals.add_row(share.name, f"{share.runs:,}")
        if found.active > len(found.totals):
            totals.add_row(f"and {found.active - len(found.totals):,} more", "")
        out.print(totals)
    for note in notes:
        out.print(Text(f"Note: {note}."))


def draw_chart(counts: list[int], start: Instant, width: int) -> list[str]:
    """Draw bars of the busiest minute of each column, over an axis of hours."""
    highest = max(counts)
    margin = len(f"{highest:,}") + 2
    width_left = max(width - margin, 10)
    minutes_per_column = -(-len(counts) // width_left)
    columns = [max(counts[at : at + minutes_per_column]) for at in range(0, len(counts), minutes_per_column)]
    lines = [
        "runs per minute"
        + (f", highest of each {minutes_per_column} minutes" if minutes_per_column > 1 else "")
        + "; times are UTC"
    ]
    for row in reversed(range(_HEIGHT)):
        # In eighths of a row; a count above zero shows at least one.
        eighths = [-(-column * _HEIGHT * 8 // highest) - row * 8 for column in columns]
        label = f"{highest:,}" if row == _HEIGHT - 1 else "0" if row == 0 else ""
        bars = "".join(_BLOCKS[max(0, min(eighth, 8))] for eighth in eighths)
        lines.append(f"{label:>{margin - 2}} ┤{bars}".rstrip())
    return [*lines, *_draw_axis(len(columns), minutes_per_column, start, margin, width_left)]


def _draw_axis(columns: int, minutes_per_column: int, start: Instant, margin: int, width_left: int) -> list[str]:
    first = -start % HOUR // MINUTE
    # A label takes five columns and a space. Only steps that include midnight are used.
    steps = (1, 2, 3, 4, 6, 8, 12, 24, 48, 96, 168)
    step = next((step for step in steps if step * 60 // minutes_per_column >= 7), steps[-1])
    ticks, labels = ["─"] * columns, [" "] * width_left
    for minute in range(first, columns * minutes_per_column, 60):
        at = start + minute * MINUTE
        if at // HOUR % step:
            continue
        column = minute // minutes_per_column
        ticks[column] = "┴"
        # Labels a day or more apart show the date, since their times would be equal.
        text = isoformat(at)[5:10] if step >= 24 else isoformat(at)[11:16]
        if column + 5 <= width_left and set(labels[max(column - 1, 0) : column + 5]) == {" "}:
            labels[column : column + 5] = text
    edge = " " * (margin - 1)
    return [f"{edge}└{''.join(ticks)}", f"{edge} {''.join(labels)}".rstrip()]
