"""Time zones: loading one by its name, and the stretches of time between two changes of its offset."""

import difflib
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from mainspring.domain.cron.wall import DAY_SECONDS
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import EPOCH, LATEST, SECOND, to_datetime

# Two days from either end of the calendar every zone still has a wall time that a datetime can hold.
FIRST_SECOND = (3 - EPOCH.toordinal()) * DAY_SECONDS
LAST_SECOND = LATEST // SECOND
# Offsets lie within a day of UTC, so two of them differ by less than this.
MARGIN = 2 * DAY_SECONDS
# 24 days: long enough that most searches touch one stretch, short enough that finding its changes costs little.
_STRETCH_BITS = 21


@lru_cache(maxsize=1024)
def load_zone(name: str, field: str = "timezone") -> ZoneInfo:
    """The zone of an IANA name. Unknown names are refused with near ones; so is what only this machine would know."""
    if not name:
        raise Invalid(field, "is empty", "for example UTC or Europe/Paris")
    names = _zone_names()
    if name not in names:
        close = difflib.get_close_matches(name[:64], names, n=3) or _zones_of_city(name[:64], names)
        hint = "did you mean " + " or ".join(close) + "?" if close else "for example UTC or Europe/Paris"
        raise Invalid(field, f"{name[:64]!r} is not a known time zone", hint)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(field, f"the rules of {name!r} cannot be read", "reinstall the tzdata package") from None


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    # A listed name cannot be a path, and is the same on a file system that ignores case.
    return frozenset(available_timezones() - {"localtime", "Factory"})


def _zones_of_city(name: str, names: frozenset[str]) -> list[str]:
    city = name.rpartition("/")[2].replace(" ", "_").lower()
    return sorted(known for known in names if known.rpartition("/")[2].lower() == city)[:3]


class Segment(NamedTuple):
    """A stretch of seconds of UTC, end excluded, with one offset. Walls are seconds of local time since 1970."""

    start: int
    end: int
    offset: int
    #: Where the wall times begin that were jumped over at ``start``; ``start + offset`` when there are none.
    gap_wall: int
    #: The first wall time that no earlier segment had.
    fresh_wall: int


def segment_at(zone: ZoneInfo, second: int) -> Segment:
    segments = _segments(zone, second >> _STRETCH_BITS)
    for segment in segments:
        if second < segment.end:
            return segment
    return segments[-1]


@lru_cache(maxsize=4096)
def _segments(zone: ZoneInfo, stretch: int) -> tuple[Segment, ...]:
    """The segments of one stretch, cut at its ends, where nothing changes."""
    low = stretch << _STRETCH_BITS
    high = low + (1 << _STRETCH_BITS)
    segments = []
    # Beginning early shows a fold before the stretch whose repeated hour reaches into it.
    start = low - MARGIN
    offset = _offset_at(zone, start)
    seen_wall = start + offset
    for change in [*_changes(zone, start, high), high]:
        cut = max(start, low)
        if change > low:
            gap_wall = min(seen_wall, start + offset) if start >= low else cut + offset
            segments.append(Segment(cut, change, offset, gap_wall, max(seen_wall, cut + offset)))
        seen_wall = max(seen_wall, change + offset)
        start = change
        offset = _offset_at(zone, change)
    return tuple(segments)


def _changes(zone: ZoneInfo, low: int, high: int) -> list[int]:
    """The seconds above low and below high at which the offset becomes another."""
    changes = []
    offset = _offset_at(zone, low)
    # No zone has ever changed twice within three days, so that a look a day sees every change.
    for before in range(low, high, DAY_SECONDS):
        after = min(before + DAY_SECONDS, high)
        following = _offset_at(zone, after)
        if following != offset:
            while after - before > 1:
                middle = (before + after) // 2
                if _offset_at(zone, middle) == offset:
                    before = middle
                else:
                    after = middle
            if after < high:
                changes.append(after)
            offset = following
    return changes


def _offset_at(zone: ZoneInfo, second: int) -> int:
    inside = max(FIRST_SECOND, min(second, LAST_SECOND - MARGIN))
    offset = to_datetime(inside * SECOND).astimezone(zone).utcoffset()
    return offset.days * DAY_SECONDS + offset.seconds if offset else 0
