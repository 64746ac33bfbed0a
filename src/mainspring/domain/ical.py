"""Holidays and freezes from an iCalendar file (RFC 5545), as calendars of the web offer them.

Events of whole days become holidays, events with times freezes. What repeats is written out, day by day or span by
span, for the ten years to come: a calendar says what it says, and no rule has to be worked out when a tick is due.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from mainspring.domain.calendar import MOST_ENTRIES, Freeze, Holiday
from mainspring.domain.cron import load_zone
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import SECOND, Instant, from_datetime, to_datetime
from mainspring.domain.run import MAX_NAME

#: What repeats is written out so far from now, and what is over for longer than that is left out.
_AHEAD = timedelta(days=10 * 366)
_BEHIND = timedelta(days=366)
#: Shorter ones make no holidays, and would take for ever.
_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
_FIRST_YEAR = 1900


def read_ical(text: str, timezone: str, now: Instant) -> tuple[tuple[Holiday, ...], tuple[Freeze, ...]]:
    """``timezone``: of times that name none. An error names the event."""
    # Here and not above: it takes a fifth of a second to import, and few ever need it.
    from icalendar import Calendar as ICalendar

    try:
        calendars = ICalendar.from_ical(text, multiple=True)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Invalid("ical", f"cannot be read: {error}", "a file that begins with BEGIN:VCALENDAR") from None
    events = [event for calendar in calendars for event in calendar.walk("VEVENT")]
    if not events:
        raise Invalid("ical", "has no events", "a file that begins with BEGIN:VCALENDAR")
    if len(events) > MOST_ENTRIES:
        raise Invalid("ical", f"has {len(events)} events", f"at most {MOST_ENTRIES}")
    reading = _Reading(load_zone(timezone), to_datetime(now))
    for step in (reading.note_override, reading.add):
        for number, event in enumerate(events, 1):
            _do(step, event, number)
    return reading.found()


def _do(step: Callable[[Any], None], event: Any, number: int) -> None:
    try:
        step(event)
    except Invalid as error:
        raise Invalid(f"ical, event {number}: {error.field}", error.reason, error.hint) from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise Invalid(f"ical, event {number}", f"cannot be read: {error}") from None


class _Reading:
    def __init__(self, zone: ZoneInfo, now: datetime) -> None:
        self._zone = zone
        self._from = (now - _BEHIND).astimezone(zone).replace(tzinfo=None)
        self._until = (now + _AHEAD).astimezone(zone).replace(tzinfo=None)
        #: Occurrences that an event of their own stands for, by uid.
        self._overridden: dict[str, set[datetime]] = {}
        self._holidays: dict[tuple[str, str], Holiday] = {}
        self._freezes: dict[tuple[Instant, Instant], Freeze] = {}

    def note_override(self, event: Any) -> None:
        replaced = event.get("RECURRENCE-ID")
        if replaced is not None:
            start = event.decoded("RECURRENCE-ID")
            self._overridden.setdefault(str(event.get("UID", "")), set()).add(_wall(start, self._zone_of(start)))

    def add(self, event: Any) -> None:
        if str(event.get("STATUS", "")).upper() == "CANCELLED":
            return
        start = event.decoded("DTSTART")
        label = "".join(letter for letter in str(event.get("SUMMARY", "")) if letter.isprintable())[:MAX_NAME]
        long = self._length(event, start)
        zone = self._zone_of(start)
        for wall in self._occurrences(event, start, zone):
            if wall + long < self._from:
                continue
            if isinstance(start, datetime):
                self._freeze(wall, long, zone, label)
            else:
                self._holiday(wall.date(), max(long.days, 1), label)
            if len(self._holidays) > MOST_ENTRIES or len(self._freezes) > MOST_ENTRIES:
                raise Invalid("RRULE", f"makes more than {MOST_ENTRIES} days or spans", "fewer events")

    def found(self) -> tuple[tuple[Holiday, ...], tuple[Freeze, ...]]:
        return (
            tuple(holiday for _, holiday in sorted(self._holidays.items())),
            tuple(freeze for _, freeze in sorted(self._freezes.items())),
        )

    def _holiday(self, day: date, days: int, label: str) -> None:
        until = "" if days == 1 else str(day + timedelta(days=days - 1))
        self._holidays[str(day), until] = Holiday(date=str(day), until=until, label=label)

    def _freeze(self, wall: datetime, long: timedelta, zone: ZoneInfo, label: str) -> None:
        # What begins in a gap of the clocks begins at the jump; what lies in a fold, the first time.
        start = from_datetime(wall.replace(tzinfo=zone).astimezone(UTC)) // SECOND * SECOND
        end = start + int(long.total_seconds()) * SECOND
        if end > start:
            self._freezes[start, end] = Freeze(start=start, end=end, label=label)

    def _occurrences(self, event: Any, start: date | datetime, zone: ZoneInfo) -> Iterator[datetime]:
        """The beginnings, on the wall of their zone, up to the horizon."""
        first = _wall(start, zone)
        if first.year < _FIRST_YEAR:
            raise Invalid("DTSTART", f"{first:%Y-%m-%d} is too long ago", f"{_FIRST_YEAR} or later")
        own = set() if event.get("RECURRENCE-ID") else self._overridden.get(str(event.get("UID", "")), set())
        left_out = own | {_wall(one, zone) for one in _dates(event, "EXDATE")}
        found = {first} if event.get("RRULE") is None else set(self._repeated(event["RRULE"], first, zone))
        found |= {_wall(one, zone) for one in _dates(event, "RDATE")}
        return iter(sorted(wall for wall in found - left_out if wall <= self._until))

    def _repeated(self, rule: Any, first: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        from dateutil.rrule import rrulestr

        if isinstance(rule, list):
            raise Invalid("RRULE", "is given twice", "one, and RDATE for the rest")
        frequency = [str(word).upper() for word in rule.get("FREQ", [])]
        if len(frequency) != 1 or frequency[0] not in _FREQUENCIES:
            raise Invalid("RRULE", f"repeats {', '.join(frequency) or 'never'}", ", ".join(_FREQUENCIES))
        parts = {name: value for name, value in rule.items() if name.upper() not in ("COUNT", "UNTIL")}
        # Both ends are minded here: a rule that never matches must not be followed to the end of time.
        last = self._until
        if rule.get("UNTIL"):
            until = rule["UNTIL"][0]
            on_the_wall = _wall(until, zone)
            last = min(last, on_the_wall if isinstance(until, datetime) else datetime.combine(until, time.max))
        text = type(rule)(parts).to_ical().decode() + f";UNTIL={last:%Y%m%dT%H%M%S}"
        repeated = takewhile(lambda wall: wall <= last, rrulestr(text, dtstart=first))
        count = rule.get("COUNT")
        return islice(repeated, int(count[0]) if count else None)

    def _length(self, event: Any, start: date | datetime) -> timedelta:
        if event.get("DTEND") is not None:
            end = event.decoded("DTEND")
            if isinstance(end, datetime) != isinstance(start, datetime):
                raise Invalid("DTEND", "is not of the kind of DTSTART", "a date, or a time, both")
            if isinstance(start, datetime):
                # Not on the wall: a span has its length also over a change of the clocks.
                ends, begins = (self._aware(one) for one in (end, start))
                long = ends.astimezone(UTC) - begins.astimezone(UTC)
            else:
                long = end - start
        elif event.get("DURATION") is not None:
            long = event.decoded("DURATION")
        else:
            long = timedelta(0 if isinstance(start, datetime) else 1)
        if long < timedelta(0):
            raise Invalid("DTEND", "is before DTSTART")
        return long

    def _aware(self, moment: datetime) -> datetime:
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=self._zone)

    def _zone_of(self, start: date | datetime) -> Any:
        """In whose time it repeats."""
        return (start.tzinfo if isinstance(start, datetime) else None) or self._zone


def _wall(moment: date | datetime, zone: Any) -> datetime:
    """As the clock shows it there."""
    if not isinstance(moment, datetime):
        return datetime.combine(moment, time())
    return moment.replace(tzinfo=None) if moment.tzinfo is None else moment.astimezone(zone).replace(tzinfo=None)


def _dates(event: Any, name: str) -> list[date | datetime]:
    """Of a property that may come several times, each with several values."""
    found = event.get(name)
    if found is None:
        return []
    lists = found if isinstance(found, list) else [found]
    # An RDATE may be a period: its beginning counts.
    values = [value.dt for one in lists for value in one.dts]
    return [value[0] if isinstance(value, tuple) else value for value in values]
