"""Builders of values of the model. A test passes only the fields it is about; the others have defaults."""

import time
from collections.abc import Iterable
from itertools import count
from random import Random

from mainspring.core.model.base.ids import IdMaker, JobId, RunId, SessionId
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.model.limits.limits import Breaker, Limit
from mainspring.core.model.runs.new_run import About, Idempotency, JobRef, NewRun
from mainspring.core.model.runs.policy import DEFAULT_POLICY, RunPolicy
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import Fire, Job, JobSpec, JobState, NewJob, Overlap, Tick, tick_run_id
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from mainspring.core.model.schedules.slo import Slo
from mainspring.core.model.workflows.dependencies import Dependencies, DependencyRule
from mainspring.core.store import NewSession

#: The number of shards of the stores that contract and API tests share.
SHARDS = 8

_ids = IdMaker(Random())
_names = count(1)


def an_id(shard: int = 0) -> RunId:
    """A new id, larger than the last one, with the time of this machine as a client's would have."""
    return _ids.run(time.time_ns() // 1_000, shard)


def a_job_id(shard: int = 0) -> JobId:
    return JobId(an_id(shard))


def a_policy(
    *,
    key: str = "",
    retries: int = 3,
    pause: Micros = 10 * SECOND,
    timeout: Micros = 60 * MINUTE,
    at_most_once: bool = False,
    requires: tuple[str, ...] = (),
    limits: tuple[Limit, ...] = (),
    breaker: Breaker | None = None,
    weight: int = 1,
    retention: str = "",
) -> RunPolicy:
    return RunPolicy(
        retry=RetryPolicy(max_retries=retries, backoff="fixed", first_delay=pause),
        timeout=timeout,
        guarantee="at-most-once" if at_most_once else "at-least-once",
        ordering_key=key,
        requires=requires,
        limits=limits,
        breaker=breaker,
        weight=weight,
        retention=retention,
    )


def a_limit(key: str = "customer", most: int = 1, per: Micros | None = None) -> Limit:
    return Limit(key=key, most=most, per=per)


def a_run(
    *,
    id: RunId | None = None,  # noqa: A002
    shard: int = 0,
    key: str = "",
    task: str = "greet",
    payload: bytes = b'{"name":"Ada"}',
    queue: str = "default",
    tenant: str = "default",
    priority: int = DEFAULT_PRIORITY,
    policy: RunPolicy | None = None,
    at: Instant | None = None,
    delay: Micros = 0,
    start_within: Micros | None = None,
    deadline: Micros | None = None,
    replay_of: RunId | None = None,
    about: About | None = None,
    job: JobRef | None = None,
    idempotency: Idempotency | None = None,
    author: str = "",
    requires: tuple[str, ...] = (),
    target: SessionId | None = None,
    limits: tuple[Limit, ...] = (),
    breaker: Breaker | None = None,
    after: Iterable[NewRun | HeldRun] = (),
    rule: DependencyRule = DependencyRule.ALL_SUCCEEDED,
    unique: Unique | None = None,
) -> NewRun:
    if policy is None:
        special = key or requires or limits or breaker is not None
        policy = a_policy(key=key, requires=requires, limits=limits, breaker=breaker) if special else DEFAULT_POLICY
    parents = tuple(parent.id for parent in after)
    return NewRun(
        id=an_id(shard) if id is None else id,
        task=task,
        payload=payload,
        queue=queue,
        tenant=tenant,
        priority=priority,
        policy=policy,
        at=at,
        delay=delay,
        start_within=start_within,
        deadline=deadline,
        replay_of=replay_of,
        about=about,
        job=job,
        idempotency=idempotency,
        author=author,
        target=target,
        after=Dependencies(parents=parents, rule=rule) if parents else None,
        unique=unique,
    )


def some_runs(number: int, *, key: str = "", queue: str = "default", delay: Micros = 0, shard: int = 0) -> list[NewRun]:
    return [a_run(key=key, queue=queue, delay=delay, shard=shard) for _ in range(number)]


def every(
    interval: Micros, *, start: Instant | None = None, end: Instant | None = None, jitter: Micros = 0
) -> Interval:
    return Interval(every=interval, start=start, end=end, jitter=jitter)


def after_each(delay: Micros, *, start: Instant | None = None, end: Instant | None = None) -> Interval:
    """An interval with a fixed delay after each run."""
    return Interval(every=delay, mode="fixed_delay", start=start, end=end)


def a_spec(
    *,
    name: str | None = None,
    task: str = "report",
    schedule: Interval | CronSchedule | None = None,
    queue: str = "default",
    priority: int = DEFAULT_PRIORITY,
    policy: RunPolicy = DEFAULT_POLICY,
    overlap: Overlap = Overlap.ALLOW,
    catch_up: CatchUp | None = None,
    start_within: Micros | None = None,
    deadline: Micros | None = None,
    owner: str = "",
    tags: tuple[str, ...] = (),
    slo: Slo | None = None,
) -> JobSpec:
    return JobSpec(
        name=f"job-{next(_names)}" if name is None else name,
        task=task,
        schedule=every(MINUTE) if schedule is None else schedule,
        queue=queue,
        priority=priority,
        policy=policy,
        overlap=overlap,
        catch_up=CatchUp() if catch_up is None else catch_up,
        start_within=start_within,
        deadline=deadline,
        owner=owner,
        tags=tags,
        slo=slo,
    )


def a_job(
    spec: JobSpec | None = None,
    *,
    id: JobId | None = None,  # noqa: A002
    shard: int = 0,
    tenant: str = "default",
    payload: bytes = b'{"page":1}',
    author: str = "",
    why: str = "",
    must_be_new: bool = False,
    expected_version: int | None = None,
    idempotency: Idempotency | None = None,
) -> NewJob:
    """A job as a client declares it."""
    return NewJob(
        id=a_job_id(shard) if id is None else id,
        spec=a_spec() if spec is None else spec,
        tenant=tenant,
        payload=payload,
        author=author,
        why=why,
        must_be_new=must_be_new,
        expected_version=expected_version,
        idempotency=idempotency,
    )


def a_stored_job(
    spec: JobSpec | None = None,
    *,
    next_fire: Instant | None,
    id: JobId | None = None,  # noqa: A002
    state: JobState = JobState.SCHEDULED,
) -> Job:
    """A job as the store returns it."""
    return Job(
        id=a_job_id() if id is None else id,
        tenant="default",
        spec=a_spec() if spec is None else spec,
        version=1,
        state=state,
        next_fire=next_fire,
        rev=1,
    )


def a_tick(job: Job, scheduled_at: Instant, *, due: Instant | None = None, late: bool = False) -> Tick:
    """A tick that becomes a run."""
    return Tick(
        scheduled_at=scheduled_at,
        decision="run",
        run_id=tick_run_id(job.id, scheduled_at),
        due=scheduled_at if due is None else due,
        late=late,
    )


def a_skipped_tick(scheduled_at: Instant, reason: str = "missed") -> Tick:
    return Tick(scheduled_at=scheduled_at, decision="skipped", reason=reason)


def a_fire(job: Job, *ticks: Tick, next_fire: Instant | None, finished: bool = False) -> Fire:
    return Fire(job=job, ticks=ticks, next_fire=next_fire, finished=finished)


def a_worker(*, name: str = "worker", ttl: Micros = 10 * SECOND) -> NewSession:
    return NewSession(name=name, kind="worker", ttl=ttl)


def a_held_run(
    *,
    attempt: int = 1,
    lost: int = 0,
    policy: RunPolicy = DEFAULT_POLICY,
    deadline: Instant | None = None,
    unblocks_others: bool = False,
    cancel_requested: bool = False,
) -> HeldRun:
    """A claimed run, for tests without a store."""
    return HeldRun(
        id=an_id(),
        fence=1 << 40 | 7,
        task="greet",
        payload=b"null",
        policy=policy,
        queue="default",
        tenant="default",
        priority=DEFAULT_PRIORITY,
        attempt=attempt,
        lost=lost,
        due=0,
        started_at=SECOND,
        attempt_until=SECOND + policy.timeout,
        deadline=deadline,
        unblocks_others=unblocks_others,
        cancel_requested=cancel_requested,
    )
