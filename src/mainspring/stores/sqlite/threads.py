"""The threads that use SQLite: one writes, one reads for the scheduler and the workers, one for display.

apsw releases the interpreter lock while SQLite works and must get it back afterwards, in competition with a busy loop.
So a request is one text in and one text out, however many rows it concerns. Requests that wait together become one
statement and one commit.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, TypeAlias, TypeVar

import apsw
import msgspec

from mainspring.core.model.base.errors import StoreDamaged, StoreUnavailable
from mainspring.core.model.base.instant import Instant
from mainspring.core.runtime.threads import joined
from mainspring.stores.sqlite import connection as connections
from mainspring.stores.sqlite.file_guard import FileGuard, begin_generation
from mainspring.stores.sqlite.steady_time import SteadyTime

#: Maximum number of requests that share a commit.
LARGEST_GROUP = 16

#: After how many pages of the log to move them into the file. Each checkpoint writes the same hot pages again, so few
#: large ones cost less.
CHECKPOINT_PAGES = 4_000

#: Python code that runs inside a transaction of its own.
WriteFunction: TypeAlias = Callable[[apsw.Connection, Instant], str]
#: Python code that runs several reads on one snapshot of the database.
ReadFunction: TypeAlias = Callable[[apsw.Connection], str]
Reply: TypeAlias = str | Exception
Request = TypeVar("Request")


class ProcedureCall(msgspec.Struct, frozen=True, gc=False):
    """A procedure to call, and its arguments."""

    procedure: str
    batch: str = ""
    #: The session that calls.
    session: int = 0
    #: A limit or another number, as the procedure documents it.
    argument: int = 0


class NamedQuery(msgspec.Struct, frozen=True, gc=False):
    """A named query and its parameters."""

    name: str
    parameters: dict[str, str | int | None]


class _PendingRequest(Generic[Request]):
    __slots__ = ("future", "loop", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[str] = self.loop.create_future()


class DatabaseThread(Generic[Request]):
    """A thread that owns a connection. A request is carried out even if the caller stops waiting."""

    def __init__(self, name: str, path: Path, guard: FileGuard, connect: Callable[[Path], apsw.Connection]) -> None:
        self._name = name
        self._path = path
        self._guard = guard
        self._connect = connect
        self._waiting: SimpleQueue[_PendingRequest[Request] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._process = 0

    async def start(self) -> None:
        """Return when the connection is open; raise if it cannot be opened."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()

        def resolve(error: BaseException | None) -> None:
            if not opened.done():
                opened.set_result(None) if error is None else opened.set_exception(error)

        def report(error: BaseException | None) -> None:
            loop.call_soon_threadsafe(resolve, error)

        self._process = os.getpid()
        self._thread = Thread(target=self._run, args=(report,), name=self._name, daemon=True)
        self._thread.start()
        try:
            await opened
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Return when all earlier requests are done and the connection is closed. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            await joined(thread)

    async def run(self, request: Request) -> str:
        if self._thread is None or self._process != os.getpid():
            # A forked child has a copy of the connection and none of the threads: using either would destroy the file.
            raise StoreUnavailable("the store is not open in this process")
        pending = _PendingRequest(request)
        self._waiting.put(pending)
        return await pending.future

    def _run(self, report_opened: Callable[[BaseException | None], None]) -> None:
        connection: apsw.Connection | None = None
        try:
            connection = self._connect(self._path)
            self._guard.check(connection)
        except BaseException as error:
            if connection is not None:
                connection.close()
            report_opened(connections.convert_error(error) if isinstance(error, apsw.Error) else error)
            return
        report_opened(None)
        try:
            while (first := self._waiting.get()) is not None:
                group = [first]
                last = False
                try:
                    while len(group) < LARGEST_GROUP and not last:
                        pending = self._waiting.get_nowait()
                        if pending is None:
                            last = True
                        else:
                            group.append(pending)
                except Empty:
                    pass
                answers = self._serve_all(connection, [pending.request for pending in group])
                _resolve_all(group, self._confirm(connection, answers))
                self._tidy(connection)
                if last:
                    break
        finally:
            self._guard.close(connection)
            self._reject_pending()

    def _serve_all(self, connection: apsw.Connection, requests: Sequence[Request]) -> list[Reply]:
        try:
            return self._serve(connection, requests)
        except Exception as error:
            # A bug must not end the thread: all callers would wait forever.
            return [StoreUnavailable(f"SQLite: {type(error).__name__}: {error}") for _ in requests]

    def _serve(self, connection: apsw.Connection, requests: Sequence[Request]) -> list[Reply]:
        """Return an answer for each request, in order."""
        raise NotImplementedError

    def _tidy(self, connection: apsw.Connection) -> None:
        """Do what no caller waits for."""

    def _confirm(self, connection: apsw.Connection, answers: list[Reply]) -> list[Reply]:
        """Return the answers, or errors if the file is not the one that was opened."""
        try:
            self._guard.check(connection)
            for answer in answers:
                if isinstance(answer, StoreDamaged):
                    self._guard.report(str(answer))
        except StoreDamaged as error:
            return [error for _ in answers]
        except apsw.Error as error:
            return [connections.convert_error(error) for _ in answers]
        return answers

    def _reject_pending(self) -> None:
        while True:
            try:
                pending = self._waiting.get_nowait()
            except Empty:
                return
            if pending is not None:
                _resolve_all([pending], [StoreUnavailable("the store was closed")])


class Writer(DatabaseThread[ProcedureCall | WriteFunction]):
    """Serves requests in groups. Procedure calls of a group share a transaction.

    It also moves the log into the file (a checkpoint), when no caller waits for it.
    """

    def __init__(self, path: Path, guard: FileGuard, time: SteadyTime, shards: int) -> None:
        super().__init__("mainspring-sqlite-writer", path, guard, self._open)
        self._time = time
        self._shards = shards
        #: How many pages the log has, and how many it had at the last checkpoint.
        self._pages = 0
        self._pages_before = 0

    def _open(self, path: Path) -> apsw.Connection:
        connection = connections.open_for_writing(path, self._shards)
        try:
            connection.set_wal_hook(self._count_pages)
            self._checkpoint(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _count_pages(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def _tidy(self, connection: apsw.Connection) -> None:
        if self._pages < self._pages_before:
            # The log was complete in the file and started again.
            self._pages_before = 0
        if self._pages - self._pages_before < CHECKPOINT_PAGES:
            return
        try:
            self._checkpoint(connection)
        except apsw.Error as error:
            if isinstance(converted := connections.convert_error(error), StoreDamaged):
                self._guard.report(str(converted))

    def _checkpoint(self, connection: apsw.Connection) -> None:
        begin_generation(connection)
        # What others still read stays in the log until the next time.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._pages_before = self._pages

    async def call(self, procedure: str, batch: str = "", *, session: int = 0, argument: int = 0) -> str:
        """Call a procedure; return its answer when it is durable."""
        return await self.run(ProcedureCall(procedure, batch, session, argument))

    def _serve(self, connection: apsw.Connection, requests: Sequence[ProcedureCall | WriteFunction]) -> list[Reply]:
        answers: list[Reply] = []
        calls: list[ProcedureCall] = []
        for request in requests:
            if isinstance(request, ProcedureCall):
                calls.append(request)
                continue
            answers += self._call_procedures(connection, calls)
            calls = []
            answers.append(self._run_transaction(connection, request))
        return answers + self._call_procedures(connection, calls)

    def _call_procedures(self, connection: apsw.Connection, calls: list[ProcedureCall]) -> list[Reply]:
        if not calls:
            return []
        now = self._time.now()
        try:
            return list(call_procedures(connection, calls, now))
        except apsw.Error as error:
            if len(calls) == 1 or not connections.blames_request(error):
                return [connections.convert_error(error) for _ in calls]
        # One call failed, so none was applied: repeat each by itself.
        return [answer for call in calls for answer in self._call_procedures(connection, [call])]

    def _run_transaction(self, connection: apsw.Connection, write: WriteFunction) -> Reply:
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                answer = write(connection, self._time.now())
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except apsw.Error as error:
            return connections.convert_error(error)
        except Exception as error:
            return error
        return answer


class Reader(DatabaseThread[NamedQuery | ReadFunction]):
    """Serves reads one by one, while the writer writes."""

    def __init__(self, path: Path, guard: FileGuard, name: str = "mainspring-sqlite-reader") -> None:
        super().__init__(name, path, guard, connections.open_for_reading)

    async def read(self, query: str, **parameters: str | int | None) -> str:
        return await self.run(NamedQuery(query, parameters))

    def _serve(self, connection: apsw.Connection, requests: Sequence[NamedQuery | ReadFunction]) -> list[Reply]:
        return [
            self._read_named(connection, request)
            if isinstance(request, NamedQuery)
            else self._read_snapshot(connection, request)
            for request in requests
        ]

    def _read_named(self, connection: apsw.Connection, query: NamedQuery) -> Reply:
        try:
            return read(connection, query.name, **query.parameters)
        except apsw.Error as error:
            return connections.convert_error(error)

    def _read_snapshot(self, connection: apsw.Connection, read_rows: ReadFunction) -> Reply:
        try:
            connection.execute("BEGIN")
            try:
                return read_rows(connection)
            finally:
                connection.execute("ROLLBACK")
        except apsw.Error as error:
            return connections.convert_error(error)
        except Exception as error:
            return error


def read(connection: apsw.Connection, query: str, **parameters: str | int | None) -> str:
    """Return the answer of a named query."""
    answer = connection.execute(connections.QUERIES[query], parameters).get
    assert isinstance(answer, str)
    return answer


def call_procedures(connection: apsw.Connection, calls: Sequence[ProcedureCall], now: Instant) -> tuple[str, ...]:
    """Call procedures in one statement and one transaction. Raises if one of them fails; then none is applied."""
    values: list[str | int] = []
    for number, call in enumerate(calls):
        values += (number, call.procedure, now, call.session, call.argument, call.batch)
    cursor = connection.cursor()
    cursor.execute(_CALLS[len(calls) - 1], values)
    replies = cursor.execute(_REPLIES[len(calls) - 1]).fetchone()
    cursor.close()
    assert replies is not None
    return tuple(str(reply) for reply in replies)


def _build_statements(first: str, each: str) -> list[str]:
    """Build one statement for each size of group, smallest first."""
    return [first + ", ".join(each.format(number) for number in range(size)) for size in range(1, LARGEST_GROUP + 1)]


_CALLS = _build_statements(
    "INSERT INTO call (number, procedure, now, session, argument, batch) VALUES ", "(?, ?, ?, ?, ?, ?)"
)
_REPLIES = _build_statements("SELECT ", "(SELECT body FROM reply WHERE number = {})")


def _resolve_all(requests: Sequence[_PendingRequest[Request]], answers: Sequence[Reply]) -> None:
    """Resolve the futures of the requests, waking each loop only once."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[str], Reply]]] = defaultdict(list)
    for request, answer in zip(requests, answers, strict=True):
        by_loop[request.loop].append((request.future, answer))
    for loop, answered in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, answered)
        except RuntimeError:
            # The loop is closed, so nothing waits for the answer.
            continue


def _resolve(answered: Sequence[tuple["asyncio.Future[str]", Reply]]) -> None:
    for future, answer in answered:
        if future.done():
            continue
        if isinstance(answer, str):
            future.set_result(answer)
        else:
            future.set_exception(answer)
