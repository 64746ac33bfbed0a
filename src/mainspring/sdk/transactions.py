"""Transactions of the application: submits that commit with its data, and runs that complete with a commit."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.handler_errors import NoTransactions
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.transactions import Request, Transactional
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.executors.results import result_problem
from mainspring.core.worker.handler import COMPLETED_BY_HANDLER
from mainspring.core.worker.reporting.attempt_reporter import current
from mainspring.sdk.arguments.signature import Arguments, Marker
from mainspring.sdk.arguments.values import encode_result

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring
    from mainspring.sdk.calls.options import PreparedCall

_SUPPORTED = (
    "asyncpg's Connection, psycopg's AsyncConnection and Connection, "
    "SQLAlchemy's AsyncSession, AsyncConnection, Session and Connection"
)
#: Identified by name, so that the packages need not be installed.
_KINDS = {
    ("asyncpg", "Connection"): "asyncpg",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg",
    ("psycopg", "AsyncConnection"): "psycopg async",
    ("psycopg", "Connection"): "psycopg",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy async",
    ("sqlalchemy", "async_scoped_session"): "sqlalchemy async",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy async",
    ("sqlalchemy", "Session"): "sqlalchemy",
    ("sqlalchemy", "scoped_session"): "sqlalchemy",
    ("sqlalchemy", "Connection"): "sqlalchemy",
}


class Transaction(Marker):
    """Marks a parameter that receives a connection in a transaction that completes the run."""


def transaction() -> Any:
    """The default of a handler's parameter that receives an asyncpg connection in its own transaction:

    ``async def pay(order: int, db: asyncpg.Connection = transaction()) -> None: …``

    The transaction commits when the handler returns, and the same commit completes the run, so its writes happen
    exactly once. If the handler raises, or the attempt no longer holds the run, everything is rolled back.
    """
    return Transaction()


def find_transaction_parameter(task: str, function: Callable[..., object], arguments: Arguments) -> str | None:
    """Return the parameter that receives a transaction, or None."""
    names = [name for name, marker in arguments.markers.items() if isinstance(marker, Transaction)]
    if len(names) > 1:
        raise Invalid(task, f"{' and '.join(names)} ask for a transaction each", "a run has one")
    if names and not inspect.iscoroutinefunction(function):
        raise Invalid(task, f"{names[0]} asks for a transaction", "an async function; the connection is asyncpg's")
    return names[0] if names else None


def invoke_in_transaction(
    app: "Mainspring", arguments: Arguments, function: Callable[..., Any], parameter: str
) -> Callable[[HeldRun], Any]:
    """Return the function with which a worker calls a handler that needs a transaction."""

    async def invoke(held: HeldRun) -> bytes | None:
        first, named = arguments.decode(held)
        store = (await app.runtime()).store
        if not isinstance(store, Transactional):
            hint = f"in a test, call the function with a connection of your own: {parameter}=…"
            raise NoTransactions(parameter, "asks for a transaction, and the store is not on PostgreSQL", hint)
        async with store.completing(held) as transaction:
            named[parameter] = transaction.connection
            result = encode_result(await function(*first, **named))
            if result is not None:
                result = masks.json(held.tenant, result)
            # The result must be valid now, because it cannot be refused after the commit.
            if result is not None and (problem := result_problem(result)) is not None:
                raise Invalid("result", problem)
            if (reporter := current.get()) is not None:
                # Flush the reports first: the commit ends the run, and reports about an ended run are not accepted.
                await reporter.flush()
            await transaction.complete_run(result)
        return COMPLETED_BY_HANDLER

    return invoke


def require_transactional(store: object) -> Transactional:
    if not isinstance(store, Transactional):
        raise Invalid(
            "connection", "needs a store on PostgreSQL", "the application's data lies in the same database there"
        )
    return store


def find_connection(calls: "Sequence[PreparedCall[Any]]", given: object | None) -> object | None:
    """Return the connection that all calls are submitted on, or None. Different connections are an error."""
    chosen = {id(one): one for call in calls if (one := call.options.connection) is not None}
    if given is not None:
        chosen[id(given)] = given
    if len(chosen) > 1 or (given is None and chosen and any(call.options.connection is None for call in calls)):
        raise Invalid("connection", "is not the same for all calls", "submit them apart")
    return next(iter(chosen.values()), None)


async def submit_on(connection: Any, store: Transactional, requests: Sequence[Request]) -> list[SubmitResult]:
    kind = _check(connection, blocking=False)
    accepted: list[SubmitResult] = []
    for request in requests:
        with _explain_refusal(store):
            accepted += store.read_answer(await _ask(kind, connection, request))
    return accepted


def submit_on_blocking(connection: Any, store: Transactional, requests: Sequence[Request]) -> list[SubmitResult]:
    """Submit on the calling thread, because a blocking connection belongs to its thread."""
    kind = _check(connection, blocking=True)
    accepted: list[SubmitResult] = []
    for request in requests:
        with _explain_refusal(store):
            accepted += store.read_answer(_ask_blocking(kind, connection, request))
    return accepted


async def _ask(kind: str, connection: Any, request: Request) -> str:
    answer: str
    match kind:
        case "asyncpg":
            answer = await connection.fetchval(f"SELECT {request.function}($1)", request.argument)
        case "psycopg async":
            import psycopg
            from psycopg.rows import tuple_row

            # The connection's own cursor and row factories may be customized.
            async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
                await cursor.execute(f"SELECT {request.function}(%s)".encode(), [request.argument])
                (answer,) = await cursor.fetchone() or ("",)
        case _:
            from sqlalchemy import text

            result = await connection.execute(text(f"SELECT {request.function}(:argument)"), _find_named(request))
            answer = result.scalar_one()
    return answer


def _ask_blocking(kind: str, connection: Any, request: Request) -> str:
    answer: str
    match kind:
        case "psycopg":
            import psycopg
            from psycopg.rows import tuple_row

            with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
                cursor.execute(f"SELECT {request.function}(%s)".encode(), [request.argument])
                (answer,) = cursor.fetchone() or ("",)
        case _:
            from sqlalchemy import text

            result = connection.execute(text(f"SELECT {request.function}(:argument)"), _find_named(request))
            answer = result.scalar_one()
    return answer


def _find_named(request: Request) -> dict[str, str]:
    return {"argument": request.argument}


def check_connection(connection: object) -> object:
    """Refuse an object that is not a connection of a supported driver."""
    _find_kind(connection)
    return connection


def _check(connection: Any, *, blocking: bool) -> str:
    kind = _find_kind(connection)
    is_blocking = kind in ("psycopg", "sqlalchemy")
    if is_blocking != blocking:
        way = ".sync.submit(…) or submit_many_sync(…)" if is_blocking else "await ….submit(…) or submit_many(…)"
        word: Literal["blocks", "does not block"] = "blocks" if is_blocking else "does not block"
        raise Invalid("connection", f"this one {word}", way)
    if kind.startswith("sqlalchemy"):
        dialect = connection.dialect if hasattr(connection, "dialect") else connection.get_bind().dialect
        if dialect.name != "postgresql":
            raise Invalid("connection", f"is to {dialect.name}", "the PostgreSQL database of the store")
    elif not _check_in_transaction(kind, connection):
        raise Invalid("connection", "is in no transaction", "begin one, or leave connection= away")
    return kind


def _check_in_transaction(kind: str, connection: Any) -> bool:
    if kind == "asyncpg":
        return bool(connection.is_in_transaction())
    # Psycopg begins a transaction automatically unless autocommit is on. 0: idle.
    return not connection.autocommit or connection.info.transaction_status != 0


def _find_kind(connection: object) -> str:
    for one in type(connection).__mro__:
        kind = _KINDS.get((one.__module__.partition(".")[0], one.__name__))
        if kind is not None:
            return kind
    raise Invalid("connection", f"{type(connection).__name__} is none that is supported", _SUPPORTED)


@contextmanager
def _explain_refusal(store: Transactional) -> Iterator[None]:
    """Explain the error if the connection is not to the store. Other errors are raised unchanged."""
    try:
        yield
    except Exception as error:
        # SQLAlchemy wraps the driver's error.
        code = getattr(getattr(error, "orig", error), "sqlstate", None)
        refusal = store.refused(code) if isinstance(code, str) else None
        if refusal is None:
            raise
        raise refusal from error
