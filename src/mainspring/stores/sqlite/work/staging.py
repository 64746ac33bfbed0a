"""SQLite: operations of schedulers, which queue due runs and fire the ticks of recurring jobs."""

from collections.abc import Sequence

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import Fire, Job
from mainspring.core.store import Fired, Staged
from mainspring.stores.sqlite import rows
from mainspring.stores.sqlite.part import Part


class SqliteStaging(Part):
    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> Staged:
        answer = await self._writer.call("stage", rows.encode(list(shards)), who=owner, size=limit)
        now, runs, queues, more, schedules_due = rows.staged.decode(answer)
        return Staged(
            now=now, runs=runs, queues=tuple(sorted(queues)), more=more != 0, schedules_due=schedules_due != 0
        )

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        return rows.pairs.decode(
            await self._reader.read("upcoming", shards=rows.encode(list(shards)), until=until, limit=limit)
        )

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        return rows.jobs(
            await self._reader.read("due_jobs", shards=rows.encode(list(shards)), until=until, limit=limit)
        )

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[Fired]:
        if not fires:
            return []
        answer = await self._writer.call("fire", rows.encode([rows.fire_item(fire) for fire in fires]), who=owner)
        fired = [Fired(applied=False)] * len(fires)
        for place, runs, queues in rows.fired.decode(answer):
            fired[place] = Fired(applied=True, runs=runs, queues=tuple(sorted(queues)))
        return fired
