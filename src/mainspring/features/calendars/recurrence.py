"""Recurrence rules of iCalendar (RFC 5545), expanded on the wall time of their zone and within a budget.

dateutil follows a rule that never matches to the year 9999, and builds every combination of hours, minutes and seconds
before it returns the first. Here every day that is examined and every occurrence is charged to a budget that all
rules of a file share.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any, NamedTuple

from mainspring.core.model.base.errors import Invalid

_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_BYDAY = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
#: Numeric lists, with their largest absolute value.
_MAX_VALUES = {
    "BYMONTH": 12,
    "BYMONTHDAY": 31,
    "BYYEARDAY": 366,
    "BYWEEKNO": 53,
    "BYSETPOS": 366,
    "BYHOUR": 23,
    "BYMINUTE": 59,
    "BYSECOND": 59,
}
_OTHER_PROPERTIES = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY"}


class Budget:
    """Limits the work of one import, in days examined and occurrences found."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise Invalid("RRULE", "takes too much work to expand", "fewer or simpler recurrence rules")


class Period(NamedTuple):
    """Consecutive days that a rule evaluates together: a year, a month, a week or a day."""

    first: date
    end: date


class Rule:
    """A recurrence rule, built from the parts that icalendar has parsed."""

    def __init__(self, parts: Mapping[str, Any], first: datetime, max_times: int) -> None:
        """Check the parts of a rule.

        ``first``: wall time of its start; ``max_times``: most occurrences of one day.
        """
        properties = {name.upper(): values if isinstance(values, list) else [values] for name, values in parts.items()}
        if unknown := sorted(properties.keys() - _MAX_VALUES.keys() - _OTHER_PROPERTIES):
            raise Invalid("RRULE", f"{unknown[0]} is not supported", ", ".join([*_MAX_VALUES, "BYDAY"]))
        frequency = [str(word).upper() for word in properties.get("FREQ", [])]
        if len(frequency) != 1 or frequency[0] not in _FREQUENCIES:
            raise Invalid("RRULE", f"repeats {', '.join(frequency) or 'never'}"[:80], ", ".join(_FREQUENCIES))
        self._frequency = frequency[0]
        self._first = first
        self._interval = _parse_number(properties, "INTERVAL", 1)
        self.count = _parse_number(properties, "COUNT", 0) or None
        lists = {name: _parse_numbers(name, properties.get(name, [])) for name in _MAX_VALUES}
        self._months, self._month_days = lists["BYMONTH"], lists["BYMONTHDAY"]
        self._year_days, self._weeks = lists["BYYEARDAY"], lists["BYWEEKNO"]
        self._positions = lists["BYSETPOS"]
        self._weekdays, self._numbered = _parse_byday(properties.get("BYDAY", []), self._frequency)
        wkst = str(properties.get("WKST", ["MO"])[0]).upper()
        if wkst not in _WEEKDAYS:
            raise Invalid("RRULE", "WKST is not a day of the week", ", ".join(_WEEKDAYS))
        self._week_start = _WEEKDAYS.index(wkst)
        if self._weeks and self._week_start:
            raise Invalid("RRULE", "BYWEEKNO is not supported with this WKST", "WKST=MO")
        self._use_days_of_start()
        self._times = _build_times(lists, first, max_times)

    def list_occurrences(self, since: datetime, until: datetime, budget: Budget) -> Iterator[datetime]:
        """Return the occurrences in order. Those before ``since`` are skipped unless the rule has a ``COUNT``."""
        found = 0
        for period in self._iterate_periods(self._first if self.count else max(since, self._first), until):
            for occurrence in self._expand_period(period, budget):
                if occurrence > until:
                    return
                if occurrence < self._first:
                    continue
                budget.spend()
                found += 1
                yield occurrence
                if found == self.count:
                    return

    def _use_days_of_start(self) -> None:
        """Use the day of the start if the rule names no days."""
        if self._month_days or self._year_days or self._weeks or self._weekdays or self._numbered:
            return
        match self._frequency:
            case "YEARLY":
                self._months = self._months or frozenset((self._first.month,))
                self._month_days = frozenset((self._first.day,))
            case "MONTHLY":
                self._month_days = frozenset((self._first.day,))
            case "WEEKLY":
                self._weekdays = frozenset((self._first.weekday(),))
            case _:
                pass

    def _iterate_periods(self, since: datetime, until: datetime) -> Iterator[Period]:
        """Iterate from the period of ``since``, or the first one after it, to the period of ``until``."""
        start, origin = since.date(), self._first.date()
        number = 0
        match self._frequency:
            case "YEARLY":
                number = start.year - origin.year
            case "MONTHLY":
                number = (start.year - origin.year) * 12 + start.month - origin.month
            case "WEEKLY":
                origin -= timedelta((origin.weekday() - self._week_start) % 7)
                number = (start - origin).days // 7
            case _:
                number = (start - origin).days
        number = -(-number // self._interval) * self._interval
        while (period := self._build_period(origin, number)) is not None and period.first <= until.date():
            yield period
            number += self._interval

    def _build_period(self, origin: date, number: int) -> Period | None:
        try:
            if self._frequency == "YEARLY":
                return Period(date(origin.year + number, 1, 1), date(origin.year + number + 1, 1, 1))
            if self._frequency == "MONTHLY":
                month = origin.year * 12 + origin.month - 1 + number
                return Period(date(month // 12, month % 12 + 1, 1), date((month + 1) // 12, (month + 1) % 12 + 1, 1))
            days = 7 if self._frequency == "WEEKLY" else 1
            first = origin + timedelta(number * days)
            return Period(first, first + timedelta(days))
        except (ValueError, OverflowError):
            return None

    def _expand_period(self, period: Period, budget: Budget) -> Iterator[datetime]:
        days = self._list_days(period, budget)
        if not self._positions:
            yield from (datetime.combine(day, clock) for day in days for clock in self._times)
            return
        matching = list(days)
        total = len(matching) * len(self._times)
        budget.spend(len(self._positions))
        indexes = {position - 1 if position > 0 else total + position for position in self._positions}
        for position in sorted(position for position in indexes if 0 <= position < total):
            day, clock = divmod(position, len(self._times))
            yield datetime.combine(matching[day], self._times[clock])

    def _list_days(self, period: Period, budget: Budget) -> Iterator[date]:
        day = period.first
        while day < period.end:
            if self._months and day.month not in self._months:
                budget.spend()
                day = min(date(day.year + day.month // 12, day.month % 12 + 1, 1), period.end)
                continue
            budget.spend()
            if self._matches(day):
                yield day
            day += timedelta(1)

    def _matches(self, day: date) -> bool:
        if self._month_days and not _is_in(self._month_days, day.day, _count_month_days(day)):
            return False
        of_week = day.weekday() in self._weekdays or self._is_numbered(day)
        if (self._weekdays or self._numbered) and not of_week:
            return False
        if self._year_days:
            of_year, length = day.timetuple().tm_yday, date(day.year, 12, 31).timetuple().tm_yday
            if not _is_in(self._year_days, of_year, length):
                return False
        if self._weeks:
            year, week, _ = day.isocalendar()
            if not _is_in(self._weeks, week, date(year, 12, 28).isocalendar().week):
                return False
        return True

    def _is_numbered(self, day: date) -> bool:
        """Whether it is the nth such weekday of its month, or of its year if a yearly rule names no months."""
        if not self._numbered:
            return False
        if self._frequency == "YEARLY" and not self._months:
            position, length = day.timetuple().tm_yday, date(day.year, 12, 31).timetuple().tm_yday
        else:
            position, length = day.day, _count_month_days(day)
        numbers = ((position + 6) // 7, -((length - position) // 7 + 1))
        return any((day.weekday(), number) in self._numbered for number in numbers)


def _is_in(values: frozenset[int], position: int, length: int) -> bool:
    """Whether the position is among the numbers; negative numbers count from the end."""
    return position in values or position - length - 1 in values


def _count_month_days(day: date) -> int:
    return (date(day.year + day.month // 12, day.month % 12 + 1, 1) - timedelta(1)).day if day.year < 9999 else 31


def _parse_numbers(name: str, values: Iterable[object]) -> frozenset[int]:
    found = frozenset(_check_number(name, value) for value in values)
    low = 0 if name in ("BYHOUR", "BYMINUTE", "BYSECOND") else 1
    negative = name not in ("BYHOUR", "BYMINUTE", "BYSECOND", "BYMONTH")
    for number in found:
        if not (low <= number <= _MAX_VALUES[name] or (negative and low <= -number <= _MAX_VALUES[name])):
            raise Invalid("RRULE", f"{name} {number} is out of range", f"{low} to {_MAX_VALUES[name]}")
    return found


def _parse_number(properties: Mapping[str, list[Any]], name: str, default: int) -> int:
    values = properties.get(name)
    number = _check_number(name, values[0]) if values else default
    if values and not 1 <= number <= 10**9:
        raise Invalid("RRULE", f"{name} {number} is out of range", "1 or more")
    return number


def _check_number(name: str, value: object) -> int:
    if not isinstance(value, int):
        raise Invalid("RRULE", f"{name} {value!s:.40} is not a number")
    return int(value)


def _parse_byday(values: Iterable[object], frequency: str) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
    plain, numbered = set(), set()
    for value in values:
        word = _BYDAY.fullmatch(str(value).upper())
        if word is None:
            raise Invalid("RRULE", f"BYDAY {value!s:.40} is not a day of the week", "for example MO or -1FR")
        weekday, number = _WEEKDAYS.index(word[2]), int(word[1] or 0)
        if number and frequency in ("YEARLY", "MONTHLY"):
            numbered.add((weekday, number))
        else:
            plain.add(weekday)
    return frozenset(plain), frozenset(numbered)


def _build_times(lists: Mapping[str, frozenset[int]], first: datetime, max_times: int) -> list[time]:
    hours = sorted(lists["BYHOUR"] or {first.hour})
    minutes = sorted(lists["BYMINUTE"] or {first.minute})
    seconds = sorted(lists["BYSECOND"] or {first.second})
    if len(hours) * len(minutes) * len(seconds) > max_times:
        raise Invalid("RRULE", f"repeats more than {max_times} times a day", "fewer of BYHOUR, BYMINUTE and BYSECOND")
    return [time(hour, minute, second) for hour in hours for minute in minutes for second in seconds]
