"""The local times that an expression matches: bit masks, and searching them forwards and backwards.

A wall time is the local time of a place, counted in seconds from 1970. There are no zones in this module.
"""

from datetime import date

import msgspec

from mainspring.core.model.base.instant import EPOCH

DAY_SECONDS = 86_400
# Later than every wall time; negated, earlier than every one.
_NEVER = 1 << 62

_EPOCH_ORDINAL = EPOCH.toordinal()
_LAST_ORDINAL = date.max.toordinal()
# A day that exists occurs again within 40 years: 29 February on a given weekday, across a year such as 2100.
_CALENDAR_YEARS = 41
_MONTH_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# The days 1, 8, 15, 22 and 29.
_FIVE_WEEKS = sum(1 << 1 + 7 * week for week in range(5))


class WallTimes(msgspec.Struct, frozen=True):
    """The local times that match. Sets of numbers are bit masks: bit n stands for n, weekday 0 is Sunday."""

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
    #: Weekday and its number in the month: (5, 2) is ``5#2``, (5, 0) is ``5L``.
    numbered_weekdays: tuple[tuple[int, int], ...]
    #: Day of month and day of week are both restricted: a day that matches one of them is enough.
    either_day: bool

    def wall_from(self, wall: int) -> int:
        """Return the first matching wall time at or after ``wall``, or ``_NEVER``."""
        day, second_of_day = divmod(wall, DAY_SECONDS)
        time = self._time_from(second_of_day)
        match = self._day_from(day if time >= 0 else day + 1)
        if match == _NEVER:
            return _NEVER
        return match * DAY_SECONDS + (time if match == day else self._time_from(0))

    def wall_until(self, wall: int) -> int:
        """Return the last matching wall time at or before ``wall``, or minus ``_NEVER``."""
        day, second_of_day = divmod(wall, DAY_SECONDS)
        time = self._time_until(second_of_day)
        match = self._day_until(day if time >= 0 else day - 1)
        if match == -_NEVER:
            return -_NEVER
        # The end of a day is past all of its seconds.
        return match * DAY_SECONDS + (time if match == day else self._time_until(DAY_SECONDS))

    def has_a_day(self, month: int) -> bool:
        # In 400 years each month, and each length of February, begins on every weekday.
        lengths = (28, 29) if month == 2 else (_MONTH_LENGTHS[month],)
        return any(self._find_days(length, weekday) for length in lengths for weekday in range(7))

    def _time_from(self, second_of_day: int) -> int:
        """Return the first matching second of the day at or after ``second_of_day``, or -1."""
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
        """Return the last matching second of the day at or before ``second_of_day``, or -1."""
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
        """Return the first matching day at or after ``day``, counted from 1970, or ``_NEVER``."""
        ordinal = day + _EPOCH_ORDINAL
        if ordinal > _LAST_ORDINAL:
            return _NEVER
        moment = date.fromordinal(ordinal)
        year, month = moment.year, moment.month
        last_year = min(year + _CALENDAR_YEARS, date.max.year)
        if self.months >> month & 1:
            first = ordinal - moment.day + 1
            if left := self._find_days(_count_days(year, month), first % 7) >> moment.day:
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
            if days := self._find_days(_count_days(year, month), first % 7):
                return first - 1 + _lowest(days) - _EPOCH_ORDINAL

    def _day_until(self, day: int) -> int:
        """Return the last matching day at or before ``day``, counted from 1970, or minus ``_NEVER``."""
        ordinal = day + _EPOCH_ORDINAL
        if ordinal < 1:
            return -_NEVER
        moment = date.fromordinal(min(ordinal, _LAST_ORDINAL))
        year, month, last_day = moment.year, moment.month, moment.day
        first_year = max(year - _CALENDAR_YEARS, date.min.year)
        while True:
            if self.months >> month & 1:
                first = date(year, month, 1).toordinal()
                if left := self._find_days(_count_days(year, month), first % 7) & (2 << last_day) - 1:
                    return first - 1 + _highest(left) - _EPOCH_ORDINAL
            if left := self.months & (1 << month) - 1:
                month = _highest(left)
            else:
                year -= 1
                month = _highest(self.months)
                if year < first_year:
                    return -_NEVER
            last_day = 31

    def _find_days(self, length: int, first_weekday: int) -> int:
        """Return the matching days of a month with this length and first weekday."""
        days = self.days
        for before in self.days_before_last:
            if before < length:
                days |= 1 << length - before
        for target in self.nearest_weekdays:
            if target <= length:
                days |= 1 << _nearest_weekday(target or length, length, first_weekday)
        # Rotate the seven bits so that the first stands for day 1, then repeat them for five weeks.
        turned = (self.weekdays >> first_weekday | self.weekdays << 7 - first_weekday) & 0b1111111
        of_week = turned * _FIVE_WEEKS
        for weekday, number in self.numbered_weekdays:
            day = 1 + (weekday - first_weekday) % 7
            of_week |= 1 << (day + 7 * (number - 1) if number else day + (length - day) // 7 * 7)
        every = (2 << length) - 2
        return (days | of_week if self.either_day else days & of_week) & every


def bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _highest(mask: int) -> int:
    return mask.bit_length() - 1


def _count_days(year: int, month: int) -> int:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _MONTH_LENGTHS[month]


def _nearest_weekday(day: int, length: int, first_weekday: int) -> int:
    """Return the day itself, or the nearest day from Monday to Friday in the same month."""
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else 3
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day
