"""Tenant scope by row-level security (RLS): user reads go through a role that RLS binds to one tenant.

It is the second protection; the first is the tenant condition in every query. RLS does not bind the owner of the
tables: schedulers, workers and all writes pay nothing for it. The role guards against a query that forgot the tenant,
not against an attacker's SQL, which could set another tenant.
"""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg

from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.core.runtime.log import get_logger
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.database import Answer, Connection, Database, StatementRunner, lock_turn
from mainspring.stores.postgres.names import NameCache

_log = get_logger("mainspring.row_security")

#: Connections for user reads. They are few: many reads must not take the server away from the workers.
_CONNECTIONS = 3
#: What the role may read: tables guarded by a policy, the session columns that a run shows of its worker, and when the
#: load was sampled.
GUARDED = (
    "run",
    "waiting",
    "history",
    "body",
    "attempt",
    "ledger",
    "label",
    "dead_letter",
    "minute",
    "load",
    "timing",
    "usage",
    "budget",
    "job",
    "job_version",
    "schedule",
    "dependent",
    "edge",
    "log",
    "progress",
    "attempt_kept",
    "ledger_kept",
    "log_kept",
    "audit",
    "api_key",
    "pause",
    "calendar",
)
SHARED = {"session": ("id", "name"), "load_seen": ("at",)}

# Roles belong to the whole server: the name contains the database and the schema, so that no two stores share one.
_ROLE = """
SELECT format('mainspring_reader_%s_%s', d.oid, n.oid) FROM pg_database d, pg_namespace n
WHERE d.datname = current_database() AND n.nspname = $1
"""
_STANDING = """
SELECT quote_ident(current_user) AS me, quote_ident(c.relowner::regrole::text) AS owner, r.oid IS NOT NULL AS there,
       r.rolsuper OR r.rolbypassrls AS above, pg_has_role(r.oid, c.relowner, 'MEMBER') AS owning,
       pg_has_role(r.oid, CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END)
           AS mine,
       has_schema_privilege(r.oid, c.relnamespace, 'USAGE')
           AND NOT EXISTS (SELECT FROM unnest($3::text[]) AS t WHERE NOT has_table_privilege(r.oid, t, 'SELECT'))
           AND NOT EXISTS (SELECT FROM unnest($4::text[], $5::text[]) AS s(t, part)
                           WHERE NOT has_column_privilege(r.oid, t, part, 'SELECT')) AS reading
FROM pg_class c LEFT JOIN pg_roles r ON r.rolname = $2 WHERE c.oid = $1::regclass
"""
_SET = "SELECT set_config('mainspring.tenant', $1, $3), set_config('mainspring.tenant_name', $2, $3)"


class ReaderRole:
    """The role and its connections, which are opened when the first of them is needed."""

    def __init__(self, primary: Database, there: Database | None = None) -> None:
        """``there``: the database that users read from, if the role is made elsewhere: a replica."""
        self._database = primary
        self._there = there or primary
        self._readers: Database | None = None
        self._opening = asyncio.Lock()

    async def build(self) -> list[str]:
        """Make the role and grant its rights, if necessary; return the statements that need an administrator."""
        return (await self._build())[1]

    async def readers(self) -> Database:
        """Return the database for user reads: with the role, or without it if the role cannot be used."""
        if self._readers is None:
            async with self._opening:
                if self._readers is None:
                    self._readers = await self._open()
        return self._readers

    async def close(self) -> None:
        readers, self._readers = self._readers, None
        if readers is not None and readers is not self._database:
            await readers.close()

    async def _open(self) -> Database:
        role, left = await self._build()
        if left:
            _log.warning(
                "users read without row-level security: the role is missing",
                advice="let an administrator of the database run the statements, then restart the API",
                statements=" ".join(f"{statement};" for statement in left),
            )
            return self._database
        settings = {
            # A startup setting of the connection, so that RESET ROLE returns to it, too.
            "role": role,
            # Planning a query over the partitions of all days takes several times as long as running it.
            "plan_cache_mode": "force_generic_plan",
        }
        reading = self._there is not self._database
        readers = Database(self._there.dsn, self._database.schema, _CONNECTIONS, settings, reading=reading)
        try:
            await readers.open()
            if await readers.run(self._is_bound):
                return readers
        except Invalid as error:
            # The server's setup is at fault, not the request.
            raise StoreUnavailable(str(error)) from error
        except BaseException:
            await readers.close()
            raise
        await readers.close()
        _log.warning("users read without row-level security: a pooler drops the settings of connections")
        return self._database

    async def _is_bound(self, connection: Connection) -> bool:
        return bool(
            await connection.fetchval("SELECT row_security_active($1::regclass)", f"{self._database.schema}.run")
        )

    async def _build(self) -> tuple[str, list[str]]:
        schema = self._database.schema

        async def work(connection: Connection) -> tuple[str, list[str]]:
            await lock_turn(connection, f"{schema}.row_security")
            role: str = await connection.fetchval(_ROLE, schema)
            missing = await _list_missing_rights(connection, schema, role)
            if not missing:
                return role, []
            attempt = connection.transaction()
            await attempt.start()
            try:
                for statement in missing:
                    await connection.execute(statement)
            except asyncpg.InsufficientPrivilegeError:
                await attempt.rollback()
                return role, missing
            await attempt.commit()
            return role, []

        return await self._database.transaction(work)


class TenantScopedRunner(StatementRunner):
    """The statements in the scope of one tenant."""

    def __init__(self, role: ReaderRole, primary: Database, names: NameCache, tenant: str) -> None:
        self.schema = primary.schema
        self.sql = primary.sql
        self._reader_role = role
        self._database = primary
        self._names = names
        self._tenant = tenant

    async def run(self, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        readers = await self._reader_role.readers()
        if readers is self._database:
            return await readers.run(work)
        number = await self._names.find_number(NameKind.TENANT, self._tenant) or 0

        async def inside(connection: Connection) -> Answer:
            # Runs first, and replaces what an earlier user of the connection or a canceled call left. A session setting
            # takes one round trip; a setting local to the transaction, as behind a pooler, takes three.
            await connection.execute(_SET, str(number), self._tenant, readers.servers.pooled)
            return await work(connection)

        return await readers.run(inside)


async def list_missing_rights(connection: Connection, schema: str) -> list[str]:
    """Return the statements an administrator must run so that user reads are bound by RLS. Changes nothing."""
    return await _list_missing_rights(connection, schema, await connection.fetchval(_ROLE, schema))


async def _list_missing_rights(connection: Connection, schema: str, role: str) -> list[str]:
    """Return the statements that are missing until the role can read for users."""
    tables = [f"{schema}.{table}" for table in GUARDED]
    parts = [(f"{schema}.{table}", column) for table, columns in SHARED.items() for column in columns]
    row = await connection.fetchrow(_STANDING, f"{schema}.run", role, tables, *zip(*parts, strict=True))
    assert row is not None
    todo = []
    if not row["there"]:
        todo.append(f"CREATE ROLE {role} NOLOGIN")
    if row["above"]:
        todo.append(f"ALTER ROLE {role} NOSUPERUSER NOBYPASSRLS")
    if row["owning"]:
        todo.append(f"REVOKE {row['owner']} FROM {role}")
    if not row["mine"]:
        todo.append(f"GRANT {role} TO {row['me']}")
    if not row["reading"]:
        todo.append(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        todo.append(f"GRANT SELECT ON {', '.join(tables)} TO {role}")
        todo += [
            f"GRANT SELECT ({', '.join(columns)}) ON {schema}.{table} TO {role}" for table, columns in SHARED.items()
        ]
    return todo
