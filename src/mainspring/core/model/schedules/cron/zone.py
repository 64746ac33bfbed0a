"""Time zones: loading one by name, and the segments between two changes of its offset.

Rules come from the newer one of two databases: the system's, which ``zoneinfo`` would prefer even if it is older, and
the ``tzdata`` package. Nodes with the same package then agree even if their systems do not.
"""

import difflib
import re
import zoneinfo
from functools import lru_cache
from importlib import import_module, resources
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import EPOCH, LATEST, SECOND, to_datetime
from mainspring.core.model.schedules.cron.wall import DAY_SECONDS

# Two days from either end of the calendar, every zone still has a wall time that a datetime can hold.
FIRST_SECOND = (3 - EPOCH.toordinal()) * DAY_SECONDS
LAST_SECOND = LATEST // SECOND
# Offsets lie within a day of UTC, so two of them differ by less than this.
MARGIN = 2 * DAY_SECONDS
# 24 days: long enough that most searches touch one stretch, short enough that finding its changes costs little.
_STRETCH_BITS = 21
_VERSION = re.compile(r"\b([12]\d{3}[a-z]{1,2})\b", re.ASCII)


@lru_cache(maxsize=1024)
def load_zone(name: str, field: str = "timezone") -> ZoneInfo:
    """Load the zone of an IANA name. Refuse unknown names with suggestions, and names that only this system has."""
    if not name:
        raise Invalid(field, "is empty", "for example UTC or Europe/Paris")
    names = _zone_names()
    if name not in names:
        shown = name[:64]
        close = difflib.get_close_matches(shown, names, n=3) or _zones_of_city(shown, names)
        hint = "did you mean " + " or ".join(close) + "?" if close else "for example UTC or Europe/Paris"
        raise Invalid(field, f"{shown!r} is not a known time zone", hint)
    try:
        return _read_zone(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(field, f"the rules of {name!r} cannot be read", "reinstall the tzdata package") from None


class ZoneDatabase(NamedTuple):
    """The source of the rules of time zones."""

    #: Such as ``2026f``; empty if it cannot be read.
    version: str
    source: Literal["package", "system"]

    def __str__(self) -> str:
        return f"{self.version or 'of an unknown version'} ({self.source})"


@lru_cache(maxsize=1)
def find_zone_database() -> ZoneDatabase:
    """Return the newer one of the package and the system; the package if both have the same version."""
    package, system = _read_package_version(), _read_system_version()
    if package is None or (system and system > package):
        return ZoneDatabase(system, "system")
    return ZoneDatabase(package, "package")


def _read_package_version() -> str | None:
    try:
        return str(import_module("tzdata").IANA_VERSION)
    except (ImportError, AttributeError):
        return None


def _read_system_version() -> str:
    """Return the version in the first folder that ``zoneinfo`` would search; empty if there is none, or no version."""
    for folder in zoneinfo.TZPATH:
        if _read_line(f"{folder}/Etc/UTC") is None:
            continue
        lines = [_read_line(f"{folder}/{name}") for name in ("tzdata.zi", "+VERSION")]
        return next((found[1] for line in lines if line and (found := _VERSION.search(line))), "")
    return ""


def _read_line(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readline(80)
    except OSError:
        return None


@lru_cache(maxsize=1024)
def _read_zone(name: str) -> ZoneInfo:
    if find_zone_database().source == "package":
        file = resources.files("tzdata.zoneinfo").joinpath(*name.split("/"))
        # A name that only the system has, such as one of its own links, is read from there.
        if file.is_file():
            with file.open("rb") as rules:
                return ZoneInfo.from_file(rules, key=name)
    return ZoneInfo(name)


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    # A listed name cannot be a path, and must match exactly even on a file system that ignores case.
    return frozenset(available_timezones() - {"localtime", "Factory"})


def _zones_of_city(name: str, names: frozenset[str]) -> list[str]:
    city = name.rpartition("/")[2].replace(" ", "_").lower()
    return sorted(known for known in names if known.rpartition("/")[2].lower() == city)


class Segment(NamedTuple):
    """A stretch of UTC seconds with a constant offset, end excluded. Walls are seconds of local time since 1970."""

    start: int
    end: int
    offset: int
    #: The first wall time that was jumped over at ``start``; ``start + offset`` if there are none.
    gap_wall: int
    #: The first wall time that no earlier segment had.
    fresh_wall: int


def segment_at(zone: ZoneInfo, second: int) -> Segment:
    return next(segment for segment in _segments(zone, second >> _STRETCH_BITS) if second < segment.end)


@lru_cache(maxsize=4096)
def _segments(zone: ZoneInfo, stretch: int) -> tuple[Segment, ...]:
    """Return the segments of one stretch, cut at its ends, where the offset need not change."""
    low = stretch << _STRETCH_BITS
    high = low + (1 << _STRETCH_BITS)
    segments = []
    # An early start shows a fold before the stretch whose repeated hour reaches into it.
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
    """Return the seconds above ``low`` and below ``high`` at which the offset changes."""
    changes = []
    offset = _offset_at(zone, low)
    # No zone has ever changed twice within three days, so daily samples find every change.
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
