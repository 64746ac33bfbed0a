"""Rows of the memory store."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId, decode_shard
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.cluster.labels import has_all
from mainspring.core.model.limits.limits import Limiter as Limit
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retention import STANDARD
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.runs.view import Progress, RunView
from mainspring.core.model.schedules.job import Job, JobSpec, JobState
from mainspring.core.model.schedules.slo import SloState
from mainspring.core.model.workflows.dependencies import DependencyRule
from mainspring.core.ports.storage.datacenters import PreferenceOrder
from mainspring.stores.memory.index import Index

#: The label set that runs require, or the only session that may take them.
LabelSet: TypeAlias = tuple[str, ...] | SessionId


class RunRow(msgspec.Struct, kw_only=True):
    """A run in any state. While it runs, ``state`` is ``running``, even if its cancellation was requested."""

    id: RunId
    task: str
    payload: bytes
    policy: RunPolicy
    queue: str
    tenant: str
    priority: int
    state: RunState
    due: Instant
    created_at: Instant
    #: Position among the queued runs; meaningless in other states.
    rank: int = 0
    attempt: int = 0
    lost: int = 0
    #: The newest fence it was claimed under; it never decreases.
    fence: int = 0
    #: The fence under which it ended, if an attempt ended it.
    ended_by: int | None = None
    session: SessionId | None = None
    claim: int = 0
    started_at: Instant | None = None
    attempt_until: Instant = 0
    start_by: Instant | None = None
    deadline: Instant | None = None
    cancel_at: Instant | None = None
    #: The key lock that it holds from when it is queued until it has ended.
    key_lock: int | None = None
    job_id: JobId | None = None
    job_version: int | None = None
    scheduled_at: Instant | None = None
    #: Its end sets the next tick of a fixed-delay job.
    paces_job: bool = False
    #: A catch-up run: it queues behind live runs of its priority.
    late: bool = False
    replay_of: RunId | None = None
    #: The only session that may run it.
    target: SessionId | None = None
    reason: str = ""
    finished_at: Instant | None = None
    result: bytes | None = None
    error: str | None = None
    about: About | None = None
    queued_at: Instant | None = None
    #: When a limit or a key released it, or when it came back from an attempt; 0: it waited for none.
    ready_at: Instant = 0
    #: The session that claimed it last, and that session's name.
    last_session: SessionId | None = None
    executor: str = ""
    progress: Progress | None = None
    #: State that its attempts save for the next one.
    checkpoint: bytes | None = None
    #: Its retention class, set when it ends.
    kept_as: str = STANDARD
    #: Set for failed runs.
    fingerprint: str = ""
    #: A failed run that was replayed or discarded is no longer a dead letter.
    dealt_with: bool = False
    discarded: bool = False
    #: Its limiters, whether it occupies them, and the one that blocks it.
    limits: tuple[Limit, ...] = ()
    holds_limits: bool = False
    blocked_by: int | None = None
    #: For a run with dependencies: its rule, the number of parents, whether it still waits for them, and its relative
    #: time limits, which count from when the rule is met.
    rule: DependencyRule | None = None
    parents: int = 0
    waits_for_parents: bool = False
    start_within: Micros | None = None
    end_within: Micros | None = None
    #: Other runs wait, or waited, for its end.
    has_children: bool = False
    unique: Unique | None = None

    @property
    def shard(self) -> int:
        return decode_shard(self.id)

    @property
    def label_set(self) -> LabelSet:
        return self.policy.requires if self.target is None else self.target

    @property
    def in_line(self) -> bool:
        """Whether it is blocked by its ordering key or by the previous run of its job."""
        return self.state is RunState.BLOCKED and self.blocked_by is None and not self.waits_for_parents

    @property
    def dead(self) -> bool:
        return self.state is RunState.FAILED and not self.dealt_with

    def set_time_limits(self) -> None:
        """Compute the time limits from the due time."""
        self.start_by = None if self.start_within is None else self.due + self.start_within
        self.deadline = None if self.end_within is None else self.due + self.end_within

    def start_missed(self, now: Instant) -> bool:
        """Report whether it missed its latest start time. An attempt that was not charged does not count as a start."""
        return self.attempt == 0 and self.start_by is not None and self.start_by < now

    def deadline_missed(self, now: Instant) -> bool:
        return self.deadline is not None and self.deadline <= now

    def held(self) -> HeldRun:
        assert self.started_at is not None
        return HeldRun(
            id=self.id,
            fence=self.fence,
            task=self.task,
            payload=self.payload,
            policy=self.policy,
            queue=self.queue,
            tenant=self.tenant,
            priority=self.priority,
            attempt=self.attempt,
            lost=self.lost,
            due=self.due,
            started_at=self.started_at,
            attempt_until=self.attempt_until,
            deadline=self.deadline,
            job_id=self.job_id,
            scheduled_at=self.scheduled_at,
            unblocks_others=self.key_lock is not None or self.paces_job or bool(self.limits) or self.has_children,
            cancel_requested=self.cancel_at is not None,
            state=self.checkpoint,
            ready_at=self.ready_at,
        )

    def shown_state(self) -> RunState:
        if self.state is RunState.RUNNING and self.cancel_at is not None:
            return RunState.CANCELLING
        return self.state

    def view(self, *, with_payload: bool = False, with_result: bool = True) -> RunView:
        return RunView(
            id=self.id,
            state=self.shown_state(),
            task=self.task,
            queue=self.queue,
            tenant=self.tenant,
            priority=self.priority,
            attempt=self.attempt,
            due=self.due,
            created_at=self.created_at,
            lost=self.lost,
            fence=self.fence,
            reason=self.reason,
            job_id=self.job_id,
            job_version=self.job_version,
            scheduled_at=self.scheduled_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            cancel_requested=self.cancel_at is not None,
            result=self.result if with_result else None,
            error=self.error,
            about=self.about,
            policy=self.policy,
            queued_at=self.queued_at,
            session=self.last_session,
            executor=self.executor,
            start_by=self.start_by,
            deadline=self.deadline,
            replay_of=self.replay_of,
            progress=self.progress,
            fingerprint=self.fingerprint,
            target=self.target,
            parents=self.parents,
            rule=self.rule,
            limiter=self.blocked_by,
            kept_as=self.kept_as,
            payload=self.payload if with_payload else None,
        )


class JobRow(msgspec.Struct, kw_only=True):
    """A recurring job with its newest version."""

    id: JobId
    tenant: str
    spec: JobSpec
    payload: bytes
    state: JobState
    version: int = 0
    rev: int = 0
    next_fire: Instant | None = None
    next_tick: Instant | None = None
    calendar_rev: int = 0
    #: The run whose end sets the next tick of a fixed delay.
    awaits: RunId | None = None
    created_at: Instant = 0
    updated_at: Instant = 0
    resume_at: Instant | None = None
    paused_until: Instant | None = None
    pause_why: str = ""

    @property
    def shard(self) -> int:
        return decode_shard(self.id)

    @property
    def ticking(self) -> bool:
        return self.state in (JobState.SCHEDULED, JobState.PAUSED)

    def end_pause(self, now: Instant) -> None:
        """End its pause now or at its end time, whichever came first. Ticks of the pause stay paused."""
        end = now if self.resume_at is None else min(self.resume_at, now)
        self.paused_until = end if self.paused_until is None else max(self.paused_until, end)

    def job(self, *, with_payload: bool) -> Job:
        return Job(
            id=self.id,
            tenant=self.tenant,
            spec=self.spec,
            version=self.version,
            state=self.state,
            next_fire=self.next_fire,
            rev=self.rev,
            payload=self.payload if with_payload else b"null",
            created_at=self.created_at,
            updated_at=self.updated_at,
            resume_at=self.resume_at,
            paused_until=self.paused_until,
            pause_why=self.pause_why,
            next_tick=self.next_tick,
            calendar_rev=self.calendar_rev,
        )


class SloRow(msgspec.Struct, kw_only=True):
    """State of a job's objectives, and when they are evaluated again."""

    state: SloState
    rev: int
    next_check: Instant


#: Label of the only worker in tests of an application: it satisfies every label set.
ANY_LABEL = "*"


class SessionRow(msgspec.Struct, kw_only=True):
    """The session of a process. Once expired or closed it stays so: a process that comes back gets a new one."""

    id: SessionId
    name: str
    kind: Literal["worker", "scheduler"]
    started_at: Instant
    lease_until: Instant
    version: str = ""
    datacenter: str = ""
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    priorities: tuple[int, ...] = ()
    slots: int | None = None
    lease: Micros = 0
    owner: str = ""
    serves: str = ""
    #: The session was asked to drain.
    draining: bool = False
    live: bool = True
    clock: ClockReading | None = None
    tzdata: str = ""

    def expired(self, now: Instant) -> bool:
        return self.lease_until <= now

    def is_live(self, now: Instant) -> bool:
        return self.live and not self.expired(now)

    def may_take(self, label_set: LabelSet, orders: Mapping[str, PreferenceOrder]) -> bool:
        if not isinstance(label_set, tuple):
            return label_set == self.id
        if ANY_LABEL in self.labels:
            return True
        own = [word for word in label_set if word not in orders]
        return has_all(self.labels, own) and all(
            orders[word].serving == self.datacenter for word in label_set if word in orders
        )


class UsedKey(msgspec.Struct, frozen=True):
    """An idempotency key, and the run or job that was created with it."""

    made: RunId | JobId
    fingerprint: bytes
    at: Instant


class UniqueKey(msgspec.Struct, frozen=True):
    """A unique key, the run that holds it, and until when; None: until that run has ended."""

    run: RunId
    until: Instant | None


class ShardRow(msgspec.Struct):
    owner: SessionId | None = None
    #: Increases with every change of owner.
    epoch: int = 0


class KeyLock:
    """A key lock: one run of a key at a time.

    The holder is queued, running or between two attempts. The other runs wait in due order.
    """

    def __init__(self) -> None:
        self.holder: RunId | None = None
        self.line = Index()
