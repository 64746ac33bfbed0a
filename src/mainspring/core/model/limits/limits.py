"""Limits: concurrency per key, rate per period, and circuit breakers for failing tasks.

A run with limits acquires one limiter for each before it is queued. It acquires all of them at once or none: a blocked
run holds nothing, so deadlocks are impossible. The state of a limiter is

- for a concurrency limit: the number of holders (queued or running);
- for a rate limit: the number of holders that have not started, and the times of the last starts. Queued runs count as
  if they could start at any moment, so that no period ever has too many starts, however long a queue is;
- for a circuit breaker: the times of the last failures, and whether it is open.

A run releases its limiters when its attempt ends, or when it is cancelled or expires. A retry acquires them again. This
module has the rules. The store keeps the state of a limiter in a row, locked while a run acquires or releases it.
"""

from bisect import bisect_right
from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import stable_hash
from mainspring.core.model.base.instant import DAY, MINUTE, SECOND, Instant, Micros, format_duration

MAX_LIMITS = 4
MAX_KEY = 200
#: The maximum of a concurrency limit, and of a rate limit, whose limiter stores that many start times.
MOST_AT_ONCE = 1_000_000
MOST_IN_PERIOD = 10_000
LONGEST_PERIOD: Micros = 31 * DAY

#: The kinds of limiters. A store saves a limiter beside a run as its kind, number, ``most`` and ``per``.
AT_A_TIME, PER_PERIOD, BREAKER = 1, 2, 3


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most ``most`` runs of the key at a time; with ``per``, at most ``most`` starts in any such period."""

    #: The key of the limit within its tenant. All limits with the same key share it, across tasks.
    key: str
    most: int
    per: Micros | None = None

    def check(self) -> None:
        check_kind("limits.key", self.key, str)
        if not 0 < len(self.key) <= MAX_KEY or not self.key.isprintable():
            raise Invalid("limits.key", f"{self.key[:40]!r} is not a key", f"1 to {MAX_KEY} printable characters")
        if self.per is None:
            check_whole("limits.most", self.most, 1, MOST_AT_ONCE, f"1 to {MOST_AT_ONCE}")
        else:
            check_whole("limits.most", self.most, 1, MOST_IN_PERIOD, f"1 to {MOST_IN_PERIOD}")
            check_whole("limits.per", self.per, 1_000, LONGEST_PERIOD, "1 ms to 31 days")


class Breaker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A circuit breaker of a task of a tenant: after too many failures within a period, its runs are blocked.

    After ``pause``, one probe runs. If it succeeds, all runs continue; if it fails, they wait for another ``pause``.
    """

    failures: int = 5
    within: Micros = MINUTE
    pause: Micros = 30 * SECOND

    def check(self) -> None:
        check_whole("breaker.failures", self.failures, 1, 1_000, "1 to 1,000")
        check_whole("breaker.within", self.within, SECOND, DAY, "1 s to 1 day")
        check_whole("breaker.pause", self.pause, SECOND, DAY, "1 s to 1 day")


def check_limits(limits: tuple[Limit, ...]) -> None:
    if not isinstance(limits, tuple) or len(limits) > MAX_LIMITS:
        raise Invalid("limits", "are too many, or no tuple", f"at most {MAX_LIMITS}")
    for limit in limits:
        check_kind("limits", limit, Limit)
        limit.check()
    if len({(limit.key, limit.per) for limit in limits}) < len(limits):
        raise Invalid("limits", "has a key twice")


class Limiter(msgspec.Struct, frozen=True, kw_only=True):
    """A limiter that a run must acquire, as the store saves it beside the run."""

    kind: int
    #: The number of the row with its state.
    number: int
    most: int
    #: For a rate limit the period; for a circuit breaker the period in which failures count.
    per: Micros = 0
    #: For a circuit breaker: how long it stays open before a probe.
    pause: Micros = 0


def describe_limiter(number: int, tenant: str, task: str, limits: tuple[Limit, ...], breaker: Breaker | None) -> str:
    """Describe the limiter with this number for users."""
    for limit in limits:
        if _build_limiter(tenant, limit).number == number:
            per = "at a time" if limit.per is None else f"in {format_duration(limit.per)}"
            return f"limit {limit.key!r}: {limit.most} {per}"
    return f"the breaker of task {task!r} is open" if breaker is not None else ""


def build_limiters(tenant: str, task: str, limits: tuple[Limit, ...], breaker: Breaker | None) -> tuple[Limiter, ...]:
    """Return the limiters in the order of their numbers, in which they are locked."""
    limiters = [_build_limiter(tenant, limit) for limit in limits]
    if breaker is not None:
        number = stable_hash(f"breaker:{tenant}:{task}")
        limiters.append(
            Limiter(kind=BREAKER, number=number, most=breaker.failures, per=breaker.within, pause=breaker.pause)
        )
    return tuple(sorted(limiters, key=lambda limiter: limiter.number))


def _build_limiter(tenant: str, limit: Limit) -> Limiter:
    if limit.per is None:
        return Limiter(kind=AT_A_TIME, number=stable_hash(f"limit:{tenant}:{limit.key}"), most=limit.most)
    number = stable_hash(f"rate:{tenant}:{limit.per}:{limit.key}")
    return Limiter(kind=PER_PERIOD, number=number, most=limit.most, per=limit.per)


class LimiterState(msgspec.Struct, frozen=True, kw_only=True):
    """The state row of a limiter."""

    #: The number of holders. For a rate limit: holders that have not started. For an open circuit breaker: the probe.
    used: int = 0
    #: For a rate limit the times of the last starts, for a circuit breaker those of the last failures; oldest first.
    times: tuple[Instant, ...] = ()
    #: For an open circuit breaker: when a probe may run.
    open_until: Instant | None = None


_FREE = 1 << 30


def room(limiter: Limiter, state: LimiterState, now: Instant) -> int:
    """Return how many more runs may acquire the limiter now."""
    match limiter.kind:
        case 1:  # AT_A_TIME
            return max(limiter.most - state.used, 0)
        case 2:  # PER_PERIOD
            return max(limiter.most - state.used - len(state.times) + _count_old(limiter, state, now), 0)
        case _:
            if state.open_until is None:
                return _FREE
            return 1 if state.used == 0 and now >= state.open_until else 0


def recent(limiter: Limiter, state: LimiterState, now: Instant) -> tuple[Instant, ...]:
    """Return the times that still count. A period excludes its start, so that two full periods can be adjacent."""
    return state.times[_count_old(limiter, state, now) :]


def _count_old(limiter: Limiter, state: LimiterState, now: Instant) -> int:
    return bisect_right(state.times, now - limiter.per)


def room_comes_at(limiter: Limiter, state: LimiterState, now: Instant) -> Instant | None:
    """Return when there will be room even if no run releases the limiter; None: never, or there is room already."""
    if room(limiter, state, now):
        return None
    if limiter.kind == PER_PERIOD:
        # So many starts must leave the period before one more fits. Holders that have not started free no room.
        times = recent(limiter, state, now)
        surplus = state.used + len(times) - limiter.most
        return times[surplus] + limiter.per if surplus < len(times) else None
    if limiter.kind == BREAKER and state.used == 0:
        return state.open_until
    return None


def passed(limiter: Limiter, state: LimiterState) -> LimiterState:
    """Return the state after one more run acquired the limiter."""
    if limiter.kind == BREAKER and state.open_until is None:
        return state
    return msgspec.structs.replace(state, used=state.used + 1)


def started(limiter: Limiter, state: LimiterState, now: Instant) -> LimiterState:
    """Return the state after a holder started. It counts by its start time from now on."""
    if limiter.kind != PER_PERIOD:
        return state
    # Keep all times that count: other limits with the key may have a larger ``most``.
    return msgspec.structs.replace(state, used=max(state.used - 1, 0), times=(*recent(limiter, state, now), now))


Ending = Literal["succeeded", "failed", "other"]


def left(
    limiter: Limiter, state: LimiterState, now: Instant, ending: Ending, *, started_at: Instant | None
) -> LimiterState:
    """Return the state after a holder released the limiter: it succeeded, failed, or ended without information on the
    task.

    ``started_at`` is that of the attempt that has ended; None: it had not started.
    """
    match limiter.kind:
        case 1:  # AT_A_TIME
            return msgspec.structs.replace(state, used=max(state.used - 1, 0))
        case 2:  # PER_PERIOD
            # A started run counts by its start time, however it ended.
            return state if started_at is not None else msgspec.structs.replace(state, used=max(state.used - 1, 0))
        case _:
            return _after(limiter, state, now, ending, started_at)


def _after(
    limiter: Limiter, state: LimiterState, now: Instant, ending: Ending, started_at: Instant | None
) -> LimiterState:
    if state.open_until is None:
        if ending != "failed":
            return state
        times = (*recent(limiter, state, now), now)[-limiter.most :]
        return LimiterState(times=times, open_until=None if len(times) < limiter.most else now + limiter.pause)
    # Runs that started before the breaker opened say nothing about the task's current health; only the probe does.
    opened_at = state.open_until - limiter.pause
    went_ahead = state.used > 0 and (started_at is None or started_at > opened_at)
    if not went_ahead:
        return state
    match ending:
        case "succeeded":
            return LimiterState()
        case "failed":
            return LimiterState(times=state.times, open_until=now + limiter.pause)
        case "other":
            return msgspec.structs.replace(state, used=0)
