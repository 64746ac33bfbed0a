"""The read ports for users: lists, metrics and logs. Nothing here is on a hot path.

1. ``tenant`` is None only for a caller that is bound to no tenant. Objects of other tenants are treated as missing.
2. Lists are newest first by id, and ids are time-ordered.
3. One read of a list examines a limited number of rows, so that no statement takes long. It may return fewer items than
   its limit, plus a cursor; all rows down to the cursor were examined.
4. The last page has no cursor. ``http/search.py`` reads on until a page is full.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, Instant, Micros
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.limits.limits import LimiterState
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobSpec, JobState
from mainspring.core.ports.storage.access import AuditReads
from mainspring.core.ports.storage.calendars import CalendarReads
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.core.ports.storage.reads import RunViews
from mainspring.core.ports.storage.usage import UsageReads
from mainspring.core.store import Workforce

T = TypeVar("T")
#: The most rows that one read of a list examines, in stores without a better bound.
LOOKED_AT = 2_000
#: A count examines at most this many rows of one unsuccessful end state.
COUNTED_AMONG = 10_000
#: The size limit of a run's log over all its attempts. One last piece is added at the limit, and nothing after it.
MOST_LOG_BYTES = 1024 * 1024
MOST_LOG_PIECES = 10_000
#: Greater than every position.
LOG_END = 2**62
LOG_CUT = f"… the log is cut here: a run may print {MOST_LOG_BYTES >> 20} MiB in {MOST_LOG_PIECES} pieces"

#: The last piece when the tenant's quota ends the log. Runs of the next day start with a fresh quota.
LOG_DAY_CUT = "… the log is cut here: what the tenant may print in a day is used up"


class Page(msgspec.Struct, Generic[T], frozen=True):
    items: list[T]
    #: The cursor of the next page. None: this is the last page.
    after: str | None = None


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A run matches if all given criteria hold. Name and tags are a run's own: a tick has none."""

    tenant: str | None
    #: Empty: any state. ``cancelling`` means running and asked to stop; such a run does not match ``running``.
    states: frozenset[RunState] = frozenset()
    task: str = ""
    queue: str = ""
    tag: str = ""
    #: The runs of a job. For a one-off job: its own run, which has its id, and runs that were added to it.
    job: JobId | None = None
    #: Only runs that are neither ticks nor manual runs of a recurring job.
    one_off: bool = False
    #: Failed, and neither replayed nor discarded.
    dead: bool = False
    #: Failed with this fingerprint.
    fingerprint: str = ""
    #: Part of the name, the task or the id, taken literally; case-insensitive, at least for ASCII letters.
    text: str = ""
    #: Created in ``since <= created < until``, according to the id.
    since: Instant | None = None
    until: Instant | None = None


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring job matches if all given criteria hold. Text and times work as in ``RunFilter``."""

    tenant: str | None
    states: frozenset[JobState] = frozenset()
    task: str = ""
    queue: str = ""
    tag: str = ""
    #: Jobs that this application or file declares.
    source: str = ""
    text: str = ""
    since: Instant | None = None
    until: Instant | None = None


class JobVersion(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    spec: JobSpec
    payload: bytes
    made_by: str
    why: str
    made_at: Instant


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A live worker or scheduler process."""

    id: SessionId
    kind: Literal["worker", "scheduler"]
    name: str
    version: str
    datacenter: str
    started_at: Instant
    lease_until: Instant
    #: The length of its lease when the session was opened, and the API user that may act for it.
    lease: Micros = 0
    owner: str = ""
    #: The only tenant whose runs it takes. Empty: all tenants.
    serves: str = ""
    #: Workers only: queues, tasks, labels, the number of running runs, and whether it was asked to drain.
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    #: Empty: it takes runs of all priorities.
    priorities: tuple[int, ...] = ()
    #: None: unknown. A run that weighs more takes several slots.
    slots: int | None = None
    running: int = 0
    draining: bool = False
    #: Schedulers only.
    shards: int = 0
    #: How far its node's clock is from the store's. None: not reported.
    clock: ClockReading | None = None
    #: The version of its time zone database. Empty: not reported.
    tzdata: str = ""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of this tenant in this queue are not claimed; None means all tenants or all queues.

    The store fills in the rest.
    """

    tenant: str | None
    queue: str | None
    since: Instant = 0
    author: str = ""
    why: str = ""
    #: When the pause expires. None: it lasts until it is ended by hand.
    until: Instant | None = None

    def is_over(self, now: Instant) -> bool:
        return self.until is not None and self.until <= now


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a queue that ended within one minute, or within several."""

    at: Instant
    queue: str
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    #: Attempts that ended in an error, a timeout or a loss, retried or not.
    retried: int = 0
    #: Totals and maxima over runs that were running when they ended, in microseconds: start minus due, end minus start.
    late_total: int = 0
    late_most: int = 0
    took_total: int = 0
    took_most: int = 0
    #: The number of runs in these totals.
    started: int = 0


#: How long load samples are kept.
LOADS_KEPT: Micros = DAY + HOUR
#: Load is recorded separately for this many queues of tenants, the largest ones.
LOADS_AT_ONCE = 200


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The number of waiting and running runs at the time of a sample, in one minute."""

    at: Instant
    queued: int
    running: int
    #: How long the oldest waiting run had been due.
    lag: Micros


#: How long the distributions of start delay and duration are kept.
TIMINGS_KEPT: Micros = DAY + HOUR
#: The length of one interval of these distributions.
TIMINGS_STEP: Micros = 5 * MINUTE


class Timings(msgspec.Struct, frozen=True):
    """Distributions of the start delay and duration of runs, as counts per bucket (``model.base.percentiles``)."""

    late: dict[int, int]
    took: dict[int, int]


class Standings(msgspec.Struct, frozen=True):
    """The runs of a tag by state, as ids only."""

    #: By state, the newest first.
    runs: dict[RunState, list[RunId]] = {}
    #: Replays by the run they replay.
    replays: dict[RunId, RunId] = {}


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one kind: the same fingerprint and task."""

    fingerprint: str
    task: str
    reason: str
    count: int
    #: When the first and the last of them failed.
    first_at: Instant
    last_at: Instant
    #: The newest of them, and its error.
    sample: RunId
    error: str
    #: How many of them failed in each of the last 24 hours, the oldest first.
    trend: tuple[int, ...] = ()


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an attempt's output: at most 16 KiB, cut at a line end if possible."""

    #: Grows within a run.
    position: int
    at: Instant
    attempt: int
    text: str


class Lists(Protocol):
    async def list_runs(self, wanted: RunFilter, after: RunId | None, limit: int) -> Page[RunView]:
        """Return one page of runs, without payloads and results."""
        ...

    async def count_runs(self, wanted: RunFilter, at_most: int) -> int:
        """Count the matching runs, up to ``at_most``.

        For one unsuccessful end state, and for ended runs of a queue, the count may cover only the newest
        ``COUNTED_AMONG`` runs of all queues. Otherwise it is exact, however many rows must be examined.
        """
        ...

    async def standings(self, tenant: str | None, tag: str, since: Instant, limit: int) -> Standings:
        """Return the states of runs with a tag that were created since then, by the id: the newest ``limit``.

        Nothing else of them is read, because there may be thousands.
        """
        ...

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        """Return one page of recurring jobs, without payloads."""
        ...

    async def versions(self, job: JobId, *, before: int | None = None, limit: int = 100) -> list[JobVersion]:
        """Return a job's versions, newest first, below ``before`` if given. Includes payloads: ask for few."""
        ...

    async def pauses(self) -> list[Pause]:
        """Return the active pauses by tenant and queue; pauses of all tenants or queues come first."""
        ...

    async def minutes(self, tenant: str | None, since: Instant, until: Instant, step: Micros = MINUTE) -> list[Minute]:
        """Return metrics by minute and queue, in order, of the minutes that begin in ``since <= at < until``.

        1. Without a tenant, all tenants are added up.
        2. A longer ``step`` adds up several minutes; intervals begin at multiples of the step.
        3. Runs that ended in the last 15 s, or that ``tidy`` has not rolled up yet, may be missing.
        4. Minutes without events are missing.
        """
        ...

    async def loads(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> list[Load]:
        """Return the samples of ``sample_load`` in the minutes that begin in ``since <= at < until``, in order.

        1. For one tenant or all, and for one queue or all.
        2. Minutes without a sample are missing.
        3. A tenant's queue that was not among the ``LOADS_AT_ONCE`` largest counts only in the totals of all tenants.
        """
        ...

    async def timings(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> Timings:
        """Return the distributions of ended runs, for one tenant or all, and for one queue or all.

        Covers the ``TIMINGS_STEP`` intervals from the one that contains ``since`` up to the one that contains
        ``until``. Runs missing in ``minutes`` are missing here, too.
        """
        ...

    async def dead_groups(self, wanted: RunFilter, limit: int) -> list[DeadGroup]:
        """Return dead letters grouped by fingerprint and task.

        The largest groups come first; among equal ones, the one that grew last.
        """
        ...

    async def log(self, run: RunId, after: int, limit: int) -> list[LogLine]:
        """Return lines with a position greater than ``after``, in order."""
        ...

    async def log_before(self, run: RunId, before: int, limit: int) -> list[LogLine]:
        """Return the last lines with a position smaller than ``before``, in order."""
        ...


class Reads(RunViews, Lists, AuditReads, UsageReads, CalendarReads, Protocol):
    """All reads for users. Bound to a tenant, it behaves as if no other tenant existed.

    1. A foreign id counts as missing, and a list has only the tenant's own items.
    2. Asking for another tenant finds nothing.
    3. A pause of all tenants is visible to every tenant.
    """


class Catalog(Lists, Protocol):
    async def due_by_minute(self, tenant: str | None, since: Instant, until: Instant) -> list[tuple[Instant, int]]:
        """Return how many scheduled runs are due in ``since <= due < until``, by minute, in order.

        The counts are exact, however large. Minutes without runs are missing.
        """
        ...

    def seen_by(self, tenant: str | None) -> Reads:
        """Return the reads of a caller bound to this tenant. None: bound to none, with access to everything.

        A store that supports it also binds the database connection (RLS), so that a query that forgot the tenant finds
        nothing.
        """
        ...

    def listed_by(self, tenant: str | None) -> Reads:
        """Return the same reads for lists and metrics that may be a few seconds old.

        A store with a replica queries the replica.
        """
        ...

    async def count_jobs(self, tenant: str, at_most: int) -> int:
        """Count a tenant's scheduled and paused recurring jobs, up to ``at_most``."""
        ...

    async def logs_after(self, positions: Mapping[RunId, int], limit: int) -> dict[RunId, list[LogLine]]:
        """Return new log lines of several runs, each after its position, in order, at most ``limit`` lines per run.

        Runs without a new line are left out.
        """
        ...

    async def used_keys(self, tenant: str, keys: Collection[str]) -> set[str]:
        """Return those of these idempotency keys that a submit now would find used, for any purpose."""
        ...

    async def queue_policies(self) -> dict[str, QueuePolicy]:
        """Return the queue policies by queue name. Queues without a policy are missing."""
        ...

    async def count_ahead(self, run: RunId) -> int | None:
        """Return how many queued runs of its queue have a better rank, counted up to 10,000.

        None: the run is not queued.
        """
        ...

    async def limiter(self, number: int, limit: int) -> tuple[LimiterState, list[RunId]]:
        """Return the state of a limiter and the ids of some of the runs that hold it.

        Slow where many runs have limits.
        """
        ...

    async def held(self, runs: Sequence[RunId]) -> list[HeldRun | None]:
        """Return those runs that are running, as their worker (``session``) holds them, in order; None for others."""
        ...

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        """Return live sessions, oldest first."""
        ...

    async def session(self, session: SessionId) -> SessionView | None:
        """Return one session, also for a day after its end, and at least as long as a run is running under it."""
        ...

    async def events_after(self, position: str | None, limit: int) -> tuple[list[EventBatch], str]:
        """Return batches after a position, in order, and the position after them.

        1. Excludes batches that a transaction in progress could precede.
        2. Without a position: no batches, and the newest position.
        3. ``NotFound`` if the position is too old (later batches were deleted, or there was no reader for a while
           since) or malformed.
        4. This attaches no reader, and without one no events are written. Attach a reader first, then ask for the
           newest position.
        """
        ...


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True):
    run: RunId
    fence: int
    done: float
    total: float | None = None
    note: str = ""


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    run: RunId
    fence: int
    text: str


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """State that an attempt saves for the next attempt of the run."""

    run: RunId
    fence: int
    #: JSON.
    state: bytes


class Reports(Protocol):
    """Reports of running attempts. Each one is rejected on its own if its fence is not the running one.

    1. A run that was asked to stop is still running.
    2. Texts have no NUL characters.
    3. The caller limits the length of a piece.
    """

    async def report_progress(self, progress: Sequence[ProgressReport]) -> list[bool]: ...

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        """Keep the newest checkpoint of each run.

        Every later claim of the run includes it; it is deleted with the run.
        """
        ...

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        """Append to logs.

        1. Output beyond the limits of a log, or beyond the tenant's daily quota, is accepted but not kept. A last line
           says so.
        2. Concurrent reports may exceed the limits by their own size.
        3. Days are UTC days, and count from when the tenant has the quota.
        """
        ...


class WorkerStore(Workforce, Reports, Protocol):
    """The part of the store that a worker uses."""
