"""Closed periods: whether an instant is within one, and what happens to a tick there.

Results are exact to the second, also across clock changes: each stretch of constant offset is handled separately.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mainspring.core.model.base.instant import SECOND, Instant
from mainspring.core.model.schedules.calendar import Calendar, Covers, WhenClosed, build_week, parse_day
from mainspring.core.model.schedules.cron import load_zone
from mainspring.core.model.schedules.cron.wall import DAY_SECONDS
from mainspring.core.model.schedules.cron.zone import segment_at

#: A calendar that does not open within ten years is treated as closed forever.
_HORIZON = 10 * 366 * DAY_SECONDS


class Span(NamedTuple):
    """A closed period; the end is excluded, and None means that it never ends."""

    start: Instant
    end: Instant | None
    calendar: str
    label: str


class TickPlacement(NamedTuple):
    """The time a tick is moved to; None: it is skipped. ``reason`` is for the ledger, if calendars affect the tick."""

    at: Instant | None
    reason: str = ""


class CompiledCalendar:
    """The closed periods of one calendar version. Works in whole seconds since 1970."""

    def __init__(self, calendar: Calendar) -> None:
        spec = calendar.spec
        self.name = calendar.name
        self.version = calendar.version
        self.covers = spec.covers
        self._zone = load_zone(spec.timezone)
        self._week = build_week(spec)
        self._weekly = any(day != [(0, DAY_SECONDS)] for day in self._week)
        self._holidays = _LabeledRanges(
            (parse_day(holiday.date), parse_day(holiday.until or holiday.date) + 1, holiday.label)
            for holiday in spec.holidays
        )
        self._freezes = _LabeledRanges(
            (freeze.start // SECOND, freeze.end // SECOND, freeze.label) for freeze in spec.freezes
        )

    @property
    def words(self) -> str:
        return f"calendar: {self.name}, version {self.version}"

    def until(self, second: int) -> int | None:
        """Return a later second until which the calendar is certainly closed; None: it is open at ``second``."""
        freeze = self._freezes.at(second)
        if freeze is not None:
            return freeze[1]
        segment = segment_at(self._zone, second)
        wall = second + segment.offset
        day, inside = divmod(wall, DAY_SECONDS)
        holiday = self._holidays.at(day)
        if holiday is not None:
            return min(holiday[1] * DAY_SECONDS - segment.offset, segment.end)
        if not self._weekly:
            return None
        for start, end in self._week[(day + 3) % 7]:
            if inside < start:
                return min(day * DAY_SECONDS + start - segment.offset, segment.end)
            if inside < end:
                return None
        return min((day + 1) * DAY_SECONDS - segment.offset, segment.end)

    def since(self, second: int) -> int:
        """Return a second from which the calendar is certainly closed, provided that it is closed at ``second``."""
        freeze = self._freezes.at(second)
        if freeze is not None:
            return freeze[0]
        segment = segment_at(self._zone, second)
        wall = second + segment.offset
        day, inside = divmod(wall, DAY_SECONDS)
        holiday = self._holidays.at(day)
        if holiday is not None:
            return max(holiday[0] * DAY_SECONDS - segment.offset, segment.start)
        ended = max((end for _, end in self._week[(day + 3) % 7] if end <= inside), default=0)
        return max(day * DAY_SECONDS + ended - segment.offset, segment.start)

    def open_until(self, second: int) -> int:
        """Return a later second until which the calendar is certainly open, provided that it is open at ``second``."""
        segment = segment_at(self._zone, second)
        wall = second + segment.offset
        day, inside = divmod(wall, DAY_SECONDS)
        ends = [segment.end]
        following = self._freezes.after(second)
        if following is not None:
            ends.append(following)
        first_day = self._holidays.after(day)
        if first_day is not None:
            ends.append(first_day * DAY_SECONDS - segment.offset)
        if self._weekly:
            here = next(end for start, end in self._week[(day + 3) % 7] if start <= inside < end)
            ends.append(day * DAY_SECONDS + here - segment.offset)
        return min(ends)

    def label(self, second: int) -> str:
        found = self._freezes.at(second)
        if found is None:
            found = self._holidays.at((second + segment_at(self._zone, second).offset) // DAY_SECONDS)
        return "" if found is None else found[2]


class ClosedPeriods:
    """All calendars that apply to a job, and its rule. The job is closed when any of them is."""

    def __init__(self, calendars: Sequence[CompiledCalendar], rule: WhenClosed = WhenClosed.SKIP) -> None:
        self.calendars = calendars
        self.rule = rule

    def by(self, instant: Instant) -> CompiledCalendar | None:
        """Return the first calendar that is closed at this instant; None: all are open."""
        second = instant // SECOND
        return next((calendar for calendar in self.calendars if calendar.until(second) is not None), None)

    def is_closed(self, instant: Instant) -> bool:
        return self.by(instant) is not None

    def next_open(self, instant: Instant) -> Instant | None:
        """Return the instant if it is open, else the first open second after it; None: it never opens again."""
        second = instant // SECOND
        horizon = second + _HORIZON
        while second < horizon:
            ends = [end for calendar in self.calendars if (end := calendar.until(second)) is not None]
            if not ends:
                return max(instant, second * SECOND)
            second = max(ends)
        return None

    def last_open_before(self, instant: Instant) -> Instant | None:
        """Return the instant if it is open, else the last open second before it; None: there was none."""
        second = instant // SECOND
        horizon = max(second - _HORIZON, 0)
        while second >= horizon:
            starts = [calendar.since(second) for calendar in self.calendars if calendar.until(second) is not None]
            if not starts:
                return instant if second == instant // SECOND else second * SECOND
            second = min(starts) - 1
        return None

    def place(self, tick: Instant) -> TickPlacement:
        """Apply the rule to a tick. A tick is skipped if there is no open time to move it to."""
        closed = self.by(tick)
        if closed is None:
            return TickPlacement(tick)
        if self.rule is not WhenClosed.SKIP:
            after = self.next_open(tick)
            at = after if self.rule is WhenClosed.AFTER or after is None else self.last_open_before(tick)
            if at is not None:
                return TickPlacement(at, f"moved {self.rule.value}, {closed.words}")
        return TickPlacement(None, closed.words)

    def reach(self, now: Instant) -> Instant:
        """Return up to when ticks may be due now: ticks of a closed period that is about to begin may run before it."""
        if self.rule is not WhenClosed.BEFORE:
            return now
        soon = (now // SECOND + 1) * SECOND
        opens = self.next_open(soon)
        return now if opens is None or opens == soon else opens - 1

    def spans(self, start: Instant, until: Instant, limit: int) -> list[Span]:
        """Return the closed periods between two instants for display; the first is cut at ``start``."""
        found: list[Span] = []
        at: Instant | None = start
        while at is not None and at < until and len(found) < limit:
            closed = self.by(at)
            if closed is None:
                at = (
                    min((calendar.open_until(at // SECOND) for calendar in self.calendars), default=until // SECOND + 1)
                    * SECOND
                )
                continue
            end = self.next_open(at)
            found.append(Span(at, end, closed.name, closed.label(at // SECOND)))
            at = end
        return found


def select_closed_periods(
    calendars: Iterable[CompiledCalendar], named: Sequence[str], tags: Sequence[str], queue: str, rule: WhenClosed
) -> ClosedPeriods | None:
    """Return the calendars of a tenant that apply to a job: those that it names and those that cover it."""
    holding = [calendar for calendar in calendars if calendar.name in named or _covers(calendar.covers, tags, queue)]
    return ClosedPeriods(holding, rule) if holding else None


def _covers(covers: Covers | None, tags: Sequence[str], queue: str) -> bool:
    if covers is None:
        return False
    return covers.everything or queue in covers.queues or any(tag in covers.tags for tag in tags)


class _LabeledRanges:
    """Labeled ranges of integers that do not overlap; the ends are excluded."""

    def __init__(self, stretches: Iterable[tuple[int, int, str]]) -> None:
        merged: list[tuple[int, int, str]] = []
        for start, end, label in sorted(stretches):
            if merged and start < merged[-1][1]:
                first, last, known = merged[-1]
                merged[-1] = (first, max(last, end), known or label)
            else:
                merged.append((start, end, label))
        self._stretches = merged
        self._starts = [start for start, _, _ in merged]

    def at(self, place: int) -> tuple[int, int, str] | None:
        if not self._starts:
            return None
        number = bisect_right(self._starts, place) - 1
        return self._stretches[number] if number >= 0 and place < self._stretches[number][1] else None

    def after(self, place: int) -> int | None:
        """Return the start of the next range."""
        number = bisect_right(self._starts, place)
        return self._starts[number] if number < len(self._starts) else None
