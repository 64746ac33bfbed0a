"""Writes sets of minutes, hours and days as a cron expression that needs day of month *and* day of week to match.

Celery and APScheduler require both. A cron expression accepts either, unless one of the two fields begins with ``*``.
This module therefore writes a leading star where both must match.
"""

from collections.abc import Collection

import msgspec

from mainspring.features.schedules.commands.converters.conversion import UntranslatableError

_WEEKS = tuple(frozenset(range(first, min(first + 7, 32))) for first in range(1, 32, 7))
_EVERY_DAY = frozenset(range(1, 32))
_EVERY_WEEKDAY = frozenset(range(7))


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """The minutes, hours and days on which a schedule fires. Weekday 0 is Sunday.

    ``numbered`` (5, 2) is the second Friday of a month, (5, 0) the last. Together with ``last_day`` and ``days`` it
    selects days of the month.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    seconds: frozenset[int] = frozenset({0})
    days: frozenset[int] = _EVERY_DAY
    months: frozenset[int] = frozenset(range(1, 13))
    weekdays: frozenset[int] = _EVERY_WEEKDAY
    numbered: tuple[tuple[int, int], ...] = ()
    last_day: bool = False


def build_cron(calendar: Calendar) -> str:
    day, weekday = _build_days(calendar)
    fields = [
        write_values(calendar.minutes, 0, 59),
        write_values(calendar.hours, 0, 23),
        day,
        write_values(calendar.months, 1, 12),
        weekday,
    ]
    if calendar.seconds != {0}:
        fields.insert(0, write_values(calendar.seconds, 0, 59))
    return " ".join(fields)


def _build_days(calendar: Calendar) -> tuple[str, str]:
    days, weekdays = calendar.days, calendar.weekdays
    if calendar.numbered or calendar.last_day:
        if weekdays != _EVERY_WEEKDAY:
            raise UntranslatableError("its days must match both a day of the month and a weekday")
        numbered = ",".join(f"{weekday}{f'#{number}' if number else 'L'}" for weekday, number in calendar.numbered)
        if days == _EVERY_DAY:
            return "*", "*"
        # A match of either field is meant, so no field may start with a star: list the days one by one.
        named = ["L"] * calendar.last_day + [str(day) for day in sorted(days)]
        return ",".join(named) or "*", numbered or "*"
    if days == _EVERY_DAY or weekdays == _EVERY_WEEKDAY:
        return write_values(days, 1, 31), write_values(weekdays, 0, 6)
    weeks = [number for number, week in enumerate(_WEEKS, 1) if week <= days]
    if days == frozenset().union(*(_WEEKS[number - 1] for number in weeks)):
        return "*", ",".join(f"{weekday}#{number}" for weekday in sorted(weekdays) for number in weeks)
    day, weekday = write_values(days, 1, 31), write_values(weekdays, 0, 6)
    if day.startswith("*") or weekday.startswith("*"):
        return day, weekday
    if 1 in days:
        # A step of 31 selects only the 1st, and its star requires both fields to match.
        return _join_values("*/31", days - {1}), weekday
    if 0 in weekdays:
        return day, _join_values("*/7", weekdays - {0})
    raise UntranslatableError(
        f"it fires on days that are both {day} of the month and {weekday} of the week; a cron expression takes either"
    )


def _join_values(star: str, others: Collection[int]) -> str:
    return ",".join([star, *map(str, sorted(others))])


def write_values(values: Collection[int], low: int, high: int) -> str:
    """Write values in the shortest form that is still easy to read."""
    ordered = sorted(values)
    if len(ordered) == high - low + 1:
        return "*"
    if len(ordered) > 2 and ordered[0] == low:
        step = ordered[1] - ordered[0]
        if ordered == list(range(low, high + 1, step)):
            return f"*/{step}"
    spans: list[list[int]] = []
    for value in ordered:
        if spans and value == spans[-1][-1] + 1:
            spans[-1].append(value)
        else:
            spans.append([value])
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 2 else ",".join(map(str, span)) for span in spans)
