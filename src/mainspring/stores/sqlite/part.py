"""What the parts of the store share."""

from collections.abc import Callable
from typing import TypeVar

import apsw

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import shard_of
from mainspring.core.model.base.instant import Instant
from mainspring.stores.sqlite.connection import FileGuard
from mainspring.stores.sqlite.steady_time import SteadyTime
from mainspring.stores.sqlite.threads import Reader, Writer

T = TypeVar("T")


class Part:
    shards: int
    _writer: Writer
    _reader: Reader
    #: For what people look at: a long look must not hold up a scheduler.
    _browser: Reader
    _time: SteadyTime
    _guard: FileGuard

    async def _work(self, work: Callable[[apsw.Connection, Instant], T]) -> T:
        """What the interpreter does in a transaction of its own. Seldom asked for: it shares no commit."""
        done: list[T] = []

        def keep(connection: apsw.Connection, now: Instant) -> str:
            done.append(work(connection, now))
            return ""

        await self._writer.ask(keep)
        return done[0]

    async def _look(self, look: Callable[[apsw.Connection], T]) -> T:
        """Several reads of one state of the database."""
        seen: list[T] = []

        def keep(connection: apsw.Connection) -> str:
            seen.append(look(connection))
            return ""

        await self._browser.ask(keep)
        return seen[0]

    def _shard_of(self, identifier: str) -> int:
        """The shard that an id carries. Nobody would ever look at one that the store does not have."""
        shard = shard_of(identifier)
        if shard >= self.shards:
            raise Invalid("id", f"{identifier} carries shard {shard}", f"0 to {self.shards - 1}")
        return shard
