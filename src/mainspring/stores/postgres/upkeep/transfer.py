"""Imports everything that another store holds, in one transaction: all of it, or nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from mainspring.core.model.base.errors import Conflict
from mainspring.core.ports.upkeep.transfer import Row, RowCounts, StoreFacts
from mainspring.stores.postgres.codes import (
    NameKind,
)
from mainspring.stores.postgres.database import SESSION, connecting, prepare_connection
from mainspring.stores.postgres.partitions import FAMILIES
from mainspring.stores.postgres.rows import build_label_set
from mainspring.stores.postgres.servers import get_servers
from mainspring.stores.postgres.store import PostgresStore
from mainspring.stores.postgres.upkeep.transfer_rows import (
    BUILDERS,
    build_body,
    build_job,
    build_schedule,
    build_version,
    build_version_body,
)

#: The store is not new if any of these has a row.
_MUST_BE_EMPTY = (
    "job",
    "run",
    "waiting",
    "history",
    "attempt",
    "ledger",
    "audit",
    "api_key",
    "tenant",
    "pause",
    "calendar",
    "queue_policy",
    "replay",
    "body",
)
#: Locked, so that no other process writes them meanwhile.
_LOCKED = ("meta", "session", "job", "run", "waiting")
_SETTINGS = SESSION | {"statement_timeout": "0", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "0"}
_CHUNK = 20_000
#: Kind → query that reads the imported rows back, with the columns of ``KINDS`` by name.
_FOUND: Mapping[str, str] = {
    "session": "SELECT id FROM {s}.session",
    "tenant": "SELECT created_at, quotas FROM {s}.tenant",
    "api_key": "SELECT id, encode(secret_hash, 'hex') AS secret_hash FROM {s}.api_key",
    "pause": "SELECT since, why FROM {s}.pause",
    "calendar": "SELECT name, version, spec FROM {s}.calendar",
    "slo": "SELECT job_id, rev, next_check FROM {s}.slo",
    "job": "SELECT j.id, j.version, s.next_fire, s.rev FROM {s}.job j JOIN {s}.schedule s ON s.job_id = j.id",
    "job_version": "SELECT job_id, version, spec FROM {s}.job_version",
    "run": "SELECT id, fence FROM {s}.run",
    "waiting": "SELECT id, due FROM {s}.waiting",
    "key_lock": "SELECT key, holder FROM {s}.key_lock",
    "limiter": "SELECT number, used FROM {s}.limiter",
    "dependent": "SELECT run_id, parents FROM {s}.dependent",
    "edge": "SELECT child, parent, place FROM {s}.edge",
    "ended_parent": "SELECT run_id, at FROM {s}.ended_parent",
    "unique_run": "SELECT run_id, until FROM {s}.unique_run",
    "history": "SELECT id, finished_at FROM {s}.history",
    "dead_letter": "SELECT run_id AS id, fingerprint FROM {s}.dead_letter",
    "replay": "SELECT id, rev, record FROM {s}.replay",
    "attempt": "SELECT run_id, fence FROM {s}.attempt",
    "ledger": "SELECT job_id, scheduled_at, run_id FROM {s}.ledger",
    "label": "SELECT id, label FROM {s}.label",
    "idempotency": "SELECT id AS made, encode(fingerprint, 'hex') AS fingerprint FROM {s}.idempotency",
    "progress": "SELECT run_id, at FROM {s}.progress",
    "checkpoint": "SELECT run_id, convert_from(state, 'UTF8') AS state FROM {s}.checkpoint",
    "log": "SELECT run_id, position FROM {s}.log",
    "audit": "SELECT position, at FROM {s}.audit",
    "minute": "SELECT at, succeeded, failed FROM {s}.minute",
    "usage": "SELECT day, unit, amount FROM {s}.usage",
    "budget": "SELECT id, spec FROM {s}.budget",
    "queue_policy": "SELECT policy, retries FROM {s}.queue_policy",
}


class PostgresTarget:
    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self._store: PostgresStore | None = None
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._facts: StoreFacts | None = None
        self._is_there = False

    async def open(self, facts: StoreFacts) -> bool:
        self._facts = facts
        store = self._store = PostgresStore(self._dsn, schema=self._schema, shards=facts.shards, connections=2)
        await store.open()
        if store.shards != facts.shards:
            raise Conflict(
                f"the new store has {store.shards} shards and the old one {facts.shards}: ids would not fit; "
                "name a schema that is not there yet"
            )
        # Partitions and names are made outside the transaction. They do no harm if the import ends here.
        await store._partitions.make({family: set(days) for family, days in facts.days.items() if family in FAMILIES})
        wanted = [(NameKind.TENANT, name) for name in facts.tenants] + [(NameKind.TASK, name) for name in facts.tasks]
        wanted += [(NameKind.QUEUE, name) for name in facts.queues]
        wanted += [(NameKind.LABEL_SET, build_label_set(requires)) for requires in facts.requirements]
        await store._names.assign_numbers(wanted)
        with connecting():
            self._connection = await get_servers(self._dsn).connect(timeout=5, server_settings=_SETTINGS)
        await prepare_connection(self._connection)
        await self._connection.execute("BEGIN")
        await self._connection.execute(
            f"LOCK TABLE {', '.join(f'{self._schema}.{table}' for table in _LOCKED)} IN EXCLUSIVE MODE"
        )
        await self._refuse_live()
        self._is_there = await self._value(f"SELECT store_id FROM {self._schema}.meta") == facts.store_id
        if not self._is_there:
            await self._refuse_used()
        return self._is_there

    async def write(self, kind: str, rows: Sequence[Row]) -> None:
        if kind == "job":
            await self._copy("job", [build_job(row, self._number) for row in rows])
            await self._copy("schedule", [build_schedule(row, self._number) for row in rows])
        elif kind == "job_version":
            await self._copy("body", [build_version_body(row, self._number) for row in rows])
            await self._copy("job_version", [build_version(row, self._number) for row in rows])
        else:
            if kind in ("run", "waiting", "history"):
                own = [row for row in rows if not row["of_version"] and row["task"] is not None]
                await self._copy("body", [build_body(row, self._number) for row in own])
            build = BUILDERS[kind]
            await self._copy(kind, [build(row, self._number) for row in rows])

    async def tally(self, kind: str) -> RowCounts:
        tally = RowCounts()
        async for chunk in self._chunks(_FOUND[kind].format(s=self._schema)):
            tally = tally.plus(kind, chunk)
        return tally

    async def commit(self) -> None:
        facts, connection, schema = self._facts, self._connection, self._schema
        assert facts is not None
        assert connection is not None
        if not self._is_there:
            # One step further: everything that the old store handed out is older than what this one will.
            await connection.execute(
                f"UPDATE {schema}.meta SET store_id = $1, store_epoch = $2", facts.store_id, facts.store_epoch + 1
            )
            await connection.execute(f"SELECT setval('{schema}.fence_seq', $1)", max(facts.fence_seq, 1))
            await connection.execute(
                f"UPDATE {schema}.shard s SET epoch = e.epoch "
                "FROM unnest($1::smallint[], $2::bigint[]) AS e(id, epoch) WHERE e.id = s.id",
                list(facts.epochs),
                list(facts.epochs.values()),
            )
            last = await self._value(f"SELECT coalesce(max(id), 0) FROM {schema}.session")
            for sequence, value in (
                (f"pg_get_serial_sequence('{schema}.session', 'id')", max(last, facts.last_session)),
                (
                    f"pg_get_serial_sequence('{schema}.audit', 'position')",
                    await self._value(f"SELECT coalesce(max(position), 0) FROM {schema}.audit"),
                ),
                (f"'{schema}.log_position'", await self._value(f"SELECT coalesce(max(position), 0) FROM {schema}.log")),
            ):
                await connection.execute(f"SELECT setval({sequence}, $1)", max(value, 1))
            if facts.counted_until:
                await connection.execute(f"UPDATE {schema}.rolled_up SET until = $1", facts.counted_until)
        await connection.execute("COMMIT")
        # Otherwise the first plans would be made for empty tables.
        await connection.execute(
            "ANALYZE "
            + ", ".join(f"{schema}.{table}" for table in ("run", "waiting", "job", "schedule", "body", "history"))
        )

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def _copy(self, table: str, records: Sequence[Mapping[str, Any]]) -> None:
        assert self._connection is not None
        if records:
            columns = list(records[0])
            await self._connection.copy_records_to_table(
                table, schema_name=self._schema, columns=columns, records=[tuple(row.values()) for row in records]
            )

    async def _chunks(self, query: str) -> Any:
        assert self._connection is not None
        cursor = await self._connection.cursor(query)
        while chunk := await cursor.fetch(_CHUNK):
            yield chunk

    async def _value(self, query: str) -> Any:
        assert self._connection is not None
        return await self._connection.fetchval(query)

    async def _refuse_live(self) -> None:
        assert self._connection is not None
        schema = self._schema
        rows = await self._connection.fetch(
            f"SELECT name FROM {schema}.session WHERE live AND lease_until > {schema}.now_us() ORDER BY id LIMIT 10"
        )
        if rows:
            raise Conflict(f"processes work on the new store already: {', '.join(row['name'] for row in rows)}")

    async def _refuse_used(self) -> None:
        for table in _MUST_BE_EMPTY:
            if await self._value(f"SELECT EXISTS (SELECT FROM {self._schema}.{table})"):
                raise Conflict(
                    f"the new store is not empty: there are rows in {table}; name another schema or database"
                )
        assert self._connection is not None
        # Sessions left by processes that were tried out there: their ids are needed.
        await self._connection.execute(f"DELETE FROM {self._schema}.session")

    def _number(self, kind: NameKind, name: str) -> int:
        assert self._store is not None
        return self._store._names.get_number(kind, name) if name else 0
