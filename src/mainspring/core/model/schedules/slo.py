"""Service level objectives of schedules: start in time, and succeed often enough.

Objectives are evaluated from recorded facts, so a miss is found even if it happened while no process was running.
Each miss emits one event when it begins and one when it ends.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from mainspring.core.model.base.checks import check_whole
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, SECOND, Instant, Micros

MISSED = "job.slo_missed"
RECOVERED = "job.slo_recovered"
LONGEST: Micros = 366 * DAY
#: The number of ticks evaluated at a time, newest first.
MOST_TICKS = 1_000
#: The minimum interval between two checks of a job, and the maximum interval while an objective is missed or the job
#: paused.
_APART: Micros = 2 * SECOND
_WHILE_MISSED: Micros = 15 * SECOND
_WHILE_PAUSED: Micros = 60 * SECOND


class Slo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    #: The maximum time between a tick and the start of its run.
    start_within: Micros | None = None
    #: The maximum time between two successful runs.
    succeed_every: Micros | None = None

    def check(self) -> None:
        for field, limit in (("slo.startWithin", self.start_within), ("slo.succeedEvery", self.succeed_every)):
            if limit is not None:
                check_whole(field, limit, SECOND, LONGEST, "1s to 366 days")
        if self.start_within is None and self.succeed_every is None:
            raise Invalid("slo", "asks for nothing", "startWithin, succeedEvery, or both")


class SloState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The evaluation state of a job's objectives."""

    #: The last evaluated tick, and when monitoring began. Without an earlier success, the next one is due from then on.
    judged: Instant
    watched_since: Instant
    last_success: Instant | None = None
    #: Since when ticks start too late, and since when a success is overdue; None: the objective is met.
    late_since: Instant | None = None
    quiet_since: Instant | None = None
    #: When the schedule last changed. Ticks up to then come from the ledger, later ones from the schedule.
    rescheduled_at: Instant | None = None

    @property
    def is_missed(self) -> bool:
        return self.late_since is not None or self.quiet_since is not None


class TickFact(NamedTuple):
    """What happened to a tick. A tick that was not recorded has no fact."""

    #: When its run first started; None: not yet.
    started: Instant | None
    #: When its run is expected to start: at the tick, or later because of jitter or a calendar.
    due: Instant
    #: The tick does not count: it was skipped for a permitted reason, or its run was cancelled by a user.
    excused: bool = False


def worse(one: TickFact | None, other: TickFact) -> TickFact:
    """Return the fact that counts of two about the same tick: excused facts lose, and a later start or none wins."""
    if one is None or one.excused:
        return other
    if other.excused or one.started is None:
        return one
    return other if other.started is None or other.started > one.started else one


class SloEvaluation(NamedTuple):
    state: SloState
    #: When to check again; None: never.
    next_check: Instant | None
    #: ``MISSED`` and ``RECOVERED`` events in chronological order.
    events: tuple[str, ...] = ()


def begin(now: Instant) -> SloState:
    return SloState(judged=now, watched_since=now)


def rest(state: SloState, now: Instant) -> SloEvaluation:
    """Suspend the objectives of a paused job. Monitoring starts again when the job is resumed."""
    state_then = msgspec.structs.replace(begin(now), last_success=state.last_success)
    return SloEvaluation(state_then, now + _WHILE_PAUSED, _close_misses(state))


def close(state: SloState) -> SloEvaluation:
    """End monitoring of a job that was cancelled, or whose schedule has ended with all ticks evaluated."""
    closed = msgspec.structs.replace(state, late_since=None, quiet_since=None)
    return SloEvaluation(closed, None, _close_misses(state))


def _close_misses(state: SloState) -> tuple[str, ...]:
    return (RECOVERED,) * ((state.late_since is not None) + (state.quiet_since is not None))


def judge(
    slo: Slo,
    state: SloState,
    ticks: list[Instant],
    following: Instant | None,
    facts: Mapping[Instant, TickFact],
    last_success: Instant | None,
    now: Instant,
    ended_at: Instant | None = None,
) -> SloEvaluation:
    """Evaluate the objectives of a job.

    ``ticks`` are those after the evaluated ones whose time to start is over, and ``following`` is the next tick after
    them.
    ``ended_at`` is when the schedule ended, if it has: no success is expected after it, and once all ticks are
    evaluated,
    open misses are closed.
    """
    events: list[str] = []
    checks: list[Instant] = []
    if slo.start_within is not None:
        state, check = _judge_starts(slo.start_within, state, ticks, following, facts, now, events)
        checks += [] if check is None else [check]
    if slo.succeed_every is not None:
        until = now if ended_at is None else min(now, ended_at)
        state, check = _judge_successes(slo.succeed_every, state, last_success, until, events)
        checks += [check] if ended_at is None else []
    if state.is_missed and checks:
        # Check soon, so that the misses of a cancelled job are closed soon.
        checks.append(now + _WHILE_MISSED)
    if ended_at is not None and not checks:
        closed = close(state)
        return SloEvaluation(closed.state, None, (*events, *closed.events))
    return SloEvaluation(state, max(min(checks, default=now + DAY), now + _APART), tuple(events))


def _judge_starts(
    within: Micros,
    state: SloState,
    ticks: list[Instant],
    following: Instant | None,
    facts: Mapping[Instant, TickFact],
    now: Instant,
    events: list[str],
) -> tuple[SloState, Instant | None]:
    late_since, judged = state.late_since, state.judged
    for tick in ticks:
        fact = facts.get(tick)
        if fact is not None and fact.started is None and not fact.excused and now <= fact.due + within:
            # The tick was postponed and can still start in time.
            return _with(state, judged, late_since), fact.due + within + 1
        judged = tick
        if fact is not None and fact.excused:
            continue
        start_by = (tick if fact is None else max(tick, fact.due)) + within
        in_time = fact is not None and fact.started is not None and fact.started <= start_by
        if in_time and late_since is not None:
            late_since = None
            events.append(RECOVERED)
        elif not in_time and late_since is None:
            late_since = start_by
            events.append(MISSED)
    return _with(state, judged, late_since), None if following is None else following + within + 1


def _with(state: SloState, judged: Instant, late_since: Instant | None) -> SloState:
    return msgspec.structs.replace(state, judged=judged, late_since=late_since)


def _judge_successes(
    every: Micros, state: SloState, last_success: Instant | None, now: Instant, events: list[str]
) -> tuple[SloState, Instant]:
    last = max(filter(None, (last_success, state.last_success)), default=None)
    expected_by = max(state.watched_since, last or 0) + every
    quiet_since = state.quiet_since
    if quiet_since is not None and last is not None and last >= quiet_since:
        quiet_since = None
        events.append(RECOVERED)
    if quiet_since is None and now > expected_by:
        quiet_since = expected_by
        events.append(MISSED)
    check = now + _WHILE_MISSED if quiet_since is not None else expected_by + 1
    return msgspec.structs.replace(state, last_success=last, quiet_since=quiet_since), check
