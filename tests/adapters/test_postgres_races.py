"""Interleavings of several real connections, forced: one side stands in an open transaction while the other acts."""

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.resources import files
from typing import cast
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec
import pytest

from mainspring.adapters.store.postgres import PostgresStore, catalog, upkeep
from mainspring.adapters.store.postgres.database import PACKAGE, SESSION, Connection, prepare_connection
from mainspring.adapters.store.postgres.names import Kind
from mainspring.adapters.store.postgres.rows import order_gate
from mainspring.adapters.store.postgres.submissions import _names_of
from mainspring.adapters.store.postgres.workforce import _others, _succeeded
from mainspring.domain.access import Quotas, Tenant
from mainspring.domain.errors import Fenced, Invalid, StoreUnavailable
from mainspring.domain.ids import IdMaker, JobId, RunId, SessionId
from mainspring.domain.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.domain.job import Job, JobState, NewJob, Overlap
from mainspring.domain.run import (
    About,
    HeldRun,
    Idempotency,
    NewRun,
    RunState,
    Verdict,
    settle_failure,
    settle_loss,
    settle_release,
    settle_success,
)
from mainspring.ports.access import Author
from mainspring.ports.catalog import Pause, RunFilter
from mainspring.ports.store import EVENTS_KEPT, KEYS_KEPT, NewSession, Retention, Want
from tests.conftest import make_template
from tests.support.builders import a_fire, a_job, a_policy, a_run, a_spec, a_tick, after_each, every

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

SHARDS = 4
ALL_SHARDS = range(SHARDS)
ADA = Author("ada")
#: As retention does.
_MOVE_BODY = "INSERT INTO body SELECT -1, id, task, policy, payload, tenant FROM body WHERE id = $1"


@pytest.fixture
async def postgres_template(postgres_dsn: str) -> str:
    """Made once: a database with the schema in it, and a clock that a test can move."""

    async def prepare(dsn: str) -> None:
        store = PostgresStore(dsn, shards=SHARDS)
        await store.open()
        await store.close()
        connection = await asyncpg.connect(dsn)
        await connection.execute("""
            SET search_path = mainspring;
            CREATE TABLE test_clock (offset_us bigint);
            INSERT INTO test_clock VALUES (0);
            CREATE OR REPLACE FUNCTION now_us() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
                SELECT (extract(epoch FROM now()) * 1000000)::bigint + (SELECT offset_us FROM mainspring.test_clock) $$;
        """)
        await connection.close()

    migrations = sorted(files(PACKAGE).joinpath("migrations").iterdir(), key=lambda entry: entry.name)
    digest = hashlib.sha256(b"".join(entry.read_bytes() for entry in migrations) + b"races 1").hexdigest()[:12]
    return await make_template(postgres_dsn, f"template_races_{digest}", prepare)


class Races:
    """Stores, each a process of its own, and plain connections that stand still where the test wants them to."""

    def __init__(self, dsn: str, stack: AsyncExitStack) -> None:
        self._dsn = dsn
        self._stack = stack
        self.store: PostgresStore
        self.watch: asyncpg.Connection

    async def a_store(self, connections: int = 8) -> PostgresStore:
        store = PostgresStore(self._dsn, connections=connections)
        await store.open()
        self._stack.push_async_callback(store.close)
        return store

    async def a_connection(self) -> asyncpg.Connection:
        connection = await asyncpg.connect(
            self._dsn, server_settings={"search_path": "mainspring", "enable_seqscan": SESSION["enable_seqscan"]}
        )
        await prepare_connection(connection)
        self._stack.push_async_callback(connection.close)
        return connection

    async def standing(self) -> asyncpg.Connection:
        """A connection inside an open transaction."""
        connection = await self.a_connection()
        await connection.execute("BEGIN")
        return connection

    async def run_in(self, connection: asyncpg.Connection, name: str, *arguments: object) -> list[asyncpg.Record]:
        """A statement of the store's on a connection of ours."""
        rows: list[asyncpg.Record] = await connection.fetch(self.store._db.sql[name], *arguments)
        return rows

    async def blocked(self, *tasks: "asyncio.Task[object]", sessions: int = 1) -> None:
        """Until so many sessions of this database wait for a lock. What has ended already is not waited for."""
        async with asyncio.timeout(5):
            while not any(task.done() for task in tasks):
                waiting = await self.watch.fetchval(
                    "SELECT count(*) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
                if waiting >= sessions:
                    return
                await asyncio.sleep(0)

    async def travel(self, duration: int) -> None:
        await self.watch.execute("UPDATE test_clock SET offset_us = offset_us + $1", duration)

    async def a_worker(self, ttl: int = 1_000 * DAY) -> SessionId:
        return await self.store.open_session(NewSession(name="w", kind="worker", ttl=ttl))

    async def a_scheduler(self, ttl: int = 1_000 * DAY) -> SessionId:
        member = await self.store.join("s", ttl)
        await self.store.take(member, ALL_SHARDS)
        return member

    async def queue(self, name: str = "default") -> int:
        await self.store._names.number_all([(Kind.QUEUE, name)])
        return self.store._names.number(Kind.QUEUE, name)

    async def start(self, worker: SessionId, claim: int = 1, limit: int = 10) -> list[HeldRun]:
        return await self.store.claim(worker, claim, [Want("default", limit)])

    async def state(self, run: RunId) -> RunState:
        [view] = await self.store.runs([run])
        assert view is not None
        return view.state

    async def put(self, job: NewJob) -> Job:
        [put] = await self.store.put_jobs([job])
        return put.job

    async def fire(self, scheduler: SessionId, job: Job, *, late_by: int = 0, delay: int = 0) -> RunId:
        """One tick of a job, now or later."""
        now = await self.store.now()
        tick = a_tick(job, now - late_by, due=now - late_by + delay)
        following = None if job.spec.fixed_delay is not None else now + HOUR
        [fired] = await self.store.fire(scheduler, [a_fire(job, tick, next_fire=following)])
        assert fired.applied
        assert fired.runs == 1
        assert tick.run_id is not None
        return tick.run_id

    async def job(self, job: Job) -> Job:
        [stored] = await self.store.jobs([job.id])
        assert stored is not None
        return stored


@pytest.fixture
async def races(postgres_database: str) -> AsyncIterator[Races]:
    async with AsyncExitStack() as stack:
        races = Races(postgres_database, stack)
        races.store = await races.a_store()
        races.watch = await races.a_connection()
        yield races
        # Whatever a test did: nobody is left waiting for nothing.
        assert await races.store.sweep(1_000) == 0


# Cancelling a job while its runs move


async def test_a_run_that_is_just_being_claimed_is_asked_to_stop_when_its_job_is_cancelled(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    job = await races.put(a_job())
    run = await races.fire(scheduler, job)
    claiming = await races.standing()
    await races.run_in(claiming, "claim", worker, 1, [await races.queue()], [10], [0])
    cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
    await races.blocked(cancelling)
    await claiming.execute("COMMIT")
    await cancelling
    assert await races.state(run) is RunState.CANCELLING


async def test_a_run_that_is_just_being_staged_is_cancelled_with_its_job(races: Races) -> None:
    scheduler = await races.a_scheduler()
    job = await races.put(a_job())
    run = await races.fire(scheduler, job, delay=MINUTE)
    await races.travel(2 * MINUTE)
    staging = await races.standing()
    [row] = await races.run_in(staging, "stage", scheduler, list(ALL_SHARDS), 10)
    assert row["runs"] == 1
    cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
    await races.blocked(cancelling)
    await staging.execute("COMMIT")
    await cancelling
    assert await races.state(run) is RunState.CANCELLED


async def test_a_run_whose_attempt_just_fails_is_cancelled_with_its_job(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    job = await races.put(a_job())
    run = await races.fire(scheduler, job)
    [held] = await races.start(worker)
    failing = await races.standing()
    failure = settle_failure(held, "boom", random.Random(1), now=held.started_at)
    assert len(await races.run_in(failing, "settle_other", *_others([failure]))) == 1
    cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
    await races.blocked(cancelling)
    await failing.execute("COMMIT")
    await cancelling
    assert await races.state(run) is RunState.CANCELLED


async def test_a_run_whose_lost_claim_is_just_returned_is_cancelled_with_its_job(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    job = await races.put(a_job())
    run = await races.fire(scheduler, job)
    await races.start(worker)
    beating = await races.standing()
    [beat] = await races.run_in(beating, "beat", worker, HOUR, [], [], 1)
    assert beat["returned"] == 1
    cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
    await races.blocked(cancelling)
    await beating.execute("COMMIT")
    await cancelling
    assert await races.state(run) is RunState.CANCELLED


async def test_a_tick_that_cancels_its_predecessor_reaches_it_while_it_is_claimed(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    job = await races.put(a_job(a_spec(overlap=Overlap.CANCEL)))
    first = await races.fire(scheduler, job, late_by=SECOND)
    claiming = await races.standing()
    await races.run_in(claiming, "claim", worker, 1, [await races.queue()], [10], [0])
    firing = asyncio.create_task(races.fire(scheduler, await races.job(job)))
    await races.blocked(firing)
    await claiming.execute("COMMIT")
    second = await firing
    assert await races.state(first) is RunState.CANCELLING
    assert await races.state(second) is RunState.BLOCKED


async def test_a_tick_that_is_just_being_fired_is_cancelled_with_its_job(races: Races) -> None:
    scheduler = await races.a_scheduler()
    job = await races.put(a_job())
    now = await races.store.now()
    tick = a_tick(job, now)
    assert tick.run_id is not None
    firing = await races.standing()
    arguments = races.store._fire_arguments([a_fire(job, tick, next_fire=now + HOUR)])
    assert len(await races.run_in(firing, "fire", scheduler, *arguments)) == 1
    cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
    await races.blocked(cancelling)
    await firing.execute("COMMIT")
    assert await cancelling == {job.id: JobState.CANCELLED}
    assert await races.state(tick.run_id) is RunState.CANCELLED


async def test_a_tick_planned_before_its_job_was_cancelled_is_not_fired_after_it(races: Races) -> None:
    scheduler = await races.a_scheduler()
    job = await races.put(a_job())
    now = await races.store.now()
    cancelling = await races.standing()
    await races.run_in(cancelling, "set_job_state", job.id, 4)
    await races.run_in(cancelling, "touch_schedule", [job.id], False)
    firing = asyncio.create_task(races.store.fire(scheduler, [a_fire(job, a_tick(job, now), next_fire=now + HOUR)]))
    await races.blocked(firing)
    await cancelling.execute("COMMIT")
    [fired] = await firing
    assert not fired.applied
    assert await races.store.ledger(job.id, 0, now + DAY, 10) == []


@pytest.mark.parametrize("how", ["schedule changed", "cancelled"])
async def test_a_tick_that_is_just_being_fired_is_not_dropped_by_whoever_ends_its_schedule(
    races: Races, how: str
) -> None:
    scheduler = await races.a_scheduler()
    declared = a_job(a_spec(schedule=every(HOUR)))
    job = await races.put(declared)
    at = job.next_fire
    assert at is not None
    await races.travel(at - await races.store.now() + SECOND)
    firing = await races.standing()
    arguments = races.store._fire_arguments([a_fire(job, a_tick(job, at), next_fire=at + HOUR)])
    assert len(await races.run_in(firing, "fire", scheduler, *arguments)) == 1
    if how == "cancelled":
        ending: asyncio.Task[object] = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
    else:
        other = msgspec.structs.replace(declared.spec, schedule=every(DAY))
        ending = asyncio.create_task(races.store.put_jobs([a_job(other)]))
    await races.blocked(ending)
    await firing.execute("COMMIT")
    await ending
    [entry] = await races.store.ledger(job.id, 0, at + DAY, 10)
    assert (entry.scheduled_at, entry.decision) == (at, "run")


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE], ids=str)
async def test_two_schedulers_that_fire_one_tick_make_one_run(races: Races, overlap: Overlap) -> None:
    scheduler = await races.a_scheduler()
    job = await races.put(a_job(a_spec(overlap=overlap)))
    now = await races.store.now()
    fire = a_fire(job, a_tick(job, now), next_fire=now + HOUR)
    other = await races.a_store()
    await other.due_jobs(list(ALL_SHARDS), now + DAY, 10)
    holding = await races.standing()
    await holding.execute("SELECT FROM schedule WHERE job_id = $1 FOR UPDATE", job.id)
    both = [asyncio.create_task(store.fire(scheduler, [fire])) for store in (races.store, other)]
    await races.blocked(sessions=2)
    await holding.execute("COMMIT")
    answers = [answer for [answer] in await asyncio.gather(*both)]
    assert sorted(answer.applied for answer in answers) == [False, True]
    assert sum(answer.runs for answer in answers) == 1


async def test_the_end_of_a_job_and_its_cancel_that_lock_each_other_out_are_both_decided(races: Races) -> None:
    """The one holds the schedule and wants the job, the other the reverse: the server ends one, and it is repeated."""
    scheduler = await races.a_scheduler()
    job = await races.put(a_job())
    now = await races.store.now()
    fire = a_fire(job, a_tick(job, now), next_fire=None, finished=True)
    holding = await races.standing()
    await holding.execute("SELECT FROM job WHERE id = $1 FOR UPDATE", job.id)
    firing = asyncio.create_task(races.store.fire(scheduler, [fire]))
    await races.blocked(firing)
    cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
    await races.blocked(cancelling, sessions=2)
    await holding.execute("COMMIT")
    [[fired], states] = await asyncio.gather(firing, cancelling)
    stored = await races.job(job)
    assert states[job.id] is stored.state
    if fired.applied and stored.state is JobState.CANCELLED:
        [entry] = await races.store.ledger(job.id, 0, now + DAY, 10)
        assert entry.run_id is not None
        assert await races.state(RunId(entry.run_id)) is RunState.CANCELLED


# Cancelling a run while it moves


async def _stage(races: Races, connection: asyncpg.Connection, run: HeldRun | None) -> None:
    await races.run_in(connection, "stage", await races.a_scheduler(), list(ALL_SHARDS), 10)


async def _fail(races: Races, connection: asyncpg.Connection, run: HeldRun | None) -> None:
    assert run is not None
    failure = settle_failure(run, "boom", random.Random(1), now=run.started_at)
    await races.run_in(connection, "settle_other", *_others([failure]))


async def _release(races: Races, connection: asyncpg.Connection, run: HeldRun | None) -> None:
    assert run is not None
    await races.run_in(connection, "settle_other", *_others([settle_release(run)]))


async def _succeed(races: Races, connection: asyncpg.Connection, run: HeldRun | None) -> None:
    assert run is not None
    await races.run_in(connection, "settle_succeeded", *_succeeded([settle_success(run, None)]))


async def _claim(races: Races, connection: asyncpg.Connection, run: HeldRun | None) -> None:
    await races.run_in(connection, "claim", await races.a_worker(), 1, [await races.queue()], [10], [0])


async def _expire(races: Races, connection: asyncpg.Connection, run: HeldRun | None) -> None:
    await races.run_in(connection, "expire", 10, "")


Move = Callable[[Races, asyncpg.Connection, HeldRun | None], Awaitable[None]]


@pytest.mark.parametrize(
    ("move", "running", "after"),
    [
        (_stage, False, RunState.CANCELLED),
        (_claim, False, RunState.CANCELLING),
        (_expire, False, RunState.SKIPPED),
        (_fail, True, RunState.CANCELLED),
        (_release, True, RunState.CANCELLED),
        (_succeed, True, RunState.SUCCEEDED),
    ],
    ids=["staged", "claimed", "expired", "failed", "released", "succeeded"],
)
async def test_a_cancel_finds_its_run_wherever_that_is_just_moving(
    races: Races, move: Move, running: bool, after: RunState
) -> None:
    run = a_run(delay=SECOND if move in (_stage, _expire) else 0, start_within=10 * SECOND if move is _expire else None)
    await races.store.submit([run])
    held = (await races.start(await races.a_worker()))[0] if running else None
    await races.travel(MINUTE)
    moving = await races.standing()
    await move(races, moving, held)
    cancelling = asyncio.create_task(races.store.cancel([run.id]))
    await races.blocked(cancelling)
    await moving.execute("COMMIT")
    assert await cancelling == {run.id: after}
    assert await races.state(run.id) is after


async def test_an_attempt_that_fails_while_its_run_is_asked_to_stop_does_not_go_on(races: Races) -> None:
    run = a_run()
    await races.store.submit([run])
    [held] = await races.start(await races.a_worker())
    asking = await races.standing()
    await races.run_in(asking, "cancel_waiting", [run.id])
    failing = asyncio.create_task(
        races.store.settle([settle_failure(held, "boom", random.Random(1), now=held.started_at)])
    )
    await races.blocked(failing)
    await asking.execute("COMMIT")
    assert await failing == [Verdict.APPLIED]
    assert await races.state(run.id) is RunState.CANCELLED


async def test_an_attempt_that_is_given_back_while_its_run_is_asked_to_stop_is_not_charged(races: Races) -> None:
    run = a_run()
    await races.store.submit([run])
    [held] = await races.start(await races.a_worker())
    asking = await races.standing()
    await races.run_in(asking, "cancel_waiting", [run.id])
    releasing = asyncio.create_task(races.store.settle([settle_release(held)]))
    await races.blocked(releasing)
    await asking.execute("COMMIT")
    assert await releasing == [Verdict.APPLIED]
    [view] = await races.store.runs([run.id])
    assert view is not None
    assert (view.state, view.attempt) == (RunState.CANCELLED, 0)


async def test_a_lost_claim_that_is_asked_to_stop_while_a_beat_returns_it_is_not_queued_again(races: Races) -> None:
    worker = await races.a_worker()
    run = a_run()
    await races.store.submit([run])
    await races.start(worker)
    asking = await races.standing()
    await races.run_in(asking, "cancel_waiting", [run.id])
    beating = asyncio.create_task(races.store.beat(worker, HOUR, [], [], 1))
    await races.blocked(beating)
    await asking.execute("COMMIT")
    assert (await beating).returned == 0
    assert (await races.store.beat(worker, HOUR, [], [], 1)).returned == 1
    assert await races.state(run.id) is RunState.CANCELLED


# Sessions: beat, claim, burial


async def test_a_claim_that_meets_the_burial_of_its_session_gets_nothing(races: Races) -> None:
    worker = await races.a_worker(ttl=MINUTE)
    await races.store.submit([a_run()])
    burying = await races.standing()
    await burying.execute("UPDATE session SET live = false WHERE id = $1", worker)
    claiming = asyncio.create_task(races.start(worker))
    await races.blocked(claiming)
    await burying.execute("COMMIT")
    assert await claiming == []


async def test_runs_of_a_claim_that_outlasts_its_lease_are_told_as_lost_once_it_has_committed(races: Races) -> None:
    worker = await races.a_worker(ttl=MINUTE)
    run = a_run()
    await races.store.submit([run])
    claiming = await races.standing()
    await races.run_in(claiming, "claim", worker, 1, [await races.queue()], [10], [0])
    await races.travel(HOUR)
    # Nobody waits for it: a client that froze in the middle of a claim would keep all others from being buried.
    assert await races.store.lost_runs(10) == []
    await claiming.execute("COMMIT")
    [lost] = await races.store.lost_runs(10)
    assert lost.id == run.id
    assert await races.store.settle([settle_loss(lost, blamed=False)]) == [Verdict.APPLIED]
    assert await races.state(run.id) is RunState.QUEUED


async def test_a_beat_and_the_burial_of_its_session_see_each_other(races: Races) -> None:
    worker = await races.a_worker(ttl=MINUTE)
    await races.travel(HOUR)
    beating = await races.standing()
    [beat] = await races.run_in(beating, "beat", worker, DAY, [], [], 0)
    assert beat["alive"]
    reaping = asyncio.create_task(races.store.lost_runs(10))
    await races.blocked(reaping)
    await beating.execute("COMMIT")
    await reaping
    assert (await races.store.beat(worker, DAY, [], [], 0)).alive
    await races.travel(2 * DAY)
    burying = await races.standing()
    await races.run_in(burying, "bury")
    late = asyncio.create_task(races.store.beat(worker, DAY, [], [], 0))
    await races.blocked(late)
    await burying.execute("COMMIT")
    assert not (await late).alive


async def test_two_who_settle_one_attempt_are_told_apart(races: Races) -> None:
    """The reaper gives the run away while its worker still reports: one is applied, the other is fenced."""
    worker = await races.a_worker()
    run = a_run()
    await races.store.submit([run])
    [held] = await races.start(worker)
    reaping = await races.standing()
    await races.run_in(reaping, "settle_other", *_others([settle_loss(held, blamed=False)]))
    settling = asyncio.create_task(races.store.settle([settle_success(held, b"1")]))
    await races.blocked(settling)
    await reaping.execute("COMMIT")
    # The same fence has ended the attempt before, but as lost: the success does not count, and its worker is told so.
    assert await settling == [Verdict.FENCED]
    [again] = await races.start(worker, 2)
    assert (again.attempt, again.lost) == (2, 1)
    assert again.fence > held.fence
    assert await races.store.settle([settle_success(again, b"2")]) == [Verdict.APPLIED]
    assert await races.store.settle([settle_success(held, b"1")]) == [Verdict.FENCED]


async def test_an_attempt_that_was_taken_back_is_fenced_also_after_its_run_was_cancelled(races: Races) -> None:
    worker = await races.a_worker()
    run = a_run()
    await races.store.submit([run])
    [held] = await races.start(worker)
    assert (await races.store.beat(worker, HOUR, [], [], 1)).returned == 1
    assert await races.store.settle([settle_success(held, None)]) == [Verdict.FENCED]
    await races.store.cancel([run.id])
    assert await races.store.settle([settle_success(held, None)]) == [Verdict.FENCED]


# Keys


async def test_a_key_goes_to_the_first_in_line_also_while_that_ones_body_is_moved(races: Races) -> None:
    worker = await races.a_worker()
    holder, first, second = (a_run(key="k") for _ in range(3))
    await races.store.submit([holder, first, second])
    [held] = await races.start(worker)
    moving = await races.standing()
    await moving.execute(_MOVE_BODY, first.id)
    await moving.execute("UPDATE waiting SET body_bucket = -1 WHERE id = $1", first.id)
    settling = asyncio.create_task(races.store.settle([settle_success(held, None)]))
    await races.blocked(settling)
    await moving.execute("COMMIT")
    assert await settling == [Verdict.APPLIED]
    assert await races.state(first.id) is RunState.QUEUED
    assert await races.state(second.id) is RunState.BLOCKED


async def test_a_waiter_that_is_just_being_cancelled_is_passed_over(races: Races) -> None:
    worker = await races.a_worker()
    holder, first, second = (a_run(key="k") for _ in range(3))
    await races.store.submit([holder, first, second])
    [held] = await races.start(worker)
    cancelling = await races.standing()
    await races.run_in(cancelling, "cancel_waiting", [first.id])
    assert await races.store.settle([settle_success(held, None)]) == [Verdict.APPLIED]
    await races.run_in(cancelling, "lock_held_gates", [order_gate("default", "k")])
    await races.run_in(cancelling, "let_go", [order_gate("default", "k")])
    await cancelling.execute("COMMIT")
    assert await races.state(second.id) is RunState.QUEUED
    assert [run.id for run in await races.start(worker, 2)] == [second.id]


async def test_a_run_that_comes_due_while_its_key_is_let_go_is_queued_once(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    holder, later = a_run(key="k"), a_run(key="k", delay=MINUTE)
    await races.store.submit([holder, later])
    [held] = await races.start(worker)
    await races.travel(2 * MINUTE)
    gate = order_gate("default", "k")
    settling = await races.standing()
    await races.run_in(settling, "settle_other", *_others([settle_success(held, None)]))
    await races.run_in(settling, "lock_held_gates", [gate])
    await races.run_in(settling, "let_go", [gate])
    staging = asyncio.create_task(races.store.stage(scheduler, list(ALL_SHARDS), 10))
    await races.blocked(staging)
    await settling.execute("COMMIT")
    assert (await staging).runs == 1
    assert [run.id for run in await races.start(worker, 2)] == [later.id]


async def test_the_sweeper_frees_a_line_whose_gate_is_missing(races: Races) -> None:
    worker = await races.a_worker()
    holder, waiter = a_run(key="k"), a_run(key="k")
    await races.store.submit([holder, waiter])
    await races.start(worker)
    await races.watch.execute("DELETE FROM run WHERE id = $1", holder.id)
    await races.watch.execute("DELETE FROM gate")
    assert await races.store.sweep(10) == 1
    assert [run.id for run in await races.start(worker, 2)] == [waiter.id]


# Submitting


async def test_two_submits_of_one_id_make_one_run(races: Races) -> None:
    run = a_run()
    other = await races.a_store()
    await other.submit([a_run()])
    await races.store.submit([a_run()])
    standing = await races.standing()
    await races.run_in(standing, "submit_now", *races.store._arguments([run]), None, None)
    submitting = asyncio.create_task(other.submit([run, a_run()]))
    await races.blocked(submitting)
    await standing.execute("COMMIT")
    assert [answer.new for answer in await submitting] == [False, True]


async def test_a_far_off_run_that_is_submitted_again_with_others_is_recognised(races: Races) -> None:
    """The place of a body follows from its run alone, whatever day the others of its batch were made."""
    now = await races.store.now()
    yesterday = IdMaker(random.Random(1)).run(now - DAY, 0)
    run = a_run(id=yesterday, delay=7 * DAY)
    [first] = await races.store.submit([run])
    again = await races.store.submit([run, a_run()])
    assert first.new
    assert [(answer.new, answer.state) for answer in again] == [(False, RunState.SCHEDULED), (True, RunState.QUEUED)]


async def test_a_run_beside_known_ones_of_another_day_keeps_its_body(races: Races) -> None:
    now = await races.store.now()
    yesterday = IdMaker(random.Random(2)).run(now - DAY, 0)
    known, late = a_run(), a_run(id=yesterday, delay=7 * DAY)
    await races.store.submit([known])
    await races.store.submit([known, late])
    assert await races.state(late.id) is RunState.SCHEDULED


async def test_a_run_of_a_shard_that_the_store_does_not_have_is_refused(races: Races) -> None:
    with pytest.raises(Invalid, match="carries shard 9"):
        await races.store.submit([a_run(shard=9, delay=SECOND)])
    with pytest.raises(Invalid, match="carries shard 9"):
        await races.store.submit([a_run(shard=9)])
    with pytest.raises(Invalid, match="carries shard 9"):
        await races.store.put_jobs([a_job(shard=9)])


async def test_many_who_declare_one_job_with_one_id_at_once_agree(races: Races) -> None:
    job = a_job()
    stores = [await races.a_store(2) for _ in range(3)]
    for store in stores:
        await store._names.number_all([(Kind.TENANT, "default"), (Kind.TASK, job.spec.task), (Kind.QUEUE, "default")])
    answers = await asyncio.gather(*(store.put_jobs([job]) for store in stores for _ in range(2)))
    assert {(put.job.id, put.job.version) for [put] in answers} == {(job.id, 1)}


# Shards


async def test_a_take_that_had_to_wait_does_not_take_from_who_came_meanwhile(races: Races) -> None:
    late = await races.store.join("late", MINUTE)
    await races.store.take(late, [0])
    await races.travel(HOUR)
    second = await races.store.join("second", DAY)
    renewing = await races.standing()
    await renewing.execute("UPDATE session SET lease_until = lease_until WHERE id = $1", late)
    taking = asyncio.create_task(races.store.take(second, [0, 1]))
    await races.blocked(taking)
    third = await races.store.join("third", DAY)
    assert await races.store.take(third, [1]) == {1: 1}
    await renewing.execute("COMMIT")
    assert await taking == {0: 2}
    assert set((await races.store.renew(third, DAY)).owned) == {1}


async def test_a_renewal_and_the_taking_of_its_shards_see_each_other(races: Races) -> None:
    owner = await races.store.join("owner", MINUTE)
    await races.store.take(owner, [0])
    await races.travel(HOUR)
    renewing = await races.standing()
    await races.run_in(renewing, "renew", owner, DAY)
    other = await races.store.join("other", DAY)
    taking = asyncio.create_task(races.store.take(other, [0]))
    await races.blocked(taking)
    await renewing.execute("COMMIT")
    assert await taking == {}
    await races.travel(2 * DAY)
    await races.store.renew(other, DAY)
    with pytest.raises(Fenced):
        await races.store.renew(owner, DAY)


# Retention beside live work


async def test_a_run_that_nobody_staged_for_a_week_keeps_its_body(races: Races) -> None:
    """No scheduler for longer than bodies are kept; then retention comes first."""
    run, keyed = a_run(delay=MINUTE), a_run(delay=MINUTE, key="k")
    await races.store.submit([run, keyed])
    await races.travel(9 * DAY)
    while await races.store.prune(Retention(), 1_000):
        pass
    assert (await races.store.stage(await races.a_scheduler(), list(ALL_SHARDS), 10)).runs == 2
    assert {held.id for held in await races.start(await races.a_worker())} == {run.id, keyed.id}


async def test_a_run_that_was_given_back_for_longer_than_bodies_are_kept_keeps_its_own(races: Races) -> None:
    worker = await races.a_worker()
    run = a_run()
    await races.store.submit([run])
    [held] = await races.start(worker)
    await races.store.settle([settle_release(held, delay=20 * DAY)])
    await races.travel(9 * DAY)
    while await races.store.prune(Retention(), 1_000):
        pass
    await races.travel(12 * DAY)
    assert (await races.store.stage(await races.a_scheduler(), list(ALL_SHARDS), 10)).runs == 1
    assert [held.id for held in await races.start(worker, 2)] == [run.id]


async def test_a_run_that_is_claimed_while_its_body_is_moved_comes_back_with_the_next_beat(races: Races) -> None:
    worker = await races.a_worker()
    run = a_run()
    await races.store.submit([run])
    holding = await races.standing()
    await holding.execute("SELECT FROM session WHERE id = $1 FOR UPDATE", worker)
    claiming = asyncio.create_task(races.start(worker))
    await races.blocked(claiming)
    await races.watch.execute(_MOVE_BODY, run.id)
    await races.watch.execute("UPDATE run SET body_bucket = -1 WHERE id = $1", run.id)
    await holding.execute("COMMIT")
    if not await claiming:
        await races.store.beat(worker, DAY, [], [], 1)
        [held] = await races.start(worker, 2)
        assert held.attempt == 1


async def test_a_run_that_is_staged_while_its_day_is_emptied_keeps_its_body(races: Races) -> None:
    queued, overdue = a_run(), a_run(delay=MINUTE)
    await races.store.submit([queued, overdue])
    await races.travel(9 * DAY)
    scheduler = await races.a_scheduler()
    holding = await races.standing()
    await holding.execute(_MOVE_BODY, queued.id)
    pruning = asyncio.create_task(races.store.prune(Retention(), 1_000))
    await races.blocked(pruning)
    assert (await races.store.stage(scheduler, list(ALL_SHARDS), 10)).runs == 1
    await holding.execute("ROLLBACK")
    await pruning
    while await races.store.prune(Retention(), 1_000):
        pass
    assert {held.id for held in await races.start(await races.a_worker())} == {queued.id, overdue.id}


async def test_two_who_prune_at_once_do_not_stumble_over_each_other(races: Races) -> None:
    other = await races.a_store()
    await races.store.submit([a_run()])
    await races.travel(50 * DAY)
    kept = Retention(succeeded=DAY, ledger=DAY, unsuccessful=1_000 * DAY)
    while any(await asyncio.gather(*(store.prune(kept, 1_000) for store in (races.store, other)))):
        pass
    today = (await races.store.now()) // DAY
    days = await races.store._partitions.days()
    assert {min(days[family]) for family in ("history_succeeded", "ledger")} == {today - 1}


async def test_old_partitions_go_although_a_reader_stands_in_the_way_of_one_of_them(races: Races) -> None:
    """Pruning waits for a reader only so long, is picked up again, and live work goes on beside it."""
    worker = await races.a_worker()
    await races.travel(50 * DAY)
    reading = await races.standing()
    await reading.execute("SELECT count(*) FROM attempt")
    pruning = asyncio.create_task(races.store.prune(Retention(unsuccessful=DAY), 1_000))
    await races.blocked(pruning)
    await races.store.submit([a_run()])
    [held] = await races.start(worker)
    failure = settle_failure(held, "boom", random.Random(1), now=held.started_at)
    assert await races.store.settle([failure]) == [Verdict.APPLIED]
    pruning.cancel()
    await asyncio.gather(pruning, return_exceptions=True)
    await reading.execute("COMMIT")
    while await races.store.prune(Retention(unsuccessful=DAY), 1_000):
        pass
    today = (await races.store.now()) // DAY
    assert min((await races.store._partitions.days())["attempt"]) == today - 1


async def test_ticks_of_a_day_that_another_process_has_pruned_are_still_fired(races: Races) -> None:
    scheduler = await races.a_scheduler()
    job = await races.put(a_job(a_spec(schedule=every(MINUTE))))
    await races.fire(scheduler, job, late_by=20 * DAY)
    other = await races.a_store()
    while await other.prune(Retention(ledger=DAY), 1_000):
        pass
    await races.fire(scheduler, await races.job(job), late_by=20 * DAY)


async def test_a_partition_made_anew_is_not_dropped_by_who_saw_its_orphan(races: Races) -> None:
    day = (await races.store.now()) // DAY + 3
    await races.watch.execute(f"ALTER TABLE attempt DETACH PARTITION attempt_d{day}")
    assert await races.store._partitions._tables("NOT c.relispartition") == [f"attempt_d{day}"]
    await races.watch.execute(f"DROP TABLE attempt_d{day}")
    await races.store._partitions.make({"attempt": {day}})
    await races.store._partitions.drop_orphan("attempt", day)
    assert day in (await races.store._partitions.days())["attempt"]


async def test_who_tidies_passes_over_what_another_is_just_vacuuming(
    races: Races, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_DEAD_ROWS", -1)
    vacuuming = await races.standing()
    await vacuuming.execute("LOCK TABLE run IN SHARE UPDATE EXCLUSIVE MODE")
    await asyncio.wait_for(races.store.tidy(), 2)
    held = await races.watch.fetchval(
        "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
        "WHERE locktype = 'advisory' AND d.datname = current_database()"
    )
    assert held == 0


# Events


async def test_an_event_of_a_transaction_that_began_later_and_commits_later_is_not_lost(races: Races) -> None:
    await races.store.attach_reader("r")
    early, late = await races.standing(), await races.standing()
    await early.execute("SELECT pg_current_xact_id()")
    await late.execute("SELECT pg_current_xact_id()")
    first, second = a_run(), a_run()
    await races.run_in(late, "tell", "run.submitted", [first.id], [1])
    await races.run_in(early, "tell", "run.submitted", [second.id], [1])
    await early.execute("COMMIT")
    told: list[RunId] = []

    async def read() -> None:
        batches = await races.store.events("r", 10)
        for batch in batches:
            told.extend(batch.runs)
            await races.store.acknowledge("r", batch.position)

    await read()
    await late.execute("COMMIT")
    async with asyncio.timeout(5):
        # Other tests use the same server, and a transaction of theirs may hold events back for a moment.
        while len(told) < 2:
            await read()
    assert sorted(told) == sorted([first.id, second.id])


async def test_what_a_transaction_saw_of_another_is_told_after_it(races: Races) -> None:
    """A long transaction queues a run that a younger one has submitted: first submitted, then queued."""
    await races.store.attach_reader("r")
    run = a_run()
    long = await races.standing()
    await long.execute("SELECT pg_current_xact_id()")
    await races.store.submit([run])
    await races.run_in(long, "tell", "run.queued", [run.id], [1])
    await long.execute("COMMIT")
    async with asyncio.timeout(5):
        while len(batches := await races.store.events("r", 10)) < 2:
            continue
    assert [batch.kind for batch in batches] == ["run.submitted", "run.queued"]


async def test_what_is_under_way_while_a_reader_attaches_is_seen_or_told(races: Races) -> None:
    run = a_run()
    await races.store.submit([a_run()])
    submitting = await races.standing()
    await races.run_in(submitting, "submit_now", *races.store._arguments([run]), None, None)
    attaching = asyncio.create_task(races.store.attach_reader("r"))
    await races.blocked(attaching)
    assert not attaching.done()
    await submitting.execute("COMMIT")
    await attaching
    # It was told nowhere, and whoever looks now sees it.
    assert await races.store.runs([run.id]) != [None]
    await races.store.submit([last := a_run()])
    async with asyncio.timeout(5):
        while not (batches := await races.store.events("r", 10)):
            continue
    assert [batch.runs for batch in batches] == [(last.id,)]


async def test_events_that_a_reader_has_not_seen_are_not_pruned(races: Races) -> None:
    await races.store.attach_reader("r")
    for _ in range(3):
        await races.store.submit([a_run()])
    async with asyncio.timeout(5):
        while len(batches := await races.store.events("r", 10)) < 3:
            continue
    await races.store.acknowledge("r", batches[0].position)
    await races.travel(EVENTS_KEPT + MINUTE)
    await races.store.prune(Retention(), 1_000)
    assert await races.watch.fetchval("SELECT count(*) FROM outbox") == 2
    await races.store.detach_reader("r")
    assert await races.watch.fetchval("SELECT count(*) FROM outbox") == 0


# A fixed delay


async def test_a_fixed_delay_whose_run_ends_while_its_job_is_declared_anew_goes_on(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    spec = a_spec(schedule=after_each(MINUTE))
    declared = a_job(spec)
    job = await races.put(declared)
    await races.fire(scheduler, job)
    [held] = await races.start(worker)
    assert (await races.job(job)).next_fire is None
    declaring = await races.standing()
    await races.run_in(declaring, "touch_schedule", [job.id], True)
    settling = asyncio.create_task(races.store.settle([settle_success(held, None)]))
    await races.blocked(settling)
    await declaring.execute("COMMIT")
    assert await settling == [Verdict.APPLIED]
    assert (await races.job(job)).next_fire is not None


# Callers that are cancelled, connections that break


async def test_a_call_that_is_cancelled_in_mid_statement_leaves_a_good_connection(races: Races) -> None:
    store = await races.a_store(connections=1)
    run = a_run()
    await store.submit([a_run()])
    holding = await races.standing()
    await races.run_in(holding, "submit_now", *store._arguments([run]), None, None)
    submitting = asyncio.create_task(store.submit([run]))
    await races.blocked(submitting)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    await holding.execute("ROLLBACK")
    # Whether it was stopped in time or not, the one connection of this pool is good, and nothing is done twice.
    [accepted] = await store.submit([run])
    assert accepted.state is RunState.QUEUED
    assert len(await races.start(await races.a_worker())) == 2


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_transaction_whose_caller_is_cancelled_leaves_nothing_behind(races: Races, cancels: int) -> None:
    store = await races.a_store(connections=1)
    holder, waiter, other = a_run(key="k"), a_run(key="k"), a_run()
    await store.submit([holder])
    holding = await races.standing()
    await races.run_in(holding, "lock_held_gates", [order_gate("default", "k")])
    submitting = asyncio.create_task(store.submit([waiter]))
    await races.blocked(submitting)
    for _ in range(cancels):
        submitting.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await submitting
    await holding.execute("COMMIT")
    # The one connection of this pool: what is written by it now must be committed, for everybody to see.
    await store.submit([other])
    assert await races.state(other.id) is RunState.QUEUED
    assert await races.store.runs([waiter.id]) == [None]
    [accepted] = await store.submit([waiter])
    assert (accepted.new, accepted.state) == (True, RunState.BLOCKED)


class Wire:
    """A connection to the server that can be cut without anybody noticing: what is sent just does not arrive."""

    def __init__(self, dsn: str) -> None:
        self._server = urlsplit(dsn)
        self._tasks: set[asyncio.Task[None]] = set()
        self.whole = asyncio.Event()
        self.whole.set()

    async def __aenter__(self) -> str:
        self._listening = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = self._listening.sockets[0].getsockname()[1]
        return urlunsplit(self._server._replace(netloc=f"{self._server.username}@127.0.0.1:{port}"))

    async def __aexit__(self, *error: object) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_what_is_there(self) -> None:
        """Connections of now are dead; new ones are not."""
        self.whole.clear()
        self.whole = asyncio.Event()
        self.whole.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole = self.whole
        await whole.wait()
        there = await asyncio.open_connection(self._server.hostname, self._server.port)
        for source, target in ((reader, there[1]), (there[0], writer)):
            self._tasks.add(asyncio.create_task(self._pass_on(source, target, whole)))

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, whole: asyncio.Event) -> None:
        try:
            while data := await source.read(65_536):
                await whole.wait()
                target.write(data)
        except ConnectionError:
            pass
        finally:
            target.close()


async def test_who_gives_up_on_a_server_out_of_reach_is_free_at_once(races: Races) -> None:
    """A worker at the end of its lease must not wait for the answer to its last beat, nor for a rollback."""
    wire = Wire(races._dsn)
    async with wire as dsn:
        store = PostgresStore(dsn, connections=2)
        await store.open()
        worker = await store.open_session(NewSession(name="w", kind="worker", ttl=HOUR))
        await store.submit([a_run(key="k")])
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.beat(worker, HOUR, [], [], 0),
            lambda: store.submit([a_run(key="k")]),
            store.now,
        ]
        wire.whole.clear()
        for call in calls:
            began = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call(), 0.1)
            assert asyncio.get_running_loop().time() - began < 0.6
        wire.whole.set()
        assert (await store.submit([a_run(key="k")]))[0].state is RunState.BLOCKED
        await store.close()


async def test_a_connection_that_went_dead_does_not_keep_a_heart_from_beating(races: Races) -> None:
    """The heartbeat has one connection: when that is dead it must get another well before the lease is over."""
    wire = Wire(races._dsn)
    async with wire as dsn:
        store = PostgresStore(dsn, connections=1)
        await store.open()
        worker = await store.open_session(NewSession(name="w", kind="worker", ttl=HOUR))
        wire.cut_what_is_there()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.beat(worker, HOUR, [], [], 0), 0.1)
        beat = await asyncio.wait_for(store.beat(worker, HOUR, [], [], 0), 2)
        assert beat.alive
        await store.close()


async def test_a_caller_that_is_cancelled_while_it_waits_for_a_connection_takes_none_along(races: Races) -> None:
    store = await races.a_store(connections=1)
    await store.submit([a_run(key="k")])
    holding = await races.standing()
    await races.run_in(holding, "lock_held_gates", [order_gate("default", "k")])
    first = asyncio.create_task(store.submit([a_run(key="k")]))
    await races.blocked(first)
    others = [asyncio.create_task(store.now()) for _ in range(5)]
    await asyncio.sleep(0)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await holding.execute("COMMIT")
    await first
    assert await store.now() > 0


async def test_a_backend_that_is_terminated_inside_a_transaction_is_replaced(races: Races) -> None:
    store = await races.a_store(connections=1)
    holder, waiter = a_run(key="k"), a_run(key="k")
    await store.submit([holder])
    holding = await races.standing()
    await races.run_in(holding, "lock_held_gates", [order_gate("default", "k")])
    submitting = asyncio.create_task(store.submit([waiter]))
    await races.blocked(submitting)
    await races.watch.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with pytest.raises(StoreUnavailable):
        await submitting
    await holding.execute("COMMIT")
    [accepted] = await store.submit([waiter])
    assert (accepted.new, accepted.state) == (True, RunState.BLOCKED)


async def test_a_lock_that_is_held_too_long_is_an_outage_and_the_connection_stays(races: Races) -> None:
    store = await races.a_store(connections=1)

    async def pid() -> int:
        found: int = await store._db.run(lambda connection: connection.fetchval("SELECT pg_backend_pid()"))
        return found

    async def hurry(connection: Connection) -> None:
        await connection.execute("SET lock_timeout = '50ms'")

    await store.submit([a_run(key="k")])
    await store._db.run(hurry)
    before = await pid()
    holding = await races.standing()
    await races.run_in(holding, "lock_held_gates", [order_gate("default", "k")])
    with pytest.raises(StoreUnavailable):
        await store.submit([a_run(key="k")])
    await holding.execute("COMMIT")
    assert await pid() == before
    assert (await store.submit([a_run(key="k")]))[0].state is RunState.BLOCKED


@pytest.mark.parametrize("identifier", ["zz", "0" * 31, "0" * 34])
async def test_what_is_not_an_id_is_refused_and_not_taken_for_an_outage(races: Races, identifier: str) -> None:
    with pytest.raises(Invalid):
        await races.store.runs([RunId(identifier)])
    with pytest.raises(Invalid):
        await races.store.cancel([RunId(identifier)])


async def test_two_batches_that_lock_each_other_out_are_both_settled(races: Races) -> None:
    worker = await races.a_worker()
    runs = [a_run() for _ in range(2)]
    await races.store.submit(runs)
    low, high = sorted(await races.start(worker), key=lambda run: run.id)
    standing = await races.standing()
    await races.run_in(standing, "cancel_waiting", [high.id])
    settling = asyncio.create_task(
        races.store.settle([settle_success(low, None), settle_success(high, None)]),
    )
    await races.blocked(settling)
    crossing = asyncio.create_task(races.run_in(standing, "cancel_waiting", [low.id]))
    done, _ = await asyncio.wait([settling, crossing], return_when=asyncio.FIRST_COMPLETED)
    if crossing in done and crossing.exception() is None:
        await standing.execute("COMMIT")
    else:
        await standing.execute("ROLLBACK")
        await asyncio.gather(crossing, return_exceptions=True)
    assert await settling == [Verdict.APPLIED] * 2


async def test_a_migration_under_a_transaction_with_cached_plans_is_no_error(races: Races) -> None:
    store = await races.a_store(connections=1)
    job = a_job()
    await store.put_jobs([job])
    await races.watch.execute("ALTER TABLE job ALTER COLUMN version TYPE bigint")
    [again] = await store.put_jobs([job])
    assert again.job.version == 1


async def test_a_password_that_no_longer_works_is_an_outage(races: Races) -> None:
    store = await races.a_store(connections=2)
    assert store._engine._pool is not None
    store._engine.servers._primary = races._dsn.replace("://", "://nobody_", 1)
    await store._engine._pool.expire_connections()
    # One connection is at hand; the other has to be made.
    answers = await asyncio.gather(store.now(), store.now(), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, StoreUnavailable]


# Plans


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("let_go", "bigint[]"),
        ("settled_before", "uuid[], bigint[], smallint[]"),
        ("stuck_gates", "int"),
        ("stuck_delays", "int"),
        ("events", "text, int"),
        ("facts_of", "uuid[], bigint, int"),
        ("release_children", "uuid[]"),
    ],
)
@pytest.mark.parametrize("analysed", [False, True], ids=["new", "analysed"])
async def test_a_plan_made_for_empty_tables_is_good_for_full_ones(
    races: Races, name: str, types: str, analysed: bool
) -> None:
    for setting, value in SESSION.items():
        await races.watch.execute(f"SET {setting} = '{value}'")
    if analysed:
        await races.watch.execute("ANALYZE")
    await races.watch.execute("SET plan_cache_mode = force_generic_plan")
    await races.watch.execute(f"PREPARE it ({types}) AS {races.store._db.sql[name]}")
    arguments = ", ".join("'{}'" if kind.endswith("[]") else "'1'" for kind in types.split(", "))
    plan = "\n".join(row[0] for row in await races.watch.fetch(f"EXPLAIN EXECUTE it({arguments})"))
    assert "hashed SubPlan" not in plan, plan
    for table in ("run", "waiting", "schedule", "outbox", "attempt"):
        assert f"Seq Scan on {table} " not in plan, plan


async def test_a_catch_up_of_many_ticks_is_no_nested_loop(races: Races) -> None:
    sql = races.store._db.sql["fire"]
    kinds = dict(re.findall(r"\$(\d+)::(\w+(?:\[\])?)", sql))
    types = [kinds.get(str(number), "bigint") for number in range(1, max(map(int, kinds)) + 1)]
    await races.watch.execute("SET plan_cache_mode = force_generic_plan")
    await races.watch.execute(f"PREPARE it ({', '.join(types)}) AS {sql}")
    arguments = ", ".join("'{}'" if kind.endswith("[]") else "'1'" for kind in types)
    plan = "\n".join(row[0] for row in await races.watch.fetch(f"EXPLAIN EXECUTE it({arguments})"))
    assert "hashed SubPlan" in plan.split("CTE made")[1].split("CTE queued")[0], plan


# Idempotency keys


def keyed(fingerprint: bytes = b"same") -> NewRun:
    return a_run(idempotency=Idempotency("order-1", fingerprint))


@pytest.mark.parametrize("expired", [False, True], ids=["new", "expired"])
@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
async def test_of_two_submits_with_one_key_the_second_waits_for_the_first(
    races: Races, expired: bool, ends: str
) -> None:
    if expired:
        await races.store.submit([keyed(b"long ago")])
        await races.travel(KEYS_KEPT + MINUTE)
        # Room for the days that have come, which a submit on a connection of ours cannot make.
        await races.store.prune(Retention(), 1_000)
    first, second = keyed(), keyed()
    standing = await races.standing()
    await races.store._names.number_all(_names_of([first]))
    [made] = await races.store._submit_checked(cast(Connection, standing), [first])
    assert made.new
    submitting = asyncio.create_task(races.store.submit([second]))
    await races.blocked(submitting)
    await standing.execute(ends)
    [answer] = await submitting
    if ends == "COMMIT":
        assert (answer.id, answer.new, answer.conflict) == (first.id, False, False)
        assert await races.store.runs([second.id]) == [None]
    else:
        assert (answer.id, answer.new, answer.conflict) == (second.id, True, False)


async def test_the_same_run_submitted_twice_at_once_is_made_once_and_keeps_its_key(races: Races) -> None:
    run = keyed()
    standing = await races.standing()
    await races.store._names.number_all(_names_of([run]))
    await races.store._submit_checked(cast(Connection, standing), [run])
    submitting = asyncio.create_task(races.store.submit([run]))
    await races.blocked(submitting)
    await standing.execute("COMMIT")
    [answer] = await submitting
    assert (answer.id, answer.new, answer.conflict) == (run.id, False, False)
    [again] = await races.store.submit([keyed()])
    assert (again.id, again.new) == (run.id, False)


async def test_batches_with_the_same_idempotency_keys_in_another_order_do_not_fail(races: Races) -> None:
    async def submit(seed: int) -> int:
        keys = [f"k{number}" for number in range(20)]
        random.Random(seed).shuffle(keys)
        runs = [a_run(idempotency=Idempotency(key, b"same"), author="ada", about=About(tags=(key,))) for key in keys]
        return sum(answer.new for answer in await races.store.submit(runs))

    assert sum(await asyncio.gather(*(submit(seed) for seed in range(6)))) == 20


# Pauses and quotas


async def test_after_a_pause_nothing_is_claimed_that_was_just_being_claimed(races: Races) -> None:
    worker = await races.a_worker()
    await races.store.submit([a_run(), a_run()])
    claiming = await races.standing()
    assert len(await races.run_in(claiming, "claim", worker, 1, [await races.queue()], [1], [0])) == 1
    pausing = asyncio.create_task(races.store.pause(Pause(tenant=None, queue="default"), ADA))
    await races.blocked(pausing)
    assert not pausing.done()
    await claiming.execute("COMMIT")
    await pausing
    assert await races.start(worker, 2) == []
    await races.store.resume(None, "default", ADA)
    assert len(await races.start(worker, 3)) == 1


async def test_a_pause_of_another_process_counts_at_once(races: Races) -> None:
    worker, other = await races.a_worker(), await races.a_store()
    await races.store.submit([a_run()])
    await other.pause(Pause(tenant=None, queue=None), ADA)
    assert await races.start(worker, 1) == []
    await other.resume(None, None, ADA)
    assert len(await races.start(worker, 2)) == 1


async def test_a_claim_that_was_under_way_when_a_quota_came_counts(races: Races) -> None:
    worker = await races.a_worker()
    await races.store.submit([a_run(), a_run()])
    claiming = await races.standing()
    assert len(await races.run_in(claiming, "claim", worker, 1, [await races.queue()], [1], [0])) == 1
    putting = asyncio.create_task(races.store.put_tenant(Tenant(name="default", quotas=Quotas(running=1)), ADA))
    await races.blocked(putting)
    assert not putting.done()
    await claiming.execute("COMMIT")
    await putting
    assert await races.start(worker, 2) == []


async def test_of_two_claims_at_once_the_second_sees_what_the_first_has_left_of_a_quota(races: Races) -> None:
    worker, other = await races.a_worker(), await races.a_worker()
    await races.store.put_tenant(Tenant(name="default", quotas=Quotas(running=3)), ADA)
    runs = [a_run() for _ in range(5)]
    await races.store.submit(runs)
    claiming = await races.standing()
    await races.run_in(claiming, "lock_quotas", None)
    await races.run_in(claiming, "claim_chosen", worker, 1, [run.id for run in runs[:2]])
    second = asyncio.create_task(races.store.claim(other, 1, [Want("default", 10)]))
    await races.blocked(second)
    assert not second.done()
    await claiming.execute("COMMIT")
    assert len(await second) == 1


async def test_a_run_that_is_just_being_claimed_is_not_edited(races: Races) -> None:
    worker, run = await races.a_worker(), a_run()
    await races.store.submit([run])
    claiming = await races.standing()
    await races.run_in(claiming, "claim", worker, 1, [await races.queue()], [1], [0])
    editing = asyncio.create_task(races.store.edit_run(msgspec.structs.replace(run, priority=1), ADA))
    await races.blocked(editing)
    await claiming.execute("COMMIT")
    assert await editing is None


async def test_a_run_that_is_just_being_staged_is_edited_where_it_went(races: Races) -> None:
    scheduler, run = await races.a_scheduler(), a_run(delay=MINUTE)
    await races.store.submit([run])
    await races.travel(2 * MINUTE)
    staging = await races.standing()
    await races.run_in(staging, "stage", scheduler, list(ALL_SHARDS), 10)
    editing = asyncio.create_task(races.store.edit_run(msgspec.structs.replace(run, delay=HOUR), ADA))
    await races.blocked(editing)
    await staging.execute("COMMIT")
    answer = await editing
    assert answer is not None
    assert answer.state is await races.state(run.id) is RunState.SCHEDULED


async def test_an_edited_run_keeps_its_body_and_is_known_when_it_is_submitted_again(races: Races) -> None:
    run = a_run(about=About(tags=("old",)))
    await races.store.submit([run])
    edited = msgspec.structs.replace(run, delay=20 * DAY, payload=b'"new"', about=About(tags=("new",)))
    await races.store.edit_run(edited, ADA)
    [again] = await races.store.submit([run])
    assert not again.new
    await races.travel(21 * DAY)
    while await races.store.prune(Retention(), 1_000):
        pass
    found = await races.store.list_runs(RunFilter(tenant="default", tag="new"), None, 10)
    assert [view.id for view in found.items] == [run.id]
    await races.store.stage(await races.a_scheduler(), list(ALL_SHARDS), 10)
    [held] = await races.start(await races.a_worker())
    assert held.payload == b'"new"'


async def test_a_run_that_was_edited_and_purged_leaves_nothing_behind(races: Races) -> None:
    run = a_run(about=About(tags=("old",)), delay=DAY)
    await races.store.submit([run])
    await races.store.edit_run(msgspec.structs.replace(run, delay=2 * DAY), ADA)
    await races.store.cancel([run.id])
    assert await races.store.purge([run.id], ADA) == [run.id]
    for table in ("body", "label", "history"):
        assert await races.watch.fetchval(f"SELECT count(*) FROM {table}") == 0
    [again] = await races.store.submit([run])
    assert again.new


async def test_the_tags_of_a_failed_run_outlive_its_day(races: Races) -> None:
    worker, run = await races.a_worker(), a_run(about=About(name="n", tags=("x",)), policy=a_policy(retries=0))
    await races.store.submit([run])
    [held] = await races.start(worker)
    await races.store.settle([settle_failure(held, "boom", random.Random(1), now=held.started_at)])
    await races.travel(10 * DAY)
    while await races.store.prune(Retention(), 1_000):
        pass
    [view] = (await races.store.list_runs(RunFilter(tenant="default", tag="x"), None, 10)).items
    assert (view.id, view.about) == (run.id, run.about)
    await races.travel(30 * DAY)
    while await races.store.prune(Retention(), 1_000):
        pass
    for table in ("label", "dead_letter", "body"):
        assert await races.watch.fetchval(f"SELECT count(*) FROM {table}") == 0


# Figures


async def test_two_who_tidy_at_once_count_everything_once(races: Races) -> None:
    worker, other = await races.a_worker(), await races.a_store()
    # The database is a copy of one that was made a while ago: there would be that while to catch up on.
    await races.watch.execute("DELETE FROM rolled_up")
    await races.store.submit([a_run() for _ in range(5)])
    await races.store.settle([settle_success(held, None) for held in await races.start(worker)])
    await races.travel(MINUTE)
    await asyncio.gather(*(store.tidy() for store in (races.store, other) for _ in range(4)))
    now = await races.store.now()
    minutes = await races.store.minutes(None, now - HOUR, now)
    assert sum(minute.succeeded for minute in minutes) == 5


# Lists


async def test_a_filter_without_an_index_looks_at_so_many_rows_a_page(
    races: Races, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "LOOKED_AT", 5)
    monkeypatch.setattr(catalog, "_CHUNK", 2)
    old = [a_run(task="rare") for _ in range(2)]
    await races.store.submit(old)
    for part in range(3):
        await races.store.submit([a_run(tenant="acme" if part == 1 else "default") for _ in range(4)])
    wanted = RunFilter(tenant="default", text="rare")
    first = await races.store.list_runs(wanted, None, 10)
    assert first.items == []
    assert first.after is not None
    second = await races.store.list_runs(wanted, RunId(first.after), 10)
    assert ([view.id for view in second.items], second.after) == ([run.id for run in reversed(old)], None)
    assert await races.store.count_runs(wanted, 10) == 2


@pytest.mark.parametrize(
    ("wanted", "indexes"),
    [
        (RunFilter(tenant="default"), ["run_pkey", "waiting_tenant", "tenant_id_idx"]),
        (RunFilter(tenant=None), ["run_pkey", "waiting_pkey"]),
        (RunFilter(tenant="default", tag="x"), ["tenant_label_id_idx"]),
        (RunFilter(tenant=None, tag="x"), ["tenant_label_id_idx"]),
        (RunFilter(tenant="default", dead=True), ["dead_letter_tenant"]),
        (RunFilter(tenant=None, fingerprint="f"), ["dead_letter_kind"]),
        (RunFilter(tenant="default", job=JobId("0" * 32)), ["run_job", "waiting_job", "job_id_id_idx"]),
    ],
)
async def test_a_list_goes_by_an_index(races: Races, wanted: RunFilter, indexes: list[str]) -> None:
    sources = await races.store._sources(wanted)
    for setting, value in SESSION.items():
        await races.watch.execute(f"SET {setting} = '{value}'")
    await races.watch.execute("SET plan_cache_mode = force_generic_plan")
    statement = f"EXPLAIN SELECT * FROM ({sources.found}) AS found ORDER BY id DESC LIMIT $3"
    rows = await races.watch.fetch(statement, *sources.arguments(sources.below, 100))
    plan = "\n".join(row[0] for row in rows)
    assert "Seq Scan" not in plan, plan
    for index in indexes:
        assert index in plan, plan
