"""Sites on a PostgreSQL server: each one is a schema."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg

from bench.figures import Figures
from bench.sites.site import Kept, Span
from bench.sizes import QUEUE
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Instant
from mainspring.stores.postgres.database import connecting
from tools.services.local_postgres import LocalPostgres


class PostgresSite:
    embedded = False

    def __init__(
        self, dsn: str, schema: str, connection: "asyncpg.Connection[asyncpg.Record]", pid: int | None
    ) -> None:
        self.environment = {"MAINSPRING_STORE": dsn, "MAINSPRING_SCHEMA": schema}
        self.server_pid = pid
        self._schema = schema
        self._connection = connection

    async def span(self) -> Span:
        row = await self._connection.fetchrow(
            f"SELECT count(*), min(started_at), max(finished_at) FROM {self._schema}.history"
        )
        assert row is not None
        return Span(row[0], row[1] or 0, row[2] or 0)

    async def ended(self, since: Instant, until: Instant) -> int:
        return await self._count(
            f"SELECT count(*) FROM {self._schema}.history WHERE finished_at >= $1 AND finished_at < $2", since, until
        )

    async def ended_per(self, width: int, since: Instant) -> list[int]:
        rows = await self._connection.fetch(
            f"SELECT (finished_at - $2) / $1, count(*) FROM {self._schema}.history WHERE finished_at >= $2 GROUP BY 1",
            width,
            since,
        )
        found = {row[0]: row[1] for row in rows}
        return [found.get(index, 0) for index in range(max(found, default=-1) + 1)]

    async def live(self) -> bool:
        # The last in the queue is found in one step. Only when there is none, rows that are running are looked for
        # among the many that are gone: asked all the time, that would cost a good part of what is measured.
        last = await self._connection.fetchval(
            f"SELECT id FROM {self._schema}.run WHERE claim_group = 0 AND state = 3 "
            f"AND queue = (SELECT n.id FROM {self._schema}.name n WHERE n.kind = 3 AND n.name = $1) "
            "ORDER BY rank DESC, id DESC LIMIT 1",
            QUEUE,
        )
        if last is not None:
            return True
        return await self._count(f"SELECT count(*) FROM (SELECT FROM {self._schema}.run LIMIT 1) AS r") > 0

    async def unfinished(self) -> int:
        return await self._count(
            f"SELECT (SELECT count(*) FROM {self._schema}.run) + (SELECT count(*) FROM {self._schema}.waiting)"
        )

    async def doubles(self) -> int:
        return await self._count(f"SELECT count(*) - count(DISTINCT id) FROM {self._schema}.history")

    async def bytes(self) -> Mapping[str, int]:
        # Partitions are reported under the name of their table.
        rows = await self._connection.fetch(
            "SELECT regexp_replace(c.relname, '_(d[0-9]+|kept|forever)$', '') AS name, "
            "sum(pg_total_relation_size(c.oid))::bigint AS size "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relkind = 'r' GROUP BY 1",
            self._schema,
        )
        return {row["name"]: row["size"] for row in rows}

    async def kept(self) -> Kept:
        row = await self._connection.fetchrow(
            "SELECT coalesce(sum(pg_table_size(c.oid)), 0)::bigint, coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname ~ '^(history|body)(_|$)'",
            self._schema,
        )
        assert row is not None
        return Kept(row[0], row[1])

    async def logged(self) -> int | None:
        # A standby does not write ahead, and a measurement is never on one.
        found: int = await self._connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")
        return found

    async def transactions(self) -> int | None:
        return await self._count(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )

    async def dead_rows(self) -> Mapping[str, int]:
        rows = await self._connection.fetch(
            "SELECT relname, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = $1 AND n_dead_tup > 0", self._schema
        )
        return {row["relname"]: row["n_dead_tup"] for row in rows}

    async def run_ids(self) -> list[str]:
        found = await self._connection.fetch(
            " UNION ALL ".join(f"SELECT id FROM {self._schema}.{table}" for table in ("run", "waiting", "history"))
        )
        return [row["id"].hex for row in found]

    async def readers(self) -> int:
        return await self._count(f"SELECT count(*) FROM {self._schema}.outbox_cursor")

    async def ticks(self) -> dict[str, list[Instant]]:
        rows = await self._connection.fetch(
            f"SELECT job_id::text, array_agg(scheduled_at ORDER BY scheduled_at) FROM {self._schema}.ledger "
            "WHERE decision = 1 GROUP BY 1"
        )
        return {row[0]: row[1] for row in rows}

    async def _count(self, query: str, *arguments: object) -> int:
        found: int = await self._connection.fetchval(query, *arguments)
        return found


class PostgresSiteFactory:
    """A server. Every site is a schema of its own; what else is in the database is left alone."""

    kind = "postgres"

    def __init__(self, dsn: str, server: LocalPostgres | None = None) -> None:
        self.dsn = dsn
        self.facts: Figures = {}
        self.directory = server.directory if server is not None else None
        self._pid = server.pid if server is not None else None
        self._made = 0

    async def look(self) -> None:
        """Read what the server says of itself."""
        with connecting():
            connection = await asyncpg.connect(self.dsn, timeout=5)
        try:
            names = (
                "server_version",
                "fsync",
                "synchronous_commit",
                "full_page_writes",
                "shared_buffers",
                "max_wal_size",
            )
            self.facts = {name: await connection.fetchval("SELECT current_setting($1)", name) for name in names}
            may = await connection.fetchval("SELECT has_database_privilege(current_database(), 'CREATE')")
        finally:
            await connection.close()
        if not may:
            raise Invalid(
                "--store", f"may not create a schema in {urlsplit(self.dsn).path}", "GRANT CREATE ON DATABASE"
            )

    @asynccontextmanager
    async def site(self, name: str) -> AsyncIterator[PostgresSite]:
        self._made += 1
        schema = f"mainspring_bench_{name}_{self._made}"
        connection = await asyncpg.connect(self.dsn, server_settings={"jit": "off"})
        try:
            await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            yield PostgresSite(self.dsn, schema, connection, self._pid)
        finally:
            try:
                await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            finally:
                await connection.close()
