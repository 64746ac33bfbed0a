"""The source of truth. Batches only: a call is one round trip and one transaction wherever that can be.

What holds for every method
- It is atomic for each run or job of its batch, also when the caller is cancelled or the connection breaks.
- ``StoreUnavailable`` means the outcome is unknown. Every method may be called again with the same arguments: what was
  applied is recognised and not applied twice.
- Time is the store's own (``now``). A run never becomes ``queued`` before its due time by that clock.
- What a program cannot read, say because a newer one wrote it, does not take its neighbours with it: a run that is to
  be given out ends as failed (unreadable), a job is named in the log and passed over until it is declared again.
- A run is in one place: waiting (scheduled, blocked), live (queued, running) or history (ended).
- Every change of a run is written to the outbox in the same transaction while an event reader is attached.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, MINUTE, Instant, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.settlement import Settlement, Verdict
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.model.schedules.job import Fire, Job, JobState, LedgerEntry, NewJob
from mainspring.core.ports.dispatch import Hinting
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.calendars import Calendars
from mainspring.core.ports.storage.datacenters import Datacenters
from mainspring.core.ports.storage.slos import Slos
from mainspring.core.ports.storage.tasks import TaskRegistry

#: How long an idempotency key is remembered.
KEYS_KEPT: Micros = DAY
#: How long a batch of events is kept for those who resume, also when every reader has acknowledged it.
EVENTS_KEPT: Micros = 10 * MINUTE


class Accepted(msgspec.Struct, frozen=True):
    """A submitted run and where it stands."""

    id: RunId
    #: ``queued``, ``scheduled`` or ``blocked`` for a new one; or ``skipped``, if what it waits for has ended otherwise.
    state: RunState
    #: False: this id, or its idempotency key, was submitted before, and nothing was done. Of an edited run, too.
    new: bool
    #: The idempotency key was used before for something else; the id is that one's, and nothing was done. Of an edited
    #: run: somebody was quicker.
    conflict: bool = False


class PutOutcome(StrEnum):
    CREATED = "created"
    #: It has a new version, or came back, or both.
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    #: It was to be new, and there is one.
    EXISTS = "exists"
    #: It is another version than was expected.
    STALE = "stale"
    #: The idempotency key was used before for something else; the job is that one. If it is a run, the job is what was
    #: declared, with the id of that run and version 0.
    CONFLICT = "conflict"


class Put(msgspec.Struct, frozen=True):
    """A declared job as it is now, and what was done to it."""

    job: Job
    outcome: PutOutcome


def refuse_put(new: NewJob, job: JobId, version: int, state: JobState, same: bool) -> PutOutcome | None:
    """Return why a known job stays as it is, or None if it may be changed.

    ``same``: the job already has the new spec and payload. A client that repeats a call whose answer was lost is not
    refused.
    """
    if new.must_be_new and state in (JobState.SCHEDULED, JobState.PAUSED) and not (same and job == new.id):
        return PutOutcome.EXISTS
    if new.expected_version in (None, version) or (same and version - 1 == new.expected_version):
        return None
    return PutOutcome.STALE


def build_conflict(new: NewJob, made: str) -> Put:
    """Build the answer for a job whose idempotency key has made something else, under the id ``made``."""
    job = Job(
        id=JobId(made),
        tenant=new.tenant,
        spec=new.spec,
        version=0,
        state=JobState.SCHEDULED,
        next_fire=None,
        rev=0,
        payload=new.payload,
    )
    return Put(job, PutOutcome.CONFLICT)


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """A process that introduces itself. The name is a label; the id it gets is fresh with every start."""

    name: str
    kind: Literal["worker", "scheduler"]
    ttl: Micros
    version: str = ""
    datacenter: str = ""
    #: Of a worker: for people to look at.
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    #: Of a worker: it is given runs that require some of these, and no others.
    labels: tuple[str, ...] = ()
    #: Of a worker with slots for each priority: it takes runs of these and no others; empty: of all.
    priorities: tuple[int, ...] = ()
    #: Of a worker, for people to look at: how many runs it has room for at a time, over all its queues; None: it does
    #: not say.
    slots: int | None = None
    #: Who registered it over the API; only they may speak for it.
    owner: str = ""
    #: The only tenant whose runs it takes; empty: of all.
    serves: str = ""


class Want(msgspec.Struct, frozen=True):
    """How many runs of a queue a worker could start right now."""

    queue: str
    limit: int
    #: Only runs of this tenant.
    tenant: str | None = None
    #: How many slots the worker has for this queue, free or not; nobody says: as many as are free. A run that weighs
    #: more takes all of them.
    slots: int | None = None
    #: Only runs of this priority. The first who asks so makes the store keep the queue's runs apart by priority.
    priority: int | None = None
    #: What an engine has hinted at, as many as the limit at most: the store need not look for the best, but starts
    #: those of them that are queued. Where a rule makes it look closer it may start better ones of the queue instead.
    runs: tuple[RunId, ...] | None = None


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat."""

    now: Instant
    #: False: the session was buried. The worker must stop what it runs: it is being given to others.
    alive: bool
    #: Held runs that were asked to stop.
    cancels: tuple[RunId, ...] = ()
    #: Runs that stood under this session but that the worker does not know: they were queued again, uncharged.
    returned: int = 0
    #: Somebody asks the worker to leave.
    draining: bool = False
    #: Held runs that others may have by now, since a part of the store was silent for a whole lease, or has given them
    #: away. The worker must stop them and tell nothing of them.
    lost: tuple[RunId, ...] = ()


class SettledPartly(StoreUnavailable):
    """A part of the store did not answer. ``verdicts``: of the rest, None where there is none."""

    def __init__(self, message: str, verdicts: Sequence[Verdict | None]) -> None:
        super().__init__(message)
        self.verdicts = verdicts


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the owned shards did."""

    now: Instant
    #: How many were queued; those that joined the line of their ordering key are not among them.
    runs: int
    #: The queues that got work.
    queues: tuple[str, ...] = ()
    #: There was, or may have been, more than the limit: look again at once.
    more: bool = False
    #: A recurring job of these shards is due.
    schedules_due: bool = False


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one ``Fire``."""

    #: False: somebody changed the schedule first, the shard is not ours any more, or it is too early; nothing was done.
    applied: bool
    #: Ticks that became runs, after the overlap rule had its say.
    runs: int = 0
    #: The queues that got work, or may have.
    queues: tuple[str, ...] = ()


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long what has ended is kept. The first two are of the class ``standard``, the last three of the others."""

    succeeded: Micros = 7 * DAY
    #: Failed, cancelled and skipped.
    unsuccessful: Micros = 30 * DAY
    #: The ledger, at least: a tick whose run is kept longer stays as long as that.
    ledger: Micros = 90 * DAY
    short: Micros = DAY
    long: Micros = 90 * DAY
    audit: Micros = 2_557 * DAY
    #: What ended then or later stays, however long ago that is; by the name of a field above.
    kept_since: Mapping[str, Instant] = {}

    def cut(self, name: str, now: Instant) -> Instant:
        """What ended before that may be forgotten; ``name`` is that of a field above."""
        span: Micros = getattr(self, name)
        return min(now - span, self.kept_since.get(name, now))

    def of(self, name: str) -> Micros:
        """Of a class that is not the standard."""
        return {"short": self.short, "long": self.long, "audit": self.audit}[name]


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """Queued runs of a queue that require a data center. The times are those of ``Depth``."""

    datacenter: str
    queued: int
    oldest_due: Instant | None = None
    oldest_ready: Instant | None = None


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a queue is where. The times leave out what is in ``pinned``; the counts do not."""

    queue: str
    queued: int
    running: int
    #: By data center: what only it may run, or what it serves now by an order of preference.
    pinned: tuple[Pinned, ...] = ()
    #: The due time of the oldest queued run.
    oldest_due: Instant | None = None
    #: Since when the one could have started that has waited longest for a worker: since it was due, or since a limit,
    #: a key or a pause let it go, or it came back from an attempt. None: there is none, or all of them are paused.
    oldest_ready: Instant | None = None


class Unattempted(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a task that ended in this state without an attempt: cancelled, skipped, or failed past their deadline."""

    task: str
    state: RunState
    runs: int


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one kind and one tenant that happened in one transaction.

    One event a change, named for its cause: a new run is ``submitted`` whatever state it is born in; ``queued`` are
    those that waited before (scheduled or blocked); an attempt that another follows is ``retried``, ``released`` or
    ``lost`` wherever the run goes; ``cancel_requested`` are the running ones. Becoming blocked is no event.
    """

    #: Its place in the stream, for ``acknowledge`` and ``events_after``. Sorts as text in the order of the events.
    position: str
    at: Instant
    #: run.submitted, run.queued, run.started, run.succeeded, run.failed, run.cancelled, run.skipped, run.retried,
    #: run.released, run.lost, run.cancel_requested; budget.warned, budget.exceeded with the ids of the budgets;
    #: dead_letters.opened, dead_letters.growing with the newest run of the group;
    #: of recurring jobs job.slo_missed, job.slo_recovered; of runs that waited for others dependency.resolved;
    #: and of workers, which are nobody's, worker.joined, worker.left, worker.lost (``events.id_of_worker``)
    kind: str
    #: The ids of what it happened to: runs, or jobs, budgets and workers where the kind says so.
    runs: tuple[RunId, ...]
    #: Empty: it belongs to none.
    tenant: str
    #: What runs that were just made are, in their order, where it costs nothing to say. Empty: to be looked up.
    tasks: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


class Submissions(Protocol):
    async def submit(self, runs: Sequence[NewRun]) -> list[Accepted]:
        """Make runs durable; answers in the same order. The ids are the caller's, and a known id is not made twice.

        Immediate ones are born ``queued``. One with an ordering key is ``blocked`` while another run of its key is
        queued, running or between two attempts; it keeps its place by (due, id), also among those of one batch. A
        delayed one joins the line when it comes due. An ordering key belongs to a tenant. ``start_within`` and
        ``deadline`` count from the due time.

        A run with an idempotency key is made if its tenant has not used the key within ``KEYS_KEPT``; otherwise the
        answer has the id of the run that was made with it, or of the recurring job, which is a conflict. Of two that
        come at once one is made. A known id is looked at first: the very same run again is no conflict. What makes
        nothing uses no key, and a key is free again when what it was used for is gone.

        Whoever has an author is audited, one row a batch, author and tenant, with how many are new and the first of
        them. A replay of a dead letter of the same tenant marks it as replayed.

        A run of a recurring job (``job``) counts among its runs, for cancelling the job and for the overlap rule of
        its ticks. It does not follow that rule itself, sets no tick of a fixed delay and stands in no ledger. A
        backfill queues behind live work of its priority. Whether there is such a job is the caller's business.

        One with a ``target`` is for that session alone, whatever it requires. If there is no such session, or none any
        more, ``expire`` ends it.

        One with limits (``policy.gates``) is queued when it has passed all of them at once, and ``blocked`` until then;
        it holds nothing meanwhile but its ordering key. Whoever comes to its gates, new, due, let go by its ordering
        key or going back to be tried again, joins the line; those that wait for a gate pass by (due, id), each by its
        own ``most``. The first that finds no room there keeps the others waiting, so that nobody is overtaken for
        good; whoever is held up at another gate waits there and does not keep the next from passing.

        One with ``after`` is ``blocked`` until its rule is met (``decide``), then it comes due as if it were submitted
        then, or at its due time if that is later. What can never be met is ``skipped`` (``reason_of_skip``), and that
        ends it for its own children. Parents may be of the same batch, in whatever order, or anywhere, also ended; of
        the same tenant. A parent of the same batch that is not made, because its key was used, is the one that has the
        key. ``NotFound``, and nothing is done, if one is not there; ``Invalid`` if they go round in a circle. Its
        ``start_by`` and ``deadline`` count from when its rule was met, or its due time; until then neither counts.

        One with ``unique``: see there. The answer of ``existing`` is the first one, not new; of ``reject`` it is a
        conflict. Of ``debounce`` it is the first one, not new, which was edited (``edit_run``) into the second. What
        ``replace`` replaces is ``skipped`` (replaced). Which period counts is that of the run that has the key. A key
        whose run is gone from the store is free. Of several of one key in one batch each comes after the one before.
        An idempotency key is looked at first, and what makes nothing uses none.
        """
        ...

    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[Put]:
        """Declare recurring jobs; answers in the same order. The pair (tenant, name) is the job.

        A new one starts at the first tick after now; if there is none it is finished. A known one keeps its id; with
        the same spec and payload it is left alone (a cancelled or finished one comes back, at the first tick after
        now); with a different one it gets a new version, and if its schedule changed, its next tick is computed anew
        from now. One that looks ahead is due at once: whoever fires works out when to look at its next tick. A job that
        names a calendar which its tenant does not have is ``Invalid``, and nothing is done. Ticks of the old schedule
        that are due by now and were not fired are recorded as skipped (schedule changed), in the same transaction. A
        paused one stays paused.

        What is refused (``exists``, ``stale``, ``conflict``) is told as it is, and uses no idempotency key. A
        declaration sent again because its answer was lost is not refused: it is ``unchanged``, known by its id or as
        the version after the expected one. ``NotFound``, and nothing is done, if a version is expected of a job that
        is not there. What was made or changed is audited, one row a batch, author and tenant; of a single change of a
        known job with what differs in version, state and spec.
        """
        ...

    async def set_jobs_state(
        self,
        jobs: Collection[JobId],
        state: JobState,
        author: Author | None = None,
        resume_at: Instant | None = None,
    ) -> dict[JobId, JobState]:
        """Pause, resume (``scheduled``) or cancel jobs; what they are now. Unknown ids are missing in the answer.

        Pausing does not stop the schedule: its ticks are recorded as skipped, with what the author says about it. With
        ``resume_at`` the ticks from then on are live again, whenever they are looked at, and ``tidy`` resumes the job.
        A paused job stays as it is, unless it is to resume at another time. Cancelling ends it, and asks its runs
        to stop; ticks that are due by now and were not fired are recorded as skipped (cancelled). A finished or
        cancelled job stays what it is. A change grows ``rev``. With an author what was changed is audited, one row a
        tenant; of a single one with the state before and after.
        """
        ...

    async def cancel(self, runs: Collection[RunId], author: Author | None = None) -> dict[RunId, RunState]:
        """Ask runs to stop; what they are now. Unknown ids are missing in the answer.

        What has not started is ``cancelled`` at once. What is running becomes ``cancelling`` and its worker is told
        with the next beat. What has ended stays what it is. With an author what was changed is audited, one row a
        tenant; of a single one with the state before and after.
        """
        ...


class Workforce(Protocol):
    async def open_session(self, session: NewSession) -> SessionId:
        """Register a process under a fresh, growing id, alive for its ttl."""
        ...

    async def beat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> Beat:
        """Extend a worker's lease, and compare notes.

        ``held``: the runs it knows. ``pending``: its claims without an answer yet. ``last_claim``: the number of its
        newest claim when it looked. A running row of this session that is not held, whose claim is not pending and
        not newer, is queued again with its attempt uncharged and its rank kept (or cancelled, if it was asked to
        stop): its claim's answer was lost. A lease that has run out is extended as long as nobody buried the session.
        """
        ...

    async def claim(self, session: SessionId, number: int, wants: Sequence[Want]) -> list[HeldRun]:
        """Start the best runs by rank, at most each want's limit. Counts the attempt and gives one fence to the batch.

        Skips what others are just claiming. Nothing for a session that is not alive (closed, buried, or past its
        lease) or is asked to leave, nothing whose ``deadline`` has passed, or whose ``start_by`` has while it never
        started (attempt 0), nothing that was asked to stop, nothing that is paused, and no more of a tenant than its
        quota lets run at a time, over all workers. Of those that require labels only what the session has all labels
        for; what has a ``target`` only that session is given. Nobody looks at what they may not take. ``number`` grows
        with each claim of the session. The fence is greater than any given before. A claim without an answer is not
        repeated but followed by the next: the beat returns its runs. What has a limit per period counts there as
        started, in the same transaction.

        A queue may have a policy (``put_queue_policy``). No more of it run than its concurrency, over all workers. In a
        fair queue tenants take turns by their shares, and the rank counts inside a tenant. A run takes as many slots as
        it weighs, but at most all of the worker's; the first that does not fit ends the claim from that queue.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """End attempts; a verdict for each, in order. Applied only to a run that is running under the same fence.

        ``scheduled`` waits its delay, ``queued`` goes back at once; both keep their ordering key, and become
        ``cancelled`` instead if the run was asked to stop. An attempt that was released is not charged and, if queued,
        keeps its rank; one that was lost counts as lost and queues, like a retry, a minute behind what is eligible now.
        The ended go to history, and whoever waited for their key is queued. The end of a fixed-delay tick's run,
        however it comes about, sets its job's next tick to one delay from now. What this fence has settled before
        with the same outcome is ``already applied``: its answer was lost, and it counts. Anything else that is not
        running under its fence is ``fenced`` and does not count, also the success of an attempt that was lost.

        However an attempt ends, it leaves its gates (success; error, timeout: failed; else: other), and whoever waits
        for one of them passes in the same transaction. What goes back to be tried again, at once or later, passes
        anew: ``queued`` becomes ``blocked`` while there is no room. When a breaker opens, what is queued of its task is
        ``blocked`` again: at once as far as a batch goes, the rest by ``resolve``.

        Where the queue has a budget of retries, the due time of one that is tried again later, and was charged before,
        is moved to the first period with room. None is dropped.

        While a breaker is open only the one that went ahead counts: what started before says nothing of the task as it
        is now. The children of what has ended, in whatever way, are decided by ``resolve``, which the store calls
        itself here for a few; whoever settles need not care.
        """
        ...

    async def close_session(self, session: SessionId) -> None:
        """The process leaves. Whatever still runs under it is lost. Idempotent."""
        ...


class Staging(Protocol):
    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> Staged:
        """Queue scheduled runs of these shards that are due, at most ``limit``, each shard's oldest first.

        One with an ordering key that another run holds becomes ``blocked``; a retry holds its key already. The rank is
        that of the time of staging; retries and caught-up ticks stand behind live work of their priority. One with
        limits passes them or becomes ``blocked``. Also lets pass, whatever their shard, whom time alone gives room: a
        period has gone by, or the pause of a breaker.

        Shards that ``owner`` does not own, or all if its lease has run out, are passed over.
        """
        ...

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        """(shard, due) of scheduled runs due by ``until``, earliest first, each pair once.

        The due time is rounded up to the millisecond.
        """
        ...

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        """Recurring jobs, paused ones too, whose next tick is at or before ``until``; earliest first, no payloads."""
        ...

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[Fired]:
        """Record ticks, make their runs and move the schedules on; an answer for each, in order.

        Each fire is applied whole or not at all: only if the job's ``rev`` is still the one planned with, ``owner``
        owns its shard by a live lease, and none of its ticks is ahead of now. A tick is recorded once, whoever comes
        second. A run whose due time is ahead is ``scheduled``.

        The job's overlap rule is applied here, against what is on its way (waiting or live) in the same transaction.
        Ticks that fire together are taken in order: each one counts the runs of those before it, and a tick that is
        recorded already counts for nothing. Only for cancel the plan has kept the newest of them.

        skip: while anything is on its way, the tick is skipped (overlap). queue: the tick's run waits for the one
        before it; while one is blocked, or two are on their way, the tick is skipped (overlap). cancel: what is on its
        way is asked to stop, and the tick's run is blocked until it has. A run that a version with another overlap rule
        or ordering key left on its way cannot be waited for, since it stands in another line: while there is one
        (cancel: after it was asked to stop), queue and cancel skip the tick (overlap). With allow an ordering key alone
        orders, and another key is another line.

        A fixed-delay job whose tick left no run ticks again one delay from now.
        """
        ...


class Reaping(Protocol):
    async def lost_runs(self, limit: int) -> list[HeldRun]:
        """Bury sessions whose lease has run out, then tell the running runs of buried and closed sessions. By state,
        not by event: a run is told until it has been settled. Needs no leader; several may ask at once."""
        ...

    async def overdue_runs(self, grace: Micros, limit: int) -> list[HeldRun]:
        """Running runs of sessions not buried whose attempt should have ended more than ``grace`` ago."""
        ...

    async def expire(self, limit: int) -> int:
        """End what waits or is queued past its ``start_by`` (skipped: expired) or ``deadline`` (failed: deadline), and
        what has a ``target`` that is not alive any more (skipped: its worker left), whatever else it has missed.

        A run that has started once, and was not released, has kept its ``start_by``. Past both it is expired. What
        fails has the fingerprint of its reason without an error.
        """
        ...

    async def resolve(self, limit: int) -> int:
        """Decide children of runs that have ended, and finish what a breaker or a large family left undone; at most
        about so many runs. How many were changed: call again while it is more than 0. Several may ask at once."""
        ...

    async def sweep(self, limit: int) -> int:
        """Let go what is blocked by nothing, found from first principles: its key is free, its gates have room, its
        parents have ended; count gates anew whose holders are gone; also fixed-delay jobs whose run is gone.

        Finds nothing as long as every other method keeps its word. What ``stage`` or ``resolve`` has still to do is no
        find.
        """
        ...

    async def tidy(self) -> list[Unattempted]:
        """Whatever this engine needs every few seconds to stay quick under load; cheap when there is nothing to do.

        Rolls up the figures by the minute of what ended more than 15 s ago. Forgets events that are older than
        ``EVENTS_KEPT`` and acknowledged by every reader, and idempotency keys older than ``KEYS_KEPT``. Resumes jobs
        that are paused until now, 1,000 at most, and forgets pauses of queues a day after their end. Several processes
        may ask at once; one of them does it, and is told what has come into the figures that ended without an attempt.
        """
        ...

    async def sample_load(self) -> Instant:
        """Look how much waits and runs, and for how long, and keep it under this minute for ``LOADS_KEPT``; when that
        was. Once a minute: who asks again within it changes nothing."""
        ...

    async def prune(self, retention: Retention, limit: int) -> int:
        """Forget what ended before its ``cut``. Never blocks live work; returns how much went (rows or partitions);
        call again while it is more than 0. Also prepares room for the coming days. A run has its payload as long as
        it is kept. Figures by the minute go by the span of unsuccessful runs, logs with their run; the audit is
        kept."""
        ...


class Views(Protocol):
    async def runs(self, ids: Sequence[RunId], *, payloads: bool = False) -> list[RunView | None]:
        """Runs by id, wherever they are; in order. With payloads only if asked."""
        ...

    async def attempts(self, run: RunId) -> list[AttemptView]:
        """Attempts that did not succeed, in order."""
        ...

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        """Jobs by id, with payloads; in order."""
        ...

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        """Ticks of a job with ``since <= scheduled_at < until``, in order."""
        ...

    async def last_ticks(self, jobs: Sequence[JobId], limit: int) -> list[list[LedgerEntry]]:
        """The newest rows of the ledger of each job, at most so many, oldest first; in the order of the jobs."""
        ...

    async def parents(self, run: RunId) -> list[RunView]:
        """The runs that it waits for, or waited for, in the order they were named. Those that are not kept any more
        are missing."""
        ...

    async def parent_ids(self, run: RunId) -> list[RunId]:
        """The same as ids alone, also of those that are not kept any more."""
        ...

    async def children(self, run: RunId, after: RunId | None, limit: int) -> list[RunView]:
        """The runs that wait for it, or waited, by id, from after ``after`` on."""
        ...

    async def depths(self, tenant: str | None = None) -> list[Depth]:
        """Every queue with work in it, by name; of one tenant, or of all."""
        ...


class Reading(Views, Protocol):
    async def now(self) -> Instant: ...


class Directory(Protocol):
    async def job_named(self, tenant: str, name: str) -> JobId | None:
        """Which job has this name."""
        ...


class Outbox(Protocol):
    async def attach_reader(self, name: str, ttl: Micros | None = None) -> None:
        """From now on changes are written down, and this reader has seen none of them. Idempotent.

        With a ttl it is forgotten by ``tidy`` when it has not been attached again for so long: it died.
        """
        ...

    async def detach_reader(self, name: str) -> None:
        """Forget a reader. Without readers nothing is written, and what was is forgotten. Idempotent."""
        ...

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        """The oldest unacknowledged batches, in order; none that a transaction still under way could precede."""
        ...

    async def acknowledge(self, name: str, position: str) -> None:
        """This reader has done with everything up to and including ``position``."""
        ...


class Store(
    Submissions,
    Workforce,
    Staging,
    Reaping,
    Reading,
    Directory,
    Outbox,
    Calendars,
    Slos,
    Datacenters,
    Hinting,
    TaskRegistry,
    Protocol,
):
    """All of it. Services ask for the narrow part they use."""

    #: Fixed when the store is made.
    shards: int

    async def open(self) -> None:
        """Connect and bring the schema up to date, under a lock. Refuses a schema that is newer than this program,
        unless whoever made it so said that this program still works on it."""
        ...

    async def close(self) -> None: ...
