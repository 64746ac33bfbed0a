"""Schedules as values, and the arithmetic of their ticks.

A tick is the instant that identifies an occurrence; the ledger holds one row for each (job, tick). Jitter changes when
a tick is due but never the tick itself, so that changing the jitter cannot make an occurrence happen twice.

``key`` is a value that stays the same for a job's life: ``H`` in a cron expression and jitter derive from it. ``start``
and ``end`` are both inclusive: a tick at exactly either of them counts.
"""

import hashlib
from functools import lru_cache
from typing import Literal, TypeAlias, assert_never

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole, check_word
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import (
    DAY,
    LATEST,
    SECOND,
    Instant,
    Micros,
    check_instant,
    format_duration,
    isoformat,
)
from mainspring.core.model.schedules.cron import Cron, DstFold, DstGap, load_zone

SHORTEST_INTERVAL: Micros = SECOND
LONGEST_INTERVAL: Micros = 100 * 366 * DAY
LONGEST_CRON_JITTER: Micros = DAY
#: This module has no clock: a cron schedule without start and end must fire under the zone rules from 2025 on.
_JUDGED_FROM: Instant = 1_735_689_600 * SECOND


class Immediate(msgspec.Struct, frozen=True, tag_field="type", tag="immediate"):
    """Once, at submission. The submission is the occurrence, so there are no ticks."""


class At(msgspec.Struct, frozen=True, tag_field="type", tag="at"):
    """Once, at an instant; an instant in the past means as soon as possible."""

    at: Instant


class Interval(msgspec.Struct, frozen=True, tag_field="type", tag="interval"):
    """Repeatedly, with a fixed interval."""

    every: Micros
    #: ``fixed_rate``: on a grid that begins at ``start``, or at 1970 without one, however long runs take.
    #: ``fixed_delay``: counted from the end of the previous run, which the caller passes.
    mode: Literal["fixed_rate", "fixed_delay"] = "fixed_rate"
    start: Instant | None = None
    end: Instant | None = None
    jitter: Micros = 0


class CronSchedule(msgspec.Struct, frozen=True, tag_field="type", tag="cron"):
    """A cron expression in a time zone; ``schedules/cron`` defines the syntax."""

    expression: str
    timezone: str = "UTC"
    gap: DstGap = DstGap.RUN_AFTER
    fold: DstFold = DstFold.ONCE
    start: Instant | None = None
    end: Instant | None = None
    jitter: Micros = 0


Schedule: TypeAlias = Immediate | At | Interval | CronSchedule


def validate(schedule: Schedule, key: str) -> None:
    """Refuse an invalid schedule, and name the field that is wrong."""
    match schedule:
        case Immediate():
            pass
        case At():
            check_instant(schedule.at, "at")
        case Interval():
            _check_bounds(schedule.start, schedule.end)
            check_word("mode", schedule.mode, ("fixed_rate", "fixed_delay"))
            check_kind("every", schedule.every, int)
            if schedule.every < SHORTEST_INTERVAL:
                raise Invalid("every", f"is {_duration_words(schedule.every)}", "at least 1s")
            check_whole("every", schedule.every, SHORTEST_INTERVAL, LONGEST_INTERVAL, "at most 100 years")
            check_kind("jitter", schedule.jitter, int)
            if not 0 <= schedule.jitter < schedule.every:
                reason = f"is {_duration_words(schedule.jitter)}"
                raise Invalid("jitter", reason, f"less than the interval, which is {format_duration(schedule.every)}")
        case CronSchedule():
            _check_bounds(schedule.start, schedule.end)
            check_kind("jitter", schedule.jitter, int)
            if not 0 <= schedule.jitter <= LONGEST_CRON_JITTER:
                raise Invalid("jitter", f"is {_duration_words(schedule.jitter)}", "at most 1d")
            check_kind("gap", schedule.gap, DstGap)
            check_kind("fold", schedule.fold, DstFold)
            check_kind("expression", schedule.expression, str)
            check_kind("timezone", schedule.timezone, str)
            load_zone(schedule.timezone, "timezone")
            _cron(schedule.expression, key)
            _check_fires(schedule, key)
        case _:
            assert_never(schedule)


def next_after(schedule: Schedule, after: Instant, key: str) -> Instant | None:
    """Return the next tick strictly after ``after``. For a fixed delay, ``after`` is the end of the previous run."""
    match schedule:
        case Immediate():
            return None
        case At():
            return schedule.at if schedule.at > after else None
        case Interval():
            if schedule.start is not None and after < schedule.start:
                tick = schedule.start
            elif schedule.mode == "fixed_delay":
                tick = after + schedule.every
            else:
                anchor = schedule.start or 0
                tick = after + schedule.every - (after - anchor) % schedule.every
            return tick if tick <= _get_end(schedule) else None
        case CronSchedule():
            if schedule.start is not None and after < schedule.start:
                after = schedule.start - 1
            cron = _cron(schedule.expression, key)
            fire = cron.next_after(after, load_zone(schedule.timezone), schedule.gap, schedule.fold)
            return fire if fire is not None and fire <= _get_end(schedule) else None
        case _:
            assert_never(schedule)


def latest_until(schedule: Schedule, until: Instant, key: str) -> Instant | None:
    """Return the last tick at or before ``until``. For a fixed delay only the start is known without its runs."""
    match schedule:
        case Immediate():
            return None
        case At():
            return schedule.at if schedule.at <= until else None
        case Interval():
            anchor = schedule.start or 0
            until = min(until, _get_end(schedule))
            tick: Instant | None = until - (until - anchor) % schedule.every
            if schedule.mode == "fixed_delay":
                tick = schedule.start if schedule.start is not None and schedule.start <= until else None
        case CronSchedule():
            cron = _cron(schedule.expression, key)
            until = min(until, _get_end(schedule))
            tick = cron.latest_until(until, load_zone(schedule.timezone), schedule.gap, schedule.fold)
        case _:
            assert_never(schedule)
    return None if tick is None or (schedule.start is not None and tick < schedule.start) else tick


def ticks_between(schedule: Schedule, after: Instant, until: Instant, key: str, limit: int) -> list[Instant]:
    """Return the newest ``limit`` ticks after ``after`` and up to ``until``, in ascending order.

    The cost depends on the number returned, not on the number missed. A fixed delay has at most one tick: the next one
    counts from the end of a run that does not exist yet.
    """
    if isinstance(schedule, Interval) and schedule.mode == "fixed_delay":
        tick = next_after(schedule, after, key)
        return [tick] if tick is not None and tick <= until and limit > 0 else []
    ticks: list[Instant] = []
    while len(ticks) < limit:
        tick = latest_until(schedule, until, key)
        if tick is None or tick <= after:
            break
        ticks.append(tick)
        until = tick - 1
    ticks.reverse()
    return ticks


def next_fires(schedule: Schedule, after: Instant, key: str, count: int = 5) -> list[Instant]:
    """Return the upcoming ticks for display. For a fixed delay, runs are assumed to take no time."""
    ticks: list[Instant] = []
    while len(ticks) < count:
        tick = next_after(schedule, after, key)
        if tick is None:
            break
        ticks.append(tick)
        after = tick
    return ticks


def compute_due(schedule: Schedule, tick: Instant, key: str) -> Instant:
    """Return when a tick is due: at the tick, or later by a jitter that is constant for this key and tick."""
    match schedule:
        case Immediate() | At():
            return tick
        case Interval() | CronSchedule():
            if schedule.jitter == 0:
                return tick
            digest = hashlib.sha256(f"{key}\0{tick}".encode("utf-8", "surrogatepass")).digest()
            return tick + int.from_bytes(digest[:8], "big") % schedule.jitter
        case _:
            assert_never(schedule)


def describe(schedule: Schedule, key: str = "") -> str:
    """Describe the schedule in English. Without the job's key, ``H`` is shown as one of its possible values."""
    match schedule:
        case Immediate():
            return "at once"
        case At():
            return f"once at {isoformat(schedule.at)}"
        case Interval():
            words = f"every {format_duration(schedule.every)}"
            if schedule.mode == "fixed_delay":
                words = f"{format_duration(schedule.every)} after the end of the previous run"
        case CronSchedule():
            words = f"{_cron(schedule.expression, key).describe()} ({schedule.timezone})"
        case _:
            assert_never(schedule)
    if schedule.start is not None:
        words += f", from {isoformat(schedule.start)}"
    if schedule.end is not None:
        words += f", until {isoformat(schedule.end)}"
    if schedule.jitter:
        words += f", up to {format_duration(schedule.jitter)} later"
    return words


def _cron(expression: str, key: str) -> Cron:
    # Only H needs the key. Without it, all jobs with the same expression share one parsed value.
    return _parsed(expression, key if "H" in expression or "h" in expression else "")


@lru_cache(maxsize=20_000)
def _parsed(expression: str, key: str) -> Cron:
    return Cron.parse(expression, hash_key=key, field="expression")


def _get_end(schedule: Interval | CronSchedule) -> Instant:
    return LATEST if schedule.end is None else schedule.end


def _check_bounds(start: Instant | None, end: Instant | None) -> None:
    if start is not None:
        check_instant(start, "start")
    if end is not None:
        check_instant(end, "end")
    if start is not None and end is not None and end <= start:
        raise Invalid("end", "is not after the start", f"later than {isoformat(start)}")


def _check_fires(schedule: CronSchedule, key: str) -> None:
    if schedule.start is None and schedule.end is not None:
        fires = latest_until(schedule, schedule.end, key) is not None
    else:
        fires = next_after(schedule, _JUDGED_FROM if schedule.start is None else schedule.start - 1, key) is not None
    if not fires:
        period = "" if schedule.start is None and schedule.end is None else " between its start and its end"
        raise Invalid("expression", f"never fires{period}", f"the zone is {schedule.timezone}")


def _duration_words(micros: Micros) -> str:
    return format_duration(micros) if micros >= 0 else "negative"
