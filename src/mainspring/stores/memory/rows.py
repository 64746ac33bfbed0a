"""What the tables hold, and the one index they all use."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Literal, TypeAlias

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId, shard_of
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.cluster.datacenters import may_be_noted
from mainspring.core.model.cluster.labels import has_all
from mainspring.core.model.limits.limits import Gate as LimitGate
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retention import STANDARD
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.runs.view import Progress, RunView
from mainspring.core.model.schedules.job import Job, JobSpec, JobState, LedgerEntry, Tick
from mainspring.core.model.schedules.slo import SloState
from mainspring.core.model.workflows.dependencies import Rule
from mainspring.core.ports.storage.datacenters import Order

#: What the runs of a line require, or the one session that may take them.
Lane: TypeAlias = tuple[str, ...] | SessionId


class Index:
    """Rows in the order of a number, then of their id.

    A plain sorted list: an insertion moves what stands behind it, which stays cheap up to some hundred thousand rows,
    and nothing is ever stale in it.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, number: int, row: str) -> None:
        insort(self.entries, (number, row))

    def remove(self, number: int, row: str) -> None:
        at = bisect_left(self.entries, (number, row))
        if at < len(self.entries) and self.entries[at] == (number, row):
            del self.entries[at]

    def until(self, number: int) -> Iterator[tuple[int, str]]:
        """Entries up to and including a number. The index must not change meanwhile."""
        for entry in self.entries:
            if entry[0] > number:
                return
            yield entry


class RunRow(msgspec.Struct, kw_only=True):
    """A run, wherever it is on its way. While it runs ``state`` is ``running``, asked to stop or not."""

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
    #: Its place among the queued; meaningless elsewhere.
    rank: int = 0
    attempt: int = 0
    lost: int = 0
    #: The newest fence it was ever claimed under; nothing lowers it.
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
    #: The gate it must hold from when it is queued until it has ended.
    gate: int | None = None
    job_id: JobId | None = None
    job_version: int | None = None
    scheduled_at: Instant | None = None
    #: Ends a fixed-delay job's wait.
    paces_job: bool = False
    #: Caught up on: queues behind live work of its priority.
    late: bool = False
    replay_of: RunId | None = None
    #: The one session that may run it.
    target: SessionId | None = None
    reason: str = ""
    finished_at: Instant | None = None
    result: bytes | None = None
    error: str | None = None
    about: About | None = None
    queued_at: Instant | None = None
    #: When a limit or a key let it go, or it came back from an attempt; 0: it waited for none.
    ready_at: Instant = 0
    #: Who was last given it, and that session's name.
    last_session: SessionId | None = None
    executor: str = ""
    progress: Progress | None = None
    #: What its attempts want the next one to know.
    checkpoint: bytes | None = None
    #: Its class of retention, since it has ended.
    kept_as: str = STANDARD
    #: Of a failed run.
    fingerprint: str = ""
    #: A failed run that was replayed or discarded: no dead letter any more.
    dealt_with: bool = False
    discarded: bool = False
    #: The gates of its limits, whether it is inside of them, and for which one it waits.
    gates: tuple[LimitGate, ...] = ()
    inside: bool = False
    waits: int | None = None
    #: Of one that waits for others, or waited: its rule, how many they are, and what its limits in time are to count
    #: from when the rule is met.
    rule: Rule | None = None
    parents: int = 0
    waits_for_parents: bool = False
    start_within: Micros | None = None
    end_within: Micros | None = None
    #: Others wait for its end, or waited.
    has_children: bool = False
    unique: Unique | None = None

    @property
    def shard(self) -> int:
        return shard_of(self.id)

    @property
    def lane(self) -> Lane:
        return self.policy.requires if self.target is None else self.target

    @property
    def in_line(self) -> bool:
        """It waits for its ordering key, or for the run before it."""
        return self.state is RunState.BLOCKED and self.waits is None and not self.waits_for_parents

    @property
    def dead(self) -> bool:
        return self.state is RunState.FAILED and not self.dealt_with

    def set_limits(self) -> None:
        """Its limits in time count from when it is due."""
        self.start_by = None if self.start_within is None else self.due + self.start_within
        self.deadline = None if self.end_within is None else self.due + self.end_within

    def start_missed(self, now: Instant) -> bool:
        """It has not started and is not allowed to any more. An attempt that was not charged is no start."""
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
            lets_go=self.gate is not None or self.paces_job or bool(self.gates) or self.has_children,
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
            gate=self.waits,
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
        return shard_of(self.id)

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
    """How a job's objectives stand, and when they are looked at again."""

    state: SloState
    rev: int
    next_check: Instant


#: Of the only worker there is, in tests of an application: it stands for all others.
ANY_LABEL = "*"


class SessionRow(msgspec.Struct, kw_only=True):
    """A process. Buried or closed it stays dead: a process that comes back gets a new one."""

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
    #: Asked to leave.
    draining: bool = False
    dead: bool = False
    clock: ClockReading | None = None
    tzdata: str = ""

    def expired(self, now: Instant) -> bool:
        return self.lease_until <= now

    def alive(self, now: Instant) -> bool:
        return not self.dead and not self.expired(now)

    def may_take(self, lane: Lane, orders: Mapping[str, Order]) -> bool:
        if not isinstance(lane, tuple):
            return lane == self.id
        if ANY_LABEL in self.labels:
            return True
        own = [word for word in lane if word not in orders]
        return has_all(self.labels, own) and all(
            orders[word].serving == self.datacenter for word in lane if word in orders
        )


class UsedKey(msgspec.Struct, frozen=True):
    """An idempotency key, and the run or job that was made with it."""

    made: RunId | JobId
    fingerprint: bytes
    at: Instant


class UniqueKey(msgspec.Struct, frozen=True):
    """A unique key, the run that has it, and until when; None: until that has ended."""

    run: RunId
    until: Instant | None


class ShardRow(msgspec.Struct):
    owner: SessionId | None = None
    #: Grows with every change of owner.
    epoch: int = 0


class Gate:
    """One run of a key at a time. The holder is queued, running or between two attempts; the line is in due order."""

    def __init__(self) -> None:
        self.holder: RunId | None = None
        self.line = Index()


class Ledger:
    """The ticks of one job, in order, each once."""

    def __init__(self) -> None:
        #: Each with the data centre that it was for.
        self.times: list[tuple[Instant, str]] = []
        self.entries: dict[tuple[Instant, str], LedgerEntry] = {}

    def __contains__(self, tick: Tick) -> bool:
        return (tick.scheduled_at, tick.target) in self.entries

    def add(self, entry: LedgerEntry) -> None:
        self.entries[entry.scheduled_at, entry.target] = entry
        insort(self.times, (entry.scheduled_at, entry.target))

    def between(self, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        first = bisect_left(self.times, (since, ""))
        last = min(bisect_left(self.times, (until, "")), first + limit)
        return [self.entries[at] for at in self.times[first:last]]

    def newest(self, limit: int) -> list[LedgerEntry]:
        return [self.entries[at] for at in self.times[-limit:]]

    def newest_until(self, at: Instant) -> LedgerEntry | None:
        place = bisect_left(self.times, (at + 1, ""))
        return self.entries[self.times[place - 1]] if place else None

    def target_of(self, run: RunRow) -> str:
        """The data centre that a tick's run is for; of other runs none."""
        at = run.scheduled_at or 0
        first = bisect_left(self.times, (at, ""))
        for time, target in islice(self.times, first, None):
            if time > at:
                break
            if self.entries[time, target].run_id == run.id:
                return target
        return ""

    def note(self, scheduled_at: Instant, run: RunId, why: str) -> None:
        """Say why a tick that has not started goes elsewhere, unless a calendar has its own word in that place."""
        entry = self.entries.get((scheduled_at, ""))
        if entry is not None and entry.run_id == run and may_be_noted(entry.reason):
            self.entries[scheduled_at, ""] = msgspec.structs.replace(entry, reason=why)

    def forget(self, until: Instant, limit: int, is_kept: Callable[[RunId | None], bool]) -> int:
        """Forget at most ``limit`` ticks up to ``until``, with it, whose runs are not kept longer; how many went."""
        old = islice(self.times, bisect_left(self.times, (until + 1, "")))
        gone = set(islice((at for at in old if not is_kept(self.entries[at].run_id)), limit))
        if gone:
            self.times = [at for at in self.times if at not in gone]
        for at in gone:
            del self.entries[at]
        return len(gone)
