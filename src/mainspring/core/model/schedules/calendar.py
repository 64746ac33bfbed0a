"""Calendars: the times at which ticks must not run. Named, shared by the jobs of a tenant, and versioned.

A calendar is a set of closed periods. Days, holidays and opening hours are in the local time of its zone; a freeze is a
period of absolute time. ``core/model/schedules/closed_periods.py`` applies calendars to ticks.
"""

from datetime import date
from enum import StrEnum

import msgspec

from mainspring.core.model.base.checks import check_kind, check_words
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Instant, check_instant, isoformat
from mainspring.core.model.runs.names import MAX_NAME, MAX_TAGS, check_name, check_queue
from mainspring.core.model.schedules.cron import load_zone
from mainspring.core.model.schedules.cron.wall import DAY_SECONDS

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
#: The maximum number of holidays, and of freezes.
MOST_ENTRIES = 10_000
MOST_HOURS = 100
MOST_CALENDARS = 20
_EPOCH_DAY = date(1970, 1, 1).toordinal()


class WhenClosed(StrEnum):
    """What happens to a tick within a closed period."""

    SKIP = "skip"
    #: The tick runs in the last second before the period.
    BEFORE = "before"
    #: The tick runs as soon as the period has ended.
    AFTER = "after"


class Holiday(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A holiday of one or more whole days; the first and the last day are both included."""

    date: str
    #: The last day; empty: a single day.
    until: str = ""
    label: str = ""


class OpenHours(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The daily opening hours on these days; the end may be 24:00. All other times are closed."""

    days: tuple[str, ...]
    start: str
    end: str


class Freeze(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A closed period of absolute time; the end is excluded."""

    start: Instant
    end: Instant
    label: str = ""


class Covers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The jobs that a calendar applies to without being named by them: all, or those with one of the tags or queues."""

    everything: bool = False
    tags: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


class CalendarSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a calendar version. The calendar is closed whenever one of its parts is."""

    timezone: str = "UTC"
    closed_days: tuple[str, ...] = ()
    open_hours: tuple[OpenHours, ...] = ()
    holidays: tuple[Holiday, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    covers: Covers | None = None

    def check(self) -> None:
        check_kind("timezone", self.timezone, str)
        load_zone(self.timezone, "timezone")
        _check_days("closedDays", self.closed_days)
        _check_most("openHours", self.open_hours, MOST_HOURS)
        for number, hours in enumerate(self.open_hours):
            _check_hours(f"openHours[{number}]", hours)
        _check_most("holidays", self.holidays, MOST_ENTRIES)
        for number, holiday in enumerate(self.holidays):
            _check_holiday(f"holidays[{number}]", holiday)
        _check_most("freezes", self.freezes, MOST_ENTRIES)
        for number, freeze in enumerate(self.freezes):
            _check_freeze(f"freezes[{number}]", freeze)
        if self.covers is not None:
            _check_covers(self.covers)
        if not any(build_week(self)):
            field = "openHours" if self.open_hours else "closedDays"
            raise Invalid(field, "leaves no time of the week open", "a freeze closes everything for a while")


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """A calendar as the store holds it."""

    tenant: str
    name: str
    version: int
    spec: CalendarSpec
    made_by: str = ""
    why: str = ""
    made_at: Instant = 0
    #: This version marks the calendar as deleted.
    deleted: bool = False


def check_calendars(names: tuple[str, ...], rule: WhenClosed) -> None:
    check_kind("calendars", names, tuple)
    check_kind("whenClosed", rule, WhenClosed)
    if len(names) > MOST_CALENDARS:
        raise Invalid("calendars", f"are {len(names)}", f"at most {MOST_CALENDARS}")
    for name in names:
        check_name("calendars", name)
    if len(set(names)) < len(names):
        raise Invalid("calendars", "has one twice")


def build_week(spec: CalendarSpec) -> list[list[tuple[int, int]]]:
    """Return the opening hours of each day of the week, Monday first, in seconds of the day."""
    week: list[list[tuple[int, int]]] = [[] for _ in DAYS]
    for number, day in enumerate(DAYS):
        if day in spec.closed_days:
            continue
        if not spec.open_hours:
            week[number] = [(0, DAY_SECONDS)]
            continue
        for start, end in sorted(
            (_seconds(hours.start), _seconds(hours.end)) for hours in spec.open_hours if day in hours.days
        ):
            if week[number] and start <= week[number][-1][1]:
                week[number][-1] = (week[number][-1][0], max(week[number][-1][1], end))
            else:
                week[number].append((start, end))
    return week


def parse_day(text: str) -> int:
    """Return the number of days since 1970."""
    return date.fromisoformat(text).toordinal() - _EPOCH_DAY


def _seconds(text: str) -> int:
    """Parse a time of day such as 09:30 into seconds since midnight."""
    hour, _, minute = text.partition(":")
    return int(hour) * 3_600 + int(minute) * 60


def _check_days(field: str, days: tuple[str, ...]) -> None:
    check_kind(field, days, tuple)
    for day in days:
        if day not in DAYS:
            raise Invalid(field, f"{day!r:.40} is not a day", ", ".join(DAYS))


def _check_most(field: str, entries: tuple[object, ...], most: int) -> None:
    check_kind(field, entries, tuple)
    if len(entries) > most:
        raise Invalid(field, f"are {len(entries)}", f"at most {most}")


def _check_hours(field: str, hours: OpenHours) -> None:
    check_kind(field, hours, OpenHours)
    _check_days(f"{field}.days", hours.days)
    if not hours.days:
        raise Invalid(f"{field}.days", "is empty", ", ".join(DAYS))
    for name, text in (("start", hours.start), ("end", hours.end)):
        right = isinstance(text, str) and len(text) == 5 and text[2] == ":" and (text[:2] + text[3:]).isascii()
        if not right or not (text[:2] + text[3:]).isdigit() or int(text[3:]) > 59 or _seconds(text) > DAY_SECONDS:
            raise Invalid(f"{field}.{name}", f"{text!r:.40} is not a time of day", "00:00 to 24:00")
    if _seconds(hours.end) <= _seconds(hours.start):
        raise Invalid(f"{field}.end", "is not after the start", "hours over midnight are two entries")


def _check_holiday(field: str, holiday: Holiday) -> None:
    check_kind(field, holiday, Holiday)
    check_words(f"{field}.label", holiday.label, MAX_NAME)
    for name, text in (("date", holiday.date), ("until", holiday.until or holiday.date)):
        try:
            day = date.fromisoformat(text) if isinstance(text, str) else None
        except ValueError:
            day = None
        if day is None or str(day) != text or not 1970 <= day.year <= 9998:
            raise Invalid(f"{field}.{name}", f"{text!r:.40} is not a day", "for example 2026-12-25")
    if holiday.until and holiday.until < holiday.date:
        raise Invalid(f"{field}.until", "is before the date", f"{holiday.date} or later")


def _check_freeze(field: str, freeze: Freeze) -> None:
    check_kind(field, freeze, Freeze)
    check_words(f"{field}.label", freeze.label, MAX_NAME)
    for name, instant in (("start", freeze.start), ("end", freeze.end)):
        check_instant(instant, f"{field}.{name}")
        if instant % SECOND:
            raise Invalid(f"{field}.{name}", f"{isoformat(instant)} is no whole second")
    if freeze.end <= freeze.start:
        raise Invalid(f"{field}.end", "is not after the start", f"later than {isoformat(freeze.start)}")


def _check_covers(covers: Covers) -> None:
    check_kind("covers", covers, Covers)
    if not isinstance(covers.everything, bool):
        raise Invalid("covers.all", "is neither true nor false")
    for field, names in (("tags", covers.tags), ("queues", covers.queues)):
        _check_most(f"covers.{field}", names, MAX_TAGS)
    for tag in covers.tags:
        check_name("covers.tags", tag)
    for queue in covers.queues:
        check_queue("covers.queues", queue)
    if not (covers.everything or covers.tags or covers.queues):
        raise Invalid("covers", "names no job", "all, tags or queues")
