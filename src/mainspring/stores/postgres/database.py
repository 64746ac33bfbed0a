"""Connections to PostgreSQL: settings, retries and the meaning of errors."""

import asyncio
import functools
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import asyncpg

from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.core.ports.health import PoolUse
from mainspring.stores import statements
from mainspring.stores.postgres.codes import SQL_CONSTANTS
from mainspring.stores.postgres.servers import get_servers
from mainspring.stores.statements import Statement

Connection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
Answer = TypeVar("Answer")

PACKAGE = "mainspring.stores.postgres"
_FILES = (
    "archive",
    *("submit", "claim", "complete", "limit", "dependencies", "stage", "fire", "reap", "read", "coordinate", "api"),
    *("explain", "usage", "dead_letters", "calendars", "slos", "queues", "datacenters", "placement", "notifications"),
    "tasks",
)
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_TRIES = 6
#: Seconds to wait for a free connection.
_PATIENCE = 10
#: Seconds to wait until the server confirms that it has dropped a canceled call; then the connection is closed.
_CONFIRMATION = 1

#: How long a lock of a whole table waits at once, how often, and the longest pause between, in seconds. Together less
#: than a request may take.
_LOCK_TIMEOUT, _LOCK_TRIES, _LOCK_PAUSE = "500ms", 10, 0.3
#: Seconds to wait for steps that processes which start together do one after the other.
_TURN = 60

#: After some seconds the server drops a client that is gone, cut off or frozen, and releases its locks. No other
#: timeout applies while the server cannot send an answer.
SILENCE = {
    "tcp_user_timeout": "5s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
#: Set on every connection.
SESSION = SILENCE | {
    "application_name": "mainspring",
    "statement_timeout": "10s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "2s",
    "jit": "off",
    # A plan that was cached while a table was empty must still be good when the table has a million rows.
    "enable_seqscan": "off",
}

#: How to connect through a pooler, which keeps neither settings nor prepared statements.
POOLED: dict[str, Any] = {"statement_cache_size": 0, "server_settings": {"application_name": "mainspring"}}

#: Retry: the server preferred another transaction, or a migration has changed a table meanwhile.
_AGAIN = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)
#: The connection, the server or its disk is unavailable. 25006 comes from a demoted primary, which would refuse writes
#: forever.
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
#: The server has ended the session: the process stalled inside a transaction, or an administrator or a shutdown ended
#: it.
_SESSION_ENDED = (
    asyncpg.PostgresConnectionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
#: Only while connecting. At startup it is a wrong setting; later an administrator is probably changing it.
_NOT_LET_IN = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)
#: After these errors the connection itself is still good.
_CONNECTION_IS_GOOD = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError)
#: Errors that the caller handles.
_FOR_THE_CALLER = (
    asyncpg.UniqueViolationError,
    asyncpg.UndefinedTableError,
    asyncpg.ObjectNotInPrerequisiteStateError,
)
#: A role without rights, or a schema that another role owns. At startup that is a wrong setting, too.
_WRONG_SETTING = (asyncpg.SyntaxOrAccessError, asyncpg.InvalidSchemaNameError)
_REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)


class _ConnectionLostBeforeCommit(Exception):
    """The connection was closed before COMMIT was sent, so the server has rolled the transaction back.

    The error that the driver raised is its cause.
    """


@functools.cache
def load_statements(schema: str, files: tuple[str, ...]) -> dict[str, Statement]:
    """Return the statements of files, by name, for the tables of a schema. All stores of a process share them."""
    return {
        name: Statement(text.replace("mainspring.", f"{schema}."))
        for file in files
        for name, text in statements.load(PACKAGE, f"queries/{file}.sql", SQL_CONSTANTS).items()
    }


@functools.cache
def load_late_statements(schema: str) -> dict[str, Statement]:
    """Return the store's statements for a transaction that may have begun long ago: they read the current time."""
    now, late = f"{schema}.now_us()", f"{schema}.clock_us()"
    return {
        name: Statement(statement.source.replace(now, late))
        for name, statement in load_statements(schema, _FILES).items()
    }


@contextmanager
def connecting() -> Iterator[None]:
    """Translate the errors of a first connection into errors of the store."""
    try:
        yield
    except (asyncpg.ClientConfigurationError, OverflowError) as error:
        raise Invalid("store", f"the address of PostgreSQL is wrong: {error}") from error
    except _AWAY as error:
        raise StoreUnavailable(f"PostgreSQL: {str(error) or type(error).__name__}") from error
    except asyncpg.PostgresError as error:
        raise Invalid("store", f"PostgreSQL refused: {error}") from error
    except ValueError as error:
        # Without the text of the error, which could contain a part of a password.
        raise Invalid(
            "store", "the address of PostgreSQL cannot be read", "postgresql://user:password@host:port/database"
        ) from error


def find_wrong_setting(error: BaseException) -> Invalid | None:
    """Return the error to raise at startup if a wrong setting is the cause, otherwise None."""
    cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
    return Invalid("store", f"PostgreSQL refused: {cause}") if isinstance(cause, _WRONG_SETTING) else None


class StatementRunner(ABC):
    """The named statements of a schema, and where they run."""

    schema: str
    sql: Mapping[str, Statement]

    @abstractmethod
    async def run(self, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        """Run one statement, or one transaction that ``work`` opens itself.

        ``work`` runs again after a deadlock, a serialization failure, or a connection that was lost before COMMIT.
        """

    async def transaction(self, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        return await self.run(functools.partial(_in_transaction, work, ""))

    async def transaction_alone(self, lock: str, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        """Run work in a transaction that begins with a statement which locks a table against all others.

        Transactions in progress finish first. New ones wait behind this lock, so it waits only shortly, several times.
        """
        alone = functools.partial(_after_lock, self.sql[lock].bind(), work)
        for _ in range(_LOCK_TRIES - 1):
            try:
                return await self.transaction(alone)
            except StoreUnavailable as error:
                if not isinstance(error.__cause__, asyncpg.LockNotAvailableError):
                    raise
            await asyncio.sleep(random.random() * _LOCK_PAUSE)  # noqa: TID251
        return await self.transaction(alone)

    async def fetch(self, name: str, /, **values: object) -> list[asyncpg.Record]:
        call = self.sql[name].bind(**values)

        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(*call)

        return await self.run(work)

    async def execute(self, name: str, /, **values: object) -> int:
        """Run a statement; return how many rows it affected."""
        call = self.sql[name].bind(**values)

        async def work(connection: Connection) -> int:
            return count_rows(await connection.execute(*call))

        return await self.run(work)


class Database(StatementRunner):
    """A connection pool with the store's settings, and one way to run work on it."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        connections: int,
        settings: Mapping[str, str] | None = None,
        *,
        reading: bool = False,
    ) -> None:
        """``settings``: extra settings of the connections. ``reading``: accept a standby, too."""
        if not _SCHEMA_NAME.fullmatch(schema):
            raise Invalid("schema", f"{schema!r} is not a plain lower-case name")
        self.dsn = dsn
        self.servers = get_servers(dsn, reading=reading)
        self.schema = schema
        self.sql: Mapping[str, Statement] = load_statements(schema, _FILES)
        self._connections = connections
        self._session = SESSION | dict(settings or {})
        self._pool: Pool | None = None
        #: The connection released last. It is kept out of the pool, where each release costs a task, unless a caller
        #: waits there for one.
        self._at_hand: Connection | None = None
        self._waiting = 0
        self._releasing: set[asyncio.Task[None]] = set()
        #: The generation of the servers when the cached data was read.
        self._generation = self.servers.generation
        #: Called when another server has taken over: the last writes may not have reached it.
        self.forget: Callable[[], None] = _nothing
        #: Called when a row has no partition; then the work is retried.
        self.make_partitions: Callable[[], Awaitable[None]] | None = None

    async def open(self) -> None:
        with connecting():
            await self.servers.probe(SESSION)
            pooled = self.servers.pooled
            self._generation = self.servers.generation
            self._pool = await asyncpg.create_pool(
                self.dsn,
                # 0: without a primary the pool would retry again and again, and log each attempt.
                min_size=0,
                max_size=self._connections,
                max_inactive_connection_lifetime=300,
                connect=self.servers.connect,
                init=prepare_connection,
                reset=_keep_as_it_is,
                timeout=5,
                command_timeout=15,
                **(POOLED if pooled else {"server_settings": self._session}),
            )

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        at_hand, self._at_hand = self._at_hand, None
        if pool is not None:
            if at_hand is not None:
                await pool.release(at_hand)
            try:
                await asyncio.wait_for(pool.close(), 5)
            except TimeoutError:
                pool.terminate()

    def pool(self) -> PoolUse | None:
        """Return how the connections are used right now; None while the pool is closed."""
        if self._pool is None:
            return None
        # The pool counts the connection at hand as in use.
        idle = self._pool.get_idle_size() + (self._at_hand is not None)
        return PoolUse(self._pool.get_size() - idle, idle, self._connections, self._waiting)

    async def transaction(self, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        # Behind a pooler all work runs in a transaction anyway.
        return await (self.run(work) if self.servers.pooled else super().transaction(work))

    async def run(self, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        if self._pool is None:
            raise StoreUnavailable("the store is not open")
        made = False
        if self.servers.pooled:
            # A statement is prepared and run in two steps; only inside a transaction do both reach one server.
            work = functools.partial(_in_transaction, work, self._settings_for_one)
        for attempt in range(_TRIES):
            try:
                return await self._lend(self._pool, work)
            except (*_AGAIN, _ConnectionLostBeforeCommit) as error:
                if attempt == _TRIES - 1:
                    cause = error.__cause__ or error
                    raise StoreUnavailable(f"PostgreSQL: {cause}") from cause
                await asyncio.sleep(random.random() * 0.02 * (attempt + 1))  # noqa: TID251
            except asyncpg.CheckViolationError as error:
                # Without the name of a check, a row had no partition. The message is not compared: its language is the
                # server's.
                if error.constraint_name is not None or self.make_partitions is None or made:
                    raise Invalid("batch", str(error)) from error
                made = True
                await self.make_partitions()
            except (*_AWAY, *_NOT_LET_IN) as error:
                raise StoreUnavailable(f"PostgreSQL: {str(error) or type(error).__name__}") from error
            except _FOR_THE_CALLER:
                raise
            except _REFUSED as error:
                raise Invalid("batch", str(error)) from error
            except asyncpg.PostgresError as error:
                # For example, a right was revoked: the request is not at fault.
                raise StoreUnavailable(f"PostgreSQL: {error}") from error
        raise AssertionError("unreachable")

    async def _lend(self, pool: Pool, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        connection = await self._acquire(pool)
        if self._generation != self.servers.generation:
            await self._change_servers(pool, connection)
        try:
            answer = await work(connection)
        except asyncio.CancelledError:
            # The server is asked to stop, and rolls back. The caller does not wait for that: the server may be
            # unreachable, and the caller's lease about to expire.
            releasing = asyncio.create_task(pool.release(connection, timeout=_CONFIRMATION))
            self._releasing.add(releasing)
            releasing.add_done_callback(self._released)
            raise
        except BaseException as error:
            if isinstance(error, (*_AWAY, _ConnectionLostBeforeCommit)) and not isinstance(error, _CONNECTION_IS_GOOD):
                # A broken connection is back in the pool already.
                with suppress(asyncpg.InterfaceError):
                    connection.terminate()
            await pool.release(connection)
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                # The others are connected to the same server, which no longer writes; those that only read would stay.
                await pool.expire_connections()
            raise
        if self._at_hand is None and not self._waiting and pool is self._pool:
            self._at_hand = connection
        else:
            await pool.release(connection)
        return answer

    async def _change_servers(self, pool: Pool, connection: Connection) -> None:
        """Leave the old server after another one has taken over, and make the caller look up its data again.

        What the caller has looked up, such as the number of a name, comes from the old server.
        """
        self._generation = self.servers.generation
        self.forget()
        await pool.expire_connections()
        connection.terminate()
        await pool.release(connection)
        raise asyncpg.ConnectionDoesNotExistError("another server has taken over")

    @property
    def _settings_for_one(self) -> str:
        """The store's settings for one transaction: behind a pooler, the next one may run on another server."""
        return "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in self._session.items())

    async def _acquire(self, pool: Pool) -> Connection:
        connection, self._at_hand = self._at_hand, None
        if connection is not None:
            if not _is_closed(connection):
                return connection
            await pool.release(connection)
        self._waiting += 1
        try:
            return await pool.acquire(timeout=_PATIENCE)
        finally:
            self._waiting -= 1

    def _released(self, task: "asyncio.Task[None]") -> None:
        self._releasing.discard(task)
        if not task.cancelled():
            # The pool has closed a connection that it could not reset; reading the error avoids a warning.
            task.exception()


async def lock_turn(connection: Connection, name: str) -> None:
    """Serialize steps of processes that start together, in a transaction that holds no locks yet.

    The first process may take long, so the others wait longer than for any other lock.
    """
    await connection.execute(f"SET LOCAL lock_timeout = '{_TURN}s'; SET LOCAL statement_timeout = '{_TURN}s'")
    await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", name, timeout=_TURN + 5)
    await connection.execute("SET LOCAL lock_timeout TO DEFAULT; SET LOCAL statement_timeout TO DEFAULT")


async def _in_transaction(
    work: Callable[[Connection], Awaitable[Answer]], settings: str, connection: Connection
) -> Answer:
    """Run work in a transaction. ``settings``: statements before the work that hold for this transaction."""
    transaction = connection.transaction()
    # Not ``async with``: on cancellation the pool's release rolls back, and the caller does not wait for it.
    try:
        await transaction.__aenter__()
        if settings:
            await connection.execute(settings)
        answer = await work(connection)
    except Exception as error:
        # A broken connection cannot roll back; raise the error that broke it, not this one.
        with suppress(OSError, asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.PostgresError):
            await transaction.__aexit__(type(error), error, error.__traceback__)
        if isinstance(error, _SESSION_ENDED) or _is_closed(connection):
            raise _ConnectionLostBeforeCommit from error
        raise
    await transaction.__aexit__(None, None, None)
    return answer


async def _after_lock(
    lock: tuple[Any, ...], work: Callable[[Connection], Awaitable[Answer]], connection: Connection
) -> Answer:
    await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
    await connection.execute(*lock)
    return await work(connection)


def _nothing() -> None:
    return


def count_rows(status: str) -> int:
    """Return the number at the end of a command tag such as ``DELETE 3``."""
    last = status.rsplit(" ", 1)[-1]
    return int(last) if last.isdigit() else 0


def _is_closed(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        # The pool has taken it back already.
        return True


async def prepare_connection(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    # In a transaction: the codec is looked up in two steps, and a pooler may send them to two servers.
    async with connection.transaction():
        # Ids are 32 hexadecimal digits here and 16 bytes there; both directions are one call in C.
        await connection.set_type_codec(
            "uuid", schema="pg_catalog", encoder=bytes.fromhex, decoder=bytes.hex, format="binary"
        )


async def _keep_as_it_is(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Do nothing: no session state is ever set, so every release saves a round trip."""
