"""The kinds of schedules in Celery's beat, and a parser for its crontab."""

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec

from mainspring.core.model.base.instant import SECOND, format_duration
from mainspring.core.model.schedules.cron.words import MONTH_WORDS, WEEKDAY_WORDS
from mainspring.features.schedules.commands.converters.calendar import Calendar, cron_of
from mainspring.features.schedules.commands.converters.conversion import Untranslatable

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


class Every(msgspec.Struct, frozen=True):
    seconds: float


class Unknown(msgspec.Struct, frozen=True):
    why: str


def fields_of(schedule: object) -> dict[str, object]:
    """Return the fields of a schedules file that say when the schedule fires."""
    match schedule:
        case Unknown():
            raise Untranslatable(schedule.why)
        case CrontabFields():
            return {"cronExpression": cron_of(_calendar(schedule))}
        case Every():
            seconds = schedule.seconds
        case timedelta():
            seconds = schedule.total_seconds()
        case bool():
            raise Untranslatable("its schedule is neither a crontab nor a time span")
        case int() | float():
            seconds = float(schedule)
        case _:
            raise Untranslatable("its schedule is neither a crontab nor a time span")
    if not math.isfinite(seconds):
        raise Untranslatable("its time span has no end")
    return {"every": format_duration(round(seconds * SECOND))}


def _calendar(fields: CrontabFields) -> Calendar:
    return Calendar(
        minutes=values_of(fields.minute, 0, 59),
        hours=values_of(fields.hour, 0, 23),
        days=values_of(fields.day_of_month, 1, 31),
        months=values_of(fields.month_of_year, 1, 12),
        weekdays=values_of(fields.day_of_week, 0, 6),
    )


def values_of(given: object, low: int, high: int) -> frozenset[int]:
    """Parse a field of ``crontab()``. A range may wrap around at the end."""
    if isinstance(given, int) and not isinstance(given, bool):
        found = {given}
    elif isinstance(given, str):
        found = set()
        for term in given.split(","):
            found |= set(_term(term, low, high))
    elif isinstance(given, Iterable):
        found = set(given)
    else:
        raise Untranslatable(f"{given!r:.40} is no part of a crontab")
    if not found or not all(isinstance(value, int) and low <= value <= high for value in found):
        raise Untranslatable(f"{given!r:.40} is no part of a crontab")
    return frozenset(found)


def _term(term: str, low: int, high: int) -> list[int]:
    body, slash, step = term.partition("/")
    if body == "*":
        values = list(range(low, high + 1))
    else:
        first, dash, last = body.partition("-")
        start = _number(first)
        end = _number(last) if dash else start
        values = list(range(start, end + 1)) if end >= start else [*range(start, high + 1), *range(low, end + 1)]
    if not slash:
        return values
    if not step.isascii() or not step.isdecimal() or step == "0" or (body != "*" and "-" not in body):
        raise Untranslatable(f"{term!r:.40} is no part of a crontab")
    return values[:: int(step)]


def _number(text: str) -> int:
    word = text.strip().lower()
    if word.isascii() and word.isdecimal() and len(word) <= 4:
        return int(word)
    if word in _NAMES:
        return _NAMES[word]
    raise Untranslatable(f"{text!r:.40} is no part of a crontab")
