"""Submits and completes runs inside a transaction of the application."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import msgspec

from mainspring.core.model.base.errors import Conflict, Fenced, Invalid
from mainspring.core.model.base.ids import RunId, decode_shard
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.transactions import Request
from mainspring.stores.postgres.codes import STATES, NameKind
from mainspring.stores.postgres.database import (
    POOLED,
    SILENCE,
    Answer,
    Connection,
    Database,
    Pool,
    StatementRunner,
    load_late_statements,
)
from mainspring.stores.postgres.rows import class_number, compute_key_lock, encode_about
from mainspring.stores.postgres.work.keys import build_key_request
from mainspring.stores.postgres.work.limit_columns import pack_limits
from mainspring.stores.postgres.work.submissions import SubmitMixin, _list_names
from mainspring.stores.postgres.work.workforce import WorkerMixin, _succeeded

#: The most runs in one statement, and the most bytes of payloads.
_MOST_RUNS = 1_000
_MOST_BYTES = 8 * 1024 * 1024
#: Seconds to wait for a new connection.
_PATIENCE = 5
#: Half of a worker's lease: the transaction has ended before the reaper looks for the run.
_COMMITS_WITHIN = "5s"

_PATH_WITHOUT_US = """
SELECT coalesce((SELECT string_agg(quote_ident(s), ', ') FROM unnest(current_schemas(false)) AS s WHERE s <> $1),
                'public')
WHERE $1 = ANY (current_schemas(false))
"""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[str, int, bool, bool]]).decode


class TransactionMixin(SubmitMixin, WorkerMixin):
    _database: Database
    _store_id: str
    #: Connections for handlers. The store does not use them for anything else, since a handler may keep one for long.
    _handlers: "Pool | None" = None
    _handlers_path: str | None = None
    _most_handlers: int
    _opening: asyncio.Lock
    _late: "HandlerStatements"

    async def requests_for(self, runs: Sequence[NewRun]) -> list[Request]:
        # In separate transactions: inside the caller's, every process that needs a new name would wait for its end.
        await self._names.assign_numbers(_list_names(runs))
        for run in runs:
            if run.after is not None or run.unique is not None:
                field = "dependsOn" if run.after is not None else "unique"
                raise Invalid(field, "is not possible inside a transaction of the application", "submit it by itself")
        runs = await self._assign_classes(runs)
        await self._prepare_queues(runs)
        return [
            Request(
                f"{self._database.schema}.submit_runs",
                _encode({"store": self._store_id, "runs": [self._asked(run) for run in part]}).decode(),
            )
            for part in _parts(runs)
        ]

    def _asked(self, run: NewRun) -> dict[str, object]:
        policy, about = self._policies.encode(run.policy), encode_about(run.about)
        asked: dict[str, object | None] = {
            "id": run.id,
            "shard": decode_shard(run.id),
            "task": run.task,
            "tenant": run.tenant,
            "queue": run.queue,
            "payload": run.payload.decode(),
            "policy": None if policy is None else policy.decode(),
            "about": None if about is None else about.decode(),
            "tags": None if run.about is None else run.about.tags,
            "priority": run.priority,
            "claim_group": self._assign_claim_group(run),
            "timeout": run.policy.timeout,
            "at": run.at,
            "delay": run.delay,
            "start_within": run.start_within,
            "deadline": run.deadline,
            "key_lock": compute_key_lock(run),
            "limits": _pack_limits(run),
            "retention": class_number(run.policy),
        }
        if run.idempotency is not None:
            wanted = build_key_request(self._names.get_number(NameKind.TENANT, run.tenant), run.idempotency, run.id)
            asked |= {"key": wanted.key.hex(), "fingerprint": wanted.fingerprint.hex()}
        return {name: value for name, value in asked.items() if value is not None}

    def read_answer(self, answer: str) -> list[SubmitResult]:
        return [SubmitResult(RunId(run), STATES[state], new, conflict) for run, state, new, conflict in _decode(answer)]

    def refused(self, code: str) -> Invalid | None:
        schema = self._database.schema
        match code:
            case "MS001":
                return Invalid("connection", "is to another store than the application's")
            case "3F000" | "42883":
                return Invalid(
                    "connection",
                    f"its database has no schema {schema} of this version",
                    "it must be the database of the store; mainspring migrate brings that up to date",
                )
            case "42501":
                return Invalid(
                    "connection",
                    "its role may not submit",
                    f"GRANT USAGE ON SCHEMA {schema}, GRANT EXECUTE ON FUNCTION {schema}.submit_runs",
                )
            case _:
                return None

    @asynccontextmanager
    async def completing(self, held: HeldRun) -> AsyncIterator["HandlerTransaction"]:
        pool = await self._handlers_pool()
        async with pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            if self._database.servers.pooled and self._handlers_path:
                await connection.execute(f"SET LOCAL search_path = {self._handlers_path}")
            completion = HandlerTransaction(connection, held, self._late)
            try:
                yield completion
            except BaseException:
                await _roll_back(connection, transaction)
                raise
            if completion.is_complete:
                await transaction.commit()
            else:
                await _roll_back(connection, transaction)

    async def _handlers_pool(self) -> "Pool":
        async with self._opening:
            if self._handlers is None:
                # Without the store's settings: handlers may do anything on these connections.
                settings = {"application_name": "mainspring handler"}
                servers = self._database.servers
                if not servers.pooled:
                    settings |= SILENCE
                self._handlers_path = await self._database.run(self._path_without_us)
                if self._handlers_path and not servers.pooled:
                    settings["search_path"] = self._handlers_path
                self._handlers = await asyncpg.create_pool(
                    self._database.dsn,
                    min_size=0,
                    max_size=self._most_handlers,
                    connect=servers.connect,
                    timeout=_PATIENCE,
                    **(POOLED | {"server_settings": settings} if servers.pooled else {"server_settings": settings}),
                )
            return self._handlers

    async def _path_without_us(self, connection: Connection) -> str | None:
        """Return the search path for handlers, without the store's schema; None: the usual path does not contain it.

        The usual path contains it for a role of the same name. An application's table may have the same name as a table
        of the store.
        """
        path: str | None = await connection.fetchval(_PATH_WITHOUT_US, self._database.schema)
        return path

    async def _close_handlers(self) -> None:
        pool, self._handlers = self._handlers, None
        if pool is not None:
            # Handlers that still hold a connection have been abandoned.
            pool.terminate()


class HandlerTransaction(WorkerMixin):
    """Completes one run on a connection that is not the store's."""

    def __init__(self, connection: Connection, held: HeldRun, late: "HandlerStatements") -> None:
        self.connection = connection
        self.is_complete = False
        self._run = held
        self._db = late

    async def complete_run(self, result: bytes | None) -> None:
        connection = self.connection
        if not connection.is_in_transaction():
            raise Conflict("the handler has ended the transaction that was to complete its run")
        completion = complete_success(self._run, result)
        # As on all connections of the store: a plan made for an empty table must be good for a full one. From here on
        # the run is locked: a worker that freezes before its commit must not block it, and the reaper, forever.
        await connection.execute(
            f"SET LOCAL enable_seqscan = off; SET LOCAL idle_in_transaction_session_timeout = '{_COMMITS_WITHIN}'"
        )
        if completion.unblocks_others:
            rows, _ = await self._complete_keyed(connection, [completion])
        else:
            rows = await connection.fetch(*self._db.sql["complete_succeeded"].bind(**_succeeded([completion])))
        if not rows:
            raise Fenced(f"run {self._run.id} is not this attempt's any more; what it has written is rolled back")
        self.is_complete = True


class HandlerStatements(StatementRunner):
    """The store's statements for the end of a transaction that may have begun long ago: they read the current time."""

    def __init__(self, database: Database) -> None:
        self.schema = database.schema
        self.sql = load_late_statements(database.schema)

    async def run(self, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        raise AssertionError("the caller has the connection")


async def _roll_back(connection: Connection, transaction: asyncpg.transaction.Transaction) -> None:
    if connection.is_closed() or not connection.is_in_transaction():
        # The server rolls back a transaction whose connection is lost.
        return
    await transaction.rollback()


def _pack_limits(run: NewRun) -> list[int] | None:
    text = pack_limits(run.policy.limiters(run.tenant, run.task))
    return None if text is None else [int(number) for number in text[1:-1].split(",")]


def _parts(runs: Sequence[NewRun]) -> Iterator[Sequence[NewRun]]:
    start = size = 0
    for number, run in enumerate(runs):
        size += len(run.payload)
        if number - start == _MOST_RUNS or (size > _MOST_BYTES and number > start):
            yield runs[start:number]
            start, size = number, len(run.payload)
    if start < len(runs):
        yield runs[start:]
