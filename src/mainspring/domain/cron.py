"""Cron expressions: reading them, finding the fire after or before an instant in a time zone, and saying them in words.

Five fields (minute, hour, day of month, month, day of week), or six with the second first. Beside numbers, names,
ranges, steps and lists: ``L``, ``L-3``, ``LW`` and ``15W`` as days of month, ``5L`` and ``5#2`` as days of week, ``?``
in either of these, ``H`` (a value from the caller's key, so that a herd spreads) and macros such as ``@daily``. When
day of month and day of week are both restricted, either is enough; a field that begins with ``*`` or is ``?`` counts
as unrestricted, and then both must match. These are Vixie's rules.

What happens when the clocks change is Debian's rule by default, with a switch for each half:

* An expression whose minute or hour field begins with ``*`` goes by elapsed time: it fires at every instant whose wall
  time matches. Both passes of a repeated hour fire, a jump adds nothing, and the switches do not matter.
* Any other expression names fixed times. A time that the clocks jump over fires at the jump (``run_after``; several
  such times make one fire) or not at all (``skip``). A time that comes twice fires in the first pass (``once``) or in
  both (``twice``). The letter decides: ``0-59`` and ``H`` do not begin with ``*``.

Every change of offset counts, however large and for whatever reason: Samoa's missing 30 December 2011 is a gap of a
day. The second field plays no part, so ``0 30 2 * * *`` is the same as ``30 2 * * *``.
"""

import difflib
import hashlib
from datetime import date
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec

from mainspring.domain.errors import Invalid
from mainspring.domain.instant import LATEST, SECOND, Instant, to_datetime

MAX_LENGTH = 200

_DAY = 86_400
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
# Two days from either end of the calendar every zone still has a wall time that a datetime can hold.
_FIRST_SECOND = (3 - _EPOCH_ORDINAL) * _DAY
_LAST_SECOND = LATEST // SECOND
# A day that exists comes again within 40 years (29 February on a given weekday, across a year such as 2100) ...
_CALENDAR_YEARS = 41
# ... and one that a gap swallowed may cost that twice.
_HORIZON = 100 * 366 * _DAY
# Offsets lie within a day of UTC, so two of them differ by less than this.
_MARGIN = 2 * _DAY
_NEVER = 1 << 62
_MONTH_WORDS = (
    "",
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_WEEKDAY_WORDS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_NUMBER_WORDS = ("last", "first", "second", "third", "fourth", "fifth")
_MONTH_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LAST_ORDINAL = date.max.toordinal()
# The days 1, 8, 15, 22 and 29.
_FIVE_WEEKS = sum(1 << 1 + 7 * week for week in range(5))


class DstGap(StrEnum):
    """What becomes of a fixed time that the clocks jump over."""

    RUN_AFTER = "run_after"
    SKIP = "skip"


class DstFold(StrEnum):
    """How often a fixed time fires that comes twice."""

    ONCE = "once"
    TWICE = "twice"


class Cron(msgspec.Struct, frozen=True):
    """A parsed expression. Sets of numbers are bit masks: bit n stands for n, weekday 0 is Sunday."""

    expression: str
    seconds: int
    minutes: int
    hours: int
    days: int
    months: int
    weekdays: int
    #: Days counted from the end of the month: 0 is ``L``, 3 is ``L-3``.
    days_before_last: tuple[int, ...]
    #: ``15W``; 0 stands for ``LW``.
    nearest_weekdays: tuple[int, ...]
    #: Weekday and which of the month: (5, 2) is ``5#2``, (5, 0) is ``5L``.
    numbered_weekdays: tuple[tuple[int, int], ...]
    #: Day of month and day of week are both restricted: a day that matches one of them is enough.
    either_day: bool
    #: Neither minute nor hour begins with ``*``: the DST switches apply.
    fixed_times: bool

    @classmethod
    def parse(cls, expression: str, *, hash_key: str = "", field: str = "cron") -> Self:
        """Read an expression, or refuse it with the part and the reason; what can never fire is refused too."""
        reader = _Reader(field, hash_key)
        second, minute, hour, day, month, weekday = reader.split(expression)
        days, days_before_last, nearest_weekdays = reader.days(day)
        weekdays, numbered_weekdays = reader.weekdays(weekday)
        cron = cls(
            expression=expression.strip(),
            seconds=reader.values(_SECOND_FIELD, second),
            minutes=reader.values(_MINUTE_FIELD, minute),
            hours=reader.values(_HOUR_FIELD, hour),
            days=days,
            months=reader.values(_MONTH_FIELD, month),
            weekdays=weekdays,
            days_before_last=days_before_last,
            nearest_weekdays=nearest_weekdays,
            numbered_weekdays=numbered_weekdays,
            either_day=day[0] not in "*?" and weekday[0] not in "*?",
            fixed_times=minute[0] != "*" and hour[0] != "*",
        )
        months = range(1, 13) if "H" in month else _bits(cron.months)
        exists = map(cron._has_a_day, months)
        # Whether an expression is refused must not depend on the key, so every month that H could be has to do.
        if not (all(exists) if "H" in month else any(exists)):
            raise reader.refusal("day of month", "no such day exists in these months", "it would never fire")
        return cron

    def next_after(self, after: Instant, zone: ZoneInfo, gap: DstGap, fold: DstFold) -> Instant | None:
        """The first fire strictly after, or ``None`` when there is none in the next hundred years."""
        once = self.fixed_times and fold == DstFold.ONCE
        run_after = self.fixed_times and gap == DstGap.RUN_AFTER
        second = max(after // SECOND + 1, _FIRST_SECOND)
        limit = min(second + _HORIZON, _LAST_SECOND)
        while second <= limit:
            segment = _segment_at(zone, second)
            offset = segment.offset
            if run_after and second == segment.start and self._any_wall(segment.gap_wall, second + offset):
                return second * SECOND
            wall = second + offset
            if once and wall < segment.fresh_wall:
                wall = segment.fresh_wall
            match = self._wall_from(wall)
            if match - offset < segment.end:
                return (match - offset) * SECOND if match - offset <= limit else None
            if segment.end + offset - wall >= _MARGIN:
                # Nothing from `wall` to `match`, whatever the offsets in between: go near the match at once. Closer
                # to the segment's end a fold could still repeat a wall time before `wall`, so go on from the end.
                second = max(segment.end, match - offset - _MARGIN)
            else:
                second = segment.end
        return None

    def latest_until(self, until: Instant, zone: ZoneInfo, gap: DstGap, fold: DstFold) -> Instant | None:
        """The last fire at or before, or ``None`` when there was none in the hundred years before."""
        once = self.fixed_times and fold == DstFold.ONCE
        run_after = self.fixed_times and gap == DstGap.RUN_AFTER
        second = min(until // SECOND, _LAST_SECOND)
        limit = max(second - _HORIZON, _FIRST_SECOND)
        while second >= limit:
            segment = _segment_at(zone, second)
            offset = segment.offset
            start_wall = segment.start + offset
            match = self._wall_until(second + offset)
            if match >= (segment.fresh_wall if once else start_wall):
                return (match - offset) * SECOND if match - offset >= limit else None
            if run_after and self._any_wall(segment.gap_wall, start_wall):
                return segment.start * SECOND if segment.start >= limit else None
            if second - segment.start >= _MARGIN:
                second = min(segment.start - 1, match - offset + _MARGIN)
            else:
                second = segment.start - 1
        return None

    def describe(self) -> str:
        """The expression in English, of what it means rather than how it is written."""
        times, exact = self._time_words()
        days = self._day_words()
        if exact:
            return f"{days} {times}"
        return times if days == "every day" else f"{times}, {days}"

    def _any_wall(self, low: int, high: int) -> bool:
        return low < high and self._wall_from(low) < high

    def _wall_from(self, wall: int) -> int:
        """The first matching wall time at or after, or never."""
        day, second_of_day = divmod(wall, _DAY)
        time = self._time_from(second_of_day)
        match = self._day_from(day if time >= 0 else day + 1)
        if match == _NEVER:
            return _NEVER
        return match * _DAY + (time if match == day else self._time_from(0))

    def _wall_until(self, wall: int) -> int:
        """The last matching wall time at or before, or minus never."""
        day, second_of_day = divmod(wall, _DAY)
        time = self._time_until(second_of_day)
        match = self._day_until(day if time >= 0 else day - 1)
        if match == -_NEVER:
            return -_NEVER
        return match * _DAY + (time if match == day else self._time_until(_DAY - 1))

    def _time_from(self, second_of_day: int) -> int:
        """The first matching second of the day at or after, or -1."""
        hour, rest = divmod(second_of_day, 3600)
        minute, second = divmod(rest, 60)
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1 and (left := self.seconds >> second):
                return second_of_day + _lowest(left)
            if left := self.minutes >> minute + 1:
                return hour * 3600 + (minute + 1 + _lowest(left)) * 60 + _lowest(self.seconds)
        if left := self.hours >> hour + 1:
            return (hour + 1 + _lowest(left)) * 3600 + _lowest(self.minutes) * 60 + _lowest(self.seconds)
        return -1

    def _time_until(self, second_of_day: int) -> int:
        """The last matching second of the day at or before, or -1."""
        hour, rest = divmod(second_of_day, 3600)
        minute, second = divmod(rest, 60)
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1 and (left := self.seconds & (2 << second) - 1):
                return hour * 3600 + minute * 60 + _highest(left)
            if left := self.minutes & (1 << minute) - 1:
                return hour * 3600 + _highest(left) * 60 + _highest(self.seconds)
        if left := self.hours & (1 << hour) - 1:
            return _highest(left) * 3600 + _highest(self.minutes) * 60 + _highest(self.seconds)
        return -1

    def _day_from(self, day: int) -> int:
        """The first matching day, counted from 1970, at or after, or never."""
        ordinal = day + _EPOCH_ORDINAL
        if ordinal > _LAST_ORDINAL:
            return _NEVER
        moment = date.fromordinal(ordinal)
        year, month = moment.year, moment.month
        last_year = min(year + _CALENDAR_YEARS, date.max.year)
        if self.months >> month & 1:
            first = ordinal - moment.day + 1
            if left := self._days_of(_length_of(year, month), first % 7) >> moment.day:
                return day + _lowest(left)
        while True:
            if left := self.months >> month + 1:
                month += 1 + _lowest(left)
            else:
                year += 1
                month = _lowest(self.months)
                if year > last_year:
                    return _NEVER
            first = date(year, month, 1).toordinal()
            if days := self._days_of(_length_of(year, month), first % 7):
                return first - 1 + _lowest(days) - _EPOCH_ORDINAL

    def _day_until(self, day: int) -> int:
        """The last matching day, counted from 1970, at or before, or minus never."""
        ordinal = day + _EPOCH_ORDINAL
        if ordinal < 1:
            return -_NEVER
        moment = date.fromordinal(min(ordinal, _LAST_ORDINAL))
        year, month, last_day = moment.year, moment.month, moment.day
        first_year = max(year - _CALENDAR_YEARS, date.min.year)
        while True:
            if self.months >> month & 1:
                first = date(year, month, 1).toordinal()
                if left := self._days_of(_length_of(year, month), first % 7) & (2 << last_day) - 1:
                    return first - 1 + _highest(left) - _EPOCH_ORDINAL
            if left := self.months & (1 << month) - 1:
                month = _highest(left)
            else:
                year -= 1
                month = _highest(self.months)
                if year < first_year:
                    return -_NEVER
            last_day = 31

    def _has_a_day(self, month: int) -> bool:
        # In 400 years each month, and each length of February, begins on every weekday.
        lengths = (28, 29) if month == 2 else (_MONTH_LENGTHS[month],)
        return any(self._days_of(length, weekday) for length in lengths for weekday in range(7))

    def _days_of(self, length: int, first_weekday: int) -> int:
        """The matching days of a month of that length that begins on that weekday."""
        days = self.days
        for before in self.days_before_last:
            if before < length:
                days |= 1 << length - before
        for target in self.nearest_weekdays:
            if target <= length:
                days |= 1 << _nearest_weekday(target or length, length, first_weekday)
        # Seven bits, turned so that the first stands for day 1, then repeated for five weeks.
        turned = (self.weekdays >> first_weekday | self.weekdays << 7 - first_weekday) & 0b1111111
        of_week = turned * _FIVE_WEEKS
        for weekday, number in self.numbered_weekdays:
            day = 1 + (weekday - first_weekday) % 7
            of_week |= 1 << (day + 7 * (number - 1) if number else day + (length - day) // 7 * 7)
        every = (2 << length) - 2
        return (days | of_week if self.either_day else days & of_week) & every

    def _time_words(self) -> tuple[str, bool]:
        """The words for the time of day, and whether they are a short list of exact times."""
        seconds, minutes, hours = _bits(self.seconds), _bits(self.minutes), _bits(self.hours)
        if len(seconds) * len(minutes) * len(hours) <= 6:
            tail = seconds != [0]
            times = [f"{h:02}:{m:02}" + f":{s:02}" * tail for h in hours for m in minutes for s in seconds]
            return "at " + _join(times), True
        every_hour = _every(hours, 24, "hour")
        every_minute = _every(minutes, 60, "minute")
        minute_words = every_minute or _listed("at minute", minutes)
        if seconds == [0]:
            if minutes == [0] and every_hour:
                return every_hour, False
            words = minute_words
        else:
            words = _every(seconds, 60, "second") or _listed("at second", seconds)
            if len(minutes) < 60:
                words = f"{words}, {minute_words}"
            elif not words.startswith("every"):
                words += " of every minute"
        if len(hours) == 24:
            return words if every_minute else f"{words} of every hour", False
        if hours[-1] - hours[0] == len(hours) - 1:
            return f"{words} from {hours[0]:02}:00 to {hours[-1]:02}:59", False
        return f"{words}, {every_hour or _listed('in hour', hours)}", False

    def _day_words(self) -> str:
        months = [_MONTH_WORDS[month] for month in _bits(self.months)]
        of_months = "every month" if len(months) == 12 else _join(months)
        in_months = "" if len(months) == 12 else f" in {of_months}"
        weekdays = self._weekday_words()
        numbers = self._day_of_month_words()
        if numbers and weekdays:
            if self.either_day:
                return f"on {numbers} of {of_months} or {weekdays}{in_months}"
            return f"{weekdays} that is {numbers} of {of_months}"
        if numbers:
            return f"on {numbers} of {of_months}"
        return (weekdays or "every day") + in_months

    def _weekday_words(self) -> str:
        """The days of week in words, empty when all are meant."""
        weekdays = _bits(self.weekdays)
        if len(weekdays) == 7:
            return ""
        words = []
        if weekdays == [1, 2, 3, 4, 5]:
            words.append("every weekday")
        elif weekdays:
            # The week begins on Monday, as most calendars and ISO 8601 have it.
            ordered = sorted(weekdays, key=lambda weekday: (weekday - 1) % 7)
            words.append("every " + _join([_WEEKDAY_WORDS[weekday] for weekday in ordered]))
        for weekday, number in self.numbered_weekdays:
            words.append(f"the {_NUMBER_WORDS[number]} {_WEEKDAY_WORDS[weekday]} of the month")
        return _join(words)

    def _day_of_month_words(self) -> str:
        """The days of month in words, empty when all are meant."""
        days = _bits(self.days)
        if len(days) == 31:
            return ""
        if len(days) > 2 and days[-1] - days[0] == len(days) - 1:
            words = [f"the {_ordinal(days[0])} to {_ordinal(days[-1])}"]
        else:
            words = [f"the {_ordinal(day)}" for day in days]
        for target in self.nearest_weekdays:
            words.append(f"the weekday nearest the {_ordinal(target)}" if target else "the last weekday")
        for before in self.days_before_last:
            plural = "s" if before > 1 else ""
            words.append(f"the day {before} day{plural} before the last" if before else "the last day")
        return _join(words)


@lru_cache(maxsize=1024)
def load_zone(name: str, field: str = "timezone") -> ZoneInfo:
    """The zone of an IANA name. Unknown names are refused with near ones; so is what only this machine would know."""
    if not name:
        raise Invalid(field, "is empty", "for example UTC or Europe/Paris")
    names = _zone_names()
    if name not in names:
        close = difflib.get_close_matches(name[:64], names, n=3) or _zones_of_city(name[:64], names)
        hint = "did you mean " + " or ".join(close) + "?" if close else "for example UTC or Europe/Paris"
        raise Invalid(field, f"{name[:64]!r} is not a known time zone", hint)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(field, f"the rules of {name!r} cannot be read", "reinstall the tzdata package") from None


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    # A listed name cannot be a path, and is the same on a file system that ignores case.
    return frozenset(available_timezones() - {"localtime", "Factory"})


def _zones_of_city(name: str, names: frozenset[str]) -> list[str]:
    city = name.rpartition("/")[2].replace(" ", "_").lower()
    return sorted(known for known in names if known.rpartition("/")[2].lower() == city)[:3]


class _Segment(NamedTuple):
    """A stretch of seconds of UTC, end excluded, with one offset. Walls are seconds of local time since 1970."""

    start: int
    end: int
    offset: int
    #: Where the wall times begin that were jumped over at ``start``; ``start + offset`` when there are none.
    gap_wall: int
    #: The first wall time that no earlier segment had.
    fresh_wall: int


# 24 days: long enough that most searches touch one stretch, short enough that finding its changes costs little.
_STRETCH_BITS = 21


def _segment_at(zone: ZoneInfo, second: int) -> _Segment:
    segments = _segments(zone, second >> _STRETCH_BITS)
    for segment in segments:
        if second < segment.end:
            return segment
    return segments[-1]


@lru_cache(maxsize=4096)
def _segments(zone: ZoneInfo, stretch: int) -> tuple[_Segment, ...]:
    """The segments of one stretch, cut at its ends, where nothing changes."""
    low = stretch << _STRETCH_BITS
    high = low + (1 << _STRETCH_BITS)
    segments = []
    # Beginning early shows a fold before the stretch whose repeated hour reaches into it.
    start = low - _MARGIN
    offset = _offset_at(zone, start)
    seen_wall = start + offset
    for change in [*_changes(zone, start, high), high]:
        cut = max(start, low)
        if change > low:
            gap_wall = min(seen_wall, start + offset) if start >= low else cut + offset
            segments.append(_Segment(cut, change, offset, gap_wall, max(seen_wall, cut + offset)))
        seen_wall = max(seen_wall, change + offset)
        start = change
        offset = _offset_at(zone, change)
    return tuple(segments)


def _changes(zone: ZoneInfo, low: int, high: int) -> list[int]:
    """The seconds above low and below high at which the offset becomes another."""
    changes = []
    offset = _offset_at(zone, low)
    # No zone has ever changed twice within three days, so that a look a day sees every change.
    for before in range(low, high, _DAY):
        after = min(before + _DAY, high)
        following = _offset_at(zone, after)
        if following != offset:
            while after - before > 1:
                middle = (before + after) // 2
                if _offset_at(zone, middle) == offset:
                    before = middle
                else:
                    after = middle
            if after < high:
                changes.append(after)
            offset = following
    return changes


def _offset_at(zone: ZoneInfo, second: int) -> int:
    inside = max(_FIRST_SECOND, min(second, _LAST_SECOND - _MARGIN))
    offset = to_datetime(inside * SECOND).astimezone(zone).utcoffset()
    return offset.days * _DAY + offset.seconds if offset else 0


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    #: How many different values there are; Sunday has two numbers.
    size: int
    #: The last value that ``H`` takes: every month has a 28th, and Sunday is to be as likely as the others.
    hash_high: int
    names: dict[str, int]


_SECOND_FIELD = _Field("second", 0, 59, 60, 59, {})
_MINUTE_FIELD = _Field("minute", 0, 59, 60, 59, {})
_HOUR_FIELD = _Field("hour", 0, 23, 24, 23, {})
_DAY_FIELD = _Field("day of month", 1, 31, 31, 28, {})
_MONTH_FIELD = _Field("month", 1, 12, 12, 12, {word[:3].upper(): n for n, word in enumerate(_MONTH_WORDS) if n})
_WEEKDAY_FIELD = _Field("day of week", 0, 7, 7, 6, {word[:3].upper(): n for n, word in enumerate(_WEEKDAY_WORDS)})

_MACROS = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}


class _Reader:
    """Reads one expression, left to right and never back, and refuses in the name of the caller's field."""

    __slots__ = ("_field", "_hash_key")

    def __init__(self, field: str, hash_key: str) -> None:
        self._field = field
        self._hash_key = hash_key

    def refusal(self, part: str, why: str, hint: str = "") -> Invalid:
        return Invalid(self._field, f"{part}: {why}" if part else why, hint)

    def split(self, expression: str) -> list[str]:
        """The six fields, in capitals."""
        if len(expression) > MAX_LENGTH:
            raise self.refusal("", f"is longer than {MAX_LENGTH} characters")
        if not expression.isascii():
            raise self.refusal("", "has a character that is not ASCII")
        text = expression.upper()
        if "=" in text:
            raise self.refusal(
                "", "a time zone or variable inside the expression is not allowed", "set the zone beside it"
            )
        fields = text.split()
        if fields and fields[0].startswith("@"):
            fields = self._macro(" ".join(fields))
        if len(fields) == 5:
            fields.insert(0, "0")
        if len(fields) != 6:
            raise self.refusal(
                "", f"has {len(fields)} fields", "5, or 6 with seconds first; for example 30 9 * * MON-FRI"
            )
        return fields

    def values(self, field: _Field, text: str) -> int:
        """A comma-separated list of terms."""
        values = 0
        for term in text.split(","):
            values |= self._term(field, term)
        return values

    def days(self, text: str) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Day of month: plain days, days before the last, weekdays nearest to a day."""
        if text == "?":
            text = "*"
        days, before_last, nearest = 0, [], []
        for term in text.split(","):
            if term == "LW":
                nearest.append(0)
            elif term == "L":
                before_last.append(0)
            elif term.startswith("L-"):
                before = self._number(_DAY_FIELD, term[2:], term)
                if before > 30:
                    raise self.refusal(_DAY_FIELD.name, f"no month has {term!r}", "L-1 to L-30")
                before_last.append(before)
            elif term.endswith("W"):
                nearest.append(self._value(_DAY_FIELD, term[:-1], term))
            else:
                days |= self._term(_DAY_FIELD, term)
        return days, tuple(before_last), tuple(nearest)

    def weekdays(self, text: str) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Day of week: plain weekdays, and those with a number in the month."""
        if text == "?":
            text = "*"
        weekdays, numbered = 0, []
        for term in text.split(","):
            if term == "L":
                raise self.refusal(_WEEKDAY_FIELD.name, "L needs a day before it", "5L is the last Friday of the month")
            if "#" in term:
                weekday, _, number = term.partition("#")
                if number not in ("1", "2", "3", "4", "5"):
                    raise self.refusal(
                        _WEEKDAY_FIELD.name, f"{term!r} does not end in #1 to #5", "5#2 is the second Friday"
                    )
                numbered.append((self._value(_WEEKDAY_FIELD, weekday, term) % 7, int(number)))
            elif term.endswith("L"):
                numbered.append((self._value(_WEEKDAY_FIELD, term[:-1], term) % 7, 0))
            else:
                weekdays |= self._term(_WEEKDAY_FIELD, term)
        return (weekdays | weekdays >> 7) & 0b1111111, tuple(numbered)

    def _macro(self, name: str) -> list[str]:
        if name == "@REBOOT":
            raise self.refusal("", "@reboot is not a time", "submit an immediate job when the machine starts")
        if name not in _MACROS:
            raise self.refusal("", f"{name[:40].lower()!r} is not a known macro", ", ".join(_MACROS).lower())
        return _MACROS[name].split()

    def _term(self, field: _Field, term: str) -> int:
        body, slash, step_text = term.partition("/")
        step = self._step(field, step_text, term) if slash else 1
        if body == "*":
            low, high = field.low, field.high
        elif body.startswith("H"):
            low, high = self._hashed(field, body, step if slash else 0)
        else:
            low, high = self._range(field, body, term)
            if slash and "-" not in body:
                high = field.high
        values = 0
        for value in range(low, high + 1, step):
            values |= 1 << value
        return values

    def _range(self, field: _Field, body: str, term: str) -> tuple[int, int]:
        first, dash, last = body.partition("-")
        low = self._value(field, first, term)
        if not dash:
            return low, low
        high = self._value(field, last, term)
        if high < low and last == "SUN":
            high = 7
        if high < low:
            hint = f"write {low}-{field.high},{field.low}-{high}"
            raise self.refusal(field.name, f"the range {body!r} is reversed", hint)
        return low, high

    def _step(self, field: _Field, text: str, term: str) -> int:
        step = self._number(field, text, term)
        if step == 0:
            raise self.refusal(field.name, "step 0 is not allowed", "a step is 1 or more")
        if step > field.size:
            hint = "steps start again with each field; use an interval for other periods"
            raise self.refusal(field.name, f"step {step} is larger than the field, which has {field.size} values", hint)
        return step

    def _hashed(self, field: _Field, body: str, step: int) -> tuple[int, int]:
        """``H`` or ``H(low-high)``: one value, or with a step where it begins and how far it goes."""
        low, high = field.low, field.hash_high
        if body != "H":
            inside = body[2:-1]
            if not (body.startswith("H(") and body.endswith(")") and "-" in inside):
                raise self.refusal(
                    field.name, f"{body!r} is not understood", "for example H, H/15, H(0-29) or H(0-29)/10"
                )
            low, high = self._range(field, inside, body)
            if field is _DAY_FIELD and high > field.hash_high:
                raise self.refusal(field.name, f"{body!r} may be a day that not every month has", "H(1-28)")
        # The name of the field is in the hash so that minute and hour are independent. Changing any of this moves
        # the fires of every schedule that has an H.
        digest = hashlib.sha256(f"{field.name}\0{self._hash_key}".encode("utf-8", "surrogatepass")).digest()
        choices = high - low + 1
        low += int.from_bytes(digest[:8], "big") % (min(step, choices) if step else choices)
        return low, high if step else low

    def _value(self, field: _Field, text: str, term: str) -> int:
        if (named := field.names.get(text)) is not None:
            return named
        value = self._number(field, text, term)
        if not field.low <= value <= field.high:
            raise self.refusal(field.name, f"{value} is out of range", f"{field.low} to {field.high}")
        return value

    def _number(self, field: _Field, text: str, term: str) -> int:
        if text.isdecimal() and len(text) <= 4:
            return int(text)
        if not term:
            raise self.refusal(field.name, "an item of the list is empty")
        if "?" in term:
            raise self.refusal(
                field.name, "? is not allowed here", "it stands alone as day of month or day of week; use *"
            )
        hint = f"{field.low} to {field.high}"
        if field.names:
            names = list(field.names)
            hint += f", or {names[0]} to {names[-1]}"
        raise self.refusal(field.name, f"{term[:40]!r} is not understood", hint)


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _highest(mask: int) -> int:
    return mask.bit_length() - 1


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _length_of(year: int, month: int) -> int:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _MONTH_LENGTHS[month]


def _nearest_weekday(day: int, length: int, first_weekday: int) -> int:
    """The day itself, or the nearest from Monday to Friday in the same month."""
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else 3
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _join(words: list[str]) -> str:
    *rest, last = words or [""]
    return f"{', '.join(rest)} and {last}" if rest else last


def _listed(unit: str, values: list[int]) -> str:
    return f"{unit}{'s' * (len(values) > 1)} {_join([str(value) for value in values])}"


def _every(values: list[int], size: int, unit: str) -> str:
    """``every 15 minutes`` if the values are evenly spread over the whole field from 0 on, or else nothing."""
    step = size // len(values)
    if values != list(range(0, size, step)) or size % step:
        return ""
    return f"every {unit}" if step == 1 else f"every {step} {unit}s"


def _ordinal(number: int) -> str:
    suffix = "th" if 10 < number < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
