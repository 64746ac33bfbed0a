"""Scheduling decisions: due schedules and the time in, runs and ledger entries out. Pure."""

import itertools
from collections.abc import Iterable

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules import catch_up
from mainspring.core.model.schedules.closed_periods import ClosedPeriods, TickPlacement
from mainspring.core.model.schedules.job import OVERLAP, Fire, Job, JobState, Overlap, Tick, tick_run_id
from mainspring.core.model.schedules.schedule import compute_due, latest_until, next_after, ticks_between
from mainspring.core.model.schedules.spread import for_target

#: The maximum number of missed ticks listed individually; older ones share one row with the time of the last.
LISTED = 1_000


def plan(jobs: Iterable[Job], now: Instant) -> list[Fire]:
    """Decide every tick that is due at ``now`` (the store's clock), and the next tick of each schedule."""
    return [plan_job(job, now) for job in jobs if job.next_fire is not None and job.next_fire <= now]


def plan_job(job: Job, now: Instant, closed_periods: ClosedPeriods | None = None) -> Fire:
    """Decide the due ticks of one job. ``closed_periods``: the calendars that apply to it; None: there are none."""
    if job.spec.looks_ahead:
        return _plan_ahead(job, now, closed_periods)
    first = job.next_fire
    assert first is not None
    key = job.id
    schedule = job.spec.schedule
    delay = job.spec.fixed_delay
    instants, until = _due_for_fire(job, first, now, now)
    if not instants:
        return Fire(job=job, ticks=(), next_fire=None, finished=True)
    ticks = list(_older(job, first, instants[0])) + _decide(job, first, instants, now, closed_periods)
    following = next_after(schedule, until, key)
    if delay is not None and following is not None and any(tick.decision == "run" for tick in ticks):
        # A fixed delay counts from the end of the run that was just created.
        return Fire(job=job, ticks=tuple(ticks), next_fire=None)
    return Fire(job=job, ticks=tuple(ticks), next_fire=following, finished=following is None)


def _plan_ahead(job: Job, now: Instant, closed_periods: ClosedPeriods | None) -> Fire:
    """Decide the due ticks of a job that looks ahead: ticks in a closed period run in the last second before it.

    The row stores when to evaluate the job and which tick is next. After a change of the calendars, an evaluation may
    come too early: then no tick is due, and the fire only sets the next evaluation.
    """
    first = job.first_tick
    assert first is not None
    if happens_at(first, closed_periods) > now:
        return _looks_again(job, (), first, closed_periods)
    until = now if closed_periods is None else closed_periods.reach(now)
    following = next_after(job.spec.schedule, max(now, first - 1), job.id)
    if following is not None and happens_at(following, closed_periods) > now:
        # It lies in the last second before a closed period. The ticks of that period wait for it.
        until = now
    instants, until = _due_for_fire(job, first, until, now)
    if happens_at(instants[-1], closed_periods) > now:
        # A tick in the last open second is never early, nor is one of a closed period that no open second precedes.
        instants, until = _due_for_fire(job, first, now, now)
    ticks = list(_older(job, first, instants[0])) + _decide(job, first, instants, now, closed_periods)
    ticks = [
        tick
        if tick.scheduled_at <= now
        else msgspec.structs.replace(tick, early=happens_at(tick.scheduled_at, closed_periods))
        for tick in ticks
    ]
    return _looks_again(
        job, tuple(ticks), next_after(job.spec.schedule, max(min(now, until), instants[-1]), job.id), closed_periods
    )


def _looks_again(
    job: Job, ticks: tuple[Tick, ...], following: Instant | None, closed_periods: ClosedPeriods | None
) -> Fire:
    if following is None:
        return Fire(job=job, ticks=ticks, next_fire=None, finished=True)
    return Fire(job=job, ticks=ticks, next_fire=happens_at(following, closed_periods), next_tick=following)


def happens_at(tick: Instant, closed_periods: ClosedPeriods | None) -> Instant:
    """Return when a tick is decided: at its own time, or earlier if a calendar moves it."""
    at = None if closed_periods is None else closed_periods.place(tick).at
    return tick if at is None else min(tick, at)


def dropped_ticks(job: Job, now: Instant, reason: str) -> list[Tick]:
    """Return the ticks due at ``now`` that are skipped because the job's schedule ends here."""
    first = job.first_tick
    if first is None or first > now:
        return []
    try:
        instants = _due(job, first, now)
    except Invalid:
        # The zone is no longer known. That must not prevent users from fixing or ending the job.
        instants = [first]
    listed = [Tick(scheduled_at=at, decision="skipped", reason=reason) for at in instants]
    ticks = [*_older(job, first, instants[0]), *listed] if instants else []
    return [for_target(job.id, tick, target) for tick in ticks for target in job.spec.targets or ("",)]


def _due(job: Job, first: Instant, now: Instant) -> list[Instant]:
    """Return the newest ticks from ``first`` to ``now``, as many as are listed; none after a fixed delay has ended."""
    schedule = job.spec.schedule
    if job.spec.fixed_delay is not None:
        # The store sets the next tick one delay after a run's end without checking whether the schedule has ended.
        return [first] if schedule.end is None or first <= schedule.end else []
    limit = _limit(job)
    instants = ticks_between(schedule, first, now, job.id, limit)
    # The stored tick counts even if the schedule no longer has it because the rules of its zone changed.
    return [first, *instants] if len(instants) < limit else instants


def _limit(job: Job) -> int:
    return max(LISTED, job.spec.catch_up.cap)


def _due_for_fire(job: Job, first: Instant, until: Instant, now: Instant) -> tuple[list[Instant], Instant]:
    """Return the ticks of one fire, and the time up to which it decides.

    That time is ``until``, unless ticks that are on time would not be listed. Then one fire decides the ticks before
    them, and the next one the oldest of them, as many as can be listed. The next fire is due immediately.
    """
    instants = _due(job, first, until)
    if len(instants) < _limit(job) or instants[0] == first:
        return instants, until
    on_time = _first_on_time(job, first, now)
    if on_time is None or on_time > until:
        return instants, until
    needed = job.spec.catch_up.cap if job.spec.catch_up.mode == "all" else 0
    if instants[0] <= on_time and sum(tick < on_time for tick in instants) >= needed:
        return instants, until
    if first < on_time:
        until = on_time - 1
    else:
        *_, until = itertools.islice(_following(job, on_time), _limit(job))
    return _due(job, first, until), until


def _first_on_time(job: Job, first: Instant, now: Instant) -> Instant | None:
    """Return the first tick that is neither paused nor late; None if only the newest tick runs."""
    policy = job.spec.catch_up
    live = _first_live(job, first)
    if live is None or now - live <= policy.grace:
        return live
    return None if policy.mode == "latest" else next_after(job.spec.schedule, now - policy.grace - 1, job.id)


def _first_live(job: Job, first: Instant) -> Instant | None:
    """Return the first tick from ``first`` on that is not paused. A pause is contiguous."""
    if not job.is_paused_at(first):
        return first
    if job.state is JobState.PAUSED and job.resume_at is None:
        return None
    paused = [job.paused_until, job.resume_at if job.state is JobState.PAUSED else None]
    return next_after(job.spec.schedule, max(end for end in paused if end is not None) - 1, job.id)


def _following(job: Job, tick: Instant) -> Iterable[Instant]:
    following: Instant | None = tick
    while following is not None:
        yield following
        following = next_after(job.spec.schedule, following, job.id)


def _older(job: Job, first: Instant, listed_from: Instant) -> Iterable[Tick]:
    if first < listed_from:
        last = latest_until(job.spec.schedule, listed_from - 1, job.id)
        yield Tick(
            scheduled_at=first,
            decision="skipped",
            reason="missed: more ticks than are listed one by one",
            ticks=0,
            last_at=max(first, last if last is not None else first),
        )


def _decide(
    job: Job, first: Instant, instants: list[Instant], now: Instant, closed_periods: ClosedPeriods | None
) -> list[Tick]:
    paused = [at for at in instants if job.is_paused_at(at)]
    if paused:
        # A pause is contiguous and ends before the remaining ticks begin.
        reason = f"paused: {job.pause_why}" if job.pause_why else "paused"
        skipped = [Tick(scheduled_at=at, decision="skipped", reason=reason) for at in paused]
        return skipped + _decide_live(job, instants[len(paused) :], now, closed_periods)
    live = _first_live(job, first)
    # Some of the ticks that are not listed were late.
    outage = live is not None and live < instants[0] and now - live > job.spec.catch_up.grace
    return _decide_live(job, instants, now, closed_periods, outage=outage)


def _decide_live(
    job: Job, instants: list[Instant], now: Instant, closed_periods: ClosedPeriods | None, *, outage: bool = False
) -> list[Tick]:
    placed = [TickPlacement(at) if closed_periods is None else closed_periods.place(at) for at in instants]
    # Ticks that a calendar skips do not count for mode ``latest``, and moved ticks are late only at their new time.
    moved = [found.at for found in placed if found.at is not None]
    decisions = iter(catch_up.decide(job.spec.catch_up, moved, now, outage=outage))
    ticks = []
    for tick, found in zip(instants, placed, strict=True):
        if found.at is None:
            ticks.append(Tick(scheduled_at=tick, decision="skipped", reason=found.reason))
            continue
        decided = next(decisions)
        if decided.not_before is None:
            ticks.append(Tick(scheduled_at=tick, decision="skipped", reason=decided.reason))
            continue
        late = now - found.at > job.spec.catch_up.grace
        jitter = compute_due(job.spec.schedule, tick, job.id) - tick if found.at >= tick else 0
        due = max(found.at + jitter, decided.not_before)
        if late and closed_periods is not None:
            # The catch-up must wait for the next open time, too.
            due = closed_periods.next_open(due) or due
        run_id = tick_run_id(job.id, tick)
        ticks.append(Tick(scheduled_at=tick, decision="run", reason=found.reason, run_id=run_id, due=due, late=late))
    return _limit_overlap(job.spec.overlap, ticks)


def _limit_overlap(overlap: Overlap, ticks: list[Tick]) -> list[Tick]:
    """Skip the ticks that a newer tick of the same fire would cancel.

    The store applies the other overlap rules, as only the store knows which ticks are already recorded. A tick that was
    moved before a closed period appears again if the schedule is changed after it, and then occupies no room.
    """
    running = [tick for tick in ticks if tick.decision == "run"]
    if overlap is not Overlap.CANCEL or len(running) < 2:
        return ticks
    return [
        tick
        if tick.decision == "skipped" or tick is running[-1]
        else Tick(scheduled_at=tick.scheduled_at, decision="skipped", reason=OVERLAP)
        for tick in ticks
    ]
