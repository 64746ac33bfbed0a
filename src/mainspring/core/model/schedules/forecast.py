"""Forecast: how many runs each minute of a future period has, and which schedules cause them. Pure.

The minutes in which a schedule ticks are one large integer: bit n stands for the n-th minute. Schedules with the same
minutes share one. Numbers of runs are added in binary, digit by digit, for all minutes at once: ten thousand schedules
of every minute cost as much as ten.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, Instant, Micros
from mainspring.core.model.schedules.closed_minutes import ClosedMinutes, Pattern
from mainspring.core.model.schedules.cron.wall import bits
from mainspring.core.model.schedules.planned import Patterns
from mainspring.core.model.schedules.planned import Planned as Planned
from mainspring.core.model.schedules.schedule import Interval

PEAKS = 10
MAKERS = 5
TOTALS = 20


class Share(msgspec.Struct, frozen=True):
    name: str
    runs: int


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    at: Instant
    runs: int
    #: The schedules with the largest shares; ``others`` more schedules contribute.
    makers: tuple[Share, ...]
    others: int


class ForecastGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The ticks of one schedule in a period."""

    key: str
    name: str
    runs: int
    #: The first minute with a tick.
    first: Instant


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast in whole minutes from ``start``."""

    start: Instant
    counts: list[int]
    peaks: list[Peak]
    #: Runs per schedule, largest first; schedules without ticks in the period are omitted.
    totals: list[Share]
    #: The number of schedules with ticks in the period.
    active: int
    #: The number of existing runs that wait for their due time: one-off jobs and retries.
    waiting: int
    #: The number of schedules with jitter, and the longest jitter: their runs may start that much later than shown.
    jittered: int
    longest_jitter: Micros
    #: The number of schedules with a fixed delay; the forecast assumes that their runs take no time.
    fixed_delays: int
    #: Schedules that can no longer be parsed, with the reason.
    unreadable: list[str]
    #: The numbers of ticks that calendars skip and move, counted by the minute.
    closed: int = 0
    moved: int = 0


def forecast(
    planned: Iterable[Planned], start: Instant, minutes: int, waiting: Sequence[tuple[Instant, int]] = ()
) -> Forecast:
    """Count the ticks per minute, from the minute that contains ``start``. ``waiting`` has pairs of (minute, runs)."""
    start -= start % MINUTE
    patterns = Patterns(start, minutes)
    names: dict[Pattern, list[str]] = defaultdict(list)
    jitters: list[Micros] = []
    fixed_delays = 0
    unreadable: list[str] = []
    closed_times = ClosedMinutes(start, minutes)
    for one in planned:
        try:
            pattern = closed_times.without(patterns.of(one), one.schedule, one.key, one.closed_periods)
        except Invalid as error:
            unreadable.append(f"{one.name}: {error}")
            continue
        if not pattern:
            continue
        if one.copies > 1:
            pattern = tuple((weight * one.copies, mask) for weight, mask in pattern)
        names[pattern].append(one.name)
        if one.schedule.jitter:
            jitters.append(one.schedule.jitter)
        if isinstance(one.schedule, Interval) and one.schedule.mode == "fixed_delay":
            fixed_delays += 1
    sums = _Sums()
    totals: list[Share] = []
    for pattern, sharing in names.items():
        for weight, mask in pattern:
            sums.add(mask, weight * len(sharing))
        runs = sum(weight * mask.bit_count() for weight, mask in pattern)
        totals += [Share(name, runs) for name in sharing]
    counts = sums.counts(minutes)
    apart: Counter[int] = Counter()
    for at, runs in waiting:
        if 0 <= at - start < minutes * MINUTE:
            apart[(at - start) // MINUTE] += runs
    for minute, runs in apart.items():
        counts[minute] += runs
    totals.sort(key=lambda share: (-share.runs, share.name))
    order = sorted(range(minutes), key=lambda minute: (-counts[minute], minute))
    return Forecast(
        start=start,
        counts=counts,
        peaks=[
            _peak(start, minute, counts[minute], apart[minute], names) for minute in order[:PEAKS] if counts[minute]
        ],
        totals=totals[:TOTALS],
        active=len(totals),
        waiting=sum(apart.values()),
        jittered=len(jitters),
        longest_jitter=max(jitters, default=0),
        fixed_delays=fixed_delays,
        unreadable=unreadable,
        closed=closed_times.skipped,
        moved=closed_times.moved,
    )


def firing(planned: Iterable[Planned], start: Instant, minutes: int) -> list[ForecastGroup]:
    """Return the schedules with ticks in a period, largest first, with calendars applied. Invalid ones are omitted."""
    start -= start % MINUTE
    patterns, closed_times = Patterns(start, minutes), ClosedMinutes(start, minutes)
    parts = []
    for one in planned:
        try:
            pattern = closed_times.without(patterns.of(one), one.schedule, one.key, one.closed_periods)
        except Invalid:
            continue
        mask = 0
        for _, minute_bits in pattern:
            mask |= minute_bits
        if mask:
            runs = sum(weight * minute_bits.bit_count() for weight, minute_bits in pattern) * one.copies
            first = start + ((mask & -mask).bit_length() - 1) * MINUTE
            parts.append(ForecastGroup(key=one.key, name=one.name, runs=runs, first=first))
    return sorted(parts, key=lambda part: (-part.runs, part.first, part.name))


def _peak(start: Instant, minute: int, runs: int, waiting: int, names: dict[Pattern, list[str]]) -> Peak:
    shares = [Share("(waiting runs)", waiting)] if waiting else []
    for pattern, sharing in names.items():
        weight = next((weight for weight, mask in pattern if mask >> minute & 1), 0)
        if weight:
            shares += [Share(name, weight) for name in sharing]
    shares.sort(key=lambda share: (-share.runs, share.name))
    return Peak(
        at=start + minute * MINUTE, runs=runs, makers=tuple(shares[:MAKERS]), others=max(len(shares) - MAKERS, 0)
    )


class _Sums:
    """A counter for each minute. The n-th plane holds the n-th binary digit of all counters."""

    def __init__(self) -> None:
        self._planes: list[int] = []

    def add(self, mask: int, weight: int) -> None:
        for place in bits(weight):
            carry = mask
            while carry:
                if place >= len(self._planes):
                    self._planes += [0] * (place + 1 - len(self._planes))
                self._planes[place], carry = self._planes[place] ^ carry, self._planes[place] & carry
                place += 1

    def counts(self, minutes: int) -> list[int]:
        counts = [0] * minutes
        for place, plane in enumerate(self._planes):
            digit = 1 << place
            for minute in bits(plane):
                counts[minute] += digit
        return counts
