"""Migrations: numbered plain SQL, each applied once, under a lock.

The first line of a migration states what it does to running programs:

    -- expand                everything still works: nothing that they use is gone or has another meaning
    -- contract: needs 31    something is gone that programs before schema version 31 use, and later ones do not

A migration that states neither works only with programs that know it. Every process applies the migrations that it
knows when it starts. It applies a contract only to a store that it creates; otherwise the contract waits for
``mainspring migrate --contract``.
"""

import re
from collections.abc import Collection

import asyncpg

from mainspring.core.model.base.errors import Conflict
from mainspring.core.ports.upkeep.schema import TOO_OLD, Migrated, Migration, MigrationKind
from mainspring.core.runtime.log import get_logger
from mainspring.stores import statements
from mainspring.stores.postgres.database import PACKAGE, Connection, Database, lock_turn

_log = get_logger("mainspring.schema")

_CREATE = """
CREATE TABLE IF NOT EXISTS {schema}.migration (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    needs      integer NOT NULL   -- the version that a program must know to work on this schema
)
"""
_APPLIED = "SELECT version, needs FROM {schema}.migration"
_TOO_OLD = """
SELECT name FROM {schema}.session
WHERE live AND lease_until > {schema}.now_us() AND coalesce(knows, 0) < $1 ORDER BY id LIMIT 5
"""
_MARK = re.compile(r"-- (?:(expand)|(contract): needs (\d+))\n")


def newest() -> int:
    """Return the newest schema version that this program knows."""
    return statements.migrations(PACKAGE)[-1][0]


def oldest() -> int:
    """Return the schema version that this program needs: the newest without contracts, which may still wait."""
    known = [read_migration(*migration) for migration in statements.migrations(PACKAGE)]
    return max(migration.number for migration in known if migration.kind is not MigrationKind.CONTRACT)


def read_migration(number: int, name: str, text: str) -> Migration:
    mark = _MARK.match(text)
    if mark is None:
        return Migration(number=number, name=name, kind=MigrationKind.BREAKING, needs=number)
    if mark[1]:
        return Migration(number=number, name=name, kind=MigrationKind.EXPAND, needs=0)
    return Migration(number=number, name=name, kind=MigrationKind.CONTRACT, needs=int(mark[3]))


async def migrate(database: Database, shards: int, *, contract: bool = False) -> Migrated:
    """Bring the schema up to date; return what was applied, and what waits.

    Raise ``Conflict`` if the schema needs a newer program.
    """
    known = [(read_migration(*migration), migration[2]) for migration in statements.migrations(PACKAGE)]
    schema = database.schema

    async def work(connection: Connection) -> Migrated:
        await lock_turn(connection, f"{schema}.migrate")
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
            await connection.execute(f"CREATE SCHEMA {schema}")
        await connection.execute(_CREATE.format(schema=schema))
        await refuse_older_checkout(connection, schema)
        applied = {row["version"]: row["needs"] for row in await connection.fetch(_APPLIED.format(schema=schema))}
        _refuse_newer(applied)
        missing = [item for item in known if item[0].number not in applied]
        todo = [item for item in missing if contract or not applied or item[0].kind is not MigrationKind.CONTRACT]
        if todo:
            await connection.execute(f"SET LOCAL search_path = {schema}; SET LOCAL statement_timeout = 0")
        for migration, text in todo:
            if migration.kind is MigrationKind.CONTRACT and applied:
                await _refuse_while_needed(connection, schema, migration)
            await _apply(connection, schema, migration, text)
        if not applied:
            await connection.execute(f"INSERT INTO {schema}.meta (shards) VALUES ($1)", shards)
            await connection.execute(f"INSERT INTO {schema}.shard (id) SELECT generate_series(0, $1 - 1)", shards)
        return Migrated(
            applied=tuple(migration for migration, _ in todo),
            waiting=tuple(item[0] for item in missing if item not in todo),
        )

    return await database.transaction(work)


async def create_schema_at(
    connection: "asyncpg.Connection[asyncpg.Record]", schema: str, versions: Collection[int]
) -> None:
    """Create the schema as it is after exactly these migrations."""
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
        await connection.execute(f"CREATE SCHEMA {schema}")
    await connection.execute(_CREATE.format(schema=schema))
    await connection.execute(f"SET LOCAL search_path = {schema}")
    for migration in statements.migrations(PACKAGE):
        if migration[0] in versions:
            await _apply(connection, schema, read_migration(*migration), migration[2])


async def migrate_further(connection: "asyncpg.Connection[asyncpg.Record]", schema: str) -> None:
    """Apply missing migrations, but no contracts."""
    applied = {row["version"] for row in await connection.fetch(_APPLIED.format(schema=schema))}
    for number, name, text in statements.migrations(PACKAGE):
        migration = read_migration(number, name, text)
        if number not in applied and migration.kind is not MigrationKind.CONTRACT:
            await _apply(connection, schema, migration, text)


async def _apply(
    connection: "Connection | asyncpg.Connection[asyncpg.Record]", schema: str, migration: Migration, text: str
) -> None:
    await connection.execute(text)
    insert = f"INSERT INTO {schema}.migration (version, name, needs) VALUES ($1, $2, $3)"
    await connection.execute(insert, migration.number, migration.name, migration.needs)


async def is_current(database: Database) -> bool:
    """Whether there is nothing to migrate.

    Checked first, so that an ordinary start takes no lock and needs no rights.
    """

    async def work(connection: Connection) -> bool:
        try:
            await refuse_older_checkout(connection, database.schema)
            rows = await connection.fetch(_APPLIED.format(schema=database.schema))
        except asyncpg.UndefinedTableError:
            return False
        applied = {row["version"]: row["needs"] for row in rows}
        _refuse_newer(applied)
        wanted = [read_migration(*migration) for migration in statements.migrations(PACKAGE)]
        return all(item.number in applied for item in wanted if item.kind is not MigrationKind.CONTRACT)

    return await database.run(work)


async def refuse_older_checkout(connection: "Connection | asyncpg.Connection[asyncpg.Record]", schema: str) -> None:
    """Raise ``Conflict`` if a checkout from before the first release made the schema: its first migration differs."""
    first = await connection.fetchval(f"SELECT name FROM {schema}.migration WHERE version = 1")
    if first not in (None, statements.migrations(PACKAGE)[0][1]):
        raise Conflict(f"the schema {schema} was made by an older checkout (its first migration is {first}): {TOO_OLD}")


def _refuse_newer(applied: dict[int, int]) -> None:
    """Raise ``Conflict`` if the schema needs a newer program.

    Log a warning if the schema is newer than this program, but still works with it.
    """
    version, needed, known = max(applied, default=0), max(applied.values(), default=0), newest()
    if needed > known:
        raise Conflict(
            f"the database has schema version {version}, which needs a program that knows {needed}; this one knows "
            f"up to {known}: upgrade the program"
        )
    if version > known:
        _log.warning("schema newer than this program", schema=version, knows=known)


async def _refuse_while_needed(connection: Connection, schema: str, migration: Migration) -> None:
    names = [row["name"] for row in await connection.fetch(_TOO_OLD.format(schema=schema), migration.needs)]
    if names:
        raise Conflict(
            f"{migration.name} takes away what older programs use, and some are alive: {', '.join(names)}; "
            "upgrade them first"
        )
