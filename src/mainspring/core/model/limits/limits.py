"""Limits: how many runs of a key go at a time, how many start in a period, and when a failing task is left alone.

A run that falls under limits passes a gate for each before it is queued. It passes all of them at once or none:
whoever waits holds nothing, so that nobody waits in a circle. A gate keeps

- of a limit at a time: how many are inside (queued or running);
- of a limit per period: how many are inside and have not started, and when the last ones started. What is queued counts
  as if it could start at any moment, so that no period ever sees more starts than it may, however long a queue is;
- of a breaker: when the last failures were, and whether it is open.

Whoever leaves (its attempt ended, or it was cancelled, or expired) gives back what it took. A retry passes again.
These are the rules; the store keeps the state of a gate in a row that is locked by whoever passes or leaves.
"""

from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import stable_hash
from mainspring.core.model.base.instant import DAY, MINUTE, SECOND, Instant, Micros, format_duration

MAX_LIMITS = 4
MAX_KEY = 200
#: At a time. Of a period fewer: the gate remembers that many starts.
MOST_AT_ONCE = 1_000_000
MOST_IN_PERIOD = 10_000
LONGEST_PERIOD: Micros = 31 * DAY

#: How a limit is kept beside a run: the kind, the gate's number, ``most`` and ``per``.
AT_A_TIME, PER_PERIOD, BREAKER = 1, 2, 3


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most ``most`` runs of the key at a time; with ``per``, at most so many starts in any period that long."""

    #: It belongs to a tenant. Whatever names the same key shares it, whichever task it is of.
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
    """After so many failures within a period the runs of a task wait; then one goes ahead to see.

    If that one succeeds all go on; if it fails they wait for another ``pause``. It belongs to a task of a tenant.
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


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run must pass, as the store keeps it beside the run."""

    kind: int
    #: The row that keeps its state.
    number: int
    most: int
    #: Of a breaker: the period in which failures count.
    per: Micros = 0
    #: Of a breaker.
    pause: Micros = 0


def words_of(number: int, tenant: str, task: str, limits: tuple[Limit, ...], breaker: Breaker | None) -> str:
    """What a run waits for, by the number of the gate, as people are told."""
    for limit in limits:
        if _gate(tenant, limit).number == number:
            per = "at a time" if limit.per is None else f"in {format_duration(limit.per)}"
            return f"limit {limit.key!r}: {limit.most} {per}"
    return f"the breaker of task {task!r} is open" if breaker is not None else ""


def gates_of(tenant: str, task: str, limits: tuple[Limit, ...], breaker: Breaker | None) -> tuple[Gate, ...]:
    """In the order of their numbers, in which they are locked."""
    gates = [_gate(tenant, limit) for limit in limits]
    if breaker is not None:
        number = stable_hash(f"breaker:{tenant}:{task}")
        gates.append(Gate(kind=BREAKER, number=number, most=breaker.failures, per=breaker.within, pause=breaker.pause))
    return tuple(sorted(gates, key=lambda gate: gate.number))


def _gate(tenant: str, limit: Limit) -> Gate:
    if limit.per is None:
        return Gate(kind=AT_A_TIME, number=stable_hash(f"limit:{tenant}:{limit.key}"), most=limit.most)
    number = stable_hash(f"rate:{tenant}:{limit.per}:{limit.key}")
    return Gate(kind=PER_PERIOD, number=number, most=limit.most, per=limit.per)


class GateState(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a gate."""

    #: Inside. Of a limit per period: those that have not started. Of a breaker: the one that goes ahead, while open.
    used: int = 0
    #: Of a limit per period: when the last ones started. Of a breaker: when the last failures were. Oldest first.
    times: tuple[Instant, ...] = ()
    #: Of a breaker that is open: when one may go ahead.
    open_until: Instant | None = None


_FREE = 1 << 30


def room(gate: Gate, state: GateState, now: Instant) -> int:
    """How many more may pass now."""
    match gate.kind:
        case 1:  # AT_A_TIME
            return max(gate.most - state.used, 0)
        case 2:  # PER_PERIOD
            return max(gate.most - state.used - len(recent(gate, state, now)), 0)
        case _:
            if state.open_until is None:
                return _FREE
            return 1 if state.used == 0 and now >= state.open_until else 0


def recent(gate: Gate, state: GateState, now: Instant) -> tuple[Instant, ...]:
    """The times that still count: a period is open at its beginning, so that ``most`` and ``most`` fit side by side."""
    return tuple(at for at in state.times if at > now - gate.per)


def room_comes_at(gate: Gate, state: GateState, now: Instant) -> Instant | None:
    """When there will be room though nobody leaves; None: never, or there is room already."""
    if room(gate, state, now):
        return None
    if gate.kind == PER_PERIOD:
        # So many starts must be forgotten before one more fits. What has not started never frees anything.
        times = recent(gate, state, now)
        surplus = state.used + len(times) - gate.most
        return times[surplus] + gate.per if surplus < len(times) else None
    if gate.kind == BREAKER and state.used == 0:
        return state.open_until
    return None


def passed(gate: Gate, state: GateState) -> GateState:
    """One more is inside."""
    if gate.kind == BREAKER and state.open_until is None:
        return state
    return msgspec.structs.replace(state, used=state.used + 1)


def started(gate: Gate, state: GateState, now: Instant) -> GateState:
    """One that is inside has started. It counts from now on by its time."""
    if gate.kind != PER_PERIOD:
        return state
    # All that count are kept: others of the key may have a larger ``most``.
    return msgspec.structs.replace(state, used=max(state.used - 1, 0), times=(*recent(gate, state, now), now))


Ending = Literal["succeeded", "failed", "other"]


def left(gate: Gate, state: GateState, now: Instant, ending: Ending, *, started_at: Instant | None) -> GateState:
    """One that was inside has left: its attempt succeeded, failed, or ended without saying anything of the task.

    ``started_at`` is that of the attempt that has ended; None: it had not started.
    """
    match gate.kind:
        case 1:  # AT_A_TIME
            return msgspec.structs.replace(state, used=max(state.used - 1, 0))
        case 2:  # PER_PERIOD
            # What has started counts by its time, however it ended.
            return state if started_at is not None else msgspec.structs.replace(state, used=max(state.used - 1, 0))
        case _:
            return _after(gate, state, now, ending, started_at)


def _after(gate: Gate, state: GateState, now: Instant, ending: Ending, started_at: Instant | None) -> GateState:
    if state.open_until is None:
        if ending != "failed":
            return state
        times = (*recent(gate, state, now), now)[-gate.most :]
        return GateState(times=times, open_until=None if len(times) < gate.most else now + gate.pause)
    # What started before it opened says nothing of how the task does now; only the one that went ahead does.
    opened_at = state.open_until - gate.pause
    went_ahead = state.used > 0 and (started_at is None or started_at > opened_at)
    if not went_ahead:
        return state
    match ending:
        case "succeeded":
            return GateState()
        case "failed":
            return GateState(times=state.times, open_until=now + gate.pause)
        case "other":
            return msgspec.structs.replace(state, used=0)
