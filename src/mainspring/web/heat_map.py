"""Heat maps of upcoming runs: the hours of days, or the minutes of hours, in a time zone. Pure functions."""

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, isoformat
from mainspring.core.model.schedules.cron.zone import segment_at
from mainspring.http.schemas.forecast import ForecastOut, PeakOut
from mainspring.web.formatting import instant

LEVELS = 6
_HOUR_MINUTES = 60
_DAY_HOURS = 24
_FIRST_DAY = date(1970, 1, 1)


class Hour(NamedTuple):
    """An hour on the clock of a day. If the clocks change, it may have more than sixty minutes, or none."""

    start: str
    minutes: int
    runs: int
    level: int
    words: str


class Day(NamedTuple):
    name: str
    hours: list[Hour | None]
    runs: int


class MinuteSpan(NamedTuple):
    """Consecutive minutes of an hour with the same level."""

    minute: int
    length: int
    fewest: int
    most: int
    level: int


class Row(NamedTuple):
    """An hour and its minutes. The first and last hour may be cut, and hours of a clock change as well."""

    start: str
    minutes: int
    name: str
    #: The name, with the day in the first row of a day.
    label: str
    runs: int
    spans: list[MinuteSpan]
    words: str


def compute_scale(counts: Iterable[int]) -> int:
    """Return the number that the highest level stands for.

    It is the largest count, but at least twice the median: if all counts are similar, none of them is a peak.
    """
    some = sorted(count for count in counts if count)
    return max(some[-1], 2 * some[len(some) // 2]) if some else 1


def compute_level(runs: int, scale: int) -> int:
    """Return the level of a count, 1 to ``LEVELS``, or 0 for no runs."""
    return max(round(LEVELS * runs / scale), 1) if runs else 0


def build_week(counts: Sequence[int], start: Instant, zone: ZoneInfo) -> list[Day]:
    """Build the hours of a week. ``counts`` has the runs of each minute from ``start`` on.

    A week that starts within a day ends within one, so there are eight days.
    """
    cells: dict[tuple[int, int], list[int]] = {}
    for number in range(len(counts)):
        wall = _get_wall_minute(start + number * MINUTE, zone)
        cells.setdefault((wall // (_DAY_HOURS * _HOUR_MINUTES), wall // _HOUR_MINUTES % _DAY_HOURS), []).append(number)
    first, last = min(day for day, _ in cells), max(day for day, _ in cells)
    scale = compute_scale(sum(counts[number] for number in cell) for cell in cells.values())
    found = []
    for day in range(first, last + 1):
        shown = _FIRST_DAY + timedelta(days=day)
        hours = [
            _build_hour(shown, hour, cells[day, hour], counts, start, scale) if (day, hour) in cells else None
            for hour in range(_DAY_HOURS)
        ]
        found.append(Day(f"{shown:%a} {shown.day}", hours, sum(hour.runs for hour in hours if hour is not None)))
    return found


def _build_hour(day: date, hour: int, numbers: list[int], counts: Sequence[int], start: Instant, scale: int) -> Hour:
    runs = sum(counts[number] for number in numbers)
    words = f"{day:%a} {day.day}, {hour:02}:00: {_format_runs(runs)}"
    if runs:
        words += f", {max(counts[number] for number in numbers)} in the busiest minute"
    begin = isoformat(start + numbers[0] * MINUTE)
    return Hour(begin, len(numbers), runs, compute_level(runs, scale), words)


def build_day(counts: Sequence[int], start: Instant, zone: ZoneInfo) -> list[Row]:
    """Build the rows of a day by hours. The first hour may have begun; its missing part is the last row."""
    scale = compute_scale(counts)
    rows: list[Row] = []
    at = 0
    before = None
    while at < len(counts):
        wall = _get_wall_minute(start + at * MINUTE, zone)
        offset = wall % _HOUR_MINUTES
        part = counts[at : at + _HOUR_MINUTES - offset]
        name = f"{wall // _HOUR_MINUTES % _DAY_HOURS:02}:00"
        shown = _FIRST_DAY + timedelta(days=wall // (_DAY_HOURS * _HOUR_MINUTES))
        label = name if shown == before else f"{shown:%a} {name}"
        runs = sum(part)
        words = f"{name}: {_format_runs(runs)}"
        if runs:
            peak = max(range(len(part)), key=lambda number: (part[number], -number))
            words += f", busiest at {name[:3]}{peak + offset:02} with {part[peak]}"
        begin, spans = isoformat(start + at * MINUTE), _build_spans(part, offset, scale)
        rows.append(Row(begin, len(part), name, label, runs, spans, words))
        at += len(part)
        before = shown
    return rows


def _build_spans(part: Sequence[int], offset: int, scale: int) -> list[MinuteSpan]:
    found: list[MinuteSpan] = []
    for minute, runs in enumerate(part, offset):
        level = compute_level(runs, scale)
        last = found[-1] if found else None
        if last is not None and last.level == level and last.minute + last.length == minute:
            found[-1] = MinuteSpan(last.minute, last.length + 1, min(last.fewest, runs), max(last.most, runs), level)
        elif runs:
            found.append(MinuteSpan(minute, 1, runs, runs, level))
    return found


def _get_wall_minute(moment: Instant, zone: ZoneInfo) -> int:
    """Return the minutes since 1970 by the clocks of a zone."""
    second = moment // SECOND
    return (second + segment_at(zone, second).offset) // 60


def _format_runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def list_busiest(forecast: ForecastOut, now: Instant, most: int) -> list[PeakOut]:
    """Return the busiest minutes that are still to come, in order of time."""
    coming = [peak for peak in forecast.peaks if instant(peak.at) > now]
    return sorted(coming[:most], key=lambda peak: instant(peak.at))
