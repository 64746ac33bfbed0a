"""Base of the parts of the SQLite store."""

from collections.abc import Callable
from typing import TypeVar

import apsw

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import shard_of
from mainspring.core.model.base.instant import Instant
from mainspring.stores.sqlite.file_guard import FileGuard
from mainspring.stores.sqlite.steady_time import SteadyTime
from mainspring.stores.sqlite.threads import Reader, Writer

T = TypeVar("T")


class Part:
    shards: int
    _writer: Writer
    _reader: Reader
    #: Serves queries for display: a long one must not delay a scheduler.
    _browser: Reader
    _time: SteadyTime
    _guard: FileGuard

    async def _work(self, work: Callable[[apsw.Connection, Instant], T]) -> T:
        """Run Python code in a transaction of its own. For rare operations only, because it shares no commit."""
        done: list[T] = []

        def keep(connection: apsw.Connection, now: Instant) -> str:
            done.append(work(connection, now))
            return ""

        await self._writer.ask(keep)
        return done[0]

    async def _look(self, look: Callable[[apsw.Connection], T]) -> T:
        """Run several reads on one snapshot of the database."""
        seen: list[T] = []

        def keep(connection: apsw.Connection) -> str:
            seen.append(look(connection))
            return ""

        await self._browser.ask(keep)
        return seen[0]

    def _shard_of(self, identifier: str) -> int:
        """Return the shard that an id carries.

        Raises ``Invalid`` if the store does not have that shard: no scheduler would ever read it.
        """
        shard = shard_of(identifier)
        if shard >= self.shards:
            raise Invalid("id", f"{identifier} carries shard {shard}", f"0 to {self.shards - 1}")
        return shard
