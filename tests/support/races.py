"""Race conditions on PostgreSQL, forced with real connections.

``Races.paused`` runs a call of another process and pauses it before its commit, with all of its locks. Meanwhile the
test starts a second call, waits with ``Races.blocked`` until that one waits for a lock, and lets the first continue.
Triggers in the database pause the call: they wait for an advisory lock that the test holds.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import pytest

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import DAY, HOUR, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.schedules.job import Job, NewJob
from mainspring.core.store import Demand, NewSession
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import SESSION, prepare_connection
from tests.support.builders import a_fire, a_tick
from tests.support.databases import (
    create_database,
    create_schema,
    drop_database,
    make_template,
    migrations_digest,
    remove_time_limits,
    with_database,
)
from tests.support.store_harness import TEST_CLOCK_SQL
from tests.support.waiting import eventually

Answer = TypeVar("Answer")

SHARDS = 4
ALL_SHARDS = range(SHARDS)
#: Copies a body to the partition that is never dropped, as retention does.
MOVE_BODY = "INSERT INTO body SELECT -1, id, task, policy, payload, tenant FROM body WHERE id = $1"
#: The advisory lock that paused transactions wait for.
_PAUSE_KEY = 4711
_PAUSED_TABLES = ("run", "waiting", "session", "job", "schedule", "key_lock")
#: A connection with ``races.pause`` set to ``commit`` pauses before each commit that changed one of these tables, and
#: one with the name of a table after each statement that changed that table.
_PAUSE_SQL = f"""
    CREATE SCHEMA races;
    GRANT USAGE ON SCHEMA races TO PUBLIC;
    CREATE FUNCTION races.pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF current_setting('races.pause', true) = TG_ARGV[0] THEN
            PERFORM pg_advisory_xact_lock_shared({_PAUSE_KEY});
        END IF;
        RETURN NULL;
    END $$;
""" + "".join(
    f"""
    CREATE CONSTRAINT TRIGGER pause_at_commit AFTER INSERT OR UPDATE OR DELETE ON mainspring.{table}
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION races.pause('commit');
    CREATE TRIGGER pause_at_statement AFTER INSERT OR UPDATE OR DELETE ON mainspring.{table}
        FOR EACH STATEMENT EXECUTE FUNCTION races.pause('{table}');
    """
    for table in _PAUSED_TABLES
)
_IS_PAUSED = (
    f"EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND NOT l.granted AND l.locktype = 'advisory' "
    f"AND (l.classid, l.objid, l.objsubid) = (0, {_PAUSE_KEY}, 1))"
)
_WAITING = "SELECT count(*) FROM pg_stat_activity a WHERE datname = current_database() AND wait_event_type = 'Lock' AND"


class Races:
    """Stores, each like a process of its own, and plain connections that hold locks for the test."""

    def __init__(self, dsn: str, stack: AsyncExitStack) -> None:
        self.dsn = dsn
        self._stack = stack
        self._pausing: dict[str, PostgresStore] = {}
        self.store: PostgresStore
        self.watch: asyncpg.Connection

    async def a_store(self, connections: int = 8, **settings: str) -> PostgresStore:
        """``settings``: of its connections, with ``__`` for a dot."""
        options = "&".join(f"{name.replace('__', '.')}={value}" for name, value in settings.items())
        store = PostgresStore(f"{self.dsn}?{options}" if options else self.dsn, connections=connections)
        await store.open()
        self._stack.push_async_callback(store.close)
        return store

    async def a_connection(self) -> asyncpg.Connection:
        connection = await asyncpg.connect(
            self.dsn, server_settings={"search_path": "mainspring", "enable_seqscan": SESSION["enable_seqscan"]}
        )
        await prepare_connection(connection)
        self._stack.push_async_callback(connection.close)
        return connection

    async def a_transaction(self) -> asyncpg.Connection:
        """A plain connection inside an open transaction."""
        connection = await self.a_connection()
        await connection.execute("BEGIN")
        return connection

    async def hold(self, rows: str, *arguments: object) -> asyncpg.Connection:
        """A plain connection that locks rows, such as ``run WHERE id = $1``, until it commits or rolls back."""
        connection = await self.a_transaction()
        assert await connection.fetch(f"SELECT 1 FROM {rows} FOR UPDATE", *arguments)
        return connection

    @asynccontextmanager
    async def paused(
        self, call: Callable[[PostgresStore], Coroutine[Any, Any, Answer]], at: str = "commit"
    ) -> AsyncIterator["asyncio.Task[Answer]"]:
        """Run a call of another process, which pauses before its commit until the block ends.

        ``at``: a table, to pause after the first statement that changes it instead. Cancel the task in the block to
        roll its transaction back.
        """
        if at not in self._pausing:
            self._pausing[at] = await self.a_store(races__pause=at)
        pauser = await self.a_connection()
        await pauser.execute("SELECT pg_advisory_lock($1)", _PAUSE_KEY)
        task = asyncio.create_task(call(self._pausing[at]))

        async def is_paused() -> bool:
            assert not task.done(), f"the call ended without a pause: {task}"
            return bool(await self.watch.fetchval(f"{_WAITING} {_IS_PAUSED}"))

        async def is_rolled_back() -> bool:
            return not await self.watch.fetchval(f"{_WAITING} {_IS_PAUSED}")

        try:
            await eventually(is_paused)
            yield task
            if task.cancelling():
                await eventually(is_rolled_back)
        finally:
            await pauser.execute("SELECT pg_advisory_unlock($1)", _PAUSE_KEY)
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def blocked(self, *tasks: "asyncio.Task[Any]", sessions: int = 1) -> None:
        """Wait until this many sessions wait for a lock, or until one of the tasks has ended."""

        async def is_blocked() -> bool:
            waiting = await self.watch.fetchval(f"{_WAITING} NOT {_IS_PAUSED}")
            return waiting >= sessions or any(task.done() for task in tasks)

        await eventually(is_blocked)

    def retry(self, call: Callable[[], Coroutine[Any, Any, object]]) -> "asyncio.Task[bool]":
        """Repeat a call until the store is available: some calls wait for a lock for half a second only."""

        async def succeeds() -> bool:
            try:
                await call()
            except StoreUnavailable:
                return False
            return True

        return asyncio.create_task(eventually(succeeds))

    async def advance(self, duration: Micros) -> None:
        await self.watch.execute("UPDATE test_clock SET offset_us = offset_us + $1", duration)

    async def freeze_clock(self) -> None:
        """Stop the clock of the store, so that a test does not cross midnight."""
        await self.watch.execute("UPDATE test_clock SET frozen_us = now_us()")

    async def a_worker(self, ttl: int = 1_000 * DAY) -> SessionId:
        return await self.store.open_session(NewSession(name="w", kind="worker", ttl=ttl))

    async def a_scheduler(self, ttl: int = 1_000 * DAY) -> SessionId:
        member = await self.store.join("s", ttl)
        await self.store.take(member, ALL_SHARDS)
        return member

    async def claim(self, worker: SessionId, claim: int = 1, limit: int = 10) -> list[HeldRun]:
        return await self.store.claim(worker, claim, [Demand("default", limit)])

    async def start(self, *runs: NewRun) -> list[HeldRun]:
        """Submit runs and claim them as a new worker."""
        await self.store.submit(runs)
        return await self.claim(await self.a_worker())

    async def state(self, run: RunId) -> RunState:
        [view] = await self.store.runs([run])
        assert view is not None
        return view.state

    async def put(self, job: NewJob) -> Job:
        [put] = await self.store.put_jobs([job])
        return put.job

    async def fire(self, scheduler: SessionId, job: Job, *, late_by: int = 0, delay: int = 0) -> RunId:
        """Fire one tick of a job, which is due now or after a delay."""
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

    async def partition_days(self, family: str) -> list[int]:
        """The days that a table has partitions for."""
        rows = await self.watch.fetch(
            "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = $1::text::regclass", family
        )
        names = [row["name"] for row in rows]
        return sorted(int(name.rpartition("_d")[2]) for name in names if name.rpartition("_d")[2].isdigit())


@asynccontextmanager
async def open_races(postgres_dsn: str) -> AsyncIterator[Races]:
    """A database of its own for one test. At the end nothing must be left for the sweep to repair."""
    sql = TEST_CLOCK_SQL.format(schema="mainspring") + _PAUSE_SQL

    async def prepare(dsn: str) -> None:
        await create_schema(dsn, SHARDS)
        connection = await asyncpg.connect(dsn)
        await connection.execute(sql)
        await connection.close()

    template = await make_template(postgres_dsn, f"template_races_{migrations_digest(sql)}", prepare)
    name = f"test_{uuid.uuid4().hex}"
    await create_database(postgres_dsn, name, template)
    try:
        with pytest.MonkeyPatch.context() as patch:
            remove_time_limits(patch)
            async with AsyncExitStack() as stack:
                races = Races(with_database(postgres_dsn, name), stack)
                races.store = await races.a_store()
                races.watch = await races.a_connection()
                yield races
                assert await races.store.sweep(1_000) == 0
    finally:
        await drop_database(postgres_dsn, name)
