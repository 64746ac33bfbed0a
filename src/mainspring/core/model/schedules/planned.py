"""Schedules with upcoming ticks, and the minutes of a future period in which they tick, as bit masks. Pure."""

from collections import Counter, defaultdict
from itertools import pairwise
from operator import sub

import msgspec

from mainspring.core.model.base.instant import MINUTE, SECOND, Instant
from mainspring.core.model.schedules.closed_minutes import Pattern
from mainspring.core.model.schedules.closed_periods import ClosedPeriods
from mainspring.core.model.schedules.cron import Cron, load_zone
from mainspring.core.model.schedules.cron.wall import DAY_SECONDS, bits
from mainspring.core.model.schedules.cron.zone import Segment, segment_at
from mainspring.core.model.schedules.schedule import CronSchedule, Interval, next_after, ticks_between

_DAY_MINUTES = 1_440


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with upcoming ticks."""

    name: str
    schedule: Interval | CronSchedule
    #: The key from which ``H`` and jitter are derived.
    key: str
    #: The next tick of a fixed delay; None: it depends on the end of a run.
    next_fire: Instant | None = None
    #: The calendars that apply to the schedule.
    closed_periods: ClosedPeriods | None = None
    #: The schedule names calendars that could not be looked up here.
    minds: bool = False
    #: The number of runs per tick: one for each data center of the job.
    copies: int = 1


class Patterns:
    """Computes the minutes in which schedules tick, with a cache for equivalent schedules."""

    def __init__(self, start: Instant, minutes: int) -> None:
        self._start = start
        self._minutes = minutes
        self._until = start + minutes * MINUTE
        self._known: dict[tuple[object, ...], Pattern] = {}
        self._crons: dict[tuple[str, str], Cron] = {}
        self._segments: dict[str, list[Segment]] = {}

    def of(self, planned: Planned) -> Pattern:
        schedule = planned.schedule
        key: tuple[object, ...]
        if isinstance(schedule, Interval):
            first = self._first(schedule, planned)
            key = (first, schedule.every, schedule.end)
        else:
            cron = self._cron(schedule.expression, planned.key)
            # The key is the meaning of the expression, not its spelling.
            masks = msgspec.structs.astuple(msgspec.structs.replace(cron, expression=""))
            key = (masks, schedule.timezone, schedule.gap, schedule.fold, schedule.start, schedule.end)
        pattern = self._known.get(key)
        if pattern is None:
            if isinstance(schedule, Interval):
                pattern = self._of_interval(schedule, first)
            else:
                pattern = self._of_cron(schedule, cron, planned.key)
            self._known[key] = pattern
        return pattern

    def _first(self, schedule: Interval, planned: Planned) -> Instant | None:
        if schedule.mode == "fixed_delay" and planned.next_fire is not None:
            return max(planned.next_fire, self._start)
        return next_after(schedule, self._start - 1, planned.key)

    def _of_interval(self, schedule: Interval, first: Instant | None) -> Pattern:
        until = self._until if schedule.end is None else min(self._until, schedule.end + 1)
        if first is None or first >= until:
            return ()
        every = schedule.every
        if every >= MINUTE:
            digits = bytearray(b"0" * self._minutes)
            for tick in range(first, until, every):
                digits[(tick - self._start) // MINUTE] = ord("1")
            mask = _mask(digits)
            return ((1, mask),) if mask else ()
        # The number of ticks before each minute's end gives the number within each minute.
        ends = range(self._start + MINUTE, self._until + 1, MINUTE)
        before = [-((first - (end if end < until else until)) // every) if first < end else 0 for end in ends]
        counts = list(map(sub, before, [0, *before]))
        return tuple((weight, _mask(bytes([48 + (count == weight) for count in counts]))) for weight in {*counts} - {0})

    def _of_cron(self, schedule: CronSchedule, cron: Cron, key: str) -> Pattern:
        segments = self._load_segments(schedule.timezone)
        changes = any(after.offset != before.offset for before, after in pairwise(segments))
        if (changes and cron.fixed_times) or any(segment.offset % 60 or segment.start % 60 for segment in segments):
            # A gap or a fold within the period is rare, so step through the ticks one by one.
            return self._walked(schedule, key)
        day_mask = 0
        for hour in bits(cron.hours):
            day_mask |= cron.minutes << 60 * hour
        mask = 0
        for segment in segments:
            low = (max(segment.start * SECOND, self._start) // SECOND + segment.offset) // 60
            high = (min(segment.end * SECOND, self._until) // SECOND + segment.offset) // 60
            inside = 0
            day = low // _DAY_MINUTES
            while (day := cron.wall_from(day * DAY_SECONDS) // DAY_SECONDS) * _DAY_MINUTES < high:
                place = day * _DAY_MINUTES - low
                inside |= day_mask << place if place >= 0 else day_mask >> -place
                day += 1
            inside &= (1 << high - low) - 1
            mask |= inside << low - segment.offset // 60 - self._start // MINUTE
        return self._bounded(schedule, key, cron.seconds.bit_count(), mask)

    def _bounded(self, schedule: CronSchedule, key: str, weight: int, mask: int) -> Pattern:
        """Remove the minutes outside start and end. The minutes that contain start or end are counted tick by tick."""
        counts: dict[int, int] = {}
        for bound in (schedule.start, schedule.end):
            if bound is None:
                continue
            minute = (bound - self._start) // MINUTE
            if minute >= 0:
                mask &= (-1 << minute) if bound == schedule.start else (2 << minute) - 1
            elif bound == schedule.end:
                mask = 0
            if 0 <= minute < self._minutes:
                low = self._start + minute * MINUTE
                counts[minute] = len(ticks_between(schedule, low - 1, low + MINUTE - 1, key, 60))
                mask &= ~(1 << minute)
        pattern = ((weight, mask),) if mask else ()
        return _merged(pattern, _pattern(counts)) if counts else pattern

    def _walked(self, schedule: CronSchedule, key: str) -> Pattern:
        counts: Counter[int] = Counter()
        tick = next_after(schedule, self._start - 1, key)
        while tick is not None and tick < self._until:
            counts[(tick - self._start) // MINUTE] += 1
            tick = next_after(schedule, tick, key)
        return _pattern(counts)

    def _cron(self, expression: str, key: str) -> Cron:
        own = key if "H" in expression.upper() else ""
        cron = self._crons.get((expression, own))
        if cron is None:
            cron = self._crons[expression, own] = Cron.parse(expression, hash_key=own, field="expression")
        return cron

    def _load_segments(self, timezone: str) -> list[Segment]:
        known = self._segments.get(timezone)
        if known is None:
            zone = load_zone(timezone)
            known = []
            second = self._start // SECOND
            while second < self._until // SECOND:
                # Segments also end where the offset stays the same; merge those.
                segment = segment_at(zone, second)
                if known and known[-1].offset == segment.offset:
                    known[-1] = known[-1]._replace(end=segment.end)
                else:
                    known.append(segment._replace(start=second))
                second = segment.end
            self._segments[timezone] = known
        return known


def _mask(digits: bytes | bytearray) -> int:
    """Convert binary digits, first minute first, to an integer. Far faster than setting single bits."""
    return int(digits[::-1], 2)


def _pattern(counts: dict[int, int]) -> Pattern:
    masks: dict[int, int] = defaultdict(int)
    for minute, count in counts.items():
        if count:
            masks[count] |= 1 << minute
    return tuple(masks.items())


def _merged(first: Pattern, second: Pattern) -> Pattern:
    masks: dict[int, int] = defaultdict(int)
    for weight, mask in (*first, *second):
        masks[weight] |= mask
    return tuple(masks.items())
