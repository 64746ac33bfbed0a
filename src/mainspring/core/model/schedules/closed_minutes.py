"""Effect of calendars on a forecast: the minutes that lose their ticks, and the minutes that receive them."""

from collections import Counter, defaultdict
from typing import TypeAlias

from mainspring.core.model.base.instant import MINUTE, SECOND, Instant
from mainspring.core.model.schedules.calendar import WhenClosed
from mainspring.core.model.schedules.closed_periods import ClosedPeriods, Span
from mainspring.core.model.schedules.schedule import CronSchedule, Interval, ticks_between

#: Pairs of a number of runs per minute and a bit mask of the minutes with that many. No minute is in two masks.
Pattern: TypeAlias = tuple[tuple[int, int], ...]
#: The maximum number of ticks counted after the forecast that move before a closed period beginning within it.
_MOST_BEHIND = 10_000
_MOST_SPANS = 10_000


class ClosedMinutes:
    """Applies calendars to minute patterns, with a cache for schedules that have the same ticks and calendars.

    A minute counts as closed if its beginning is closed.
    """

    def __init__(self, start: Instant, minutes: int) -> None:
        self._start = start
        self._until = start + minutes * MINUTE
        self._spans: dict[tuple[int, ...], list[Span]] = {}
        self._known: dict[tuple[object, ...], tuple[Pattern, int, int]] = {}
        self.skipped = 0
        self.moved = 0

    def without(
        self, pattern: Pattern, schedule: Interval | CronSchedule, key: str, closed_periods: ClosedPeriods | None
    ) -> Pattern:
        """Return the pattern after skipping or moving the ticks in closed periods."""
        if closed_periods is None:
            return pattern
        calendars = tuple(id(calendar) for calendar in closed_periods.calendars)
        ahead = key if closed_periods.rule is WhenClosed.BEFORE else ""
        known = self._known.get((pattern, calendars, closed_periods.rule, ahead))
        if known is None:
            known = self._worked_out(pattern, schedule, key, closed_periods, calendars)
            self._known[pattern, calendars, closed_periods.rule, ahead] = known
        left, skipped, moved = known
        self.skipped += skipped
        self.moved += moved
        return left

    def _worked_out(
        self,
        pattern: Pattern,
        schedule: Interval | CronSchedule,
        key: str,
        closed_periods: ClosedPeriods,
        calendars: tuple[int, ...],
    ) -> tuple[Pattern, int, int]:
        spans = self._spans.get(calendars)
        if spans is None:
            spans = self._spans[calendars] = closed_periods.spans(self._start, self._until + SECOND, _MOST_SPANS)
        closed = 0
        skipped = moved = 0
        targets: Counter[int] = Counter()
        for span in spans:
            mask = self._mask(span)
            closed |= mask
            ticks = sum(weight * (minutes & mask).bit_count() for weight, minutes in pattern)
            if closed_periods.rule is WhenClosed.SKIP or span.end is None:
                skipped += ticks
                continue
            if closed_periods.rule is WhenClosed.BEFORE and span.end > self._until:
                ticks += len(ticks_between(schedule, self._until - 1, span.end - 1, key, _MOST_BEHIND))
            moved += ticks
            to = span.end if closed_periods.rule is WhenClosed.AFTER else span.start - SECOND
            if ticks and self._start <= to < self._until:
                targets[(to - self._start) // MINUTE] += ticks
        return _added(tuple((weight, minutes & ~closed) for weight, minutes in pattern), targets), skipped, moved

    def _mask(self, span: Span) -> int:
        end = self._until if span.end is None else min(span.end, self._until)
        low, high = (-(-(at - self._start) // MINUTE) for at in (span.start, end))
        return (1 << max(high, low)) - (1 << low)


def _added(pattern: Pattern, more: Counter[int]) -> Pattern:
    """Return the pattern with additional runs in some minutes."""
    masks: dict[int, int] = defaultdict(int)
    for weight, minutes in pattern:
        masks[weight] |= minutes
    for minute, runs in more.items():
        bit = 1 << minute
        here = next((weight for weight, minutes in masks.items() if minutes & bit), 0)
        masks[here] &= ~bit
        masks[here + runs] |= bit
    return tuple((weight, minutes) for weight, minutes in masks.items() if weight and minutes)
