"""A recurring job: what to run, when, and by which policies; and its ticks."""

from enum import StrEnum
from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole, check_words
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId, check_id, derived_id, shard_of, stable_hash
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.datacenters import ALL, check_datacenters
from mainspring.core.model.runs.names import (
    MAX_NAME,
    MAX_WHY,
    check_labels,
    check_limit,
    check_name,
    check_payload,
    check_queue,
    check_tenant,
)
from mainspring.core.model.runs.new_run import Idempotency
from mainspring.core.model.runs.policy import DEFAULT_POLICY, RunPolicy, check_policy
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY, check_priority
from mainspring.core.model.runs.reserved import check_start_within
from mainspring.core.model.schedules import schedule as schedules
from mainspring.core.model.schedules.calendar import WhenClosed, check_calendars
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.slo import Slo


class JobState(StrEnum):
    SCHEDULED = "scheduled"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class Overlap(StrEnum):
    """What a tick does while an earlier run of its job is still on its way."""

    ALLOW = "allow"
    SKIP = "skip"
    #: At most one waits behind the one that is active.
    QUEUE = "queue"
    #: The active one is asked to stop; the new one starts when it has.
    CANCEL = "cancel"

    def has_room(self, active: int, *, is_one_blocked: bool, has_one_key: bool) -> bool:
        """Whether one more run of the job may join the active ones.

        ``has_one_key``: all of them hold or wait for the key that the new run would wait for. Runs of an older version
        may have another one, and no run can wait for those.
        """
        match self:
            case Overlap.ALLOW:
                return True
            case Overlap.SKIP:
                return active == 0
            case Overlap.QUEUE:
                return has_one_key and active <= 1 and not is_one_blocked
            case Overlap.CANCEL:
                return has_one_key


#: The reason in the ledger of a tick that the overlap rule skips.
OVERLAP = "overlap"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a version of a job says. Immutable: a change makes a new version."""

    name: str
    task: str
    schedule: schedules.Interval | schedules.CronSchedule
    queue: str = "default"
    priority: int = DEFAULT_PRIORITY
    policy: RunPolicy = DEFAULT_POLICY
    overlap: Overlap = Overlap.ALLOW
    catch_up: CatchUp = CatchUp()
    #: A tick's run that has not started this long after it was due is skipped (expired).
    start_within: Micros | None = None
    #: A tick's run that has not ended this long after it was due fails (deadline).
    deadline: Micros | None = None
    owner: str = ""
    tags: tuple[str, ...] = ()
    #: The calendars that it minds, by name, and what its ticks do when one of them, or one that covers it, is closed.
    calendars: tuple[str, ...] = ()
    when_closed: WhenClosed = WhenClosed.SKIP
    #: What it owes; a miss is told.
    slo: Slo | None = None
    #: The data centres in each of which every tick has a run of its own; ``ALL``: every one there is then; none: a tick
    #: has one run, wherever its policy lets it go.
    datacenters: tuple[str, ...] = ()
    #: The application or the file that declares it, such as ``app:billing``; nobody: it was made by hand.
    source: str = ""

    def check(self) -> None:
        check_name("name", self.name)
        check_name("task", self.task)
        check_queue("queue", self.queue)
        check_priority(self.priority)
        check_policy(self.policy)
        check_kind("overlap", self.overlap, Overlap)
        check_kind("catchUp", self.catch_up, CatchUp)
        self.catch_up.check()
        check_kind("schedule", self.schedule, schedules.Interval, schedules.CronSchedule)
        schedules.validate(self.schedule, self.name)
        check_labels(self.owner, self.tags)
        check_words("source", self.source, MAX_NAME)
        for field, limit in (("startWithin", self.start_within), ("deadline", self.deadline)):
            if limit is not None:
                check_limit(field, limit)
        check_start_within(self.task, self.start_within)
        if self.slo is not None:
            check_kind("slo", self.slo, Slo)
            self.slo.check()
            if self.slo.start_within is not None and self.fixed_delay is not None:
                raise Invalid("slo.startWithin", "does not go with a fixed delay", "slo.succeedEvery")
        check_calendars(self.calendars, self.when_closed)
        if self.looks_ahead and self.fixed_delay is not None:
            raise Invalid("whenClosed", "before does not go with a fixed delay", "skip or after")
        check_datacenters(self.datacenters, self.policy.requires, fixed_delay=self.fixed_delay is not None)

    @property
    def targets(self) -> tuple[str, ...]:
        """The data centres that it names; none where it has one run a tick, or goes to all there are."""
        return () if self.datacenters == (ALL,) else self.datacenters

    @property
    def looks_ahead(self) -> bool:
        """Whether a tick may happen before its own time."""
        return self.when_closed is WhenClosed.BEFORE

    @property
    def timing(self) -> tuple[schedules.Interval | schedules.CronSchedule, bool]:
        """If this changes, the next tick is computed anew."""
        return self.schedule, self.looks_ahead

    @property
    def fixed_delay(self) -> Micros | None:
        """The pause between the end of one run and the next tick, if that is how the job ticks."""
        schedule = self.schedule
        if isinstance(schedule, schedules.Interval) and schedule.mode == "fixed_delay":
            return schedule.every
        return None


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is declared. The same tenant and name is the same job: a different spec makes a new version."""

    id: JobId
    spec: JobSpec
    payload: bytes = b"null"
    tenant: str = "default"
    #: Who asks for it, and why, for the versions and the audit; nobody: the program itself.
    author: str = ""
    why: str = ""
    #: Only if there is no such job, or it is cancelled or finished.
    must_be_new: bool = False
    #: Only if this is its version now.
    expected_version: int | None = None
    #: As of a run: a tenant uses a key once, for a run or for a job. A repeat changes nothing and is ``unchanged``,
    #: whatever has become of the job since.
    idempotency: Idempotency | None = None

    def check(self) -> None:
        check_id("id", self.id)
        check_kind("spec", self.spec, JobSpec)
        self.spec.check()
        check_tenant("tenant", self.tenant)
        check_payload(self.payload)
        check_words("author", self.author, MAX_NAME)
        check_words("why", self.why, MAX_WHY)
        if not isinstance(self.must_be_new, bool):
            raise Invalid("mustBeNew", "is neither true nor false")
        if self.expected_version is not None:
            check_whole("expectedVersion", self.expected_version, 1, 2**31 - 1, "1 or more")
        if self.idempotency is not None:
            check_kind("idempotency", self.idempotency, Idempotency)
            self.idempotency.check()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the store holds it, with where its schedule stands."""

    id: JobId
    tenant: str
    spec: JobSpec
    version: int
    state: JobState
    #: The next tick; none while a fixed delay waits for its run, and when nothing is left to fire. Of a job that looks
    #: ahead: when to look at ``next_tick``, which may have to happen before its time.
    next_fire: Instant | None
    #: Grows with every change of the schedule's row: whoever fires a tick must have seen the newest.
    rev: int
    payload: bytes = b"null"
    created_at: Instant = 0
    updated_at: Instant = 0
    #: Of a paused one: when it goes on by itself; none: when somebody says so.
    resume_at: Instant | None = None
    #: Ticks before this belong to a pause that is over, and may not have been looked at while it lasted.
    paused_until: Instant | None = None
    #: What was said about the newest pause.
    pause_why: str = ""
    #: Of a job that looks ahead: its next tick.
    next_tick: Instant | None = None
    #: How many changes the calendars of its tenant had seen when its row was last written; 0: there never were any.
    calendar_rev: int = 0

    def is_paused_at(self, tick: Instant) -> bool:
        """Whether a tick falls into a pause. What nobody saw at its time is decided as if somebody had."""
        if self.paused_until is not None and tick < self.paused_until:
            return True
        return self.state is JobState.PAUSED and (self.resume_at is None or tick < self.resume_at)

    @property
    def shard(self) -> int:
        return shard_of(self.id)

    @property
    def first_tick(self) -> Instant | None:
        """The next tick itself, by which the ledger knows it."""
        return self.next_fire if self.next_tick is None else self.next_tick

    def next_fires(self, count: int = 5) -> list[Instant]:
        """Its coming ticks, as far as they can be known now."""
        first = self.first_tick
        if first is None:
            return []
        if self.spec.fixed_delay is not None:
            return [first]
        return [first, *schedules.next_fires(self.spec.schedule, first, self.id, count - 1)]


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the ledger: a tick of a job and what was decided about it."""

    scheduled_at: Instant
    decision: Literal["run", "skipped"]
    reason: str = ""
    run_id: RunId | None = None
    #: When its run may start: the tick, its jitter, or its place in a paced catch-up.
    due: Instant = 0
    late: bool = False
    #: More than one: a span of skipped ticks too many to list, up to ``last_at``. 0: too many to count.
    ticks: int = 1
    last_at: Instant | None = None
    #: When it happens if that is before its own time, because of a calendar.
    early: Instant | None = None
    #: The data centre that it is for, of a job that goes to several.
    target: str = ""

    @property
    def happens_at(self) -> Instant:
        return self.scheduled_at if self.early is None else self.early


class Fire(msgspec.Struct, frozen=True, kw_only=True):
    """Ticks of one job to be recorded, and its schedule moved on, if nobody has changed it since ``job.rev``."""

    job: Job
    ticks: tuple[Tick, ...]
    next_fire: Instant | None
    finished: bool = False
    #: Of a job that looks ahead.
    next_tick: Instant | None = None


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tick as the ledger keeps it."""

    job_id: JobId
    scheduled_at: Instant
    decision: Literal["run", "skipped"]
    reason: str
    run_id: RunId | None
    job_version: int
    epoch: int
    ticks: int = 1
    last_at: Instant | None = None
    #: The data centre that it was for, of a job that goes to several.
    target: str = ""


def tick_run_id(job: JobId, scheduled_at: Instant, target: str = "") -> RunId:
    """The run of a tick has the same id on whichever node it is made."""
    return RunId(derived_id(scheduled_at, shard_of(job), job, scheduled_at, target))


def overlap_gate(job: JobId, target: str = "") -> int:
    """The gate where the runs of a job wait for one another, in each data centre by itself."""
    return stable_hash(f"overlap:{job}:{target}" if target else f"overlap:{job}")


def version_body_id(job: JobId, version: int, target: str = "") -> str:
    """Where the payload of a job's version is kept: once for each data centre, however many ticks it has."""
    return derived_id(0, shard_of(job), job, "version", version, *([target] if target else []))
