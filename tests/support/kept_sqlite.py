"""Open SQLite stores that a test leaves to the next one in its process.

Opening a store compiles hundreds of triggers, which takes longer than a typical contract test.
"""

from itertools import count
from pathlib import Path

import apsw

from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.stores.sqlite import SqliteStore
from tests.support.state_changes import record_in_sqlite


class KeptSqlite:
    """Files with the threads that serve them. Each is used by one store at a time, and emptied before."""

    def __init__(self, folder: Path, shards: int) -> None:
        self._folder = folder
        self._shards = shards
        self._numbers = count()
        self._opened: list[SqliteStore] = []
        self._free: list[SqliteStore] = []
        #: The rows of a new store, by table. Temporary tables are part of it, because procedures use them.
        self._first_rows: dict[str, list[tuple[apsw.SQLiteValue, ...]]] = {}

    async def open_store(self, clock: Clock) -> SqliteStore:
        """Return an open and empty store. Pass it to ``take_back`` instead of closing it."""
        opened = self._free.pop() if self._free else await self._open()
        await opened._writer.run(self._empty)
        store = SqliteStore(opened.path, clock, shards=self._shards)
        store._writer, store._reader, store._display_reader = opened._writer, opened._reader, opened._display_reader
        store._guard = opened._guard
        store._writer._time = store._time
        return store

    def take_back(self, store: SqliteStore) -> None:
        [opened] = [opened for opened in self._opened if opened.path == store.path]
        if opened._writer._thread is None:
            # The test has closed the store itself.
            self._opened.remove(opened)
        else:
            self._free.append(opened)

    async def close(self) -> None:
        for opened in self._opened:
            await opened.close()

    async def _open(self) -> SqliteStore:
        store = SqliteStore(self._folder / f"{next(self._numbers)}.db", SystemClock(), shards=self._shards)
        await store.open()
        # Emptying a store takes its counters back, which the watch would report as damage.
        store._guard.stop()
        self._opened.append(store)
        # Commits mostly wait for the disk, and no test here cuts the power.
        await store._writer.run(_do_not_sync)
        await store._writer.run(record_in_sqlite)
        if not self._first_rows:
            await store._writer.run(self._remember_rows)
        return store

    def _remember_rows(self, connection: apsw.Connection, now: Instant) -> str:
        tables = connection.execute("""
            SELECT printf('main."%w"', name) FROM sqlite_master WHERE type = 'table' AND name <> 'file_generation'
            UNION ALL SELECT printf('temp."%w"', name) FROM sqlite_temp_master WHERE type = 'table'
        """)
        self._first_rows = {str(table): list(connection.execute(f"SELECT * FROM {table}")) for (table,) in list(tables)}
        return ""

    def _empty(self, connection: apsw.Connection, now: Instant) -> str:
        for table, rows in self._first_rows.items():
            connection.execute(f"DELETE FROM {table}")
            if rows:
                places = ", ".join("?" for _ in rows[0])
                connection.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
        return ""


def _do_not_sync(connection: apsw.Connection, now: Instant) -> str:
    # The setting cannot change inside a transaction.
    connection.execute("COMMIT")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN IMMEDIATE")
    return ""
