"""The store port: the contract of the database that holds all jobs, runs and sessions.

The store is the only source of truth. Every method takes a batch; one call is one round trip and one transaction where
possible. The memory, SQLite, PostgreSQL and sharded stores implement this protocol; services depend on the narrow
protocols below (``Submissions``, ``Workforce``, ``Staging``, …) and never on a concrete store.

These rules hold for every method:

1. It is atomic for each run or job of its batch, even if the caller is cancelled or the connection breaks.
2. ``StoreUnavailable`` means that the outcome is unknown. Every method may be retried with the same arguments: changes
   that were already applied are recognized and not applied twice.
3. Time is the store's own clock (``now``). A run never becomes ``queued`` before its due time by that clock.
4. A row that this program cannot read, for example because a newer version wrote it, does not affect its neighbors. An
   unreadable run fails (unreadable) when it is about to be claimed. An unreadable job is logged and skipped until it is
   declared again.
5. A run is in exactly one state group: waiting (scheduled, blocked), live (queued, running) or history (ended).
6. While an event reader is attached, every change of a run is written to the outbox in the same transaction.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, MINUTE, Instant, Micros
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.model.schedules.job import Fire, Job, JobState, LedgerEntry, NewJob
from mainspring.core.ports.dispatch import HintSource
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.calendars import Calendars
from mainspring.core.ports.storage.datacenters import Datacenters
from mainspring.core.ports.storage.slos import Slos
from mainspring.core.ports.storage.tasks import TaskRegistry

#: How long an idempotency key is remembered.
KEYS_KEPT: Micros = DAY
#: How long a batch of events is kept for readers that resume, even after every reader has acknowledged it.
EVENTS_KEPT: Micros = 10 * MINUTE


class SubmitResult(msgspec.Struct, frozen=True):
    """The answer to a submitted run: its id and its current state."""

    id: RunId
    #: A new run is ``queued``, ``scheduled`` or ``blocked``; or ``skipped`` if its dependencies can no longer be met.
    state: RunState
    #: False: this id or its idempotency key was submitted before and nothing was done. Also False for an edited run.
    new: bool
    #: The idempotency key was used before for a different submission; ``id`` names that one, and nothing was done. For
    #: an edited run: a concurrent change came first.
    conflict: bool = False


class PutOutcome(StrEnum):
    CREATED = "created"
    #: The job has a new version, was reactivated, or both.
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    #: The caller required a new job, but one with this name exists.
    EXISTS = "exists"
    #: The job's version differs from the expected one.
    STALE = "stale"
    #: The idempotency key was used before for something else, and ``job`` is that job. If it was a run, ``job`` is the
    #: declared one with the id of that run and version 0.
    CONFLICT = "conflict"


class PutResult(msgspec.Struct, frozen=True):
    """A declared job in its current form, and what the declaration changed."""

    job: Job
    outcome: PutOutcome


def refuse_put(new: NewJob, job: JobId, version: int, state: JobState, same: bool) -> PutOutcome | None:
    """Return the reason to leave a known job unchanged, or None if it may be changed.

    ``same``: the job already has the new spec and payload. A client that repeats a call after losing the answer is not
    refused.
    """
    if new.must_be_new and state in (JobState.SCHEDULED, JobState.PAUSED) and not (same and job == new.id):
        return PutOutcome.EXISTS
    if new.expected_version in (None, version) or (same and version - 1 == new.expected_version):
        return None
    return PutOutcome.STALE


def build_conflict(new: NewJob, made: str) -> PutResult:
    """Build the answer for a job whose idempotency key already created something else, under the id ``made``."""
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
    return PutResult(job, PutOutcome.CONFLICT)


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """The registration of a process. The name is a label; every start gets a new id."""

    name: str
    kind: Literal["worker", "scheduler"]
    ttl: Micros
    version: str = ""
    datacenter: str = ""
    #: Workers only: informational.
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    #: Workers only: the labels this worker has. It receives only runs whose required labels are all among them.
    labels: tuple[str, ...] = ()
    #: Workers with slots per priority: they claim only runs of these priorities. Empty: all priorities.
    priorities: tuple[int, ...] = ()
    #: Workers only, informational: how many runs the worker can hold at a time over all its queues. None: unknown.
    slots: int | None = None
    #: The API user that registered the session; only this user may act for it.
    owner: str = ""
    #: The only tenant whose runs the worker takes. Empty: all tenants.
    serves: str = ""


class Demand(msgspec.Struct, frozen=True):
    """A worker's demand: how many runs of a queue it could start right now."""

    queue: str
    limit: int
    #: Only runs of this tenant.
    tenant: str | None = None
    #: How many slots the worker has for this queue, free or not. None: as many as are free. A run that weighs more than
    #: all slots takes all of them.
    slots: int | None = None
    #: Only runs of this priority. The first such request makes the store index the queue's runs by priority.
    priority: int | None = None
    #: The runs that a broker has hinted at, at most ``limit`` of them. The store starts those that are queued instead
    #: of searching for the best. Where a rule requires a closer look, it may start better runs of the queue instead.
    runs: tuple[RunId, ...] | None = None


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat."""

    now: Instant
    #: False: the session was reaped. The worker must stop its runs, because they are being given to other workers.
    alive: bool
    #: Held runs that were asked to stop.
    cancels: tuple[RunId, ...] = ()
    #: How many runs of this session the worker did not know. They were requeued without charging the attempt.
    returned: int = 0
    #: The worker was asked to drain.
    draining: bool = False
    #: Held runs that other workers may have by now: a part of the store was silent for a whole lease, or has reassigned
    #: them. The worker must stop them and report nothing about them.
    lost: tuple[RunId, ...] = ()


class PartialCompletion(StoreUnavailable):
    """A part of the store did not answer.

    ``answers`` has the answers of the other parts, and None where one is missing.
    """

    def __init__(self, message: str, answers: Sequence[CompletionAnswer | None]) -> None:
        super().__init__(message)
        self.answers = answers


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of staging the owned shards."""

    now: Instant
    #: How many runs were queued, without those that joined the line of their ordering key.
    runs: int
    #: The queues that received work.
    queues: tuple[str, ...] = ()
    #: There was, or may have been, more than the limit: stage again at once.
    more: bool = False
    #: A recurring job of these shards is due.
    schedules_due: bool = False


class FireResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one ``Fire``."""

    #: False: the schedule was changed first, the shard is no longer owned, or it is too early. Nothing was done.
    applied: bool
    #: Ticks that became runs after the overlap rule was applied.
    runs: int = 0
    #: The queues that received work, or may have.
    queues: tuple[str, ...] = ()


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long ended runs are kept.

    ``succeeded`` and ``unsuccessful`` apply to the class ``standard``; ``short``, ``long`` and ``audit`` to the class
    of that name.
    """

    succeeded: Micros = 7 * DAY
    #: Failed, cancelled and skipped runs.
    unsuccessful: Micros = 30 * DAY
    #: The minimum for the ledger: a tick whose run is kept longer stays as long as its run.
    ledger: Micros = 90 * DAY
    short: Micros = DAY
    long: Micros = 90 * DAY
    audit: Micros = 2_557 * DAY
    #: Runs that ended at or after this time are kept, however old they are. Keyed by the name of a field above.
    kept_since: Mapping[str, Instant] = {}

    def cut(self, name: str, now: Instant) -> Instant:
        """Return the time before which ended runs may be deleted; ``name`` is a field above."""
        span: Micros = getattr(self, name)
        return min(now - span, self.kept_since.get(name, now))

    def of(self, name: str) -> Micros:
        """Return the retention of a class other than ``standard``."""
        return {"short": self.short, "long": self.long, "audit": self.audit}[name]


class PinnedDepth(msgspec.Struct, frozen=True, kw_only=True):
    """Queued runs of a queue that require a data center. The times are those of ``Depth``."""

    datacenter: str
    queued: int
    oldest_due: Instant | None = None
    oldest_ready: Instant | None = None


class QueueBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a queue by state. The times leave out the runs in ``pinned``; the counts include them."""

    queue: str
    queued: int
    running: int
    #: Per data center: runs that only it may execute, or that it serves now because of a preference order.
    pinned: tuple[PinnedDepth, ...] = ()
    #: The due time of the oldest queued run.
    oldest_due: Instant | None = None
    #: Since when the longest-waiting startable run has been waiting for a worker. The wait begins when the run is due,
    #: when a limit, key or pause releases it, or when it returns from an attempt. None: no such run, or all are paused.
    oldest_ready: Instant | None = None


class UnattemptedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a task that ended in this state without an attempt: cancelled, skipped, or failed past their deadline."""

    task: str
    state: RunState
    runs: int


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one kind and one tenant that happened in one transaction.

    Each change emits one event, named for its cause:
    1. A new run is ``submitted``, whatever its first state.
    2. A run that was waiting (scheduled or blocked) becomes ``queued``.
    3. An attempt that another one follows is ``retried``, ``released`` or ``lost``, whatever the run's next state.
    4. A running run that is asked to stop is ``cancel_requested``.
    5. Becoming blocked emits no event.
    """

    #: Its offset in the stream, for ``acknowledge`` and ``events_after``. Offsets sort as text in the order of the
    #: events.
    position: str
    at: Instant
    #: For runs: run.submitted, run.queued, run.started, run.succeeded, run.failed, run.cancelled, run.skipped,
    #: run.retried, run.released, run.lost, run.cancel_requested.
    #: For budgets: budget.warned, budget.exceeded, with the ids of the budgets.
    #: For dead letters: dead_letters.opened, dead_letters.growing, with the newest run of the group.
    #: For recurring jobs: job.slo_missed, job.slo_recovered. For runs with dependencies: dependency.resolved.
    #: For workers, which belong to no tenant: worker.joined, worker.left, worker.lost (``events.id_of_worker``).
    kind: str
    #: The ids of the affected runs; of jobs, budgets or workers where ``kind`` says so.
    runs: tuple[RunId, ...]
    #: Empty: the events belong to no tenant.
    tenant: str
    #: The tasks and queues of newly created runs, in the order of ``runs``, where they are available at no cost. Empty:
    #: look them up.
    tasks: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


class Submissions(Protocol):
    async def submit(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        """Make runs durable and return one answer per run, in the same order.

        Ids and initial state:
        1. The caller chooses the ids. A known id is not created twice.
        2. An immediate run is created as ``queued``. A delayed one is ``scheduled`` until it is due.
        3. ``start_within`` and ``deadline`` count from the due time.

        Ordering keys:
        4. A run with an ordering key is ``blocked`` while another run of its key is queued, running or between two
           attempts.
        5. Runs of a key keep the order (due, id), also within one batch. A delayed run joins the line when it is due.
        6. An ordering key belongs to a tenant.

        Idempotency keys:
        7. A run with an idempotency key is created if its tenant has not used the key within ``KEYS_KEPT``. Otherwise
           the answer has the id of the run created with it, or of the recurring job, which is a conflict.
        8. If two such submissions arrive at once, one is created.
        9. A known id is checked first: submitting the very same run again is no conflict.
        10. A submission that creates nothing uses no key. A key is free again when the object it created is gone.

        Audit and replays:
        11. Runs with an author are audited: one row per batch, author and tenant, with the number of new runs and the
            first of them.
        12. A replay of a dead letter of the same tenant marks that dead letter as replayed.

        Runs of recurring jobs (``job``):
        13. The run counts among the job's runs when the job is cancelled and for the overlap rule of its ticks.
        14. The run itself is not subject to the overlap rule, sets no tick of a fixed delay and is in no ledger.
        15. A backfill queues behind live work of its priority.
        16. The caller must verify that the job exists.

        Targets:
        17. A run with a ``target`` is for that session alone, whatever it requires. If the session does not exist or is
            gone, ``expire`` ends the run.

        Limits (``policy.gates``):
        18. A run with limits is ``blocked`` until it passes all of them at once. While blocked it holds only its
            ordering key.
        19. A run joins the line of its limits when it is new, due, released by its ordering key or about to be retried.
        20. Runs blocked by a limit pass in the order (due, id), each by its own ``most``.
        21. The first run that finds no room at a limit holds up the runs behind it, so that no run is overtaken
            forever.
        22. A run blocked by a different limit waits there and does not hold up the next run.

        Dependencies (``after``):
        23. A run with ``after`` is ``blocked`` until its rule is met (``decide``). It is then due as if submitted at
            that time, or at its due time if that is later.
        24. If the rule can never be met, the run is ``skipped`` (``reason_of_skip``), which counts as its end for its
            own children.
        25. Parents belong to the same tenant. They may be in the same batch in any order, or be stored already, even
            ended.
        26. If a parent in the same batch is not created because its key was used, the run with that key is the parent.
        27. ``NotFound`` is raised if a parent does not exist, ``Invalid`` if the dependencies form a cycle. Nothing is
            done in either case.
        28. ``start_by`` and ``deadline`` count from the time the rule was met, or from the due time; until then neither
            counts.

        Unique runs (``unique``):
        29. With ``existing`` the answer is the first run, not new. With ``reject`` it is a conflict.
        30. With ``debounce`` the answer is the first run, not new, edited (``edit_run``) into the second.
        31. With ``replace`` the replaced run is ``skipped`` (replaced).
        32. The period of the run that has the key applies. A key is free when its run is gone from the store.
        33. Within a batch, runs of one key are handled one after another.
        34. An idempotency key is checked first, and a submission that creates nothing uses none.
        """
        ...

    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[PutResult]:
        """Declare recurring jobs and return one answer per job, in the same order.

        A job is identified by (tenant, name).

        1. A new job starts at the first tick after now. If there is none, it is finished.
        2. A known job keeps its id. With the same spec and payload it is unchanged; a cancelled or finished one is
           reactivated at the first tick after now.
        3. With a different spec or payload it gets a new version. If its schedule changed, its next tick is recomputed
           from now.
        4. A job that looks ahead is due at once: the scheduler that fires it computes when to look at its next tick.
        5. A job that names a calendar its tenant does not have is ``Invalid``, and nothing is done.
        6. Ticks of the old schedule that are due by now and were not fired are recorded as skipped (schedule changed),
           in the same transaction.
        7. A paused job stays paused.
        8. Refused jobs are answered with ``exists``, ``stale`` or ``conflict`` and use no idempotency key.
        9. A declaration that is repeated because its answer was lost is not refused. It is ``unchanged``, recognized by
           its id or as the version after the expected one.
        10. ``NotFound`` is raised, and nothing is done, if a version is expected of a job that does not exist.
        11. Created and changed jobs are audited: one row per batch, author and tenant. A single change of a known job
            includes the differences in version, state and spec.
        """
        ...

    async def set_jobs_state(
        self,
        jobs: Collection[JobId],
        state: JobState,
        author: Author | None = None,
        resume_at: Instant | None = None,
    ) -> dict[JobId, JobState]:
        """Pause, resume (``scheduled``) or cancel jobs, and return their state. Unknown ids are missing in the answer.

        1. Pausing does not stop the schedule: its ticks are recorded as skipped, with the author's reason.
        2. With ``resume_at``, ticks from that time on are live again, whenever they are processed, and ``tidy`` resumes
           the job.
        3. A paused job is left unchanged unless ``resume_at`` differs.
        4. Cancelling ends the job and asks its runs to stop. Ticks that are due by now and were not fired are recorded
           as skipped (cancelled).
        5. A finished or cancelled job keeps its state.
        6. Every change increments ``rev``.
        7. With an author, changes are audited: one row per tenant; for a single job with the state before and after.
        """
        ...

    async def cancel(self, runs: Collection[RunId], author: Author | None = None) -> dict[RunId, RunState]:
        """Ask runs to stop, and return their state. Unknown ids are missing in the answer.

        1. A run that has not started is ``cancelled`` at once.
        2. A running run becomes ``cancelling``, and its worker learns of it with the next heartbeat.
        3. An ended run keeps its state.
        4. With an author, changes are audited: one row per tenant; for a single run with the state before and after.
        """
        ...


class Workforce(Protocol):
    async def open_session(self, session: NewSession) -> SessionId:
        """Register a process under a new, growing session id with a lease of its ttl."""
        ...

    async def heartbeat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> HeartbeatAnswer:
        """Extend a worker's lease and reconcile the runs it holds.

        1. ``held``: the runs the worker knows. ``pending``: its claims without an answer yet. ``last_claim``: the
           number of its newest claim when the heartbeat was built.
        2. A running row of this session is requeued if it is not held and its claim is neither pending nor newer: the
           answer to its claim was lost. Its attempt is uncharged and its rank kept. If it was asked to stop, it is
           cancelled instead.
        3. An expired lease is still extended as long as the session was not reaped.
        """
        ...

    async def claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        """Start the best runs by rank, at most each demand's limit.

        The attempts are counted, and the batch gets one fence.

        Not returned are
        1. runs that a concurrent claim has locked;
        2. any runs if the session is closed, reaped, past its lease, or asked to drain;
        3. runs whose ``deadline`` has passed, or whose ``start_by`` has passed before their first start (attempt 0);
        4. runs that were asked to stop or are paused;
        5. runs beyond their tenant's quota of concurrent runs over all workers;
        6. runs that require a label the session does not have;
        7. runs whose ``target`` is another session.
        Runs that the session may not take are not examined.

        Claims and fences:
        8. ``number`` grows with each claim of the session. The fence is greater than any given before.
        9. A claim without an answer is not repeated but followed by the next one: the heartbeat returns its runs.
        10. A run with a limit per period counts there as started, in the same transaction.

        Queue policies (``put_queue_policy``):
        11. No more runs of a queue execute than its concurrency allows, over all workers.
        12. In a fair queue tenants take turns by their shares, and the rank applies within a tenant.
        13. A run takes as many slots as it weighs, but at most all of the worker's. The first run that does not fit
            ends the claim from its queue.
        """
        ...

    async def complete(self, completions: Sequence[Completion]) -> list[CompletionAnswer]:
        """Report the outcomes of attempts, and return an answer for each, in order.

        An outcome is applied only to a run that is running under the same fence.

        States:
        1. ``scheduled`` waits its delay, ``queued`` goes back at once. Both keep their ordering key, and become
           ``cancelled`` instead if the run was asked to stop.
        2. A released attempt is not charged and, if queued, keeps its rank.
        3. A lost attempt counts as lost and queues, like a retry, one minute behind what is eligible now.
        4. Ended runs move to history, and runs that waited for their key are queued.
        5. When a run of a fixed-delay tick ends, for any reason, its job's next tick is one delay from now.

        Answers:
        6. ``duplicate``: this fence reported the same outcome before and the answer was lost. It counts.
        7. ``stale``: the run is not running under this fence. It does not count, even for the success of a lost
           attempt.

        Limits and breakers:
        8. However an attempt ends, it leaves its limits (success; error, timeout: failed; else: other). Runs blocked by
           one of them pass in the same transaction.
        9. A run that is retried, at once or later, passes its limits again: ``queued`` becomes ``blocked`` while there
           is no room.
        10. When a breaker opens, queued runs of its task are ``blocked`` again: at once up to one batch, the rest by
            ``resolve``.
        11. While a breaker is open only its trial run counts. Runs that started before say nothing about the task's
            present health.

        Retry budgets and dependencies:
        12. If the queue has a retry budget, a charged attempt that is retried later is moved to the first period with
            room. None is dropped.
        13. Children of ended runs are decided by ``resolve``. The store calls it here for a few of them, so callers
            need not.
        """
        ...

    async def close_session(self, session: SessionId) -> None:
        """Close the session of a process. Its running runs are lost. Idempotent."""
        ...


class DueWork(Protocol):
    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> StageResult:
        """Queue scheduled runs of these shards that are due, at most ``limit``, the oldest of each shard first.

        1. A run whose ordering key is held by another run becomes ``blocked``. A retry holds its key already.
        2. The rank is that of the staging time. Retries and caught-up ticks rank behind live work of their priority.
        3. A run with limits passes them or becomes ``blocked``.
        4. Runs of any shard also pass if time alone gives them room: a period has passed, or the pause of a breaker.
        5. Shards that ``owner`` does not own are skipped; all of them if its lease has expired.
        """
        ...

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        """Return (shard, due) of scheduled runs due by ``until``, earliest first, each pair once.

        The due time is rounded up to the millisecond.
        """
        ...

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        """Return recurring jobs, also paused ones, whose next tick is due by ``until``: earliest first, no payloads."""
        ...

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[FireResult]:
        """Record ticks, create their runs and advance the schedules; returns one answer per fire, in order.

        1. Each fire is applied as a whole or not at all. It requires that the job's ``rev`` is the one planned with,
           that ``owner`` owns its shard under a live lease, and that none of its ticks is in the future.
        2. A tick is recorded once, even if two schedulers fire it.
        3. A run whose due time is in the future is ``scheduled``.
        4. The job's overlap rule is applied in the same transaction, against the job's active (waiting or live) runs.
        5. Ticks that fire together are taken in order: each counts the runs of those before it. A tick that is recorded
           already counts for nothing. Only for cancel has the plan kept just the newest tick.

        Overlap rules:
        6. skip: while a run is active, the tick is skipped (overlap).
        7. queue: the tick's run waits for the one before it. While one is blocked, or two are active, the tick is
           skipped (overlap).
        8. cancel: active runs are asked to stop, and the tick's run is blocked until they have.
        9. allow: only an ordering key orders runs, and each key is a separate line.
        10. A run left active by a version with another overlap rule or ordering key is in another line and cannot be
            waited for. While there is one, queue and cancel skip the tick (overlap); cancel first asks the run to stop.

        Fixed delay:
        11. A fixed-delay job whose tick created no run ticks again one delay from now.
        """
        ...


class Upkeep(Protocol):
    async def lost_runs(self, limit: int) -> list[HeldRun]:
        """Reap sessions whose lease has expired, then return the running runs of reaped and closed sessions.

        A run is returned on every call until its attempt is completed. Needs no leader; several processes may call it
        at once.
        """
        ...

    async def overdue_runs(self, grace: Micros, limit: int) -> list[HeldRun]:
        """Return running runs of sessions that were not reaped, whose attempt is overdue by more than ``grace``."""
        ...

    async def expire(self, limit: int) -> int:
        """End runs that missed a limit on waiting.

        1. Waiting or queued past ``start_by``: skipped (expired). A run that has started once, and was not released,
           has met its ``start_by``.
        2. Waiting or queued past ``deadline``: failed (deadline), with the fingerprint of that reason and no error.
        3. Past both: skipped (expired).
        4. The ``target`` session is gone: skipped (its worker left), whatever other limit the run has missed.
        """
        ...

    async def resolve(self, limit: int) -> int:
        """Decide the children of ended runs, and finish what a breaker or a large set of children left over.

        Handles about ``limit`` runs and returns how many changed: call again while it is more than 0. Several processes
        may call it at once.
        """
        ...

    async def sweep(self, limit: int) -> int:
        """Repair stuck state, computed from scratch.

        1. Releases runs that nothing blocks: their key is free, their limits have room, or their parents have ended.
        2. Recounts limiters whose holders are gone.
        3. Finds fixed-delay jobs whose run is gone.

        Finds nothing as long as every other method keeps its contract. Work that ``stage`` or ``resolve`` has still to
        do does not count as a finding.
        """
        ...

    async def tidy(self) -> list[UnattemptedRuns]:
        """Run the periodic upkeep that keeps the store fast under load; call it every few seconds.

        Cheap if there is nothing to do.

        1. Rolls up the per-minute metrics of runs that ended more than 15 s ago.
        2. Deletes events that are older than ``EVENTS_KEPT`` and acknowledged by every reader.
        3. Deletes idempotency keys older than ``KEYS_KEPT``.
        4. Resumes jobs whose pause has ended, at most 1,000.
        5. Deletes pauses of queues one day after their end.
        6. Several processes may call it at once. One of them does the work; it receives the runs without an attempt
           that were added to the metrics.
        """
        ...

    async def sample_load(self) -> Instant:
        """Record the current load under this minute: runs waiting and running, and their ages. Kept for ``LOADS_KEPT``.

        Returns the time of the sample. A second call within the same minute changes nothing.
        """
        ...

    async def prune(self, retention: Retention, limit: int) -> int:
        """Delete what ended before its ``cut``.

        1. Never blocks live work.
        2. Returns how much was deleted (rows or partitions); call again while it is more than 0.
        3. Also creates room (partitions) for the coming days.
        4. A run has its payload as long as it is kept.
        5. Per-minute metrics follow the retention of unsuccessful runs, logs that of their run. The audit is kept.
        """
        ...


class RunViews(Protocol):
    async def runs(self, ids: Sequence[RunId], *, payloads: bool = False) -> list[RunView | None]:
        """Return runs by id from any state, in order. Payloads are included only on request."""
        ...

    async def attempts(self, run: RunId) -> list[AttemptView]:
        """Return the attempts of a run that did not succeed, in order."""
        ...

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        """Return jobs by id, with payloads, in order."""
        ...

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        """Return the ticks of a job with ``since <= scheduled_at < until``, in order."""
        ...

    async def last_ticks(self, jobs: Sequence[JobId], limit: int) -> list[list[LedgerEntry]]:
        """Return the newest ``limit`` ledger rows of each job, oldest first, in the order of ``jobs``."""
        ...

    async def parents(self, run: RunId) -> list[RunView]:
        """Return the parents of a run, in the order they were named. Parents that are no longer kept are missing."""
        ...

    async def parent_ids(self, run: RunId) -> list[RunId]:
        """Return the ids of a run's parents, including those that are no longer kept."""
        ...

    async def children(self, run: RunId, after: RunId | None, limit: int) -> list[RunView]:
        """Return the children of a run by id, starting after the id ``after``."""
        ...

    async def depths(self, tenant: str | None = None) -> list[QueueBacklog]:
        """Return the depth of every queue with work, by name; for one tenant or for all."""
        ...


class StoreReads(RunViews, Protocol):
    async def now(self) -> Instant: ...


class JobNames(Protocol):
    async def job_named(self, tenant: str, name: str) -> JobId | None:
        """Return the id of the job with this name."""
        ...


class Outbox(Protocol):
    async def attach_reader(self, name: str, ttl: Micros | None = None) -> None:
        """Start writing changes to the outbox for this reader, which starts at the end of the stream. Idempotent.

        With a ttl, ``tidy`` removes a reader that has not been attached again for that long.
        """
        ...

    async def detach_reader(self, name: str) -> None:
        """Remove a reader. Without readers, no events are written and existing ones are deleted. Idempotent."""
        ...

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        """Return the oldest unacknowledged batches in order, but none that a transaction in progress could precede."""
        ...

    async def acknowledge(self, name: str, position: str) -> None:
        """Mark everything up to and including ``position`` as processed by this reader."""
        ...


class Store(
    Submissions,
    Workforce,
    DueWork,
    Upkeep,
    StoreReads,
    JobNames,
    Outbox,
    Calendars,
    Slos,
    Datacenters,
    HintSource,
    TaskRegistry,
    Protocol,
):
    """The complete store. Services should depend on the narrow protocol they use."""

    #: Fixed when the store is created.
    shards: int

    async def open(self) -> None:
        """Connect and migrate the schema to the current version, under a lock.

        Refuses a schema that is newer than this program, unless the migration declared this program compatible.
        """
        ...

    async def close(self) -> None: ...
