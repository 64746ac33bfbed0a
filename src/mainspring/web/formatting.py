"""Formats times and numbers for people, like ``static/times.js`` does in the browser."""

from datetime import datetime

from mainspring.core.model.base.instant import SECOND, Instant, from_datetime, to_datetime


def instant(iso: str) -> Instant:
    return from_datetime(datetime.fromisoformat(iso))


def absolute(iso: str) -> str:
    """Format a time: ``2026-11-15 23:40:12 UTC``."""
    return f"{to_datetime(instant(iso)):%Y-%m-%d %H:%M:%S} UTC"


def relative(iso: str, now: Instant) -> str:
    """Format a time relative to now: ``12s ago``, ``in 3m 10s``."""
    distance = (now - instant(iso)) / SECOND
    if abs(distance) < 1:
        return "now"
    words = span(abs(distance))
    return f"{words} ago" if distance > 0 else f"in {words}"


def short_time(iso: str, now: Instant) -> str:
    """Format a time next to a relative one: ``23:40:12`` today, ``Nov 15 23:40`` this year, else ``2025-11-15``."""
    time, today = to_datetime(instant(iso)), to_datetime(now)
    if time.date() == today.date():
        return f"{time:%H:%M:%S}"
    return f"{time:%b} {time.day} {time:%H:%M}" if time.year == today.year else f"{time:%Y-%m-%d}"


def span(seconds: float) -> str:
    """Format a duration in whole seconds, or in two units from a minute on."""
    return f"{int(seconds)}s" if seconds < 60 else duration(seconds)


def duration(seconds: float | None) -> str:
    """Format a duration: ``840µs``, ``12ms``, ``3.2s``, ``4m 10s``, ``2h 05m``."""
    if seconds is None:
        return "–"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f}µs" if seconds else "0s"
    if seconds < 1:
        return f"{seconds * 1e3:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3_600:
        return f"{int(seconds // 60)}m {int(seconds % 60):02d}s"
    if seconds < 86_400:
        return f"{int(seconds // 3_600)}h {int(seconds % 3_600 // 60):02d}m"
    return f"{int(seconds // 86_400)}d {int(seconds % 86_400 // 3_600):02d}h"


def between(start: str | None, end: str | None, now: Instant) -> float | None:
    """Return the seconds between two times, or from the first until now. ``None`` without a start."""
    if start is None:
        return None
    return max(((now if end is None else instant(end)) - instant(start)) / SECOND, 0.0)


def count(number: float) -> str:
    """Format a number: ``1,234``, or ``123k`` and ``4.5M`` where more digits would not help."""
    if number >= 10_000_000:
        return f"{number / 1e6:.0f}M"
    if number >= 1_000_000:
        return f"{number / 1e6:.1f}M"
    if number >= 100_000:
        return f"{number / 1e3:.0f}k"
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def plural(number: int, one: str, many: str = "") -> str:
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def sentence(words: str) -> str:
    """Start words of the API with a capital letter."""
    return words[:1].upper() + words[1:]


def short(number: int) -> str:
    """Format a number in at most four characters: ``840``, ``1.2k``, ``12k``, ``3M``."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 10 * size and number % size else f"{number // size}{unit}"
    return str(number)


def describe_stranded(datacenter: str, runs: int, queue: str = "") -> str:
    """Describe runs that only a data center without workers may run.

    ``queue`` is given if workers of other queues are there.
    """
    if not queue:
        return f"{plural(runs, 'run waits', 'runs wait')} for data center {datacenter} (no workers)"
    waits = plural(runs, f"run of queue {queue} waits", f"runs of queue {queue} wait")
    return f"{waits} for data center {datacenter} (no workers of this queue)"
