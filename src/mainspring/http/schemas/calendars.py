"""Calendars in the wire format."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.base.instant import isoformat, parse_instant
from mainspring.core.model.schedules.calendar import (
    MOST_ENTRIES,
    MOST_HOURS,
    Calendar,
    CalendarSpec,
    Covers,
    Freeze,
    Holiday,
    OpenHours,
)
from mainspring.http.schemas.common import Name, Request, Tags, Text, Time, Wire

Day: TypeAlias = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
Label: TypeAlias = Annotated[str, Meta(max_length=200)]
Clock: TypeAlias = Annotated[str, Meta(max_length=5, description="A time of day, 00:00 to 24:00.", examples=["09:30"])]
Date: TypeAlias = Annotated[str, Meta(max_length=10, examples=["2026-12-25"])]


class HolidayIn(Request, omit_defaults=True):
    """One or several whole days."""

    date: Date
    until: Date = ""
    """The last day, if there are several."""
    label: Label = ""


class OpenHoursIn(Request):
    """The opening hours on some days of the week."""

    days: Annotated[tuple[Day, ...], Meta(min_length=1, max_length=7)]
    start: Clock
    end: Clock


class FreezeIn(Request, omit_defaults=True):
    """A closed period in absolute time; its end is not included."""

    start: Time
    end: Time
    label: Label = ""


class CoversIn(Request, omit_defaults=True):
    """The jobs that the calendar covers although they do not name it."""

    all: bool = False
    """Every recurring job of the tenant."""
    tags: Tags = ()
    queues: Tags = ()


class CalendarFields(Request, omit_defaults=True):
    """When the ticks of schedules may not run. A time is closed if any part of the calendar closes it."""

    timezone: Annotated[str, Meta(max_length=64)] = "UTC"
    closed_days: Annotated[tuple[Day, ...], Meta(max_length=7)] = ()
    open_hours: Annotated[tuple[OpenHoursIn, ...], Meta(max_length=MOST_HOURS)] = ()
    """All other times are closed. Empty: open all day."""
    holidays: Annotated[tuple[HolidayIn, ...], Meta(max_length=MOST_ENTRIES)] = ()
    freezes: Annotated[tuple[FreezeIn, ...], Meta(max_length=MOST_ENTRIES)] = ()
    covers: CoversIn | None = None


class CalendarIn(CalendarFields, omit_defaults=True):
    """The whole calendar; fields that you omit are reset."""

    why: Text = ""
    expected_version: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    """Refuse with 409 if the calendar has another version; 0: if it exists."""
    tenant: Name | UnsetType = UNSET


class CalendarOut(Wire):
    name: str
    tenant: str
    version: int
    timezone: str
    closed_days: tuple[str, ...]
    open_hours: tuple[OpenHoursIn, ...]
    holidays: tuple[HolidayIn, ...]
    freezes: tuple[FreezeIn, ...]
    made_by: str
    made_at: str
    why: str = ""
    covers: CoversIn | None = None
    deleted: bool = False


def read_calendar_spec(fields: CalendarFields) -> CalendarSpec:
    covers = fields.covers
    return CalendarSpec(
        timezone=fields.timezone,
        closed_days=fields.closed_days,
        open_hours=tuple(OpenHours(days=one.days, start=one.start, end=one.end) for one in fields.open_hours),
        holidays=tuple(Holiday(date=one.date, until=one.until, label=one.label) for one in fields.holidays),
        freezes=tuple(
            Freeze(
                start=parse_instant(one.start, f"freezes[{number}].start"),
                end=parse_instant(one.end, f"freezes[{number}].end"),
                label=one.label,
            )
            for number, one in enumerate(fields.freezes)
        ),
        covers=None if covers is None else Covers(everything=covers.all, tags=covers.tags, queues=covers.queues),
    )


def render_calendar(calendar: Calendar) -> CalendarOut:
    spec = calendar.spec
    covers = spec.covers
    return CalendarOut(
        name=calendar.name,
        tenant=calendar.tenant,
        version=calendar.version,
        timezone=spec.timezone,
        closed_days=spec.closed_days,
        open_hours=msgspec.convert(msgspec.to_builtins(spec.open_hours), tuple[OpenHoursIn, ...]),
        holidays=tuple(HolidayIn(date=one.date, until=one.until, label=one.label) for one in spec.holidays),
        freezes=tuple(
            FreezeIn(start=isoformat(one.start), end=isoformat(one.end), label=one.label) for one in spec.freezes
        ),
        covers=None if covers is None else CoversIn(all=covers.everything, tags=covers.tags, queues=covers.queues),
        made_by=calendar.made_by,
        made_at=isoformat(calendar.made_at),
        why=calendar.why,
        deleted=calendar.deleted,
    )


def read_calendar(out: CalendarOut) -> Calendar:
    """Convert a calendar from the API back to the model, for clients."""
    fields = CalendarFields(
        timezone=out.timezone,
        closed_days=msgspec.convert(out.closed_days, tuple[Day, ...]),
        open_hours=out.open_hours,
        holidays=out.holidays,
        freezes=out.freezes,
        covers=out.covers,
    )
    return Calendar(tenant=out.tenant, name=out.name, version=out.version, spec=read_calendar_spec(fields))
