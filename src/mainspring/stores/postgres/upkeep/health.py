"""Examines a PostgreSQL server and its schema over connections of its own, without changing anything."""

import functools
import re
from collections.abc import Mapping
from statistics import median
from typing import Any, TypeAlias, cast

import asyncpg

from mainspring.core.model.base.errors import Conflict, MainspringError, StoreUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros, format_duration
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.cluster.diagnosis import (
    Finding,
    Level,
    Queued,
    ReaderSigns,
    Signs,
    WorkerSigns,
    blamed,
    found,
    get_reaping_limit,
    warned,
)
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.health import Examination, TableVitals, Vitals
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.stores.postgres import schema as schemas
from mainspring.stores.postgres.database import SESSION, connecting, load_statements, prepare_connection
from mainspring.stores.postgres.partitions import FAMILIES
from mainspring.stores.postgres.replica import REPLAYED, WRITTEN
from mainspring.stores.postgres.row_security import list_missing_rights
from mainspring.stores.postgres.servers import get_servers
from mainspring.stores.postgres.upkeep.findings import (
    check_clock,
    check_idle,
    check_indexes,
    check_latency,
    check_partitions,
    check_pooler,
    check_pools,
    check_room,
    check_schema,
    check_server,
    check_slots,
    check_standbys,
    check_transactions,
    check_vacuum,
    check_wraparound,
)
from mainspring.stores.statements import Statement

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_ROUND_TRIPS = 7
#: Connections of a process beyond its pool: wake-ups, heartbeat, and those for user reads.
_CONNECTIONS_BESIDE = 5
_PARTITION = re.compile(r"(\w+)_d(\d+)")


class PostgresHealth:
    def __init__(
        self,
        dsn: str,
        schema: str,
        clock: Clock,
        *,
        connections: int,
        retention: Retention,
        replica: tuple[str, Micros] | None = None,
    ) -> None:
        self._replica = replica
        self._servers = get_servers(dsn)
        self._schema = schema
        self._clock = clock
        self._connections = connections
        self._retention = retention
        self._pooled: Finding | None = None
        #: Since when each standby snapshot has held back vacuum, as first seen here.
        self._snapshots_since: dict[tuple[str, str], Micros] = {}
        self._sql: Mapping[str, Statement] = load_statements(schema, ("health",))

    async def examine(self) -> Examination:
        try:
            connection = await self._connect()
        except MainspringError as error:
            advice = "see that the server runs, and that host, name and password in the store's address are right"
            return Examination(findings=[blamed("store", str(error), advice)])
        try:
            return await self._examine(connection)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            advice = "see the server's log"
            return Examination(findings=[blamed("store", f"PostgreSQL: {str(error) or type(error).__name__}", advice)])
        finally:
            connection.terminate()

    async def read_pressure(self) -> list[Finding]:
        connection = await self._connect()
        try:
            with connecting():
                server = await self._one(connection, "server")
                return [
                    check_latency(await self._trip(connection)),
                    check_room(server["connected"], server["connections"]),
                    check_wraparound(server["xid_age"], server["xid_database"]),
                    *await self._transactions(connection, server["sees_all"]),
                    *check_slots(await self._all(connection, "slots")),
                    *check_standbys(await self._all(connection, "standbys")),
                    await self._pooler_seen(connection, server),
                    *check_vacuum(await self._all(connection, "vacuum", schema=self._schema)),
                    *([] if self._replica is None else [await self._lag(connection, *self._replica)]),
                ]
        finally:
            connection.terminate()

    async def vitals(self) -> list[Vitals]:
        connection = await self._connect()
        try:
            return [await self._vitals(connection)]
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise StoreUnavailable(f"PostgreSQL: {str(error) or type(error).__name__}") from error
        finally:
            connection.terminate()

    async def _vitals(self, connection: Connection) -> Vitals:
        server = await self._one(connection, "server")
        row = await self._one(connection, "vitals")
        unstaged, unfired = await self._one(connection, "unstaged"), await self._one(connection, "unfired")
        unqueued = await self._one(connection, "unqueued")
        held = await self._held(connection)
        following = await self._all(connection, "standbys")
        now: Instant = server["now"]
        return Vitals(
            dead_letters=await connection.fetchval(*self._sql["dead_letters"].bind()),
            scheduled=unqueued["scheduled"],
            blocked=unqueued["blocked"],
            missed_objectives=row["missed"],
            lost_workers=row["lost_workers"],
            staging_lag=0 if unstaged["oldest"] is None else max(now - unstaged["oldest"], 0),
            firing_lag=0 if unfired["oldest"] is None else max(now - unfired["oldest"], 0),
            size=row["size"],
            # Without the right to see all transactions the age is unknown, not zero.
            oldest_transaction=max((one["age"] for one in held), default=0) if server["sees_all"] else None,
            transaction_id_age=server["xid_age"],
            connections=server["connected"],
            connections_limit=server["connections"],
            wal_kept=row["wal_kept"],
            replication_lag=max((one["late"] for one in following), default=None),
            replication_bytes=max((one["bytes"] for one in following), default=None),
            tables=tuple(
                TableVitals(one["name"], one["dead"] or 0, one["live"] or 0, one["ago"])
                for one in await self._all(connection, "vacuum", schema=self._schema)
            ),
        )

    async def _connect(self) -> Connection:
        with connecting():
            # No prepared statements: a pooler in transaction mode would lose them, and the examination would fail.
            options = {"timeout": 5, "command_timeout": 15, "statement_cache_size": 0}
            connect = functools.partial(self._servers.connect, **options)
            if len(self._servers.dsns) == 1:
                # With one server, connect to a standby, too: that it is one must become a finding.
                connect = functools.partial(asyncpg.connect, self._servers.dsns[0], **options)
            try:
                connection = await connect(server_settings=SESSION)
            except asyncpg.ProtocolViolationError as error:
                if "startup parameter" not in str(error):
                    raise
                connection = await connect()
            await prepare_connection(connection)
            return connection

    async def _examine(self, connection: Connection) -> Examination:
        trip = await self._trip(connection)
        here = self._clock.now()
        began = self._clock.monotonic()
        server = await self._one(connection, "server")
        here += (self._clock.monotonic() - began) // 2
        findings = [
            found("store", f"PostgreSQL {server['words'].split(' ')[0]}, schema {self._schema}"),
            check_latency(trip),
            check_clock(server["now"] - here),
            *check_server(dict(server)),
            await self._pooler(connection, server),
        ]
        schema, readable = await self._examine_schema(connection)
        findings += [
            schema,
            *await self._transactions(connection, server["sees_all"]),
            *check_slots(await self._all(connection, "slots")),
            *check_standbys(await self._all(connection, "standbys")),
        ]
        if not readable:
            return Examination(findings=findings)
        findings += check_vacuum(await self._all(connection, "vacuum", schema=self._schema))
        findings += await self._tables(connection, server["now"])
        processes = await connection.fetchval(*self._sql["processes"].bind())
        findings += [
            check_room(server["connected"], server["connections"]),
            check_pools(processes, self._connections + _CONNECTIONS_BESIDE, server["connections"]),
        ]
        findings.append(await self._reader_role(connection))
        if self._replica is not None:
            findings.append(await self._lag(connection, *self._replica))
        return Examination(findings=findings, signs=await self._signs(connection, server["now"]))

    async def _trip(self, connection: Connection) -> Micros:
        """Return the median of several round trips, so that one slowed by a busy machine does not count."""
        took: list[Micros] = []
        for _ in range(_ROUND_TRIPS):
            began = self._clock.monotonic()
            await connection.fetchval("SELECT 1")
            took.append(self._clock.monotonic() - began)
        return round(median(took))

    async def _all(self, connection: Connection, name: str, **values: object) -> list[dict[str, Any]]:
        return [dict(row) for row in await connection.fetch(*self._sql[name].bind(**values))]

    async def _one(self, connection: Connection, name: str, **values: object) -> asyncpg.Record:
        row = await connection.fetchrow(*self._sql[name].bind(**values))
        assert row is not None
        return row

    async def _examine_schema(self, connection: Connection) -> tuple[Finding, bool]:
        """Return the finding about the schema, and whether this program can read the tables."""
        try:
            await schemas.refuse_older_checkout(connection, self._schema)
            row = await self._one(connection, "schema_version")
        except Conflict as error:
            says, _, advice = str(error).partition(": ")
            return blamed("schema", says, advice), False
        except asyncpg.UndefinedTableError:
            return check_schema(0, 0), False
        version, needs = row["version"], row["needs"]
        return check_schema(version, needs), version >= schemas.oldest() and needs <= schemas.newest()

    async def _pooler(self, connection: Connection, server: asyncpg.Record) -> Finding:
        """Detect a pooler: it announces its own process id instead of the server's.

        In transaction mode, the server's process id also changes.
        """
        if connection.get_server_pid() == server["pid"] and server["enable_seqscan"] == "off":
            return found("pooler", "none")
        other = await self._connect()
        try:
            # Behind a pooler, the process that has just served this connection serves the next request of any
            # connection.
            before = await connection.fetchval("SELECT pg_backend_pid()")
            async with other.transaction():
                taken = await other.fetchval("SELECT pg_backend_pid()")
                after = await connection.fetchval("SELECT pg_backend_pid()")
        finally:
            other.terminate()
        return check_pooler(
            by_transaction=taken == before or after != before, keeps_settings=server["enable_seqscan"] == "off"
        )

    async def _pooler_seen(self, connection: Connection, server: asyncpg.Record) -> Finding:
        """Detect a pooler, and keep reporting it once one was found.

        Among other clients, a pooler in transaction mode may look like one in session mode.
        """
        if self._pooled is None or self._pooled.level is Level.OK:
            self._pooled = await self._pooler(connection, server)
        return self._pooled

    async def _transactions(self, connection: Connection, sees_all: bool) -> list[Finding]:
        return [
            check_transactions(await self._held(connection), sees_all=sees_all),
            *check_idle(await self._all(connection, "idle")),
        ]

    async def _held(self, connection: Connection) -> list[dict[str, Any]]:
        """Return transactions that hold back vacuum. A standby's age counts from when its snapshot was first seen."""
        rows, now = await self._all(connection, "transactions"), self._clock.monotonic()
        seen = {(row["who"], row["snapshot"]): now for row in rows if row["snapshot"]}
        self._snapshots_since = {key: self._snapshots_since.get(key, now) for key in seen}
        for row in rows:
            row["age"] += now - self._snapshots_since.get((row["who"], row["snapshot"]), now)
        return rows

    async def _tables(self, connection: Connection, now: Instant) -> list[Finding]:
        schema = self._schema
        indexes = {row["name"]: row["valid"] for row in await self._all(connection, "indexes", schema=schema)}
        unlogged = [row["name"] for row in await self._all(connection, "unlogged", schema=schema)]
        names = [row["name"] for row in await self._all(connection, "partitions", schema=schema)]
        days: dict[str, set[int]] = {family: set() for family in FAMILIES}
        for name in names:
            match = _PARTITION.fullmatch(name)
            if match is not None and match[1] in days:
                days[match[1]].add(int(match[2]))
        findings = [check_indexes(indexes, schema), found("durable tables", "all of them are logged")]
        if unlogged:
            says = f"{', '.join(unlogged[:5])} would be empty after a crash"
            findings[1] = blamed("durable tables", says, f"ALTER TABLE {schema}.{unlogged[0]} SET LOGGED")
        return [*findings, *check_partitions(days, now, self._retention)]

    async def _lag(self, connection: Connection, dsn: str, most: Micros) -> Finding:
        """Measure how long the replica takes to reach the primary's current position."""
        advice = "lists of the API come from the primary meanwhile: see replication there"
        written = await connection.fetchval(WRITTEN)
        began = self._clock.monotonic()
        try:
            with connecting():
                there = await get_servers(dsn, reading=True).connect(timeout=5, statement_cache_size=0)
            try:
                async with there.transaction():
                    reached = await there.fetchval(REPLAYED) >= written
                while not reached and self._clock.monotonic() - began < most:
                    await self._clock.sleep(100 * MILLISECOND)
                    async with there.transaction():
                        reached = await there.fetchval(REPLAYED) >= written
            finally:
                there.terminate()
        except (MainspringError, asyncpg.PostgresError, OSError) as error:
            return warned("replica", f"it does not answer: {error}", advice)
        took = self._clock.monotonic() - began
        if reached:
            return found("replica", f"{took / SECOND:.1f} s behind at most")
        return warned("replica", f"it is more than {format_duration(most)} behind", advice)

    async def _reader_role(self, connection: Connection) -> Finding:
        left = await list_missing_rights(cast("Any", connection), self._schema)
        if not left:
            return found("row-level security", "people read through a role that is bound to their tenant")
        advice = "have an administrator run: " + " ".join(f"{statement};" for statement in left)
        return warned("row-level security", "the role for it is missing: only the queries separate tenants", advice)

    async def _signs(self, connection: Connection, now: Instant) -> Signs:
        unstaged, unfired = await self._one(connection, "unstaged"), await self._one(connection, "unfired")
        return Signs(
            now=now,
            identity=await connection.fetchval(*self._sql["identity"].bind()),
            schedulers=await connection.fetchval(*self._sql["schedulers"].bind()),
            workers=tuple(
                WorkerSigns(
                    name=row["name"],
                    queues=tuple(row["queues"]),
                    tasks=tuple(row["tasks"]),
                    labels=tuple(row["labels"]),
                    datacenter=row["datacenter"],
                    draining=row["draining"],
                )
                for row in await self._all(connection, "workers")
            ),
            queued=tuple(
                Queued(queue=row["queue"], task=row["task"], runs=row["runs"], requires=tuple(row["requires"]))
                for row in await self._all(connection, "queued")
            ),
            expired=tuple(
                row["name"] for row in await self._all(connection, "expired_sessions", since=get_reaping_limit(now))
            ),
            unstaged=unstaged["count"],
            oldest_unstaged=unstaged["oldest"],
            unfired=unfired["count"],
            oldest_unfired=unfired["oldest"],
            waiting=await connection.fetchval(*self._sql["waiting"].bind()),
            readers=tuple(
                ReaderSigns(name=row["name"], oldest=now if row["oldest"] is None else row["oldest"])
                for row in await self._all(connection, "readers")
            ),
            dead_letters=await connection.fetchval(*self._sql["dead_letters"].bind()),
            pauses=tuple((row["tenant"], row["queue"]) for row in await self._all(connection, "pauses")),
            paused_jobs=tuple((row["tenant"], row["job"]) for row in await self._all(connection, "paused_jobs")),
            clocks=tuple(
                (row["name"], ClockReading(row["clock_offset"], row["clock_error"]))
                for row in await self._all(connection, "clocks")
            ),
            tzdata=tuple((row["name"], row["tzdata"]) for row in await self._all(connection, "tzdata")),
        )
