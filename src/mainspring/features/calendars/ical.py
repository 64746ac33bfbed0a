"""Reads holidays and freezes from iCalendar files (RFC 5545), as public web calendars provide them.

Events of whole days become holidays; events with times become freezes. Recurring events are expanded for the next ten
years, so that no rule has to be evaluated when a tick is due.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Instant, from_datetime, to_datetime
from mainspring.core.model.runs.names import MAX_NAME
from mainspring.core.model.schedules.calendar import MOST_ENTRIES, Freeze, Holiday
from mainspring.core.model.schedules.cron import load_zone
from mainspring.features.calendars.recurrence import Budget, Rule

#: Recurring events are expanded this far ahead; occurrences that ended longer ago than this are left out.
_HORIZON = timedelta(days=10 * 366)
_KEPT_PAST = timedelta(days=366)
_FIRST_YEAR = 1900
#: Upper bound of an event's length: none starts before the first year.
_MAX_LENGTH = timedelta(days=200 * 366)
#: Limits of the work for a file: lines, and days that its rules examine. Either takes a few seconds.
_MAX_LINES = 200_000
_MAX_STEPS = 2_000_000
_FOLD = re.compile(r"\r?\n[ \t]")
#: The properties that are read. Parsing any other one would cost time and memory for nothing.
_PROPERTIES = frozenset(
    (
        *("BEGIN", "END", "DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "RECURRENCE-ID"),
        *("UID", "STATUS", "SUMMARY"),
    )
)
_NAME = re.compile(r"\s*([A-Za-z-]{3,13})\s*[:;]")


def read_ical(text: str, timezone: str, now: Instant) -> tuple[tuple[Holiday, ...], tuple[Freeze, ...]]:
    """Parse a file. ``timezone`` applies to times without a zone. Errors name the event."""
    # Imported here because it takes 0.2 s to load and is rarely needed.
    from icalendar import Calendar as ICalendar

    try:
        with warnings.catch_warnings():
            # It warns about guesses, such as the zone behind /example.org/Europe/Paris.
            warnings.simplefilter("ignore")
            calendars = ICalendar.from_ical(_unfold(text), multiple=True)
        events = [event for calendar in calendars for event in calendar.walk("VEVENT")]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise Invalid("ical", f"cannot be read: {error!s:.200}", "a file that begins with BEGIN:VCALENDAR") from None
    except RecursionError:
        raise Invalid("ical", "is nested too deeply", "events that are not nested") from None
    if not events:
        raise Invalid("ical", "has no events", "a file that begins with BEGIN:VCALENDAR")
    if len(events) > MOST_ENTRIES:
        raise Invalid("ical", f"has {len(events)} events", f"at most {MOST_ENTRIES}")
    reader = _CalendarReader(load_zone(timezone), to_datetime(now))
    for step in (reader.add_override, reader.add_event):
        for number, event in enumerate(events, 1):
            _apply_step(step, event, number)
    return reader.build_result()


def _apply_step(step: Callable[[Any], None], event: Any, number: int) -> None:
    try:
        step(event)
    except Invalid as error:
        raise Invalid(f"ical, event {number}: {error.field}", error.reason, error.hint) from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise Invalid(f"ical, event {number}", f"cannot be read: {error!s:.200}") from None


class _CalendarReader:
    def __init__(self, zone: ZoneInfo, now: datetime) -> None:
        self._zone = zone
        self._budget = Budget(_MAX_STEPS)
        self._from = (now - _KEPT_PAST).astimezone(zone).replace(tzinfo=None)
        self._until = (now + _HORIZON).astimezone(zone).replace(tzinfo=None)
        #: Occurrences replaced by an event of their own, by uid.
        self._overridden: dict[str, set[datetime]] = {}
        self._holidays: dict[tuple[str, str], Holiday] = {}
        self._freezes: dict[tuple[Instant, Instant], Freeze] = {}

    def add_override(self, event: Any) -> None:
        replaced = event.get("RECURRENCE-ID")
        if replaced is not None:
            start = _decode(event, "RECURRENCE-ID")
            self._overridden.setdefault(str(event.get("UID", "")), set()).add(
                _convert_to_wall(start, self._choose_zone(start))
            )

    def add_event(self, event: Any) -> None:
        if str(event.get("STATUS", "")).upper() == "CANCELLED":
            return
        start = _decode(event, "DTSTART")
        label = "".join(letter for letter in str(event.get("SUMMARY", "")) if letter.isprintable())[:MAX_NAME]
        length = self._read_length(event, start)
        zone = self._choose_zone(start)
        for wall in self._occurrences(event, start, zone, length):
            if isinstance(start, datetime):
                self._add_freeze(wall, length, zone, label)
            else:
                self._add_holiday(wall.date(), max(length.days, 1), label)
            if len(self._holidays) > MOST_ENTRIES or len(self._freezes) > MOST_ENTRIES:
                raise Invalid("RRULE", f"has more than {MOST_ENTRIES} occurrences", "fewer events")

    def build_result(self) -> tuple[tuple[Holiday, ...], tuple[Freeze, ...]]:
        return (
            tuple(holiday for _, holiday in sorted(self._holidays.items())),
            tuple(freeze for _, freeze in sorted(self._freezes.items())),
        )

    def _add_holiday(self, day: date, days: int, label: str) -> None:
        until = "" if days == 1 else str(day + timedelta(days=days - 1))
        self._holidays[str(day), until] = Holiday(date=str(day), until=until, label=label)

    def _add_freeze(self, wall: datetime, length: timedelta, zone: ZoneInfo, label: str) -> None:
        # A start in a gap of the clocks moves to the jump; a start in a fold is the first of both times.
        start = from_datetime(wall.replace(tzinfo=zone).astimezone(UTC)) // SECOND * SECOND
        end = start + int(length.total_seconds()) * SECOND
        if end > start:
            self._freezes[start, end] = Freeze(start=start, end=end, label=label)

    def _occurrences(self, event: Any, start: date | datetime, zone: Any, length: timedelta) -> Iterator[datetime]:
        """Return the relevant starts up to the horizon, as wall times of their zone."""
        first = _convert_to_wall(start, zone)
        if first.year < _FIRST_YEAR:
            raise Invalid("DTSTART", f"{first:%Y-%m-%d} is too long ago", f"{_FIRST_YEAR} or later")
        overridden = set() if event.get("RECURRENCE-ID") else self._overridden.get(str(event.get("UID", "")), set())
        excluded = overridden | {_convert_to_wall(one, zone) for one in self._read_dates(event, "EXDATE")}
        found = {first} if event.get("RRULE") is None else self._expand(event["RRULE"], start, zone, length)
        found |= {_convert_to_wall(one, zone) for one in self._read_dates(event, "RDATE")}
        return iter(sorted(wall for wall in found - excluded if self._compute_earliest(length) <= wall <= self._until))

    def _expand(self, rule: Any, start: date | datetime, zone: Any, length: timedelta) -> set[datetime]:
        if isinstance(rule, list):
            raise Invalid("RRULE", "occurs twice", "one RRULE, and RDATE for other dates")
        # Each occurrence is a calendar entry, so a day cannot have more of them than a calendar has entries.
        read = Rule(rule, _convert_to_wall(start, zone), MOST_ENTRIES if isinstance(start, datetime) else 1)
        last = self._until
        if until := rule.get("UNTIL"):
            end = _reload_zone(until[0] if isinstance(until, list) else until)
            last = min(
                last, _convert_to_wall(end, zone) if isinstance(end, datetime) else datetime.combine(end, time.max)
            )
        found = set()
        for wall in read.list_occurrences(self._compute_earliest(length), last, self._budget):
            if wall >= self._compute_earliest(length):
                found.add(wall)
                if len(found) > MOST_ENTRIES:
                    raise Invalid("RRULE", f"has more than {MOST_ENTRIES} occurrences", "fewer events")
        return found

    def _compute_earliest(self, length: timedelta) -> datetime:
        """Return the earliest relevant start: an occurrence that starts before it ended too long ago."""
        return self._from - min(length, _MAX_LENGTH)

    def _read_length(self, event: Any, start: date | datetime) -> timedelta:
        if event.get("DTEND") is not None:
            end = _decode(event, "DTEND")
            if isinstance(end, datetime) != isinstance(start, datetime):
                raise Invalid("DTEND", "does not have the type of DTSTART", "two dates, or two times")
            if isinstance(start, datetime):
                # Computed in UTC, so that a clock change does not alter the length.
                ends, begins = (self._add_zone(one) for one in (end, start))
                length = ends.astimezone(UTC) - begins.astimezone(UTC)
            else:
                length = end - start
        elif event.get("DURATION") is not None:
            length = event.decoded("DURATION")
        else:
            length = timedelta(0 if isinstance(start, datetime) else 1)
        if length < timedelta(0):
            raise Invalid("DTEND", "is before DTSTART")
        return length

    def _read_dates(self, event: Any, name: str) -> list[date | datetime]:
        """Return the values of a property that may occur several times, each with several values."""
        found = event.get(name)
        if found is None:
            return []
        lists = found if isinstance(found, list) else [found]
        # An RDATE may be a period; its start is used.
        values = [value.dt for one in lists for value in one.dts]
        return [_reload_zone(value[0] if isinstance(value, tuple) else value) for value in values]

    def _add_zone(self, moment: datetime) -> datetime:
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=self._zone)

    def _choose_zone(self, start: date | datetime) -> Any:
        """Return the zone in which the event recurs."""
        return (start.tzinfo if isinstance(start, datetime) else None) or self._zone


def _convert_to_wall(moment: date | datetime, zone: Any) -> datetime:
    """Return the wall time in the zone."""
    if not isinstance(moment, datetime):
        return datetime.combine(moment, time())
    return moment.replace(tzinfo=None) if moment.tzinfo is None else moment.astimezone(zone).replace(tzinfo=None)


def _reload_zone(moment: Any) -> Any:
    """Reload a named zone from this system's time zone database instead of using the file's rules."""
    if not isinstance(moment, datetime) or not isinstance(moment.tzinfo, ZoneInfo) or moment.tzinfo.key is None:
        return moment
    return moment.replace(tzinfo=load_zone(moment.tzinfo.key, "TZID"))


def _decode(event: Any, name: str) -> Any:
    """Decode a date or time property that may name a zone."""
    value = event.decoded(name)
    named = getattr(event.get(name), "params", {}).get("TZID")
    if named and isinstance(value, datetime) and value.tzinfo is None:
        raise Invalid("TZID", f"{str(named)[:60]!r} is not a known time zone", "an IANA name such as Europe/Paris")
    return _reload_zone(value)


def _unfold(text: str) -> str:
    """Unfold the text and drop its zone definitions and unused properties, if it is small enough.

    The rules of a zone in the file would be evaluated for every converted time, and cached for other files.
    """
    lines = _FOLD.sub("", text.removeprefix("\ufeff")).split("\n")
    kept = []
    inside = False
    components = dates = 0
    for line in lines:
        found = _NAME.match(line)
        name = "" if found is None else found[1].upper()
        if name == "BEGIN":
            components += 1
            inside = inside or _names_zone(line)
        if not inside and name in _PROPERTIES:
            kept.append(line.removesuffix("\r"))
            if name in ("EXDATE", "RDATE"):
                dates += 1 + line.count(",")
        elif name == "END" and _names_zone(line):
            inside = False
    if components > 2 * MOST_ENTRIES:
        raise Invalid("ical", f"has {components} components", f"at most {MOST_ENTRIES} events")
    if len(lines) > _MAX_LINES:
        raise Invalid("ical", f"has {len(lines)} lines", f"at most {_MAX_LINES}")
    if dates > MOST_ENTRIES:
        raise Invalid("ical", f"has {dates} dates in EXDATE and RDATE", f"at most {MOST_ENTRIES}")
    return "\r\n".join(kept)


def _names_zone(line: str) -> bool:
    return line.rstrip().upper().endswith(":VTIMEZONE")
