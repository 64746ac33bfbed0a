"""Base of the parts of the SQLite store."""

from collections.abc import Callable
from typing import TypeVar

import apsw

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import decode_shard
from mainspring.core.model.base.instant import Instant
from mainspring.stores.sqlite.file_guard import FileGuard
from mainspring.stores.sqlite.steady_time import SteadyTime
from mainspring.stores.sqlite.threads import Reader, Writer

T = TypeVar("T")


class SqliteBase:
    shards: int
    _writer: Writer
    _reader: Reader
    #: Serves queries for display: a long one must not delay a scheduler.
    _display_reader: Reader
    _time: SteadyTime
    _guard: FileGuard

    async def _write(self, write: Callable[[apsw.Connection, Instant], T]) -> T:
        """Run Python code in a transaction of its own. For rare operations only, because it shares no commit."""
        results: list[T] = []

        def run(connection: apsw.Connection, now: Instant) -> str:
            results.append(write(connection, now))
            return ""

        await self._writer.run(run)
        return results[0]

    async def _read(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run several reads on one snapshot of the database."""
        results: list[T] = []

        def run(connection: apsw.Connection) -> str:
            results.append(read(connection))
            return ""

        await self._display_reader.run(run)
        return results[0]

    def _find_shard(self, identifier: str) -> int:
        """Return the shard that an id carries.

        Raises ``Invalid`` if the store does not have that shard: no scheduler would ever read it.
        """
        shard = decode_shard(identifier)
        if shard >= self.shards:
            raise Invalid("id", f"{identifier} carries shard {shard}", f"0 to {self.shards - 1}")
        return shard
