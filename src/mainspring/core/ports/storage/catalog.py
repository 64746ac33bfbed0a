"""What people ask the store: lists, figures, logs. Nothing here is on a hot path.

``tenant`` is None only for somebody who is bound to none. Whatever belongs to another tenant is not there.
Lists are newest first by id, and ids are time-ordered. One read of a list examines a limited number of rows, so that no
statement takes long: it may return fewer items than its limit and a cursor, and all rows down to the cursor were
examined. The last page has no cursor. ``control.search`` reads on until a page is full.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, Instant, Micros
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.limits.limits import GateState
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobSpec, JobState
from mainspring.core.ports.storage.access import Records
from mainspring.core.ports.storage.calendars import CalendarReads
from mainspring.core.ports.storage.usage import UsageReads
from mainspring.core.store import EventBatch, Views, Workforce

T = TypeVar("T")
#: One read of a list examines no more rows than this, where a store has no better bound.
LOOKED_AT = 2_000
#: Of one state of those that ended without success a count looks at no more than this.
COUNTED_AMONG = 10_000
#: A run's log holds so much, over all its attempts. Then comes one last piece, and nothing more.
MOST_LOG_BYTES = 1024 * 1024
MOST_LOG_PIECES = 10_000
#: After every position.
LOG_END = 2**62
LOG_CUT = f"… the log is cut here: a run may print {MOST_LOG_BYTES >> 20} MiB in {MOST_LOG_PIECES} pieces"

#: The same where the quota of a tenant ends it; the runs of the next day begin anew.
LOG_DAY_CUT = "… the log is cut here: what the tenant may print in a day is used up"


class Page(msgspec.Struct, Generic[T], frozen=True):
    items: list[T]
    #: Where the next page begins; None: there is none.
    after: str | None = None


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is given must hold. Name and tags are a run's own: a tick has none."""

    tenant: str | None
    #: Empty: any. ``cancelling`` is a running one that was asked to stop, and not ``running``.
    states: frozenset[RunState] = frozenset()
    task: str = ""
    queue: str = ""
    tag: str = ""
    #: The runs of a job. Those of a one-off job are its own run, which has its id, and those that were added to it.
    job: JobId | None = None
    #: Only runs that are no tick and no manual run of a recurring job.
    one_off: bool = False
    #: Failed, and neither replayed nor discarded.
    dead: bool = False
    #: Failed with this fingerprint.
    fingerprint: str = ""
    #: Part of the name, the task or the id, taken literally; case does not matter, at least of ASCII letters.
    text: str = ""
    #: Made in ``since <= made < until``, by the id.
    since: Instant | None = None
    until: Instant | None = None


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Recurring jobs. Everything that is given must hold. Text and times as in ``RunFilter``."""

    tenant: str | None
    states: frozenset[JobState] = frozenset()
    task: str = ""
    queue: str = ""
    tag: str = ""
    #: Those that this application or file declares.
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
    """A process that works."""

    id: SessionId
    kind: Literal["worker", "scheduler"]
    name: str
    version: str
    datacenter: str
    started_at: Instant
    lease_until: Instant
    #: The length of its lease when it was opened, and who may speak for it over the API.
    lease: Micros = 0
    owner: str = ""
    #: The only tenant whose runs it takes; empty: of all.
    serves: str = ""
    #: Of a worker: what it takes, what it knows, how much it runs; and whether it was asked to leave.
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    #: Empty: it takes runs of all.
    priorities: tuple[int, ...] = ()
    #: None: it does not say. A run that weighs more takes several.
    slots: int | None = None
    running: int = 0
    draining: bool = False
    #: Of a scheduler.
    shards: int = 0
    #: How far its node's clock is from the store's; None: it has not said.
    clock: ClockReading | None = None
    #: The version of the time zone database it goes by; empty: it has not reported one.
    tzdata: str = ""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of this tenant in this queue are not claimed; None is every one. The store fills in the rest."""

    tenant: str | None
    queue: str | None
    since: Instant = 0
    author: str = ""
    why: str = ""
    #: When it is over; none: when somebody says so.
    until: Instant | None = None

    def is_over(self, now: Instant) -> bool:
        return self.until is not None and self.until <= now


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """What ended in a queue within a minute, or several."""

    at: Instant
    queue: str
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    #: Attempts that ended in an error, a timeout or a loss, whatever came after them.
    retried: int = 0
    #: Sums over those that ran when they ended, in microseconds, and the worst: start less due, end less start.
    late_total: int = 0
    late_most: int = 0
    took_total: int = 0
    took_most: int = 0
    #: How many these are.
    started: int = 0


#: How long it is known what waited and ran.
LOADS_KEPT: Micros = DAY + HOUR
#: Of so many queues of tenants, the largest, it is known for each.
LOADS_AT_ONCE = 200


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How much waited and ran when somebody looked, in a minute."""

    at: Instant
    queued: int
    running: int
    #: How long the oldest of what waited had been due.
    lag: Micros


#: How long it is known how late runs began and how long they took, beyond the sums.
TIMINGS_KEPT: Micros = DAY + HOUR
#: They are counted together for so long.
TIMINGS_STEP: Micros = 5 * MINUTE


class Timings(msgspec.Struct, frozen=True):
    """How many runs that ran began how late, and took how long, by bucket (``domain.percentiles``)."""

    late: dict[int, int]
    took: dict[int, int]


class Standings(msgspec.Struct, frozen=True):
    """How many runs stand, and no more of them than their ids."""

    #: By state, the newest first.
    runs: dict[RunState, list[RunId]] = {}
    #: Of those that replay another, by the one that is replayed.
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
    """A piece of what an attempt printed: at most 16 KiB, ends where a line ends if it can."""

    #: Grows within a run.
    position: int
    at: Instant
    attempt: int
    text: str


class Lists(Protocol):
    async def list_runs(self, wanted: RunFilter, after: RunId | None, limit: int) -> Page[RunView]:
        """Without payloads and results."""
        ...

    async def count_runs(self, wanted: RunFilter, at_most: int) -> int:
        """How many there are; it stops counting there. Of one state of those that ended without success, and of what
        ended of a queue, it may count among the newest ``COUNTED_AMONG`` only, of all queues; otherwise it is exact,
        however many it must look at."""
        ...

    async def standings(self, tenant: str | None, tag: str, since: Instant, limit: int) -> Standings:
        """How the runs with a tag stand, of those that were made since then, by the id: the newest so many. Nothing
        else of them is read: there may be thousands."""
        ...

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        """Without payloads."""
        ...

    async def versions(self, job: JobId, *, before: int | None = None, limit: int = 100) -> list[JobVersion]:
        """Newest first, of those before a version if one is given. With payloads: ask for few."""
        ...

    async def pauses(self) -> list[Pause]:
        """Those that hold now. By tenant and queue, every one first."""
        ...

    async def minutes(self, tenant: str | None, since: Instant, until: Instant, step: Micros = MINUTE) -> list[Minute]:
        """Figures by minute and queue, in order, of the minutes that begin in ``since <= at < until``; of all tenants
        added up if none is given, and those of several minutes if the ``step`` is longer: it begins at its multiples.
        What ended in the last quarter of a minute may be missing, and what ``tidy`` has not
        rolled up yet. Minutes in which nothing happened are missing."""
        ...

    async def loads(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> list[Load]:
        """What ``sample_load`` saw in the minutes that begin in ``since <= at < until``, in order: of a tenant or all,
        and of a queue or all. Minutes in which nobody looked are missing. A queue of a tenant that was not among the
        ``LOADS_AT_ONCE`` largest then counts for all of them, and for nobody else."""
        ...

    async def timings(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> Timings:
        """Of what ended, of a tenant or all, and of a queue or all, from the ``TIMINGS_STEP`` in which ``since`` lies
        up to the one in which ``until`` does. What is missing among the minutes is missing here."""
        ...

    async def dead_groups(self, wanted: RunFilter, limit: int) -> list[DeadGroup]:
        """Dead letters by fingerprint and task, the largest groups first, of equal ones the one that grew last."""
        ...

    async def log(self, run: RunId, after: int, limit: int) -> list[LogLine]:
        """Lines with a position greater than ``after``, in order."""
        ...

    async def log_before(self, run: RunId, before: int, limit: int) -> list[LogLine]:
        """The last lines with a position smaller than ``before``, in order."""
        ...


class Reads(Views, Lists, Records, UsageReads, CalendarReads, Protocol):
    """What people look at. Bound to a tenant it is as if there were no other: a foreign id is a missing one, a list has
    only the tenant's own, and asking for another tenant finds nothing. A pause of every tenant is everybody's."""


class Catalog(Lists, Protocol):
    async def due_by_minute(self, tenant: str | None, since: Instant, until: Instant) -> list[tuple[Instant, int]]:
        """How many scheduled runs are due in ``since <= due < until``, by the minute, in order. Exact, however many
        there are. Minutes without any are missing."""
        ...

    def seen_by(self, tenant: str | None) -> Reads:
        """What somebody who is bound to this tenant may look at; None: to none, and that is all there is.

        A store that can binds the connection that reads as well, so that a query that forgot the tenant finds nothing.
        """
        ...

    def listed_by(self, tenant: str | None) -> Reads:
        """The same for lists and figures that may be a few seconds old: a store that has a replica asks that one."""
        ...

    async def count_jobs(self, tenant: str, at_most: int) -> int:
        """How many recurring jobs a tenant has that are scheduled or paused; it stops counting there."""
        ...

    async def logs_after(self, places: Mapping[RunId, int], limit: int) -> dict[RunId, list[LogLine]]:
        """What several runs have printed, each after its position, in order, at most so many lines of each. Runs
        without a new line are left out."""
        ...

    async def used_keys(self, tenant: str, keys: Collection[str]) -> set[str]:
        """Those of these idempotency keys that a submit now would find used, whatever for."""
        ...

    async def queue_policies(self) -> dict[str, QueuePolicy]:
        """What was said of queues, by name. Those without a policy are missing."""
        ...

    async def ahead_of(self, run: RunId) -> int | None:
        """How many queued runs of its queue have a better rank, counted up to 10,000; none if it is not queued."""
        ...

    async def gate(self, number: int, limit: int) -> tuple[GateState, list[RunId]]:
        """A gate of a limit as it stands, and some of the runs inside, by id. Not quick where many runs have limits."""
        ...

    async def held(self, runs: Sequence[RunId]) -> list[HeldRun | None]:
        """Those of them that run now, as their worker holds them, and who that is (``session``); in order."""
        ...

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        """Those that are alive, oldest first."""
        ...

    async def session(self, session: SessionId) -> SessionView | None:
        """One of them, also for a day after its end, and at least as long as anything runs under it."""
        ...

    async def events_after(self, position: str | None, limit: int) -> tuple[list[EventBatch], str]:
        """Batches that follow a position, in order, and the position after them; none that a transaction still under
        way could precede. Without a position: nothing, and the newest one. ``NotFound`` if it is too old: batches that
        followed it are forgotten, or there was no reader for a while since, or the text is no position.

        This attaches no reader, and without one nothing is written: attach one first, then ask for the newest position.
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
    """What an attempt wants the next one to know."""

    run: RunId
    fence: int
    #: JSON.
    state: bytes


class Reports(Protocol):
    """What an attempt tells while it runs. Refused, one by one, when the fence is not the running one. A run that was
    asked to stop is still running. Texts have no NUL characters; the caller sees to the length of a piece."""

    async def report_progress(self, progress: Sequence[ProgressReport]) -> list[bool]: ...

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        """Of each run the newest stands, and is given out with every later claim of the run. It goes with the run."""
        ...

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        """What is beyond the bounds of a log, or beyond what its tenant may print in a day, is heard, and not kept; a
        last line says so. Reports at the same moment may exceed them by as much as they bring. Days are those of UTC,
        and count from when a tenant has the quota."""
        ...


class WorkerStore(Workforce, Reports, Protocol):
    """What a worker asks for."""
