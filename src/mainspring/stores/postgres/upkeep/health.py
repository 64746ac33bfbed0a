"""Examines a PostgreSQL server and its schema over connections of its own, without changing anything."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias, cast

import asyncpg
import msgspec

from mainspring.core.model.base.errors import Conflict, MainspringError, StoreUnavailable
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Instant, Micros, format_duration
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.cluster.diagnosis import (
    Finding,
    Level,
    Queued,
    ReaderSigns,
    Signs,
    WorkerSigns,
    above,
    blamed,
    found,
    get_reaping_limit,
    warned,
)
from mainspring.core.model.cluster.store_health import find_worst
from mainspring.core.model.runs.retention import CLASSES
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.health import Examination, TableVitals, Vitals
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.stores import statements
from mainspring.stores.postgres import schema as schemas
from mainspring.stores.postgres.codes import DAYS_AHEAD
from mainspring.stores.postgres.database import PACKAGE, SESSION, connecting, load_statements, prepare_connection
from mainspring.stores.postgres.partitions import FAMILIES, HISTORIES
from mainspring.stores.postgres.replica import REPLAYED, WRITTEN
from mainspring.stores.postgres.row_security import list_missing_rights
from mainspring.stores.postgres.servers import get_servers
from mainspring.stores.statements import Statement

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_MIB = 1 << 20
_OLDEST_SERVER = 140000
_ROUND_TRIPS = 7
#: A slot or a standby that holds back this many transactions is reported, however recent.
_FAR_BACK = 10_000_000
#: Connections of a process beyond its pool: wake-ups, heartbeat, and those for user reads.
_CONNECTIONS_BESIDE = 5
_CREATE_INDEX = re.compile(r"^\s*CREATE (?:UNIQUE )?INDEX (\w+) ON", re.MULTILINE)
_DROP_INDEX = re.compile(r"^\s*DROP INDEX (\w+)", re.MULTILINE)
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
                    latency(await self._trip(connection)),
                    room(server["connected"], server["connections"]),
                    wraparound(server["xid_age"], server["xid_database"]),
                    *await self._transactions(connection, server["sees_all"]),
                    *slots(await self._all(connection, "slots")),
                    *standbys(await self._all(connection, "standbys")),
                    await self._pooler_seen(connection, server),
                    *vacuum(await self._all(connection, "vacuum", schema=self._schema)),
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
            latency(trip),
            skew(server["now"] - here),
            *server_findings(dict(server)),
            await self._pooler(connection, server),
        ]
        schema, readable = await self._examine_schema(connection)
        findings += [
            schema,
            *await self._transactions(connection, server["sees_all"]),
            *slots(await self._all(connection, "slots")),
            *standbys(await self._all(connection, "standbys")),
        ]
        if not readable:
            return Examination(findings=findings)
        findings += vacuum(await self._all(connection, "vacuum", schema=self._schema))
        findings += await self._tables(connection, server["now"])
        processes = await connection.fetchval(*self._sql["processes"].bind())
        findings += [
            room(server["connected"], server["connections"]),
            plan(processes, self._connections + _CONNECTIONS_BESIDE, server["connections"]),
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
            return _schema(0, 0), False
        version, needs = row["version"], row["needs"]
        return _schema(version, needs), version >= schemas.oldest() and needs <= schemas.newest()

    async def _pooler(self, connection: Connection, server: asyncpg.Record) -> Finding:
        """Detect a pooler: it announces its own process id instead of the server's.

        In transaction mode, the server's process id also changes.
        """
        if connection.get_server_pid() == server["pid"] and server["enable_seqscan"] == "off":
            return found("pooler", "none in between")
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
        return pooler(
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
            transactions(await self._held(connection), sees_all=sees_all),
            *idle(await self._all(connection, "idle")),
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
        findings = [_indexes(indexes, schema), found("durable tables", "all of them are logged")]
        if unlogged:
            says = f"{', '.join(unlogged[:5])} would be empty after a crash"
            findings[1] = blamed("durable tables", says, f"ALTER TABLE {schema}.{unlogged[0]} SET LOGGED")
        return [*findings, *partitions(days, now, self._retention)]

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
            clocks=tuple(
                (row["name"], ClockReading(row["clock_offset"], row["clock_error"]))
                for row in await self._all(connection, "clocks")
            ),
            tzdata=tuple((row["name"], row["tzdata"]) for row in await self._all(connection, "tzdata")),
        )


def latency(trip: Micros) -> Finding:
    advice = "bring the processes nearer to the server: every claim and every report waits for it"
    return above(
        "latency", trip, 10 * MILLISECOND, 100 * MILLISECOND, f"a round trip takes {trip / 1_000:.2f} ms", advice
    )


def skew(ahead: Micros) -> Finding:
    """Compare the clocks: the store's decides what is due, the local one is used for ids and logs."""
    far = abs(ahead)
    if far < 2 * SECOND:
        return found("clock", f"the store's is {ahead / 1_000:+.0f} ms from this one")
    where = "ahead of" if ahead > 0 else "behind"
    how = f"the store's clock is {format_duration(far // SECOND * SECOND)} {where} this one"
    return warned("clock", how, "see to time synchronisation; what is due is decided by the store's clock alone")


def server_findings(server: Mapping[str, object]) -> list[Finding]:
    findings = []
    version = int(str(server["version"]))
    if version < _OLDEST_SERVER:
        findings.append(blamed("version", f"PostgreSQL {version // 10_000}", "upgrade to 14 or newer"))
    if server["standby"]:
        says = "this server is a standby and refuses to write"
        findings.append(blamed("primary", says, "name the primary, or several hosts with target_session_attrs=primary"))
    unsafe = [name for name in ("fsync", "full_page_writes") if server[name] == "off"]
    if unsafe:
        says = f"{' and '.join(unsafe)} off: a crash can destroy the database"
        findings.append(blamed("durability", says, f"set {unsafe[0]} = on"))
    elif server["synchronous_commit"] == "off":
        says = "synchronous_commit is off: a crash loses what was just accepted"
        findings.append(blamed("durability", says, "set it to on for this role or database"))
    else:
        findings.append(found("durability", f"synchronous_commit {server['synchronous_commit']}"))
    if "off" in (server["autovacuum"], server["track_counts"]):
        says = "autovacuum is off: tables grow without end, and the server stops in the end"
        findings.append(blamed("autovacuum", says, "set autovacuum = on and track_counts = on"))
    else:
        findings.append(found("autovacuum", "on"))
    return [*findings, wraparound(int(str(server["xid_age"])), str(server["xid_database"]))]


def wraparound(age: int, database: str) -> Finding:
    says = f"the oldest transaction id is {age:,} old, in database {database}; the server stops at 2,146,000,000"
    advice = f"find what holds vacuum back (transactions, replication slots), then VACUUM FREEZE in {database}"
    return above("wraparound", age, 1_000_000_000, 1_800_000_000, says, advice)


def pooler(*, by_transaction: bool, keeps_settings: bool) -> Finding:
    if by_transaction:
        says = (
            "there is one in transaction mode: no LISTEN, so workers poll, and every statement takes three trips more"
        )
        return warned("pooler", says, "connect to the server itself, where you can")
    if not keeps_settings:
        says = "there is one that drops the settings of connections: every statement takes three trips more"
        return warned("pooler", says, "connect to the server itself, where you can")
    return found("pooler", "there is one, in session mode")


def room(connected: int, most: int) -> Finding:
    says = f"{connected} of {most} are open"
    advice = "raise max_connections, or see in pg_stat_activity who has them"
    return above("connections", connected / most, 0.8, 0.95, says, advice)


def plan(processes: int, each: int, most: int) -> Finding:
    """Warn if all processes and one more may open more connections than allowed; they may never open that many."""
    wanted = (processes + 1) * each
    says = f"{processes} processes of up to {each} connections each may want {wanted} of {most}"
    if wanted <= most:
        return found("planned connections", says)
    advice = "raise max_connections, lower connections in the settings, or start fewer processes"
    return warned("planned connections", says, advice)


def transactions(rows: Sequence[Mapping[str, object]], *, sees_all: bool) -> Finding:
    """Return the worst transaction that holds back vacuum, which keeps all rows that one may still see."""
    hidden = "" if sees_all else "; those of other roles cannot be seen without pg_read_all_stats"
    if not rows:
        return found("transactions", f"none holds vacuum back{hidden}")
    worst = find_worst(_transaction(row) for row in rows)["transactions"]
    return msgspec.structs.replace(worst, says=worst.says + hidden)


def _transaction(row: Mapping[str, object]) -> Finding:
    who, state, age, xids = str(row["who"]), str(row["state"]), int(str(row["age"])), int(str(row["xids"]))
    how = "" if state in ("", "active", "standby") else f", {state},"
    lasts = f" for {format_duration(max(age // SECOND, 1) * SECOND)}" if age else ""
    says = f"{who}{how} has kept the dead rows of {xids:,} transactions{lasts}"
    ends = {
        "prepared": "COMMIT PREPARED or ROLLBACK PREPARED it",
        "standby": "end that query there, or set hot_standby_feedback = off there",
    }
    advice = f"{ends.get(state, 'end it: pg_terminate_backend(…)')}; what died since it began is not vacuumed"
    limit = MINUTE if state.startswith("idle in transaction") else 5 * MINUTE
    # On the first look, it is unknown how long a standby has been reading.
    if state == "standby" and xids >= _FAR_BACK:
        limit = 0
    return msgspec.structs.replace(above("transactions", age, limit, HOUR, says, advice), who=who)


def idle(rows: Sequence[Mapping[str, object]]) -> list[Finding]:
    """Report idle transactions that hold back no vacuum: each keeps its connection, and perhaps locks others need."""
    findings = []
    for row in rows:
        age, who = int(str(row["age"])), str(row["who"])
        lasts = format_duration(max(age // SECOND, 1) * SECOND)
        says = f"{who} has done nothing in one for {lasts}: it keeps its connection and its locks, and no dead rows"
        advice = f"see that it commits; if it is forgotten: pg_terminate_backend({row['pid']})"
        findings.append(msgspec.structs.replace(above("idle transactions", age, HOUR, math.inf, says, advice), who=who))
    return findings or [found("idle transactions", "none")]


def slots(rows: Sequence[Mapping[str, object]]) -> list[Finding]:
    findings = []
    for row in rows:
        xids, kept = int(str(row["xids"])), int(str(row["kept"]))
        if xids >= _FAR_BACK or (not row["active"] and kept >= 1024 * _MIB):
            says = f"{row['name']} holds back {xids:,} transactions and {kept // _MIB:,} MiB of log"
            advice = f"if nobody needs it: SELECT pg_drop_replication_slot('{row['name']}')"
            findings.append(above("replication slots", xids, 0, 200_000_000, says, advice))
    return findings or [found("replication slots", f"{len(rows)}, none holds anything back")]


def standbys(rows: Sequence[Mapping[str, object]]) -> list[Finding]:
    """Report lagging standbys: what one has not applied is lost with the primary, or waited for when it takes over."""
    findings = []
    for row in rows:
        late, size = int(str(row["late"])), int(str(row["bytes"]))
        if late >= MINUTE or size >= 1024 * _MIB:
            says = f"{row['name']} is {format_duration(late // SECOND * SECOND)} and {size // _MIB:,} MiB behind"
            advice = "see its log and the network between: what it has not got is lost with the primary"
            findings.append(above("standbys", late, 0, HOUR, says, advice))
    return findings or [found("standbys", f"{len(rows)} seen, none is behind")]


def vacuum(rows: Sequence[Mapping[str, object]]) -> list[Finding]:
    """Report dead rows and bloat of the live tables. Dead rows make claims slow, so they must be few at any moment."""
    findings = []
    for row in rows:
        dead, live, size = (int(str(row[name] or 0)) for name in ("dead", "live", "size"))
        ago = (
            "never vacuumed"
            if row["ago"] is None
            else f"vacuumed {format_duration(int(str(row['ago'])) // SECOND * SECOND)} ago"
        )
        advice = "a scheduler vacuums every few seconds, if one lives; see transactions for what holds it back"
        if dead >= 100_000 and dead > live // 5:
            says = f"{row['name']} has {dead:,} dead rows beside {live:,}, {ago}"
            findings.append(above("vacuum", dead, 0, 1_000_000, says, advice))
        # A row takes about 300 bytes; far more than that is space left from a larger table.
        elif size >= 512 * _MIB and size > 20 * 300 * max(live + dead, 1):
            says = f"{row['name']} takes {size // _MIB:,} MiB for {live:,} rows, {ago}"
            findings.append(warned("bloat", says, f"when it is quiet: VACUUM FULL {row['name']}, or pg_repack"))
    return findings or [found("vacuum", "few dead rows in the live tables")]


def partitions(days: Mapping[str, set[int]], now: Instant, retention: Retention) -> list[Finding]:
    today = now // DAY
    missing = sorted(
        (day, family)
        for family in days
        # Partitions of a retention class are made when a run or tenant first chooses it.
        if family not in HISTORIES.values() or days[family]
        for day in range(today, today + DAYS_AHEAD - 1)
        if day * DAY // _span(family) not in days[family]
    )
    findings = [found("partitions", f"there for the coming {DAYS_AHEAD - 1} days")]
    if missing:
        day, family = missing[0]
        words = "today" if day == today else f"in {day - today} days"
        says = f"{len(missing)} are missing, the first of {family} for {words}"
        soon = blamed if day <= today + 1 else warned
        findings = [soon("partitions", says, "start a scheduler, which makes them every hour, or mainspring migrate")]
    kept = {
        "history_succeeded": retention.succeeded,
        "history_unsuccessful": retention.unsuccessful,
        "attempt": retention.unsuccessful,
        "ledger": retention.ledger,
        **{family: retention.of(CLASSES[number]) for number, family in HISTORIES.items()},
    }
    # One day of grace: partitions are dropped once an hour, and only as a whole.
    old = sorted(
        f"{family}_d{day}"
        for family, span in kept.items()
        for day in days.get(family, ())
        if (day + 1) * _span(family) + DAY <= now - span
    )
    if old:
        says = f"{len(old)} are past their time, such as {old[0]}"
        return [*findings, warned("retention", says, "a scheduler drops them: see that one lives, and its log")]
    return [*findings, found("retention", "nothing is kept beyond its time")]


def _span(family: str) -> Micros:
    """Return the time that one partition of a parent table spans."""
    return max(FAMILIES[family], DAY)


def expected_indexes() -> set[str]:
    """Return the names of the indexes that exist after all migrations."""
    names: set[str] = set()
    for _, _, text in statements.migrations(PACKAGE):
        names |= set(_CREATE_INDEX.findall(text))
        dropped = set(_DROP_INDEX.findall(text))
        # An index that is dropped and made again in the same file exists afterwards.
        names -= {name for name in dropped if text.rfind(f"DROP INDEX {name}") > text.rfind(f"INDEX {name} ON")}
    return names


def _indexes(there: Mapping[str, bool], schema: str) -> Finding:
    missing = sorted(expected_indexes() - there.keys())
    invalid = sorted(name for name, valid in there.items() if not valid)
    if missing:
        says = f"{len(missing)} are missing: {', '.join(missing[:5])}"
        return blamed(
            "indexes", says, "create them again as the migrations do; without them every claim reads the table"
        )
    if invalid:
        says = f"{len(invalid)} are not valid: {', '.join(invalid[:5])}"
        return blamed("indexes", says, f"REINDEX INDEX {schema}.{invalid[0]}")
    return found("indexes", f"all {len(expected_indexes())} are there and valid")


def _schema(version: int, needs: int) -> Finding:
    known, wanted = schemas.newest(), schemas.oldest()
    if needs > known:
        return blamed("schema", f"version {version}; this program knows up to {known}", "upgrade the program")
    if version > known:
        says = f"version {version}; this program knows up to {known}, and still works on it"
        return warned("schema", says, "upgrade the program soon: the next version may need it")
    if version >= wanted:
        return found("schema", f"version {version}")
    says = f"version {version}, {wanted} is the newest" if version else "there is none yet"
    return warned("schema", says, "mainspring migrate, or start any process: it does that first")
