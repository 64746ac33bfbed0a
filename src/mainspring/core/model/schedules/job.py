"""A recurring job: what to run, when, and by which policies; and its ticks."""

from enum import StrEnum
from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole, check_words
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId, check_id, decode_shard, derived_id, stable_hash
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
    """What a tick does while an earlier run of its job has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    #: At most one run waits behind the active one.
    QUEUE = "queue"
    #: The active run is asked to stop; the new one starts when it has.
    CANCEL = "cancel"

    def has_room(self, active: int, *, is_one_blocked: bool, has_one_key: bool) -> bool:
        """Return whether one more run of the job may join the active ones.

        ``has_one_key``: all of them hold or wait for the key that the new run would wait for. Runs of an older version
        may have another key, and no run can wait for those.
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


#: The ledger's reason for a tick that the overlap rule skips.
OVERLAP = "overlap"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a job version. Immutable: a change creates a new version."""

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
    #: The calendars of the job by name, and what its ticks do when one of them, or one that covers the job, is closed.
    calendars: tuple[str, ...] = ()
    when_closed: WhenClosed = WhenClosed.SKIP
    #: The service level objective; missing it emits an event.
    slo: Slo | None = None
    #: The data centers in each of which every tick has its own run; ``ALL``: all that exist at that time. Empty: a tick
    #: has one run, in any data center that its policy allows.
    datacenters: tuple[str, ...] = ()
    #: The application or the file that declares the job, such as ``app:billing``; empty: created manually.
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
        """The data centers that the job names; empty if a tick has a single run or a run in every data center."""
        return () if self.datacenters == (ALL,) else self.datacenters

    @property
    def looks_ahead(self) -> bool:
        """Whether a tick may be fired before its own time."""
        return self.when_closed is WhenClosed.BEFORE

    @property
    def timing(self) -> tuple[schedules.Interval | schedules.CronSchedule, bool]:
        """The next tick is computed again when this value changes."""
        return self.schedule, self.looks_ahead

    @property
    def fixed_delay(self) -> Micros | None:
        """The delay between the end of one run and the next tick; None: the job has no fixed delay."""
        schedule = self.schedule
        if isinstance(schedule, schedules.Interval) and schedule.mode == "fixed_delay":
            return schedule.every
        return None


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as declared. Tenant and name identify the job: a different spec creates a new version."""

    id: JobId
    spec: JobSpec
    payload: bytes = b"null"
    tenant: str = "default"
    #: The author and the reason, for the version and the audit log; empty author: the program itself.
    author: str = ""
    why: str = ""
    #: Refuse if the job exists, unless it is cancelled or finished.
    must_be_new: bool = False
    #: Refuse unless this is the current version.
    expected_version: int | None = None
    #: A tenant uses an idempotency key once, for a run or for a job. A repetition changes nothing and returns
    #: ``unchanged``, even if something happened to the job in the meantime.
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
    """A job as the store holds it, with the state of its schedule."""

    id: JobId
    tenant: str
    spec: JobSpec
    version: int
    state: JobState
    #: The next tick. None while a fixed delay waits for its run, and when no tick is left. For a job that looks ahead:
    #: when to evaluate ``next_tick``, which may have to run before its own time.
    next_fire: Instant | None
    #: Incremented by every change of the schedule's row. Firing a tick requires the current value.
    rev: int
    payload: bytes = b"null"
    created_at: Instant = 0
    updated_at: Instant = 0
    #: When a paused job resumes automatically; None: only when a user resumes it.
    resume_at: Instant | None = None
    #: Earlier ticks belong to a pause that has ended, and may not have been processed during the pause.
    paused_until: Instant | None = None
    #: The reason given for the latest pause.
    pause_why: str = ""
    #: The next tick of a job that looks ahead.
    next_tick: Instant | None = None
    #: The tenant's calendar revision when the row was last written; 0: the tenant never had calendars.
    calendar_rev: int = 0

    def is_paused_at(self, tick: Instant) -> bool:
        """Return whether a tick falls into a pause. The result does not depend on when the tick is processed."""
        if self.paused_until is not None and tick < self.paused_until:
            return True
        return self.state is JobState.PAUSED and (self.resume_at is None or tick < self.resume_at)

    @property
    def shard(self) -> int:
        return decode_shard(self.id)

    @property
    def first_tick(self) -> Instant | None:
        """The time of the next tick, by which the ledger identifies it."""
        return self.next_fire if self.next_tick is None else self.next_tick

    def next_fires(self, count: int = 5) -> list[Instant]:
        """Return the upcoming ticks, as far as they are known now."""
        first = self.first_tick
        if first is None:
            return []
        if self.spec.fixed_delay is not None:
            return [first]
        return [first, *schedules.next_fires(self.spec.schedule, first, self.id, count - 1)]


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """One tick of a job for the ledger, with the decision about it."""

    scheduled_at: Instant
    decision: Literal["run", "skipped"]
    reason: str = ""
    run_id: RunId | None = None
    #: When the run may start: the tick with its jitter, or its slot in a paced catch-up.
    due: Instant = 0
    late: bool = False
    #: More than 1: a span of skipped ticks too many to list, up to ``last_at``. 0: too many to count.
    ticks: int = 1
    last_at: Instant | None = None
    #: When the tick runs, if a calendar moves it to before its own time.
    early: Instant | None = None
    #: The data center of the tick, for a job with several.
    target: str = ""

    @property
    def happens_at(self) -> Instant:
        return self.scheduled_at if self.early is None else self.early


class Fire(msgspec.Struct, frozen=True, kw_only=True):
    """Ticks of one job to record, and its next tick. Applied only if the job has not changed since ``job.rev``."""

    job: Job
    ticks: tuple[Tick, ...]
    next_fire: Instant | None
    finished: bool = False
    #: For a job that looks ahead.
    next_tick: Instant | None = None


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tick as the ledger stores it."""

    job_id: JobId
    scheduled_at: Instant
    decision: Literal["run", "skipped"]
    reason: str
    run_id: RunId | None
    job_version: int
    epoch: int
    ticks: int = 1
    last_at: Instant | None = None
    #: The data center of the tick, for a job with several.
    target: str = ""


def tick_run_id(job: JobId, scheduled_at: Instant, target: str = "") -> RunId:
    """Return the run id of a tick; it is the same on every node."""
    return RunId(derived_id(scheduled_at, decode_shard(job), job, scheduled_at, target))


def compute_overlap_lock(job: JobId, target: str = "") -> int:
    """Return the key lock on which the runs of a job wait for each other, separately in each data center."""
    return stable_hash(f"overlap:{job}:{target}" if target else f"overlap:{job}")


def version_body_id(job: JobId, version: int, target: str = "") -> str:
    """Return the id under which a job version's payload is stored: once per data center, not per tick."""
    return derived_id(0, decode_shard(job), job, "version", version, *([target] if target else []))
