"""Converts schedules of CronJobs, as the parser of Kubernetes (robfig/cron v3) reads them.

Its rule for the two day fields differs from ours:

1. A list item ``*`` or ``?``, alone or with a step of 1, makes its field unrestricted, at any position in the list. The
   other field then decides.
2. ``*/2`` is a list of days like any other.
3. With two restricted fields, a day that matches either one fires.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Micros, format_duration
from mainspring.core.model.schedules.cron import Cron
from mainspring.core.model.schedules.cron.wall import bits
from mainspring.core.model.schedules.cron.words import MONTH_WORDS, WEEKDAY_WORDS
from mainspring.features.schedules.commands.converters.calendar import write_values
from mainspring.features.schedules.commands.converters.conversion import UntranslatableError

_MONTHS = {word[:3].lower(): number for number, word in enumerate(MONTH_WORDS) if number}
_WEEKDAYS = {word[:3].lower(): number for number, word in enumerate(WEEKDAY_WORDS)}
#: Name, first value, last value, and names of each field. There is no weekday 7.
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 6, _WEEKDAYS),
)
_NUMBER = re.compile(r"\+?[0-9]{1,18}")
_MACROS = frozenset(("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"))
_SPAN = re.compile(r"([0-9]{1,18}(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|s|us|µs|μs|ns)")
_NANOSECONDS = {
    "h": 3_600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ns": 1,
}

_EVERY_DAY = frozenset(range(1, 32))
_EVERY_WEEKDAY = frozenset(range(7))


class _CronMeaning(NamedTuple):
    minutes: frozenset[int]
    hours: frozenset[int]
    months: frozenset[int]
    days: frozenset[int]
    weekdays: frozenset[int]
    #: A day fires if it matches either days or weekdays.
    either: bool


def translate_schedule(schedule: str) -> dict[str, object]:
    """Return the fields of a schedules file that say when the schedule fires."""
    if schedule.startswith("@every "):
        return {"every": format_duration(_read_span(schedule.removeprefix("@every ")))}
    if schedule.startswith("@") and schedule not in _MACROS:
        raise UntranslatableError(f"{schedule!r:.40} is not a schedule of Kubernetes")
    return {"cronExpression": schedule if schedule in _MACROS else translate_cron(schedule)}


def translate_cron(expression: str) -> str:
    """Return the expression if it means the same here, otherwise an equivalent one."""
    fields = expression.split()
    meaning = _evaluate_there(expression, fields)
    if not all(meaning[:5]):
        raise UntranslatableError(f"{expression!r:.80} never fires")
    day, weekday = write_values(meaning.days, 1, 31), write_values(meaning.weekdays, 0, 6)
    if meaning.either:
        # Here, a leading star would require both fields to match.
        day, weekday = day.replace("*", "1-31"), weekday.replace("*", "0-6")
    minute, hour = write_values(meaning.minutes, 0, 59), write_values(meaning.hours, 0, 23)
    for candidate in (
        expression,
        f"{fields[0]} {fields[1]} {day} {fields[3]} {weekday}",
        f"{minute} {hour} {day} {write_values(meaning.months, 1, 12)} {weekday}",
    ):
        if _evaluate_here(candidate) == meaning:
            return candidate
    raise UntranslatableError(f"{expression!r:.80} never fires, or cannot be expressed here")


def _evaluate_here(expression: str) -> _CronMeaning | None:
    try:
        cron = Cron.parse(expression)
    except Invalid:
        return None
    if cron.days_before_last or cron.nearest_weekdays or cron.numbered_weekdays:
        return None
    minutes, hours, months = (frozenset(bits(mask)) for mask in (cron.minutes, cron.hours, cron.months))
    days, weekdays = frozenset(bits(cron.days)), frozenset(bits(cron.weekdays))
    return _normalize(_CronMeaning(minutes, hours, months, days, weekdays, either=cron.either_day))


def _evaluate_there(expression: str, fields: list[str]) -> _CronMeaning:
    if len(fields) != len(_FIELDS):
        raise UntranslatableError(f"{expression!r:.80} has {len(fields)} fields; Kubernetes requires 5")
    read = [_read_field(text, *field) for text, field in zip(fields, _FIELDS, strict=True)]
    (minutes, _), (hours, _), (days, any_day), (months, _), (weekdays, any_weekday) = read
    return _normalize(_CronMeaning(minutes, hours, months, days, weekdays, either=not (any_day or any_weekday)))


def _normalize(meaning: _CronMeaning) -> _CronMeaning:
    """Write days of the month and of the week in one canonical form if only one of them decides."""
    days, weekdays = meaning.days, meaning.weekdays
    if not meaning.either:
        return meaning
    if days == _EVERY_DAY or weekdays == _EVERY_WEEKDAY:
        return meaning._replace(days=_EVERY_DAY, weekdays=_EVERY_WEEKDAY, either=False)
    if days and weekdays:
        return meaning
    # A list without items, such as a lone comma, matches no day.
    if days or weekdays:
        return meaning._replace(days=days or _EVERY_DAY, weekdays=weekdays or _EVERY_WEEKDAY, either=False)
    return meaning


def _read_field(text: str, name: str, low: int, high: int, names: dict[str, int]) -> tuple[frozenset[int], bool]:
    """Return the values of a field, and whether it counts as unrestricted."""
    values: set[int] = set()
    unrestricted = False
    for item in text.split(","):
        if item:
            found, star = _read_item(item, low, high, names)
            if not found:
                raise UntranslatableError(f"{name}: {item!r:.40} is not accepted by Kubernetes")
            values.update(found)
            unrestricted |= star
    return frozenset(values), unrestricted


def _read_item(item: str, low: int, high: int, names: dict[str, int]) -> tuple[range, bool]:
    """Return the values of a list item, and whether it is a star. The range is empty if the item is invalid."""
    body, *steps = item.split("/")
    first, *last = body.split("-")
    step = _read_number(steps[0]) if steps else 1
    if len(steps) > 1 or not step:
        return range(0), False
    if first in ("*", "?"):
        return range(low, high + 1, step), step == 1
    start = _read_number(first, names)
    end = high if steps and not last else _read_number(last[0], names) if last else start
    if len(last) > 1 or start is None or end is None or start < low or end > high:
        return range(0), False
    return range(start, end + 1, step), False


def _read_number(text: str, names: Mapping[str, int] = MappingProxyType({})) -> int | None:
    if (named := names.get(text.lower())) is not None:
        return named
    return int(text) if _NUMBER.fullmatch(text) else None


def _read_span(text: str) -> Micros:
    """Parse a duration of Go. Like Kubernetes, keep whole seconds and at least one."""
    nanoseconds, at = 0.0, 0
    while part := _SPAN.match(text, at):
        nanoseconds += float(part[1]) * _NANOSECONDS[part[2]]
        at = part.end()
    if at == 0 or at < len(text):
        raise UntranslatableError(f"{text!r:.40} is not a duration of Kubernetes")
    return max(round(nanoseconds) // 10**9, 1) * SECOND
