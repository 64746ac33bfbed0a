"""The kinds of schedules in Celery's beat, and a parser for its crontab."""

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec

from mainspring.core.model.base.instant import SECOND, format_duration
from mainspring.core.model.schedules.cron.words import MONTH_WORDS, WEEKDAY_WORDS
from mainspring.features.schedules.commands.converters.calendar import Calendar, build_cron
from mainspring.features.schedules.commands.converters.conversion import UntranslatableError

_NAMES = {
    **{word[: length or None].lower(): n for n, word in enumerate(WEEKDAY_WORDS) for length in (0, 3)},
    **{word[: length or None].lower(): n for n, word in enumerate(MONTH_WORDS) if word for length in (0, 3)},
}


class CrontabFields(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of ``crontab()``: texts, numbers, or collections of numbers."""

    minute: Any = "*"
    hour: Any = "*"
    day_of_week: Any = "*"
    day_of_month: Any = "*"
    month_of_year: Any = "*"


class Interval(msgspec.Struct, frozen=True):
    seconds: float


class UnknownSchedule(msgspec.Struct, frozen=True):
    why: str


def convert_schedule(schedule: object) -> dict[str, object]:
    """Return the fields of a schedules file that say when the schedule fires."""
    match schedule:
        case UnknownSchedule():
            raise UntranslatableError(schedule.why)
        case CrontabFields():
            return {"cronExpression": build_cron(_build_calendar(schedule))}
        case Interval():
            seconds = schedule.seconds
        case timedelta():
            seconds = schedule.total_seconds()
        case bool():
            raise UntranslatableError("its schedule is neither a crontab nor a time span")
        case int() | float():
            seconds = float(schedule)
        case _:
            raise UntranslatableError("its schedule is neither a crontab nor a time span")
    if not math.isfinite(seconds):
        raise UntranslatableError("its time span has no end")
    return {"every": format_duration(round(seconds * SECOND))}


def _build_calendar(fields: CrontabFields) -> Calendar:
    return Calendar(
        minutes=parse_crontab_field(fields.minute, 0, 59),
        hours=parse_crontab_field(fields.hour, 0, 23),
        days=parse_crontab_field(fields.day_of_month, 1, 31),
        months=parse_crontab_field(fields.month_of_year, 1, 12),
        weekdays=parse_crontab_field(fields.day_of_week, 0, 6),
    )


def parse_crontab_field(given: object, low: int, high: int) -> frozenset[int]:
    """Parse a field of ``crontab()``. A range may wrap around at the end."""
    if isinstance(given, int) and not isinstance(given, bool):
        found = {given}
    elif isinstance(given, str):
        found = set()
        for term in given.split(","):
            found |= set(_parse_term(term, low, high))
    elif isinstance(given, Iterable):
        found = set(given)
    else:
        raise UntranslatableError(f"{given!r:.40} is not a crontab value")
    if not found or not all(isinstance(value, int) and low <= value <= high for value in found):
        raise UntranslatableError(f"{given!r:.40} is not a crontab value")
    return frozenset(found)


def _parse_term(term: str, low: int, high: int) -> list[int]:
    body, slash, step = term.partition("/")
    if body == "*":
        values = list(range(low, high + 1))
    else:
        first, dash, last = body.partition("-")
        start = _parse_number(first)
        end = _parse_number(last) if dash else start
        values = list(range(start, end + 1)) if end >= start else [*range(start, high + 1), *range(low, end + 1)]
    if not slash:
        return values
    if not step.isascii() or not step.isdecimal() or step == "0" or (body != "*" and "-" not in body):
        raise UntranslatableError(f"{term!r:.40} is not a crontab value")
    return values[:: int(step)]


def _parse_number(text: str) -> int:
    word = text.strip().lower()
    if word.isascii() and word.isdecimal() and len(word) <= 4:
        return int(word)
    if word in _NAMES:
        return _NAMES[word]
    raise UntranslatableError(f"{text!r:.40} is not a crontab value")
