"""The tables of the memory store and the transitions of runs. Every transition is part of a caller's transaction."""

import sys
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from mainspring.core.model.access.access import ApiKey, Tenant
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId, SessionId, shard_of, stable_hash
from mainspring.core.model.base.instant import MINUTE, Instant
from mainspring.core.model.base.percentiles import bucket_of
from mainspring.core.model.cluster.datacenters import preference_of
from mainspring.core.model.events.events import id_of_worker
from mainspring.core.model.limits.budget import BudgetStatus
from mainspring.core.model.limits.limits import Ending
from mainspring.core.model.limits.queues import NO_POLICY, QueuePolicy, place_retry
from mainspring.core.model.runs.completion import Completion
from mainspring.core.model.runs.dead_letters import Watch
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.rank import HEAD_START, IDLE, rank_of
from mainspring.core.model.runs.replay import Replay
from mainspring.core.model.runs.restored import KnownEnd
from mainspring.core.model.runs.retention import CLASSES, STANDARD
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.runs.usage import cost_of, day_of
from mainspring.core.model.runs.view import AttemptView
from mainspring.core.model.schedules.calendar import Calendar
from mainspring.core.model.schedules.job import JobSpec, LedgerEntry, Overlap, Tick, overlap_gate
from mainspring.core.model.schedules.plan import dropped_ticks
from mainspring.core.model.tasks.task_entry import KnownTask
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.access import AuditEntry, Author
from mainspring.core.ports.storage.catalog import TIMINGS_STEP, JobVersion, Load, LogLine, Pause
from mainspring.core.ports.storage.datacenters import Order
from mainspring.core.ports.wakeups import Wakeups, queue_topic
from mainspring.core.store import EVENTS_KEPT, KEYS_KEPT, EventBatch
from mainspring.stores.changes import Change, sum_up
from mainspring.stores.memory.rows import (
    Gate,
    Index,
    JobRow,
    Lane,
    Ledger,
    RunRow,
    SessionRow,
    ShardRow,
    SloRow,
    UniqueKey,
    UsedKey,
)
from mainspring.stores.memory.work.dependencies import Families
from mainspring.stores.memory.work.limiters import Limiters

#: The high bits of a fence are the store's epoch, the low bits a sequence. A restored store raises the epoch.
SEQUENCE_BITS = 40


class Tables:
    """All rows. A row is in exactly the indexes of its state; ``_leave`` and the transitions keep it so."""

    def __init__(self, clock: Clock, shards: int, wakeups: Wakeups | None = None) -> None:
        self._clock = clock
        self.wakeups = wakeups
        self.shards = shards
        #: The time of the current transaction.
        self.now: Instant = 0
        self.store_id = uuid.uuid4().hex
        self.hint_key = uuid.uuid4().hex
        self.store_epoch = 1
        self._fences = 0

        self.runs: dict[RunId, RunRow] = {}
        self.attempts: defaultdict[RunId, list[AttemptView]] = defaultdict(list)
        #: Queued runs, by queue, label set and rank.
        self.ready: defaultdict[str, defaultdict[Lane, Index]] = defaultdict(lambda: defaultdict(Index))
        #: Runs that have not ended, by the only session that may run them.
        self.targeted: defaultdict[SessionId, dict[RunId, None]] = defaultdict(dict)
        #: Scheduled runs, by shard and due time.
        self.scheduled = [Index() for _ in range(shards)]
        #: Running runs, by session.
        self.held: defaultdict[SessionId, dict[RunId, None]] = defaultdict(dict)
        #: Runs that have not ended, by job.
        self.active: defaultdict[JobId, dict[RunId, None]] = defaultdict(dict)
        #: Runs that have not ended, by their latest start time and by their deadline.
        self.start_bys = Index()
        self.deadlines = Index()
        #: Ended runs of the standard retention class, in the order they ended.
        self.succeeded: deque[RunId] = deque()
        self.unsuccessful: deque[RunId] = deque()
        #: Ended runs of the other retention classes, in the order they ended.
        self.of_class: dict[str, deque[RunId]] = {name: deque() for name in CLASSES if name != STANDARD}
        #: Bytes logged, by (tenant, day), for tenants with a daily quota.
        self.log_days: Counter[tuple[str, int]] = Counter()
        #: Log output, by run.
        self.logs: defaultdict[RunId, list[LogLine]] = defaultdict(list)
        #: Number of running runs, by tenant.
        self.running: Counter[str] = Counter()
        #: Pauses, by (tenant, queue).
        self.pauses: dict[tuple[str | None, str | None], Pause] = {}
        #: Queue policies and their state: the fair-share clock, the turn of each tenant, and the retries per period.
        self.queue_policies: dict[str, QueuePolicy] = {}
        self.queue_clocks: Counter[str] = Counter()
        self.queue_turns: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.queue_retries: defaultdict[str, dict[int, int]] = defaultdict(dict)
        #: The task catalog, by name.
        self.tasks: dict[str, KnownTask] = {}
        #: Queues that have had runs of more than one slot.
        self.weighted: set[str] = set()
        #: Idempotency keys, by (tenant, key).
        self.used_keys: dict[tuple[str, str], UsedKey] = {}
        #: The fields of ``Minute``, by (minute, queue, tenant).
        self.figures: defaultdict[tuple[Instant, str, str], Counter[str]] = defaultdict(Counter)
        #: Histograms of start delay and duration, by (five minutes, queue, tenant).
        self.timings: defaultdict[tuple[Instant, str, str], tuple[Counter[int], Counter[int]]] = defaultdict(
            lambda: (Counter(), Counter())
        )
        #: Waiting and running load, by minute, then by (tenant, queue).
        self.loads: dict[Instant, dict[tuple[str, str], Load]] = {}
        #: Used amounts, by (day, tenant, task, job, unit).
        self.usage: defaultdict[tuple[Instant, str, str, str, str], float] = defaultdict(float)
        #: Budgets, by (tenant, name).
        self.budgets: dict[tuple[str, str], BudgetStatus] = {}
        self.gates: dict[int, Gate] = {}
        self.limiters = Limiters(self.runs)
        self.families = Families()
        #: Unique keys, by (tenant, key).
        self.unique_keys: dict[tuple[str, str], UniqueKey] = {}
        #: Runs that reach their limits in this transaction and need no ``run.queued`` event: another event reports them
        #: (None), or they keep their rank and the time they were queued at.
        self._kept_place: dict[RunId, tuple[int, Instant] | None] = {}
        #: Runs that reached their limits in this transaction after waiting only for their due time.
        self._came: set[RunId] = set()
        #: Runs that ended without an attempt, by (task, state), until they are reported.
        self.unattempted: Counter[tuple[str, RunState]] = Counter()
        #: Known groups of dead letters, by (tenant, task, fingerprint), and the time up to which dead letters were
        #: grouped.
        self.watches: dict[tuple[str, str, str], Watch] = {}
        self.watched_until: Instant = 0
        self.replays: dict[str, Replay] = {}

        self.jobs: dict[JobId, JobRow] = {}
        self.job_names: dict[tuple[str, str], JobId] = {}
        #: Versions of each job, oldest first.
        self.versions: defaultdict[JobId, list[JobVersion]] = defaultdict(list)
        #: Jobs with a next tick, by shard and time of that tick.
        self.due_jobs = [Index() for _ in range(shards)]
        self.ledgers: defaultdict[JobId, Ledger] = defaultdict(Ledger)

        #: Objectives of jobs, and when each is evaluated next.
        self.slos: dict[JobId, SloRow] = {}
        self.slo_checks = Index()
        #: State of the alerts, and the number of changes to it.
        self.notifications: dict[str, bytes] = {}
        self.notification_rev = 0
        #: All versions of each calendar, oldest first, by (tenant, name).
        self.calendars: dict[tuple[str, str], list[Calendar]] = {}

        self.sessions: dict[SessionId, SessionRow] = {}
        #: Data center preference orders, by word.
        self.orders: dict[str, Order] = {}
        self.owners = [ShardRow() for _ in range(shards)]

        self.tenants: dict[str, Tenant] = {}
        #: Signed-out dashboard sessions, with the time each would have expired.
        self.signed_out: dict[str, Instant] = {}
        self.api_keys: dict[str, ApiKey] = {}
        self.audits: list[AuditEntry] = []

        #: Cursor of each event reader.
        self.readers: dict[str, str] = {}
        #: Time at which a temporary reader expires.
        self.readers_until: dict[str, Instant] = {}
        self.outbox: deque[EventBatch] = deque()
        self._position = 0
        #: Newest position whose batch was dropped or may never have been written.
        self.horizon = place(0)
        self._happened: dict[tuple[str, str], list[RunId]] = {}
        #: Job events, one batch per job: the events of one job must keep their order.
        self._of_jobs: list[tuple[str, str, JobId]] = []
        #: Queues that got work in this transaction. A caller that frees a key or a limit does not know the queues of
        #: the runs that it releases.
        self._got_work: dict[str, None] = {}

    @contextmanager
    def transaction(self) -> Iterator[Instant]:
        """Run a transaction at one point in time; its events are written at its end.

        It never awaits, so transactions cannot interleave.
        """
        # The store's time never goes back, even if its clock does.
        self.now = max(self.now, self._clock.now())
        self._happened.clear()
        self._of_jobs.clear()
        self._kept_place.clear()
        self._came.clear()
        yield self.now
        self.pass_on()
        if self.wakeups is not None and self._got_work:
            self.wakeups.ring([queue_topic(queue) for queue in self._got_work])
        self._got_work.clear()
        if self.readers:
            told = [(kind, tenant, runs) for (kind, tenant), runs in self._happened.items()]
            told += [(kind, tenant, [RunId(job)]) for kind, tenant, job in self._of_jobs]
            for kind, tenant, runs in told:
                self._position += 1
                self.outbox.append(
                    EventBatch(position=self.position, at=self.now, kind=kind, runs=tuple(runs), tenant=tenant)
                )

    @property
    def position(self) -> str:
        """Position of the newest event."""
        return place(self._position)

    def note_job(self, kind: str, tenant: str, job: JobId) -> None:
        """Record a job event. The job id takes the place of a run id; the kind tells them apart."""
        self._of_jobs.append((kind, tenant, job))

    def note(self, kind: str, run: RunRow) -> None:
        self._happened.setdefault((kind, run.tenant), []).append(run.id)
        if kind == "run.queued":
            self._got_work[run.queue] = None

    def tell(self, kind: str, tenant: str, subject: str) -> None:
        """Record an event about a subject that is not a run."""
        self._happened.setdefault((kind, tenant), []).append(RunId(subject))

    def tell_worker(self, kind: str, session: SessionRow) -> None:
        """Record an event about a worker, which belongs to no tenant; ignore schedulers."""
        if session.kind == "worker":
            self.tell(kind, "", id_of_worker(session.id))

    def begin_outbox(self) -> None:
        """Start writing events at a new horizon. A reader with an earlier cursor may have missed events."""
        self._position += 1
        self.horizon = self.position

    def forget_reader(self, name: str) -> None:
        self.readers.pop(name, None)
        self.readers_until.pop(name, None)
        self.forget_events()

    def forget_events(self) -> None:
        """Drop the batches that every reader has read and that are older than ``EVENTS_KEPT``.

        Without readers drop all batches.
        """
        seen = min(self.readers.values(), default=self.position)
        old = self.now - EVENTS_KEPT
        while self.outbox and self.outbox[0].position <= seen and (self.outbox[0].at < old or not self.readers):
            self.horizon = self.outbox.popleft().position

    def next_fence(self) -> int:
        self._fences += 1
        return self.store_epoch << SEQUENCE_BITS | self._fences

    # Run transitions

    def enter(self, run: RunRow) -> None:
        """Add a new run: queued or blocked if it is due, scheduled if its time is ahead."""
        self.runs[run.id] = run
        if run.job_id is not None:
            self.active[run.job_id][run.id] = None
        if run.target is not None:
            self.targeted[run.target][run.id] = None
        self.note("run.submitted", run)
        self._kept_place[run.id] = None
        if run.rule is not None:
            self._block(run)
            run.waits_for_parents = True
            self.families.waiting[run.id] = None
            self.decide(run.id, new=True)
        else:
            self._watch_limits(run)
            self._come(run)

    def decide(self, child: RunId, *, new: bool = False) -> None:
        """Decide a run whose parents have ended: release it, skip it, or keep it blocked.

        ``new``: the run was just submitted, so no ``dependency.resolved`` is emitted.
        """
        run = self.runs.get(child)
        if run is None or not run.waits_for_parents:
            return
        what, why = self.families.verdict(run)
        if what == "skip":
            self.end(run, RunState.SKIPPED, why)
        elif what == "go":
            self._leave(run)
            if not new:
                self.note("dependency.resolved", run)
            run.due = max(run.due, self.now)
            run.set_limits()
            self._watch_limits(run)
            self._come(run)

    def tell_children(self, limit: int) -> int:
        """Decide up to ``limit`` children of ended runs; return how many were decided."""
        told = self.families.tell(limit)
        for child in told:
            self.decide(child)
        return len(told)

    def pass_on(self) -> list[RunRow]:
        """Queue the runs that now fit into the limiters that changed."""
        passed = self.limiters.pass_on(self.now)
        for run in passed:
            place = self._kept_place.get(run.id)
            self._queue(run, self.rank_now(run) if place is None else place[0])
            if place is not None:
                run.queued_at = place[1]
            if run.id not in self._came:
                run.ready_at = self.now
            if run.id not in self._kept_place:
                self.note("run.queued", run)
        return passed

    def stage(self, run: RunRow) -> None:
        """Admit a scheduled run that has become due."""
        self._leave(run)
        self._admit(run)

    def start(self, run: RunRow, session: SessionId, claim: int, fence: int) -> None:
        self._leave(run)
        self.limiters.started(run, self.now)
        run.state = RunState.RUNNING
        run.attempt += 1
        run.fence = fence
        run.session = run.last_session = session
        run.executor = self.sessions[session].name
        run.claim = claim
        run.started_at = self.now
        run.attempt_until = self.now + run.policy.timeout
        if run.deadline is not None:
            run.attempt_until = min(run.attempt_until, run.deadline)
        self.held[session][run.id] = None
        self.running[run.tenant] += 1
        self.note("run.started", run)

    def start_later(self, run: RunRow, due: Instant, kind: str, ending: Ending) -> None:
        """Schedule the next attempt after a backoff. The run keeps its ordering key."""
        self._leave_limits(run, ending)
        self._leave(run)
        run.ready_at = 0
        self._schedule(run, due)
        self.note(kind, run)

    def start_again(self, run: RunRow, rank: int, kind: str, ending: Ending) -> None:
        """Requeue a run for its next attempt at once, if its limits allow it. The run keeps its ordering key."""
        self._leave_limits(run, ending)
        self._leave(run)
        self._kept_place[run.id] = rank, self.now
        run.ready_at = self.now
        self._pass(run, rank)
        self.note(kind, run)

    def end(
        self,
        run: RunRow,
        state: RunState,
        reason: str,
        *,
        ended_by: int | None = None,
        result: bytes | None = None,
        error: str | None = None,
        fingerprint: str = "",
        ending: Ending = "other",
        ran: bool = True,
    ) -> None:
        """End a run and release its dependents, key and limits.

        ``ran``: if the run is running, this is the end of its attempt.
        """
        self._count_end(run, state, ran=ran)
        self._leave_limits(run, ending)
        self._leave(run)
        run.state = state
        run.reason = reason
        run.ended_by = ended_by
        run.result = result
        run.error = error
        run.fingerprint = fingerprint
        run.finished_at = self.now
        self._watch_limits(run, watch=False)
        if run.target is not None:
            self.targeted[run.target].pop(run.id)
            if not self.targeted[run.target]:
                del self.targeted[run.target]
        known = self.tenants.get(run.tenant)
        run.kept_as = run.policy.retention or ("" if known is None else known.quotas.retention) or STANDARD
        self._ended_like(run).append(run.id)
        self.note(f"run.{state.value}", run)
        if run.job_id is not None:
            self.active[run.job_id].pop(run.id, None)
            # A job may be purged while one of its runs is still active.
            if run.job_id in self.jobs:
                self._pace(self.jobs[run.job_id], run)
        if run.gate is not None:
            gate = self.gates.get(run.gate)
            if gate is not None and gate.holder == run.id:
                gate.holder = None
                self.promote(run.gate)
        self.families.has_ended(run)
        if run.unique is not None and run.unique.period is None:
            self._free_unique_key(run)

    def end_elsewhere(self, run: RunRow, end: KnownEnd) -> None:
        """End a run whose outcome is known only from elsewhere, so that its start time is unknown."""
        self.end(
            run,
            end.state,
            end.reason,
            ended_by=run.fence if run.state is RunState.RUNNING else None,
            result=end.result,
            error=end.error,
            fingerprint=end.fingerprint,
            ran=False,
        )
        run.started_at = None

    def lower(self, run: RunRow) -> None:
        """Give a queued run the lowest priority, but keep its age."""
        queued_at, rank = run.queued_at, run.rank + (IDLE - run.priority) * HEAD_START
        self._leave(run)
        run.priority = IDLE
        self._queue(run, rank)
        run.queued_at = queued_at

    def ask_to_stop(self, runs: Collection[RunRow]) -> None:
        """Request cancellation of running runs; cancel the runs that have not started at once."""
        for run in blocked_first(runs):
            if run.state.ended:
                continue
            requested_before = run.cancel_at is not None
            if not requested_before:
                run.cancel_at = self.now
            if run.state is not RunState.RUNNING:
                self.end(run, RunState.CANCELLED, "cancelled")
            elif not requested_before:
                self.note("run.cancel_requested", run)

    def promote(self, key: int) -> bool:
        """Give a free key lock to the first waiting run; report whether there was one."""
        gate = self.gates[key]
        if gate.holder is not None:
            return False
        if not gate.line.entries:
            del self.gates[key]
            return False
        run = self.runs[RunId(gate.line.entries[0][1])]
        self._leave(run)
        gate.holder = run.id
        run.ready_at = self.now
        if self._pass(run, self.rank_now(run)):
            self.note("run.queued", run)
        return True

    def edit(self, run: RunRow, new: NewRun) -> None:
        """Edit a run that was never started: its due time, key, queue, and the position that goes with them.

        A run that stays queued keeps its age. A run that holds its key keeps it as long as it is first in line.
        """
        was, queued_at, old_gate = run.state, run.queued_at, run.gate
        held = None if old_gate is None else self.gates.get(old_gate)
        if held is not None and held.holder != run.id:
            held = None
        self._leave_limits(run, "other")
        if not run.waits_for_parents:
            self._leave(run)
            self._watch_limits(run, watch=False)
        run.task, run.payload, run.policy, run.about = new.task, new.payload, new.policy, new.about
        run.queue, run.priority = new.queue, new.priority
        run.due = new.at if new.at is not None else self.now + new.delay
        run.start_within, run.end_within = new.start_within, new.deadline
        run.gate = gate_of_run(run.tenant, run.policy)
        run.gates = run.policy.gates(run.tenant, run.task)
        if run.waits_for_parents:
            return
        run.set_limits()
        self._watch_limits(run)
        is_due = run.due <= self.now
        first = held is not None and not any(entry < (run.due, run.id) for entry in held.line.entries[:1])
        if held is not None and not (is_due and first and run.gate == old_gate):
            held.holder = None
        if not is_due:
            self._schedule(run, run.due)
            run.queued_at, run.ready_at = None, 0
        else:
            if was is RunState.QUEUED:
                assert queued_at is not None
                self._kept_place[run.id] = rank_of(queued_at, run.priority), queued_at
            else:
                run.ready_at = self.now
            run.queued_at = None
            self._admit(run)
        if held is not None and held.holder is None:
            assert old_gate is not None
            self.promote(old_gate)
        # The next edit of a batch must find the run queued, or blocked without its old age.
        self.pass_on()
        self._kept_place.pop(run.id, None)

    def rank_now(self, run: RunRow) -> int:
        """Return the rank of a run that becomes eligible in this transaction."""
        return rank_of(self.now, run.priority, late=run.late or run.attempt > 0)

    def _come(self, run: RunRow) -> None:
        """Admit a run that is due, or schedule it. It waits only for its time, its ordering key and its limits."""
        if run.due <= self.now:
            self._admit(run)
        else:
            self._schedule(run, run.due)

    def _admit(self, run: RunRow) -> None:
        """Queue a run that is due, or block it by its ordering key or its limits."""
        if run.gate is not None:
            gate = self.gates.setdefault(run.gate, Gate())
            if gate.holder is None and not gate.line.entries:
                gate.holder = run.id
            elif gate.holder != run.id:
                self._block(run)
                gate.line.add(run.due, run.id)
                return
        place = self._kept_place.get(run.id)
        self._came.add(run.id)
        if self._pass(run, self.rank_now(run) if place is None else place[0]):
            if place is not None:
                run.queued_at = place[1]
            if run.id not in self._kept_place:
                self.note("run.queued", run)

    def _pass(self, run: RunRow, rank: int) -> bool:
        """Queue the run, or block it until its limiters are checked. Report whether it was queued."""
        if run.gates:
            self._block(run)
            self.limiters.join(run)
            return False
        self._queue(run, rank)
        return True

    def _leave_limits(self, run: RunRow, ending: Ending) -> None:
        """Release the limiters of a run. If that opens a breaker, queued runs of its task are blocked again."""
        if not run.inside:
            return
        for row in self.limiters.leave(run, self.now, ending):
            self.limiters.leave(row, self.now, "other")
            self._leave(row)
            self._pass(row, row.rank)

    def _block(self, run: RunRow) -> None:
        run.state = RunState.BLOCKED

    def _schedule(self, run: RunRow, due: Instant) -> None:
        run.state = RunState.SCHEDULED
        run.due = due
        self.scheduled[run.shard].add(due, run.id)

    def _queue(self, run: RunRow, rank: int) -> None:
        run.state = RunState.QUEUED
        run.rank = rank
        run.queued_at = self.now
        self.ready[run.queue][run.lane].add(rank, run.id)
        if run.policy.requires:
            self._ask_for_order(run.policy.requires)
        if run.policy.weight > 1:
            self.weighted.add(run.queue)

    def _ask_for_order(self, requires: tuple[str, ...]) -> None:
        preference = preference_of(requires)
        if preference is not None and preference.word not in self.orders:
            self.orders[preference.word] = Order(word=preference.word, serving=preference.order[0], since=self.now)

    def _leave(self, run: RunRow) -> None:
        """Remove the run from the index of its state."""
        match run.state:
            case RunState.SCHEDULED:
                self.scheduled[run.shard].remove(run.due, run.id)
            case RunState.BLOCKED if run.waits is not None:
                self.limiters.leave_line(run)
            case RunState.BLOCKED if run.waits_for_parents:
                run.waits_for_parents = False
                del self.families.waiting[run.id]
            case RunState.BLOCKED:
                assert run.gate is not None
                self.gates[run.gate].line.remove(run.due, run.id)
            case RunState.QUEUED:
                lanes = self.ready[run.queue]
                lanes[run.lane].remove(run.rank, run.id)
                if not lanes[run.lane]:
                    del lanes[run.lane]
            case RunState.RUNNING:
                assert run.session is not None
                self.held[run.session].pop(run.id, None)
                self.running[run.tenant] -= 1
                run.session = None
            case _:
                raise AssertionError(f"{run.id} has ended")

    def _watch_limits(self, run: RunRow, *, watch: bool = True) -> None:
        for index, limit in ((self.start_bys, run.start_by), (self.deadlines, run.deadline)):
            if limit is not None:
                (index.add if watch else index.remove)(limit, run.id)

    def purge_run(self, run: RunRow) -> None:
        """Delete an ended run before its retention is over."""
        self._ended_like(run).remove(run.id)
        self.forget_run(run.id)

    def is_kept(self, run: RunId | None) -> bool:
        """Report whether the run exists and is kept longer than its tick has to be."""
        row = None if run is None else self.runs.get(run)
        return row is not None and row.kept_as in ("long", "audit")

    def _ended_like(self, run: RunRow) -> deque[RunId]:
        if run.kept_as != STANDARD:
            return self.of_class[run.kept_as]
        return self.succeeded if run.state is RunState.SUCCEEDED else self.unsuccessful

    def purge_job(self, job: JobRow) -> None:
        """Delete an ended job. Its runs stay."""
        del self.jobs[job.id]
        del self.job_names[job.tenant, job.spec.name]
        self.versions.pop(job.id, None)
        self.ledgers.pop(job.id, None)
        slo = self.slos.pop(job.id, None)
        if slo is not None:
            self.slo_checks.remove(slo.next_check, job.id)

    def forget_run(self, run: RunId) -> None:
        row = self.runs.pop(run)
        self._free_unique_key(row)
        self.families.forget(run)
        self.attempts.pop(run, None)
        self.logs.pop(run, None)

    # Limits of a claim

    def is_paused(self, run: RunRow, now: Instant) -> bool:
        return bool(self.pauses) and any(
            (pause := self.pauses.get((tenant, queue))) is not None and not pause.is_over(now)
            for tenant in (run.tenant, None)
            for queue in (run.queue, None)
        )

    def resumed_at(self, run: RunRow, now: Instant) -> Instant:
        """Return when the last pause that applied to the run ended; 0 if none ended recently."""
        pauses = (self.pauses.get((tenant, queue)) for tenant in (run.tenant, None) for queue in (run.queue, None))
        return max(
            (pause.until for pause in pauses if pause is not None and pause.until is not None and pause.is_over(now)),
            default=0,
        )

    def room(self, tenant: str) -> int:
        """Return how many more runs of a tenant may run at once."""
        known = self.tenants.get(tenant)
        quota = None if known is None else known.quotas.running
        return sys.maxsize if quota is None else quota - self.running[tenant]

    def policy_of(self, queue: str) -> QueuePolicy:
        return self.queue_policies.get(queue, NO_POLICY)

    def running_in(self, queue: str) -> int:
        return sum(self.runs[run].queue == queue for held in self.held.values() for run in held)

    def due_of_retry(self, run: RunRow, due: Instant) -> Instant:
        """Return when the run may be retried: the retry budget of its queue may move it past ``due``."""
        budget = self.policy_of(run.queue).retries
        if budget is None or run.attempt == 0:
            return due
        counts = self.queue_retries[run.queue]
        for period in [period for period in counts if period < self.now // budget.per - 1]:
            del counts[period]
        return place_retry(budget, counts, due)

    # Keys, audit and metrics

    def used_key(self, tenant: str, key: str) -> UsedKey | None:
        """Return the use of an idempotency key that has not expired."""
        used = self.used_keys.get((tenant, key))
        return used if used is not None and self.now < used.at + KEYS_KEPT else None

    def unique_run(self, tenant: str, key: str, fresh: Mapping[RunId, RunRow]) -> RunRow | None:
        """Return the run, stored or about to be stored, that holds a unique key, while the key counts."""
        taken = self.unique_keys.get((tenant, key))
        row = None if taken is None else fresh.get(taken.run) or self.runs.get(taken.run)
        if taken is None or row is None:
            return None
        counts = not row.state.ended if taken.until is None else self.now < taken.until
        return row if counts else None

    def take_unique_key(self, tenant: str, unique: Unique, run: RunId) -> None:
        until = None if unique.period is None else self.now + unique.period
        self.unique_keys[tenant, unique.key] = UniqueKey(run, until)

    def _free_unique_key(self, run: RunRow) -> None:
        if run.unique is not None:
            taken = self.unique_keys.get((run.tenant, run.unique.key))
            if taken is not None and taken.run == run.id:
                del self.unique_keys[run.tenant, run.unique.key]

    def audit(self, action: str, author: Author | None, changes: Iterable[Change]) -> None:
        """Write one audit entry per tenant; write none without an author or without changes."""
        if author is None:
            return
        for tenant, change, count in sum_up(author, changes):
            self.audits.append(
                AuditEntry(
                    position=len(self.audits) + 1,
                    at=self.now,
                    tenant=tenant,
                    author=author.name,
                    action=action,
                    target=change.target,
                    count=count,
                    before=change.before,
                    after=change.after,
                    why=author.why,
                )
            )

    def figures_of(self, run: RunRow) -> Counter[str]:
        """Return the metrics of the current minute that the run counts in."""
        return self.figures[self.now // MINUTE * MINUTE, run.queue, run.tenant]

    def count_cost(self, run: RunRow, completion: Completion) -> None:
        """Add the cost of an attempt that ends now to the usage of the day."""
        assert run.started_at is not None
        charged = completion.outcome is not Outcome.RELEASED
        cost = cost_of(self.now - run.started_at, completion.spent, charged=charged)
        for unit, amount in cost.items():
            self.usage[day_of(self.now), run.tenant, run.task, run.job_id or "", unit] += amount

    def _count_end(self, run: RunRow, state: RunState, *, ran: bool) -> None:
        figures = self.figures_of(run)
        figures[state.value] += 1
        if ran and run.state is RunState.RUNNING:
            assert run.started_at is not None
            figures["started"] += 1
            spans = (("late", run.started_at - run.due), ("took", self.now - run.started_at))
            counted = self.timings[self.now // TIMINGS_STEP * TIMINGS_STEP, run.queue, run.tenant]
            for (name, duration), buckets in zip(spans, counted, strict=True):
                figures[f"{name}_total"] += duration
                figures[f"{name}_most"] = max(figures[f"{name}_most"], duration)
                buckets[bucket_of(duration)] += 1
        else:
            self.unattempted[run.task, state] += 1

    # Schedules

    def move_schedule(self, job: JobRow, next_fire: Instant | None, next_tick: Instant | None = None) -> None:
        """Set the next tick. Every change increments ``rev``, so a scheduler with an old plan reads the row again."""
        if job.next_fire is not None:
            self.due_jobs[job.shard].remove(job.next_fire, job.id)
        job.next_fire = next_fire
        job.next_tick = next_tick
        if next_fire is not None:
            self.due_jobs[job.shard].add(next_fire, job.id)
        job.awaits = None
        job.rev += 1

    def calendar_rev(self, tenant: str) -> int:
        """Return how many times the calendars of a tenant have changed."""
        return sum(versions[-1].version for (owner, _), versions in self.calendars.items() if owner == tenant)

    def add_version(self, job: JobRow, made_by: str, why: str) -> None:
        """Store the current spec and payload of the job as its next version."""
        job.version += 1
        job.rev += 1
        self.versions[job.id].append(
            JobVersion(
                version=job.version,
                spec=job.spec,
                payload=job.payload,
                made_by=made_by,
                why=why,
                made_at=self.now,
            )
        )

    def record(self, job: JobRow, tick: Tick) -> None:
        """Add a tick to the ledger unless it is there already."""
        if tick not in self.ledgers[job.id]:
            self.ledgers[job.id].add(
                LedgerEntry(
                    job_id=job.id,
                    scheduled_at=tick.scheduled_at,
                    decision=tick.decision,
                    reason=tick.reason,
                    run_id=tick.run_id,
                    job_version=job.version,
                    epoch=self.owners[job.shard].epoch,
                    ticks=tick.ticks,
                    last_at=tick.last_at,
                    target=tick.target,
                )
            )

    def drop_ticks(self, job: JobRow, reason: str) -> None:
        """Record the due ticks of a job as dropped, because its schedule ends now."""
        for tick in dropped_ticks(job.job(with_payload=False), self.now, reason):
            self.record(job, tick)

    def runs_of(self, job: JobId, target: str = "") -> list[RunRow]:
        """Return the active runs of a job; with ``target``, only those for that data center or for none."""
        runs = [self.runs[run] for run in self.active.get(job, ())]
        ledger = self.ledgers[job]
        return [run for run in runs if ledger.target_of(run) in ("", target)] if target else runs

    def _pace(self, job: JobRow, run: RunRow) -> None:
        """Set the next tick of a fixed-delay job when its run has ended."""
        delay = job.spec.fixed_delay
        if delay is not None and job.ticking and job.next_fire is None and job.awaits == run.id:
            self.move_schedule(job, self.now + delay)

    # Processes

    def live_session(self, session: SessionId) -> SessionRow | None:
        """Return the session if its lease is valid now."""
        row = self.sessions.get(session)
        return row if row is not None and row.alive(self.now) else None

    def owned_by(self, owner: SessionId, shards: Collection[int]) -> list[int]:
        """Return those of ``shards`` that ``owner`` owns; none if its lease has expired."""
        if self.live_session(owner) is None:
            return []
        return [shard for shard in set(shards) if 0 <= shard < self.shards and self.owners[shard].owner == owner]

    def next_change(self) -> Instant | None:
        """Return the earliest time at which a scheduler pass has work to do even if nothing else changes."""
        moments = [index.entries[0][0] for index in (*self.scheduled, *self.due_jobs, self.slo_checks) if index.entries]
        room = self.limiters.next_room(self.now)
        if room is not None:
            moments.append(room)
        if self.families.ended:
            moments.append(self.now)
        limited = ((limit, self.runs[RunId(row)]) for limit, row in self.start_bys.entries)
        moments += islice((limit + 1 for limit, run in limited if run.attempt == 0), 1)
        limited = ((limit, self.runs[RunId(row)]) for limit, row in self.deadlines.entries)
        moments += islice((limit for limit, run in limited if run.state is not RunState.RUNNING), 1)
        for session, runs in self.held.items():
            if runs:
                row = self.sessions[session]
                moments.append(self.now if row.dead else row.lease_until)
                for run in map(self.runs.__getitem__, runs):
                    moments.append(run.attempt_until if run.cancel_at is None else run.cancel_at)
        return min(moments, default=None)

    def check_shard(self, identifier: str) -> None:
        # No scheduler ever reads a shard that the store does not have.
        if shard_of(identifier) >= self.shards:
            raise Invalid("id", f"{identifier} carries shard {shard_of(identifier)}", f"0 to {self.shards - 1}")


def place(number: int) -> str:
    """Encode an event position as text that sorts like the number."""
    return f"{number:020d}"


def blocked_first(runs: Iterable[RunRow]) -> list[RunRow]:
    """Sort runs that end together, blocked ones first: otherwise ending one would queue another that ends next."""
    return sorted(runs, key=lambda run: (run.state is not RunState.BLOCKED, not run.in_line))


def gate_of_run(tenant: str, policy: RunPolicy) -> int | None:
    """Return the key lock of a one-off run; None without an ordering key."""
    return stable_hash(f"order:{tenant}:{policy.ordering_key}") if policy.ordering_key else None


def gate_of_tick(job: JobId, tenant: str, spec: JobSpec, target: str = "") -> int | None:
    """Return the key lock of a tick's run: its ordering key's, or its job's if runs of the job wait for each other."""
    if spec.policy.ordering_key:
        return gate_of_run(tenant, spec.policy)
    return overlap_gate(job, target) if spec.overlap in (Overlap.QUEUE, Overlap.CANCEL) else None
