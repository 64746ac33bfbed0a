"""The store of a world: a memory store that records its history, and an unreliable connection for each process."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from copy import copy
from typing import Any, TypeVar

from mainspring.core.model.base.errors import MainspringError, StoreUnavailable
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec
from mainspring.core.model.schedules.job import Fire, Job, JobState, LedgerEntry, NewJob, Tick
from mainspring.core.model.schedules.slo import SloState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import FireResult, HeartbeatAnswer, PutResult, StageResult, SubmitResult
from mainspring.core.ports.storage.calendars import TenantCalendars
from mainspring.core.ports.storage.catalog import Checkpoint, LogReport, Pause, ProgressReport
from mainspring.core.ports.storage.coordination import Membership
from mainspring.core.ports.storage.datacenters import DatacenterLoad, DatacenterStatus, PreferenceOrder
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.core.ports.storage.reads import QueueBacklog
from mainspring.core.ports.storage.slos import SloDue, SloResult
from mainspring.core.ports.storage.upkeep import Retention, UnattemptedRuns
from mainspring.core.store import Demand, NewSession
from mainspring.stores.memory import MemoryStore
from mainspring.stores.memory.rows import JobRow, RunRow
from mainspring.stores.memory.tables import Tables
from tests.support.simulation.clock import StoreClock
from tests.support.simulation.faults import Fate, Faults
from tests.support.simulation.history import Claim, Heartbeat, History, JobChange, RunChange, Step
from tests.support.simulation.loop import Process

T = TypeVar("T")

_THE_WORLD = Context()


class RecordingTables(Tables):
    """Tables that record every move."""

    def __init__(self, clock: StoreClock, shards: int) -> None:
        super().__init__(clock, shards)
        self.step: Step | None = None
        self._seen_runs: dict[RunId, RunRow] = {}
        self._seen_jobs: dict[JobId, JobRow] = {}
        #: Runs whose final position is known at the end of the edit or of the transaction.
        self._on_their_way: dict[RunId, RunRow] = {}
        #: The run that an edit is changing now.
        self._edited: RunId | None = None

    @contextmanager
    def transaction(self) -> Iterator[Instant]:
        with super().transaction() as now:
            if self.step is not None:
                self.step.at = now
            yield now
        self._record_positions()
        for job in self.jobs.values():
            before = self._seen_jobs.get(job.id)
            # Every change of a schedule's row increments its rev.
            if before is None or before.rev != job.rev or before.state is not job.state:
                after = self._seen_jobs[job.id] = copy(job)
                if self.step is not None:
                    self.step.jobs.append(JobChange(before, after))

    def record_run_event(self, kind: str, run: RunRow) -> None:
        super().record_run_event(kind, run)
        # A run blocked by a limit may be admitted before the transaction ends.
        if kind != "run.submitted" and run.state is not RunState.BLOCKED:
            self.moved(run)

    def insert_run(self, run: RunRow) -> None:
        super().insert_run(run)
        # Its final position is known only now.
        if run.id not in self._on_their_way and run.id not in self._seen_runs:
            self.moved(run)

    def end(self, run: RunRow, state: RunState, reason: str, **more: Any) -> None:
        if run.id not in self._seen_runs:
            self.moved(run)
        super().end(run, state, reason, **more)

    def edit(self, run: RunRow, new: NewRun) -> None:
        known = 0 if self.step is None else len(self.step.runs)
        self._edited = run.id
        super().edit(run, new)
        # Each edit of a batch is a move: a run that one edit delays and the next one makes due is queued again.
        if self._seen_runs.get(run.id) != run:
            self.moved(run)
        self._edited = None
        self._record_positions()
        if self.step is not None:
            # The edited run releases its ordering key before another run gets it.
            self.step.runs[known:] = sorted(self.step.runs[known:], key=lambda change: not change.edited)

    def _queue(self, run: RunRow, rank: int) -> None:
        super()._queue(run, rank)
        self._on_their_way[run.id] = run

    def _schedule(self, run: RunRow, due: Instant) -> None:
        super()._schedule(run, due)
        self._on_their_way[run.id] = run

    def _block(self, run: RunRow) -> None:
        super()._block(run)
        self._on_their_way[run.id] = run

    def record_tick(self, job: JobRow, tick: Tick) -> None:
        before = self.ledgers[job.id].entries.get((tick.scheduled_at, tick.target))
        super().record_tick(job, tick)
        after = self.ledgers[job.id].entries[tick.scheduled_at, tick.target]
        if after is not before and self.step is not None:
            self.step.ticks.append(after)

    def _record_positions(self) -> None:
        for run in self._on_their_way.values():
            seen = self._seen_runs.get(run.id)
            if seen is None or _place(seen) != _place(run):
                self.moved(run)
        self._on_their_way.clear()

    def moved(self, run: RunRow) -> None:
        before = self._seen_runs.get(run.id)
        after = self._seen_runs[run.id] = copy(run)
        if self.step is not None:
            self.step.runs.append(RunChange(before, after, run.id == self._edited))


class RecordedStore(MemoryStore):
    """The store itself. It is the product's memory store with recording."""

    def __init__(self, clock: StoreClock, shards: int, history: History) -> None:
        super().__init__(clock, shards)
        self.clock = clock
        self.history = history
        self.tables = self._tables = RecordingTables(clock, shards)
        self._order = 0
        self._serving: dict[str, str] = {}

    def next_order(self) -> int:
        self._order += 1
        return self._order

    def apply(self, process: str, sent: Instant, operation: str, arguments: tuple[Any, ...]) -> Any:
        """Run one operation now, and record it if it changed anything."""
        now = max(self.tables.now, self.clock.now())
        step = Step(order=self.next_order(), at=now, process=process, operation=operation, sent=sent)
        self.tables.step = step
        try:
            answer = _finish(getattr(self, operation)(*arguments))
        finally:
            self.tables.step = None
            if step.runs or step.jobs or step.ticks:
                self.history.steps.append(step)
        if operation == "complete":
            step.completions = list(zip(arguments[0], answer, strict=True))
        elif operation == "claim":
            step.named = {demand.queue: demand.runs for demand in arguments[2] if demand.runs is not None}
        elif operation == "sweep":
            step.found = answer
        elif operation == "put_queue_policy":
            step.queue_policy = arguments[0], arguments[1]
        elif operation == "pause":
            step.queue_pause = arguments[0]
        elif operation == "put_calendar":
            step.calendar = answer
        elif operation == "serve_orders":
            step.serving = {
                order.word: order.serving for order in answer if self._serving.get(order.word) != order.serving
            }
            self._serving |= step.serving
        elif operation in ("open_session", "heartbeat"):
            datacenter = self.history.truth.datacenters.get(process.partition("#")[0])
            # An expired session gets the answer that it is gone.
            if datacenter is not None and (operation == "open_session" or answer.alive):
                self.history.truth.alive.append(Heartbeat(step.order, step.at, datacenter))
        said = (step.completions, step.found, step.queue_policy, step.queue_pause, step.calendar, step.serving)
        if any(said) and not (step.runs or step.jobs or step.ticks):
            self.history.steps.append(step)
        return answer


class FaultyStore:
    """Store and coordinator as one process sees them, through an unreliable network."""

    def __init__(self, truth: RecordedStore, process: Process, faults: Faults) -> None:
        self.shards = truth.shards
        self.truth = truth
        self.process = process
        self.faults = faults

    async def ask(self, operation: str, *arguments: Any) -> Any:
        """Send a request and wait for its answer. A sent request arrives even if its process dies."""
        if self.process.dead:
            raise asyncio.CancelledError
        fate, request, reply = self.faults.fate(operation, self.process.name)
        loop = self.process.loop
        if fate is Fate.LATE:
            # Late requests arrive before the calm stretch.
            request = min(request, max(self.faults.all_arrive_by - loop.elapsed, self.faults.patience + 1))
        answer: asyncio.Future[Any] = loop.create_future()
        sent = loop.elapsed
        if request + reply > self.faults.patience:
            _later(self.process, self.faults.patience, lambda: _fail(answer, "no answer in time"))
        _later(self.process, request, lambda: self._arrive(answer, sent, fate, reply, operation, arguments))
        return await answer

    def _arrive(
        self,
        answer: "asyncio.Future[Any]",
        sent: Micros,
        fate: Fate,
        reply: Micros,
        operation: str,
        arguments: tuple[Any, ...],
    ) -> None:
        """Handle a request that has reached the store, even if its sender is gone."""
        faults = self.faults
        elapsed = self.process.loop.elapsed - sent
        if not faults.reaches(self.process.name):
            silent = faults.silent or self.process.name in faults.cut_off
            wait = max(faults.patience - elapsed, 0) if silent else reply
            _later(self.process, wait, lambda: _fail(answer, "the store cannot be reached"))
            return
        if fate is Fate.REFUSED or operation in faults.broken:
            _later(self.process, reply, lambda: _fail(answer, "the connection was refused"))
            return
        error: MainspringError | None = None
        result: Any = None
        now = max(self.truth.tables.now, self.truth.clock.now())
        try:
            result = self.truth.apply(self.process.name, now - elapsed, operation, arguments)
        except MainspringError as raised:
            error = raised
        except Exception as raised:
            self.truth.history.errors.append(f"{operation}: {raised!r}")
            error = StoreUnavailable(f"the store is broken: {raised!r}")
        if fate is Fate.REPLY_LOST:
            _later(self.process, reply, lambda: _fail(answer, "the connection was lost"))
        elif error is not None:
            _later(self.process, reply, lambda: _raise(answer, error))
        else:
            _later(self.process, reply, lambda: _answer(answer, result))

    # Arguments are copied, so that later changes by the sender do not reach the store.

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def submit(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        return await self.ask("submit", list(runs))

    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[PutResult]:
        return await self.ask("put_jobs", list(jobs))

    async def set_jobs_state(
        self,
        jobs: Collection[JobId],
        state: JobState,
        author: Author | None = None,
        resume_at: Instant | None = None,
    ) -> dict[JobId, JobState]:
        return await self.ask("set_jobs_state", list(jobs), state, author, resume_at)

    async def put_queue_policy(self, queue: str, policy: QueuePolicy, author: Author) -> None:
        await self.ask("put_queue_policy", queue, policy, author)

    async def pause(self, pause: Pause, author: Author) -> None:
        await self.ask("pause", pause, author)

    async def put_calendar(self, tenant: str, name: str, spec: CalendarSpec, author: Author) -> Calendar:
        return await self.ask("put_calendar", tenant, name, spec, author)

    async def slos_due(self, limit: int) -> list[SloDue]:
        return await self.ask("slos_due", limit)

    async def save_slos(self, completed: Sequence[SloResult]) -> int:
        return await self.ask("save_slos", list(completed))

    async def slo_states(self, jobs: Collection[JobId]) -> dict[JobId, SloState]:
        return await self.ask("slo_states", list(jobs))

    async def slos_missed(self, tenant: str | None, limit: int) -> dict[JobId, SloState]:
        return await self.ask("slos_missed", tenant, limit)

    async def cancel(self, runs: Collection[RunId], author: Author | None = None) -> dict[RunId, RunState]:
        return await self.ask("cancel", list(runs), author)

    async def open_session(self, session: NewSession) -> SessionId:
        return await self.ask("open_session", session)

    async def heartbeat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> HeartbeatAnswer:
        return await self.ask("heartbeat", session, ttl, list(held), list(pending), last_claim)

    async def claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        sent = self.process.loop.elapsed
        claims = [Claim(process=self.process.name, queue=w.queue, sent=sent, named=w.runs) for w in demands]
        self.truth.history.claims += claims
        found: list[HeldRun] = await self.ask("claim", session, number, list(demands))
        for claim in claims:
            claim.answered = True
        return found

    async def complete(self, completions: Sequence[Completion]) -> list[CompletionAnswer]:
        return await self.ask("complete", list(completions))

    async def close_session(self, session: SessionId) -> None:
        await self.ask("close_session", session)

    async def report_progress(self, progress: Sequence[ProgressReport]) -> list[bool]:
        return await self.ask("report_progress", list(progress))

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        return await self.ask("append_log", list(lines))

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        return await self.ask("save_checkpoints", list(checkpoints))

    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> StageResult:
        return await self.ask("stage", owner, list(shards), limit)

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        return await self.ask("upcoming", list(shards), until, limit)

    async def datacenters(self) -> list[DatacenterStatus]:
        return await self.ask("datacenters")

    async def set_datacenter(self, session: SessionId, datacenter: str, version: str) -> None:
        await self.ask("set_datacenter", session, datacenter, version)

    async def serve_orders(self) -> list[PreferenceOrder]:
        return await self.ask("serve_orders")

    async def orders(self) -> list[PreferenceOrder]:
        return await self.ask("orders")

    async def datacenter_loads(self) -> list[DatacenterLoad]:
        return await self.ask("datacenter_loads")

    async def tenant_calendars(self, tenants: Collection[str]) -> list[TenantCalendars]:
        return await self.ask("tenant_calendars", list(tenants))

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        return await self.ask("due_jobs", list(shards), until, limit)

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[FireResult]:
        return await self.ask("fire", owner, list(fires))

    async def lost_runs(self, limit: int) -> list[HeldRun]:
        return await self.ask("lost_runs", limit)

    async def overdue_runs(self, grace: Micros, limit: int) -> list[HeldRun]:
        return await self.ask("overdue_runs", grace, limit)

    async def expire(self, limit: int) -> int:
        return await self.ask("expire", limit)

    async def resolve(self, limit: int) -> int:
        return await self.ask("resolve", limit)

    async def sweep(self, limit: int) -> int:
        return await self.ask("sweep", limit)

    async def prune(self, retention: Retention, limit: int) -> int:
        return await self.ask("prune", retention, limit)

    async def tidy(self) -> list[UnattemptedRuns]:
        return await self.ask("tidy")

    async def sample_load(self) -> Instant:
        return await self.ask("sample_load")

    async def queue_fronts(self, limit: int) -> list[RunId]:
        return await self.ask("queue_fronts", limit)

    async def now(self) -> Instant:
        return await self.ask("now")

    async def runs(self, ids: Sequence[RunId], *, payloads: bool = False) -> list[RunView | None]:
        assert not payloads, "nobody asks for them here"
        return await self.ask("runs", list(ids))

    async def attempts(self, run: RunId) -> list[AttemptView]:
        return await self.ask("attempts", run)

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self.ask("jobs", list(ids))

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        return await self.ask("ledger", job, since, until, limit)

    async def last_ticks(self, jobs: Sequence[JobId], limit: int) -> list[list[LedgerEntry]]:
        return await self.ask("last_ticks", list(jobs), limit)

    async def parents(self, run: RunId) -> list[RunView]:
        return await self.ask("parents", run)

    async def parent_ids(self, run: RunId) -> list[RunId]:
        return await self.ask("parent_ids", run)

    async def children(self, run: RunId, after: RunId | None, limit: int) -> list[RunView]:
        return await self.ask("children", run, after, limit)

    async def depths(self, tenant: str | None = None) -> list[QueueBacklog]:
        return await self.ask("depths", tenant)

    async def hint_key(self) -> str:
        return await self.ask("hint_key")

    async def find_hints(self, runs: Sequence[RunId]) -> list[Hint]:
        return await self.ask("find_hints", list(runs))

    async def find_ready_hints(self, queues: Collection[str] | None, limit: int) -> list[Hint]:
        return await self.ask("find_ready_hints", queues, limit)

    async def attach_reader(self, name: str, ttl: Micros | None = None) -> None:
        await self.ask("attach_reader", name, ttl)

    async def detach_reader(self, name: str) -> None:
        await self.ask("detach_reader", name)

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        return await self.ask("events", name, limit)

    async def acknowledge(self, name: str, position: str) -> None:
        await self.ask("acknowledge", name, position)

    async def join(self, name: str, ttl: Micros) -> SessionId:
        return await self.ask("join", name, ttl)

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        return await self.ask("renew", member, ttl)

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        return await self.ask("take", member, list(shards))

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        await self.ask("give_up", member, list(shards))

    async def leave(self, member: SessionId) -> None:
        await self.ask("leave", member)


def _place(run: RunRow) -> tuple[RunState, bool, bool]:
    """The state of a run, and the reason if it is blocked."""
    return run.state, run.blocked_by is None, run.waits_for_parents


def _later(process: Process, delay: Micros, what: Callable[[], None]) -> None:
    """Run outside of any process: a message arrives even if its sender dies."""
    process.loop.call_later(delay / SECOND, what, context=_THE_WORLD)


def _answer(answer: "asyncio.Future[Any]", result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _raise(answer: "asyncio.Future[Any]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _fail(answer: "asyncio.Future[Any]", why: str) -> None:
    _raise(answer, StoreUnavailable(why))


def _finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a store in memory waited")
