"""Backs up a schema from one snapshot, and restores a schema from a backup.

Rows are copied by COPY, table by table, and the schema itself is made by the migrations that had been applied. So
neither PostgreSQL's programs nor the same server version are needed, and the schema may get another name.
"""

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeAlias

import asyncpg
import msgspec

from mainspring.core.model.base.errors import Conflict, Invalid, StoreUnavailable
from mainspring.core.model.base.instant import isoformat
from mainspring.core.model.runs.restored import (
    AUTHOR,
    RESTORED,
    PausedBefore,
    RestoreRecord,
    Unfinished,
    paused_before,
    why_held,
)
from mainspring.core.ports.upkeep.backup import (
    LEFT_OUT,
    BackupPart,
    BackupWriter,
    Manifest,
    Open,
    Partition,
    ReportProgress,
)
from mainspring.stores import statements
from mainspring.stores.postgres.codes import STATES
from mainspring.stores.postgres.database import PACKAGE, SESSION, connecting
from mainspring.stores.postgres.schema import create_schema_at, migrate_further, refuse_older_checkout
from mainspring.stores.postgres.servers import get_servers
from mainspring.stores.postgres.upkeep.dependent_objects import Grant, grant_again, list_dependent_objects, list_grants

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

#: For long work, in one transaction that does not wait for others.
_SETTINGS = SESSION | {
    "application_name": "mainspring backup",
    "statement_timeout": "0",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "0",
    # Every table is read completely.
    "enable_seqscan": "on",
    # A role that may not see all rows is refused, instead of getting only those it may see.
    "row_security": "off",
}
_WHO = "it takes the owner of the tables, or a role with pg_read_all_data and BYPASSRLS"
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# Without tables detached to be dropped, and without the record of applied migrations.
_TABLES = """
SELECT c.relname AS name, array_agg(a.attname ORDER BY a.attnum) AS columns
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND c.relname <> 'migration' AND c.relname !~ '_d[0-9]+$'
GROUP BY 1 ORDER BY 1
"""
_PARTITIONS = """
SELECT c.relname AS name, p.relname AS parent, pg_get_expr(c.relpartbound, c.oid) AS bound,
       coalesce(pg_get_partkeydef(c.oid), '') AS by
FROM pg_class root, pg_partition_tree(root.oid) AS t
JOIN pg_class c ON c.oid = t.relid JOIN pg_class p ON p.oid = t.parentrelid
WHERE root.relnamespace = to_regnamespace($1) AND root.relkind = 'p' AND NOT root.relispartition
ORDER BY t.level, c.relname
"""
# A sequence that was never used has no last value; nor has one that this role may not read.
_SEQUENCES = """
SELECT sequencename AS name, last_value,
       has_sequence_privilege(format('%I.%I', schemaname, sequencename), 'USAGE, SELECT') AS readable
FROM pg_sequences WHERE schemaname = $1
"""
_FACTS = """
SELECT m.store_id::text AS store_id, m.store_epoch, m.shards,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
       ARRAY(SELECT version FROM {s}.migration ORDER BY 1) AS migrations
FROM {s}.meta m
"""
_UNFINISHED = """
SELECT state, count(*) FROM (SELECT state FROM {s}.run UNION ALL SELECT state FROM {s}.waiting) AS unended GROUP BY 1
"""
# The store is not new if any of these has a row.
_MUST_BE_EMPTY = ("job", "run", "waiting", "history", "audit", "api_key")
# Event positions contain transaction numbers, and those of another server mean nothing here. The events keep their
# order, all before any new event, and the readers keep their cursors.
_EVENTS = """
CREATE TEMP TABLE event_before ON COMMIT DROP AS
SELECT row_number() OVER (ORDER BY xid, id) AS place, * FROM {s}.outbox;
UPDATE {s}.outbox_cursor c SET xid = '3',
       position = (SELECT count(*) FROM event_before e WHERE (e.xid, e.id) <= (c.xid, c.position));
DELETE FROM {s}.outbox;
UPDATE event_before SET xid = '3', id = place;
ALTER TABLE event_before DROP COLUMN place;
INSERT INTO {s}.outbox OVERRIDING SYSTEM VALUE SELECT * FROM event_before;
INSERT INTO {s}.outbox_horizon (xid, id) VALUES (pg_current_xact_id(), 0)
ON CONFLICT (only_row) DO UPDATE SET xid = excluded.xid, id = excluded.id
"""
_VOID = """
UPDATE {s}.meta SET store_id = gen_random_uuid(), hint_key = gen_random_uuid();
UPDATE {s}.session SET live = false, ended_at = {s}.now_us(), lease_until = least(lease_until, {s}.now_us()) WHERE live;
UPDATE {s}.shard SET owner = NULL
"""
_PAUSED = """
SELECT since, author, why, until FROM {s}.pause
WHERE tenant = 0 AND queue = 0 AND (until IS NULL OR until > {s}.now_us())
"""
_LAST = "SELECT after FROM {s}.audit WHERE action = $1 ORDER BY position DESC LIMIT 1"
_PAUSE = """
INSERT INTO {s}.pause (tenant, queue, since, author, why) VALUES (0, 0, $1, $2, $3)
ON CONFLICT (tenant, queue)
DO UPDATE SET since = excluded.since, author = excluded.author, why = excluded.why, until = NULL
"""
_AUDIT = """
INSERT INTO {s}.audit (at, count, tenant, author, action, target, why, after) VALUES ($1, 1, '', $2, $3, $4, $5, $6)
"""


class PostgresBackups:
    def __init__(self, dsn: str, schema: str) -> None:
        if not _SCHEMA_NAME.fullmatch(schema):
            raise Invalid("schema", f"{schema!r} is not a plain lower-case name")
        self._dsn = dsn
        self._schema = schema

    async def take(self, writing: BackupWriter, program: str, report: ReportProgress) -> Manifest:
        schema = self._schema
        async with self._connected() as connection:
            tables = await connection.fetch(_TABLES, schema)
            if not any(table["name"] == "meta" for table in tables):
                raise StoreUnavailable(f"there is no store in the schema {schema}")
            await refuse_older_checkout(connection, schema)
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # Before the snapshot is taken: a table dropped in between would be missing from it.
            names = ", ".join(f"{schema}.{table['name']}" for table in tables)
            await connection.execute(f"LOCK TABLE {names} IN ACCESS SHARE MODE")
            facts = await connection.fetchrow(_FACTS.format(s=schema))
            assert facts is not None
            if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {schema}.server)"):
                raise Conflict("this is one server of a store over several: those are backed up by PostgreSQL's means")
            tables = await connection.fetch(_TABLES, schema)
            partitions = await connection.fetch(_PARTITIONS, schema)
            unfinished = await connection.fetch(_UNFINISHED.format(s=schema))
            parts = [
                await _copy_out(connection, schema, table["name"], table["columns"], writing, report)
                for table in tables
            ]
            # After the rows: sequences are not part of a snapshot, and must not be behind the rows.
            sequences = await connection.fetch(_SEQUENCES, schema)
            if hidden := [row["name"] for row in sequences if not row["readable"]]:
                raise Conflict(f"this role may not read {', '.join(hidden)}: {_WHO}")
            await connection.execute("COMMIT")
        by_state: Counter[str] = Counter()
        for row in unfinished:
            by_state[STATES[row["state"]]] += row["count"]
        return Manifest(
            kind="postgresql",
            program=program,
            taken_at=facts["now"],
            store_id=facts["store_id"],
            store_epoch=facts["store_epoch"],
            shards=facts["shards"],
            migrations=tuple(facts["migrations"]),
            parts=tuple(parts),
            rows={part.name: part.rows for part in parts},
            unfinished=dict(by_state),
            sequences={row["name"]: row["last_value"] for row in sequences if row["last_value"] is not None},
            partitions=tuple(Partition(**row) for row in partitions),
        )

    async def restore(
        self, manifest: Manifest, opened: Open, unfinished: Unfinished, report: ReportProgress, *, replace: bool
    ) -> RestoreRecord:
        known = {number for number, *_ in statements.migrations(PACKAGE)}
        if unknown := set(manifest.migrations) - known:
            raise Conflict(
                f"the backup has schema version {max(unknown)}, this program knows {max(known)}: upgrade the program"
            )
        async with self._connected() as connection:
            await connection.execute("BEGIN")
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", f"{self._schema}.migrate")
            epoch, grants = await self._clear(connection, replace)
            await create_schema_at(connection, self._schema, manifest.migrations)
            await self._fill(connection, manifest, opened, report)
            await migrate_further(connection, self._schema)
            restored = await self._hold(connection, manifest, unfinished, max(epoch, manifest.store_epoch) + 1)
            await grant_again(connection, self._schema, grants)
            await connection.execute("COMMIT")
            # Otherwise the first plans would be made for empty tables.
            names = ", ".join(f"{self._schema}.{name}" for name in manifest.rows)
            await connection.execute(f"ANALYZE {names}")
        return restored

    async def examine(self, manifest: Manifest, opened: Open, folder: Path) -> None:
        for part in manifest.parts:
            rows = 0
            async for piece in opened(part.name):
                # One line per row: COPY escapes line breaks in values.
                rows += piece.count(b"\n")
            if rows != part.rows:
                raise Conflict(f"{part.name} has {rows} rows, and {part.rows} were written")

    async def _clear(self, connection: Connection, replace: bool) -> tuple[int, list[Grant]]:
        """Drop what is there, if that is allowed; return its epoch, 0 if there was nothing, and its grants."""
        schema = self._schema
        found = {
            name: await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{schema}.{name}")
            for name in ("meta", "session", *_MUST_BE_EMPTY)
        }
        if not found["meta"]:
            if await connection.fetchval(
                "SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($1))", schema
            ):
                raise Conflict(f"the schema {schema} is of something else: there are tables, but none of Mainspring's")
            return 0, []
        alive = await connection.fetch(
            f"SELECT name FROM {schema}.session WHERE live AND lease_until > {schema}.now_us() ORDER BY id LIMIT 10"
        )
        if alive:
            raise Conflict(f"processes work on the store: {', '.join(row['name'] for row in alive)}; stop them first")
        if not replace:
            for table in _MUST_BE_EMPTY:
                if found[table] and await connection.fetchval(f"SELECT EXISTS (SELECT FROM {schema}.{table})"):
                    raise Conflict(
                        f"the store is not empty: there are rows in {table}; name another schema or database, or say "
                        "--replace"
                    )
        epoch: int = await connection.fetchval(f"SELECT store_epoch FROM {schema}.meta")
        if others := await list_dependent_objects(connection, schema):
            raise Conflict(
                f"others use what is in the schema {schema}, and would lose {', '.join(others[:10])}"
                f"{f' and {len(others) - 10} more' if len(others) > 10 else ''}: drop them first and make them again"
            )
        grants = await list_grants(connection, schema)
        await connection.execute(f"DROP SCHEMA {schema} CASCADE")
        return epoch, grants

    async def _fill(self, connection: Connection, manifest: Manifest, opened: Open, report: ReportProgress) -> None:
        schema = self._schema
        for partition in manifest.partitions:
            # The migrations make some of them.
            if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{schema}.{partition.name}"):
                continue
            by = f" PARTITION BY {partition.by}" if partition.by else ""
            await connection.execute(
                f"CREATE TABLE {schema}.{partition.name} (LIKE {schema}.{partition.parent} INCLUDING ALL){by};"
                f"ALTER TABLE {schema}.{partition.parent} ATTACH PARTITION {schema}.{partition.name} {partition.bound}"
            )
        for number, part in enumerate(manifest.parts, 1):
            table = f"{schema}.{part.name}"
            # Migrations may have inserted rows. Triggers are off, so that the rows stay as they were.
            await connection.execute(f"DELETE FROM {table}; ALTER TABLE {table} DISABLE TRIGGER USER")
            done = await connection.copy_to_table(
                part.name, schema_name=schema, columns=part.columns, source=opened(part.name)
            )
            await connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
            if (rows := int(done.removeprefix("COPY "))) != part.rows:
                raise Conflict(f"{part.name} has {rows} rows, and {part.rows} were written")
            report(part.name, number, len(manifest.parts))
        for name, value in manifest.sequences.items():
            # Session numbers that were handed out after the backup are not handed out again.
            value += LEFT_OUT if name == "session_id_seq" else 0
            await connection.execute("SELECT setval($1::text::regclass, $2)", f"{schema}.{name}", value)

    async def _hold(
        self, connection: Connection, manifest: Manifest, unfinished: Unfinished, epoch: int
    ) -> RestoreRecord:
        schema = self._schema
        now: int = await connection.fetchval(f"SELECT {schema}.now_us()")
        paused = await connection.fetchrow(_PAUSED.format(s=schema))
        last = await connection.fetchval(_LAST.format(s=schema), RESTORED)
        restored = RestoreRecord(
            taken_at=manifest.taken_at,
            restored_at=now,
            store_id=manifest.store_id,
            unfinished=unfinished,
            paused=paused_before(None if paused is None else PausedBefore(**paused), last),
        )
        await connection.execute(_EVENTS.format(s=schema))
        await connection.execute(_VOID.format(s=schema))
        await connection.execute(f"UPDATE {schema}.meta SET store_epoch = $1", epoch)
        author, why = AUTHOR, f"from a backup of {isoformat(manifest.taken_at)}"
        if unfinished is not Unfinished.RERUN:
            await connection.execute(_PAUSE.format(s=schema), now, author, why_held(restored))
        after = msgspec.json.encode(restored)
        await connection.execute(_AUDIT.format(s=schema), now, author, RESTORED, manifest.store_id, why, after)
        return restored

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        with connecting():
            connection = await get_servers(self._dsn).connect(timeout=5, server_settings=_SETTINGS)
        try:
            with _said():
                yield connection
        finally:
            connection.terminate()


async def _copy_out(
    connection: Connection,
    schema: str,
    table: str,
    columns: Sequence[str],
    writing: BackupWriter,
    report: ReportProgress,
) -> BackupPart:
    async def fill(write: Callable[[bytes], Awaitable[None]]) -> int:
        total = 0

        async def tell_and_write(data: bytes) -> None:
            nonlocal total
            await write(data)
            total += len(data)
            report(table, total, 0)

        query = f"SELECT {', '.join(columns)} FROM {schema}.{table}"
        done = await connection.copy_from_query(query, output=tell_and_write)
        return int(done.removeprefix("COPY "))

    return msgspec.structs.replace(await writing.add(table, fill), columns=tuple(columns))


@contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except asyncpg.LockNotAvailableError:
        raise Conflict("somebody holds a lock on the tables: try again") from None
    except asyncpg.InsufficientPrivilegeError as error:
        raise Conflict(f"PostgreSQL refused: {error}: {_WHO}") from error
    except (asyncpg.SyntaxOrAccessError, asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        raise Conflict(f"PostgreSQL refused: {error}") from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreUnavailable(f"PostgreSQL: {str(error) or type(error).__name__}") from error
