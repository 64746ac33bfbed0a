"""Connections to PostgreSQL: settings, retries, and what an error means."""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, TypeVar

import asyncpg

from mainspring.adapters.store import named_sql
from mainspring.domain.errors import Invalid, StoreUnavailable

Connection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
Answer = TypeVar("Answer")

PACKAGE = "mainspring.adapters.store.postgres"
_FILES = ("submit", "claim", "settle", "stage", "fire", "reap", "read", "coordinate")
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_TRIES = 6

#: Set on every connection.
SESSION = {
    "application_name": "mainspring",
    "statement_timeout": "10s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "2s",
    "jit": "off",
    # A plan that was cached while a table was empty must still be good when it has a million rows.
    "enable_seqscan": "off",
}

#: The server chose another transaction, not this one: do it again.
_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
#: The connection, the server or its disk is away. 25006: a demoted primary, which would refuse writes for ever.
_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.LockNotAvailableError,
    asyncpg.PostgresIOError,
    asyncpg.InternalClientError,
)
#: Of these the connection itself is still good.
_CONNECTION_IS_GOOD = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError)
_REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)


class Database:
    """A pool with our settings on every connection, and one way to run work on it."""

    def __init__(self, dsn: str, schema: str, connections: int) -> None:
        if not _SCHEMA_NAME.fullmatch(schema):
            raise Invalid("schema", f"{schema!r} is not a plain lower-case name")
        self.dsn = dsn
        self.schema = schema
        self.sql: Mapping[str, str] = {
            name: text.replace("mainspring.", f"{schema}.")
            for file in _FILES
            for name, text in named_sql.load(PACKAGE, f"queries/{file}.sql").items()
        }
        self._connections = connections
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        #: Called when a row met no partition; then the work is tried again.
        self.make_partitions: Callable[[], Awaitable[None]] | None = None

    async def open(self) -> None:
        try:
            self._pool = await asyncpg.create_pool(
                self.dsn,
                min_size=1,
                max_size=self._connections,
                max_inactive_connection_lifetime=300,
                init=_prepare_connection,
                reset=_keep_as_it_is,
                timeout=5,
                command_timeout=15,
                server_settings=SESSION,
            )
        except _AWAY as error:
            raise StoreUnavailable(f"PostgreSQL: {error or type(error).__name__}") from error
        except (asyncpg.PostgresError, ValueError) as error:
            raise Invalid("store", f"PostgreSQL refused: {error}") from error

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), 5)
            except TimeoutError:
                pool.terminate()

    async def run(self, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        """Run one statement, or one transaction that ``work`` opens itself; again when the server chose another."""
        if self._pool is None:
            raise StoreUnavailable("the store is not open")
        for attempt in range(_TRIES):
            try:
                async with self._pool.acquire(timeout=10) as connection:
                    try:
                        return await work(connection)
                    except _AWAY as error:
                        if not isinstance(error, _CONNECTION_IS_GOOD):
                            connection.terminate()
                        raise
            except _AGAIN as error:
                if attempt == _TRIES - 1:
                    raise StoreUnavailable(f"PostgreSQL: {error}") from error
                await asyncio.sleep(random.random() * 0.02 * (attempt + 1))  # noqa: TID251
            except asyncpg.CheckViolationError as error:
                if "no partition of relation" not in str(error) or self.make_partitions is None or attempt:
                    raise Invalid("batch", str(error)) from error
                await self.make_partitions()
            except _AWAY as error:
                raise StoreUnavailable(f"PostgreSQL: {error or type(error).__name__}") from error
            except asyncpg.UniqueViolationError:
                raise
            except _REFUSED as error:
                raise Invalid("batch", str(error)) from error
        raise AssertionError("unreachable")

    async def transaction(self, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        async def inside(connection: Connection) -> Answer:
            async with connection.transaction():
                return await work(connection)

        return await self.run(inside)

    async def fetch(self, name: str, *arguments: object) -> list[asyncpg.Record]:
        statement = self.sql[name]

        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(statement, *arguments)

        return await self.run(work)

    async def execute(self, name: str, *arguments: object) -> int:
        """Run a statement; how many rows it touched."""
        statement = self.sql[name]

        async def work(connection: Connection) -> int:
            return rows_of(await connection.execute(statement, *arguments))

        return await self.run(work)


def rows_of(status: str) -> int:
    """The number at the end of a command tag such as ``DELETE 3``."""
    last = status.rsplit(" ", 1)[-1]
    return int(last) if last.isdigit() else 0


async def _prepare_connection(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    # Ids are 32 hexadecimal digits here and 16 bytes there; both directions are one call in C.
    await connection.set_type_codec(
        "uuid", schema="pg_catalog", encoder=bytes.fromhex, decoder=bytes.hex, format="binary"
    )


async def _keep_as_it_is(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Nothing to undo: no session state is ever set, so a round trip is saved on every release."""
