"""Migrations: numbered plain SQL, applied once, under a lock."""

import asyncpg

from mainspring.adapters.store import named_sql
from mainspring.adapters.store.postgres.database import PACKAGE, Connection, Database, wait_for_turn
from mainspring.domain.errors import Conflict

_CREATE = """
CREATE TABLE IF NOT EXISTS {schema}.migration (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


async def migrate(database: Database, shards: int) -> int:
    """Bring the schema up to date; how many migrations were applied. Refuses a schema newer than the program."""
    known = named_sql.migrations(PACKAGE)
    newest = known[-1][0]

    async def work(connection: Connection) -> int:
        schema = database.schema
        await wait_for_turn(connection, f"{schema}.migrate")
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
            await connection.execute(f"CREATE SCHEMA {schema}")
        await connection.execute(_CREATE.format(schema=schema))
        version = await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {schema}.migration")
        if version > newest:
            raise Conflict(
                f"the database has schema version {version}, this program knows up to {newest}: upgrade the program"
            )
        todo = [migration for migration in known if migration[0] > version]
        if todo:
            await connection.execute(f"SET LOCAL search_path = {schema}; SET LOCAL statement_timeout = 0")
        for number, name, text in todo:
            await connection.execute(text)
            await connection.execute(
                f"INSERT INTO {schema}.migration (version, name) VALUES ($1, $2)",
                number,
                name,
            )
        if version == 0:
            await connection.execute(f"INSERT INTO {schema}.meta (shards) VALUES ($1)", shards)
            await connection.execute(
                f"INSERT INTO {schema}.shard (id) SELECT generate_series(0, $1 - 1)",
                shards,
            )
        return len(todo)

    return await database.transaction(work)


async def is_current(database: Database) -> bool:
    """Whether there is nothing to migrate: asked first, so that an ordinary start takes no lock and needs no rights."""
    newest = named_sql.migrations(PACKAGE)[-1][0]

    async def work(connection: Connection) -> bool:
        try:
            return bool(await connection.fetchval(f"SELECT max(version) = $1 FROM {database.schema}.migration", newest))
        except asyncpg.UndefinedTableError:
            return False

    return await database.run(work)
