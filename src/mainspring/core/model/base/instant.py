"""Instants and durations: whole microseconds, as plain integers.

An instant is the number of microseconds since 1970-01-01 in UTC. Integers compare and subtract the same in every zone,
in both databases and in the timer wheel; aware datetimes do not (PEP 495). Datetimes appear only in cron arithmetic and
at the edges.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from mainspring.core.model.base.checks import check_whole
from mainspring.core.model.base.errors import Invalid

Instant: TypeAlias = int
Micros: TypeAlias = int

MILLISECOND: Micros = 1_000
SECOND: Micros = 1_000_000
MINUTE: Micros = 60 * SECOND
HOUR: Micros = 60 * MINUTE
DAY: Micros = 24 * HOUR

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The last instant that a datetime can hold, to the second.
LATEST: Instant = int((datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - EPOCH).total_seconds()) * SECOND

_UNITS: dict[str, Micros] = {
    "us": 1,
    "ms": MILLISECOND,
    "s": SECOND,
    "sec": SECOND,
    "second": SECOND,
    "seconds": SECOND,
    "m": MINUTE,
    "min": MINUTE,
    "minute": MINUTE,
    "minutes": MINUTE,
    "h": HOUR,
    "hour": HOUR,
    "hours": HOUR,
    "d": DAY,
    "day": DAY,
    "days": DAY,
    "w": 7 * DAY,
    "week": 7 * DAY,
    "weeks": 7 * DAY,
}
_PART = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([a-z]{1,7})\s*", re.ASCII)

_SECONDS = re.compile(r"\s*\d{1,12}(?:\.\d{1,6})?\s*", re.ASCII)
_DURATION_HINT = 'for example "30s", "10m" or "1h30m", or a number of seconds'

#: A duration in an interface: seconds as a number, ``"1h30m"``, or a timedelta.
Duration: TypeAlias = int | float | str | timedelta

#: A due time this far in the past is accepted: clocks differ, and requests take time.
PAST_TOLERANCE: Micros = 5 * SECOND


def from_datetime(moment: datetime, field: str = "time") -> Instant:
    """Return the instant of an aware datetime."""
    if not isinstance(moment, datetime):
        raise Invalid(field, f"{moment!r:.40} is not a time", "use an aware datetime, for example datetime.now(UTC)")
    if moment.tzinfo is None:
        raise Invalid(field, "has no time zone", "use an aware datetime, for example datetime.now(UTC)")
    # Avoid astimezone, which overflows at both ends of the calendar.
    delta = moment - EPOCH
    return (delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds


def to_datetime(instant: Instant) -> datetime:
    """Return the instant as a UTC datetime."""
    return EPOCH + timedelta(microseconds=instant)


def isoformat(instant: Instant) -> str:
    """Format as RFC 3339 in UTC with a Z, with microseconds if there are any.

    Instants beyond the calendar are shown as its end: one such instant must not break a whole list.
    """
    return to_datetime(min(instant, LATEST)).isoformat().replace("+00:00", "Z")


def parse_instant(text: str, field: str = "time") -> Instant:
    """Parse RFC 3339. A zone is required: a time without one has a different meaning on every machine."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(field, f"{text!r} is not a time", "for example 2026-12-31T23:59:59Z") from None
    if moment.tzinfo is None:
        raise Invalid(field, f"{text!r} has no time zone", "end it with Z or an offset such as +01:00")
    return check_instant(from_datetime(moment, field), field)


def check_instant(instant: Instant, field: str) -> Instant:
    """Refuse an instant that a datetime or a database cannot hold."""
    check_whole(field, instant, 0, LATEST, "from 1970 to 9999")
    return instant


def check_ahead(instant: Instant, now: Instant, field: str) -> None:
    if instant <= now:
        raise Invalid(field, f"{isoformat(instant)} is in the past", "a time to come, or leave it out")


def explain_past(instant: Instant | None, now: Instant, field: str) -> Invalid | None:
    """Return the error for a due time that has passed. ``now`` is the store's time, or an estimate of it."""
    if instant is None or instant >= now - PAST_TOLERANCE:
        return None
    ago = format_duration((now - instant) // SECOND * SECOND)
    return Invalid(field, f"{isoformat(instant)} is {ago} in the past", "leave it out to run at once")


def parse_duration(value: Duration, field: str = "duration") -> Micros:
    """Parse a duration: a number of seconds, ``"250ms"``, ``"1h30m"``, ``"2 days"`` or a timedelta; never negative.

    A number may also be a text, as command lines and environments have only texts. Units are lower case: in other
    notations ``M`` is a month.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | timedelta):
        raise Invalid(field, f"{value!r:.40} is not a duration", 'for example "30s"')
    if isinstance(value, timedelta):
        micros = (value.days * 86_400 + value.seconds) * SECOND + value.microseconds
    elif isinstance(value, int | float):
        if not -1e12 < value < 1e12:
            raise Invalid(field, f"{value} seconds is out of range")
        micros = round(value * SECOND)
    else:
        micros = _parse_words(value, field)
    if micros < 0:
        raise Invalid(field, "is negative")
    return micros


def _parse_words(text: str, field: str) -> Micros:
    if len(text) <= 100:
        if _SECONDS.fullmatch(text):
            return round(float(text) * SECOND)
        if (micros := _sum_parts(text)) is not None:
            return micros
        lowered = text.strip().lower()
        if _sum_parts(lowered) is not None:
            raise Invalid(field, f"{text!r} is not a duration", f'did you mean "{lowered}"? Units are lower case')
    raise Invalid(field, f"{text[:100]!r} is not a duration", _DURATION_HINT)


def _sum_parts(text: str) -> Micros | None:
    """Return the duration; None if the text is not a series of numbers with units."""
    micros = at = 0
    while at < len(text):
        part = _PART.match(text, at)
        unit = _UNITS.get(part.group(2)) if part else None
        if part is None or unit is None:
            return None
        micros += round(float(part.group(1)) * unit)
        at = part.end()
    return micros if text else None


def format_duration(micros: Micros) -> str:
    """Return the shortest text that ``parse_duration`` reads back to the same duration."""
    if micros == 0:
        return "0s"
    words = []
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", MILLISECOND), ("us", 1)):
        count, micros = divmod(micros, size)
        if count:
            words.append(f"{count}{unit}")
    return "".join(words)
