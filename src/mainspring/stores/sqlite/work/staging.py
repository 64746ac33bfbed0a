"""SQLite: operations of schedulers, which queue due runs and fire the ticks of recurring jobs."""

from collections.abc import Sequence

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import Fire, Job
from mainspring.core.ports.storage.answers import FireResult, StageResult
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.rows.answers import decode_fired, decode_staged, decode_upcoming
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.rows.items import build_fire_item
from mainspring.stores.sqlite.rows.jobs import decode_jobs


class SqliteScheduling(SqliteBase):
    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> StageResult:
        return decode_staged(await self._writer.call("stage", encode(list(shards)), session=owner, argument=limit))

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        return decode_upcoming(
            await self._reader.read("upcoming", shards=encode(list(shards)), until=until, limit=limit)
        )

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        return decode_jobs(await self._reader.read("due_jobs", shards=encode(list(shards)), until=until, limit=limit))

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[FireResult]:
        if not fires:
            return []
        answer = await self._writer.call("fire", encode([build_fire_item(fire) for fire in fires]), session=owner)
        fired = [FireResult(applied=False)] * len(fires)
        for applied in decode_fired(answer):
            fired[applied.index] = FireResult(applied=True, runs=applied.runs, queues=tuple(applied.queues))
        return fired
