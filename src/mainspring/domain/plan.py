"""The scheduler's brain: due schedules and the time in, runs and ledger entries out. Pure."""

from collections.abc import Iterable

from mainspring.domain import catch_up
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import Instant
from mainspring.domain.job import Fire, Job, JobState, Overlap, Tick, tick_run_id
from mainspring.domain.schedule import due_of, latest_until, next_after, ticks_between

#: Missed ticks are listed one by one up to this many; older ones share a row that says how far it reaches.
LISTED = 1_000


def plan(jobs: Iterable[Job], now: Instant) -> list[Fire]:
    """Decide every tick that is due at ``now`` (the store's clock) and where each schedule goes next."""
    return [plan_job(job, now) for job in jobs if job.next_fire is not None and job.next_fire <= now]


def plan_job(job: Job, now: Instant) -> Fire:
    first = job.next_fire
    assert first is not None
    key = job.id
    schedule = job.spec.schedule
    delay = job.spec.fixed_delay
    instants = _due(job, first, now)
    if not instants:
        return Fire(job=job, ticks=(), next_fire=None, finished=True)
    ticks = list(_older(job, first, instants[0])) + _decide(job, instants, now)
    following = next_after(schedule, now, key)
    if delay is not None and following is not None and any(tick.decision == "run" for tick in ticks):
        # A fixed delay counts from the end of the run that has just been made.
        return Fire(job=job, ticks=tuple(ticks), next_fire=None)
    return Fire(job=job, ticks=tuple(ticks), next_fire=following, finished=following is None)


def dropped_ticks(job: Job, now: Instant, reason: str) -> list[Tick]:
    """The ticks that are due at ``now`` and will not be fired any more, because the job's schedule ends here."""
    first = job.next_fire
    if first is None or first > now:
        return []
    try:
        instants = _due(job, first, now)
    except Invalid:
        # Its zone is not known any more: that must not keep anybody from mending or ending the job.
        instants = [first]
    listed = [Tick(scheduled_at=at, decision="skipped", reason=reason) for at in instants]
    return [*_older(job, first, instants[0]), *listed] if instants else []


def _due(job: Job, first: Instant, now: Instant) -> list[Instant]:
    """The newest ticks from ``first`` to ``now``, as many as are listed. None: a fixed delay that is over."""
    schedule = job.spec.schedule
    if job.spec.fixed_delay is not None:
        # The store sets the next tick one delay after a run's end without asking whether the schedule is over.
        return [first] if schedule.end is None or first <= schedule.end else []
    limit = max(LISTED, job.spec.catch_up.cap)
    instants = ticks_between(schedule, first - 1, now, job.id, limit)
    if not instants or (instants[0] != first and len(instants) < limit):
        # The stored tick is not one of this schedule's any more (a zone's rules changed): it still happened.
        return [first, *instants]
    return instants


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


def _decide(job: Job, instants: list[Instant], now: Instant) -> list[Tick]:
    if job.state is JobState.PAUSED:
        return [Tick(scheduled_at=at, decision="skipped", reason="paused") for at in instants]
    ticks = []
    for decided in catch_up.decide(job.spec.catch_up, instants, now):
        if decided.not_before is None:
            ticks.append(Tick(scheduled_at=decided.tick, decision="skipped", reason=decided.reason))
            continue
        late = now - decided.tick > job.spec.catch_up.grace
        due = max(due_of(job.spec.schedule, decided.tick, job.id), decided.not_before)
        run_id = tick_run_id(job.id, decided.tick)
        ticks.append(Tick(scheduled_at=decided.tick, decision="run", run_id=run_id, due=due, late=late))
    return _limit_overlap(job.spec.overlap, ticks)


def _limit_overlap(overlap: Overlap, ticks: list[Tick]) -> list[Tick]:
    """Ticks that fire together overlap with one another before the store looks at what is active."""
    running = [tick for tick in ticks if tick.decision == "run"]
    match overlap:
        case Overlap.ALLOW:
            return ticks
        case Overlap.SKIP:
            kept = running[:1]
        case Overlap.QUEUE:
            kept = running[:2]
        case Overlap.CANCEL:
            kept = running[-1:]
    return [
        tick
        if tick.decision == "skipped" or tick in kept
        else Tick(scheduled_at=tick.scheduled_at, decision="skipped", reason="overlap")
        for tick in ticks
    ]
