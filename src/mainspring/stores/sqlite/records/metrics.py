"""SQLite: the numbers of charts, by the minute."""

from mainspring.core.model.base.instant import MINUTE, Instant, Micros
from mainspring.core.ports.storage.catalog import (
    TIMINGS_STEP,
    Load,
    Minute,
    Timings,
)
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.rows.views import (
    decode_due_minutes,
    decode_loads,
    decode_minutes,
    decode_timings,
)


class SqliteMetrics(SqliteBase):
    async def minutes(self, tenant: str | None, since: Instant, until: Instant, step: Micros = MINUTE) -> list[Minute]:
        text = await self._reader.read("minutes", tenant=tenant, since=since, until=until, step=step)
        return decode_minutes(text)

    async def loads(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> list[Load]:
        text = await self._reader.read("loads", tenant=tenant, queue=queue, since=since, until=until)
        return decode_loads(text)

    async def timings(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> Timings:
        after = since - TIMINGS_STEP
        return decode_timings(await self._reader.read("timings", tenant=tenant, queue=queue, after=after, until=until))

    async def due_by_minute(self, tenant: str | None, since: Instant, until: Instant) -> list[tuple[Instant, int]]:
        shards = encode(list(range(self.shards)))
        text = await self._reader.read("due_by_minute", shards=shards, tenant=tenant, since=since, until=until)
        return decode_due_minutes(text)
