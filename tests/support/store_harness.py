"""The stores under test, behind one interface, with a clock that tests move."""

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from random import Random
from typing import Protocol

import apsw
import asyncpg
import msgspec
import pytest

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, MINUTE, Instant, Micros
from mainspring.core.model.runs.completion import Completion, CompletionAnswer, complete_failure, complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, LedgerEntry, NewJob
from mainspring.core.model.schedules.plan import plan
from mainspring.core.ports.events_out import EventFacts
from mainspring.core.ports.storage.access import Access
from mainspring.core.ports.storage.answers import FireResult, StageResult, SubmitResult
from mainspring.core.ports.storage.catalog import Catalog, Reports
from mainspring.core.ports.storage.clocks import Clocks
from mainspring.core.ports.storage.coordination import EpochCoordinator
from mainspring.core.ports.storage.dead_letters import DeadLetters
from mainspring.core.ports.storage.explaining import ExplanationReads
from mainspring.core.ports.storage.leases import Leases
from mainspring.core.ports.storage.notifications import NotificationStore
from mainspring.core.ports.storage.operations import Operations
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.core.ports.storage.run_logs import LogShelf
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.storage.usage import BudgetStore
from mainspring.core.store import Demand, Store
from mainspring.stores.memory import MemoryStore
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sqlite import SqliteStore
from tests.support.builders import SHARDS, a_worker
from tests.support.clock import ManualClock
from tests.support.databases import as_administrator
from tests.support.kept_connections import KeptConnections
from tests.support.kept_sqlite import KeptSqlite
from tests.support.state_changes import (
    POSTGRES_TRIGGERS,
    RecordingTables,
    StateChange,
    read_from_postgres,
    read_from_sqlite,
)

#: Values that only a newer version of the program can read.
UNKNOWN_POLICY = '{"guarantee":"exactly-once"}'
UNKNOWN_SPEC = '{"name":"job","task":"greet","schedule":{"type":"moon","phase":"full"}}'


#: The stores that do what the API asks for. The contract tests marked ``api`` run on these only.
SERVE_THE_API = frozenset({"memory", "sqlite", "postgres", "sharded"})


class CoordinatedStore(
    Store,
    EpochCoordinator,
    Clocks,
    Catalog,
    ExplanationReads,
    BudgetStore,
    Reports,
    Access,
    Operations,
    DeadLetters,
    Leases,
    EventFacts,
    NotificationStore,
    LogShelf,
    Protocol,
):
    """All ports that every store implements."""


_EVER = 10_000 * DAY
_ALL = Retention(succeeded=_EVER, unsuccessful=_EVER, ledger=_EVER, short=_EVER, long=_EVER, audit=_EVER)


class Harness(ABC):
    """A store under test, its clock, and shortcuts for common steps.

    The clock of a real server moves on its own between two calls until ``freeze_clock`` stops it. The contract tests
    freeze it before every test.
    """

    store: CoordinatedStore
    all_shards = tuple(range(SHARDS))

    def __init__(self) -> None:
        self._claims: defaultdict[SessionId, int] = defaultdict(int)
        self._owner: SessionId | None = None
        self._random = Random(0)

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def move_clock(self, duration: Micros) -> None:
        """Move the store's clock by exactly this much."""

    @abstractmethod
    async def freeze_clock(self) -> Instant:
        """Stop the store's clock and return its time. From then on only ``move_clock`` and ``advance`` change it."""

    @abstractmethod
    async def let_transactions_end(self) -> None:
        """Wait until every transaction on the server that could hold events back has ended."""

    @abstractmethod
    async def state_changes(self) -> list[StateChange]:
        """Return every state that a run got since the harness was opened, oldest first."""

    async def spoil_policy(self, run: RunId) -> None:
        """Overwrite the stored policy of a live run with one that this program cannot read."""
        pytest.skip("it keeps values, not rows")

    async def spoil_spec(self, job: JobId) -> None:
        """Overwrite the stored spec of a job with one that this program cannot read."""
        pytest.skip("it keeps values, not rows")

    async def advance(self, duration: Micros) -> None:
        """Move the store's clock and run the hourly retention if a day or more has passed."""
        await self.move_clock(duration)
        if duration >= DAY:
            # Pruning also creates the partitions of the coming days.
            await self.store.prune(_ALL, 1)

    async def now(self) -> Instant:
        return await self.store.now()

    async def submit(self, *runs: NewRun) -> list[SubmitResult]:
        return await self.store.submit(runs)

    async def worker(self, ttl: Micros = 365 * DAY, labels: tuple[str, ...] = ()) -> SessionId:
        """Open the session of a worker. By default its lease outlives the test."""
        return await self.store.open_session(msgspec.structs.replace(a_worker(ttl=ttl), labels=labels))

    def last_claim(self, session: SessionId) -> int:
        """Return the number of the session's newest claim."""
        return self._claims[session]

    async def claim(self, session: SessionId, limit: int = 1_000, queue: str = "default") -> list[HeldRun]:
        return await self.claim_from(session, Demand(queue, limit))

    async def claim_from(self, session: SessionId, *demands: Demand) -> list[HeldRun]:
        self._claims[session] += 1
        return await self.store.claim(session, self._claims[session], demands)

    async def start(self, *runs: NewRun) -> list[HeldRun]:
        """Submit runs and claim them as a new worker. Returns them in the order given."""
        await self.submit(*runs)
        queues = dict.fromkeys(run.queue for run in runs)
        held = await self.claim_from(await self.worker(), *(Demand(queue, len(runs)) for queue in queues))
        by_id = {run.id: run for run in held}
        return [by_id[run.id] for run in runs]

    async def complete(self, *completions: Completion) -> list[CompletionAnswer]:
        return await self.store.complete(completions)

    async def succeed(self, *held: HeldRun) -> None:
        answers = await self.complete(*(complete_success(run, None) for run in held))
        assert set(answers) <= {CompletionAnswer.ACCEPTED}

    async def fail(self, *held: HeldRun, error: str = "boom") -> None:
        """Fail the attempts. Their retry policy decides whether another follows."""
        now = await self.now()
        answers = await self.complete(*(complete_failure(run, error, self._random, now=now) for run in held))
        assert set(answers) <= {CompletionAnswer.ACCEPTED}

    async def view(self, run: RunId) -> RunView:
        [view] = await self.store.runs([run])
        assert view is not None
        return view

    async def state(self, run: RunId) -> RunState:
        return (await self.view(run)).state

    async def states(self, runs: Iterable[NewRun | HeldRun]) -> list[RunState]:
        views = await self.store.runs([run.id for run in runs])
        return [view.state for view in views if view is not None]

    async def owner(self) -> SessionId:
        """Return a scheduler session that owns every shard. Its lease outlives the test."""
        if self._owner is None:
            self._owner = await self.store.join("scheduler", 365 * DAY)
            await self.store.take(self._owner, self.all_shards)
        return self._owner

    async def stage(self, limit: int = 1_000) -> StageResult:
        return await self.store.stage(await self.owner(), self.all_shards, limit)

    async def resolve(self, limit: int = 1_000) -> int:
        """Resolve dependencies until none is left, as schedulers do. Returns how many children were decided."""
        decided = 0
        while found := await self.store.resolve(limit):
            decided += found
        return decided

    async def put(self, job: NewJob) -> Job:
        [put] = await self.store.put_jobs([job])
        return put.job

    async def job(self, job: JobId) -> Job:
        [stored] = await self.store.jobs([job])
        assert stored is not None
        return stored

    async def fire_due(self) -> list[FireResult]:
        """Fire every due tick, as the scheduler does."""
        jobs = await self.store.due_jobs(self.all_shards, await self.now(), 1_000)
        return await self.store.fire(await self.owner(), plan(jobs, await self.now()))

    async def ticks(self, job: JobId) -> list[LedgerEntry]:
        now = await self.now()
        return await self.store.ledger(job, now - 50 * DAY, now + 50 * DAY, 10_000)

    async def events(self, reader: str, limit: int = 1_000, *, of_workers: bool = False) -> list[EventBatch]:
        """Read events of runs and jobs, or those of workers, which most tests do not care about."""
        await self.let_transactions_end()
        batches = await self.store.events(reader, limit)
        return [batch for batch in batches if batch.kind.startswith("worker.") is of_workers]

    async def unread_events(self, reader: str) -> list[tuple[str, tuple[RunId, ...]]]:
        """Return (kind, runs) of every event of runs and jobs that the reader has not acknowledged."""
        return [(batch.kind, batch.runs) for batch in await self.events(reader)]


class ClockedHarness(Harness):
    """A store with an injected clock."""

    def __init__(self) -> None:
        super().__init__()
        # The machine's time, because the ids that the builders make carry it.
        self.clock = ManualClock(time.time_ns() // 1_000)

    async def move_clock(self, duration: Micros) -> None:
        self.clock.advance(duration)

    async def freeze_clock(self) -> Instant:
        # A manual clock stands still anyway.
        return await self.store.now()

    async def let_transactions_end(self) -> None:
        """No other process uses this store."""

    async def open(self) -> None:
        await self.store.open()

    async def close(self) -> None:
        await self.store.close()


class MemoryHarness(ClockedHarness):
    def __init__(self) -> None:
        super().__init__()
        self._tables = RecordingTables(self.clock, SHARDS)
        store = MemoryStore(self.clock, shards=SHARDS)
        store._tables = self._tables
        self.store = store

    async def state_changes(self) -> list[StateChange]:
        return self._tables.state_changes


class SqliteHarness(ClockedHarness):
    store: SqliteStore

    def __init__(self, kept: KeptSqlite) -> None:
        super().__init__()
        self._kept = kept

    async def open(self) -> None:
        self.store = await self._kept.open_store(self.clock)

    async def close(self) -> None:
        self._kept.take_back(self.store)

    async def state_changes(self) -> list[StateChange]:
        return await read_from_sqlite(self.store)

    async def spoil_policy(self, run: RunId) -> None:
        self._write("UPDATE body SET policy = ? WHERE id = (SELECT body FROM run WHERE id = ?)", UNKNOWN_POLICY, run)

    async def spoil_spec(self, job: JobId) -> None:
        self._write("UPDATE job_version SET spec = ? WHERE job_id = ?", UNKNOWN_SPEC, job)

    def _write(self, statement: str, *values: str) -> None:
        connection = apsw.Connection(str(self.store.path))
        try:
            connection.execute(statement, values)
        finally:
            connection.close()


async def build_reader_role(store: PostgresStore, dsn: str) -> None:
    """Set up RLS as an administrator, because the store's own role lacks the rights."""
    connection = await asyncpg.connect(as_administrator(dsn))
    try:
        for statement in await store._reader_role.build():
            await connection.execute(statement)
    finally:
        await connection.close()
    assert await store._reader_role.build() == []


#: Replaces the store's clock by one that tests move or freeze. The schema is formatted in.
TEST_CLOCK_SQL = """
    SET search_path TO {schema};
    CREATE TABLE test_clock (offset_us bigint NOT NULL, frozen_us bigint);
    INSERT INTO test_clock VALUES (0, NULL);
    GRANT SELECT ON test_clock TO PUBLIC;
    CREATE OR REPLACE FUNCTION now_us() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
        SELECT coalesce(frozen_us, (extract(epoch FROM now()) * 1000000)::bigint + offset_us) FROM {schema}.test_clock
    $$;
    CREATE OR REPLACE FUNCTION clock_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
        SELECT coalesce(frozen_us, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + offset_us)
        FROM {schema}.test_clock
    $$;
"""

#: Creates ``wipe()``, which empties every table except the store's metadata. Deleting a few rows is faster than
#: truncating, and a function is planned once for a connection. A trigger writes the rows of ``state_change``, so that
#: table comes last: it is the newest.
_WIPE_SQL = """
    DO $make$ BEGIN
        EXECUTE (
            SELECT 'CREATE FUNCTION {schema}.wipe() RETURNS void LANGUAGE plpgsql AS $$ BEGIN '
                || string_agg(format('DELETE FROM {schema}.%I; ', relname), '' ORDER BY oid)
                || 'UPDATE {schema}.shard SET owner = NULL, epoch = 0; '
                || 'UPDATE {schema}.test_clock SET offset_us = 0, frozen_us = NULL; END $$'
            FROM pg_class
            WHERE relnamespace = '{schema}'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
              AND relname NOT IN ('meta', 'shard', 'name', 'test_clock', 'server', 'placement_group')
              AND relname NOT LIKE '%migration%'
        );
    END $make$;
"""
#: Everything that a harness adds to the schema of a store.
HARNESS_SQL = TEST_CLOCK_SQL + POSTGRES_TRIGGERS + _WIPE_SQL


class PostgresHarness(Harness):
    """One database for many tests, emptied before each. Its clock is the server's, moved by a table."""

    store: PostgresStore

    def __init__(self, dsn: str, kept: KeptConnections | None = None) -> None:
        """Pass ``kept`` if many tests use the database, one after the other."""
        super().__init__()
        self._dsn = dsn
        self._schema = "mainspring"
        self._kept = kept
        self.store = PostgresStore(dsn, schema=self._schema, shards=SHARDS)
        if kept is not None:
            kept.lend_to(self.store)

    @classmethod
    async def prepare(cls, dsn: str, *, row_security: bool = True) -> None:
        """Create the schema and the read-only role, replace the store's clock, and add what empties the tables."""
        harness = cls(dsn)
        await harness.store.open()
        try:
            if row_security:
                await build_reader_role(harness.store, dsn)
        finally:
            await harness.store.close()
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(HARNESS_SQL.format(schema=harness._schema))
        finally:
            await connection.close()

    async def open(self) -> None:
        await self.connect()
        await self.wipe()
        await self.store.open()

    async def close(self) -> None:
        try:
            await self.store.close()
        finally:
            await self.disconnect()

    async def connect(self) -> None:
        """Open the connection by which the harness itself reads and writes."""
        kept = None if self._kept is None else self._kept.take(self._dsn)
        self._connection = kept or await asyncpg.connect(self._dsn, server_settings={"search_path": self._schema})

    async def disconnect(self) -> None:
        if self._kept is None:
            await self._connection.close()
        else:
            await self._kept.put(self._dsn, self._connection)

    async def wipe(self) -> None:
        """Empty every table except the store's metadata."""
        await self._connection.execute("SELECT wipe()")

    async def state_changes(self) -> list[StateChange]:
        return await read_from_postgres(self._connection)

    async def spoil_policy(self, run: RunId) -> None:
        await self._connection.execute("UPDATE body SET policy = $1 WHERE id = $2", UNKNOWN_POLICY.encode(), run)

    async def spoil_spec(self, job: JobId) -> None:
        await self._connection.execute("UPDATE job_version SET spec = $1 WHERE job_id = $2", UNKNOWN_SPEC.encode(), job)

    async def move_clock(self, duration: Micros) -> None:
        await self._connection.execute(
            "UPDATE test_clock SET offset_us = offset_us + $1, frozen_us = frozen_us + $1", duration
        )

    async def freeze_clock(self) -> Instant:
        now = await self.store.now()
        await self.freeze_clock_at(now)
        return now

    async def freeze_clock_at(self, instant: Instant) -> None:
        await self._connection.execute("UPDATE test_clock SET frozen_us = $1", instant)

    async def let_transactions_end(self) -> None:
        newest = await self._connection.fetchval("SELECT pg_current_xact_id()::text::bigint")
        while not await self._connection.fetchval(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > $1", newest
        ):
            # Other tests use the same server. Each look is a round trip, so this does not spin.
            continue


def ids(runs: Iterable[NewRun | HeldRun]) -> list[RunId]:
    return [run.id for run in runs]


#: The lease of a session that a test lets expire by ``advance``. Coordinators outside the store count it in real time.
SHORT_LEASE: Micros = 10 * MINUTE
