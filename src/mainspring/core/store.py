"""The store port: the contract of the database that holds all jobs, runs and sessions.

The store is the only source of truth. Every method takes a batch; one call is one round trip and one transaction where
possible. The memory, SQLite, PostgreSQL and sharded stores implement this protocol; services depend on the narrow
protocols and never on a concrete store. This file has the way of a run:

- ``Submissions``: submit and cancel runs, declare recurring jobs.
- ``Workforce``: sessions and heartbeats of workers, claims and completions.
- ``DueWork``: stage due runs, and fire the ticks of recurring jobs.

The other protocols are in ``core/ports/storage``: ``answers`` (what these methods return), ``upkeep`` (reaper,
housekeeper, retention), ``reads``, ``outbox`` (events), and one file for each feature that stores something.

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

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, Instant, Micros
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.schedules.job import Fire, Job, JobState, NewJob
from mainspring.core.ports.dispatch import HintSource
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import FireResult, HeartbeatAnswer, PutResult, StageResult, SubmitResult
from mainspring.core.ports.storage.calendars import Calendars
from mainspring.core.ports.storage.datacenters import Datacenters
from mainspring.core.ports.storage.outbox import Outbox
from mainspring.core.ports.storage.reads import JobNames, StoreReads
from mainspring.core.ports.storage.slos import Slos
from mainspring.core.ports.storage.tasks import TaskRegistry
from mainspring.core.ports.storage.upkeep import Upkeep

#: How long an idempotency key is remembered.
KEYS_KEPT: Micros = DAY


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

        Limits (``policy.limiters``):
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
