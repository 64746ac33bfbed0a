"""Metrics over time: completed runs per minute, load, timings, and the runs due per minute."""

from mainspring.core.model.base.instant import MINUTE, Instant, Micros
from mainspring.core.ports.storage.catalog import (
    TIMINGS_STEP,
    Load,
    Minute,
    Timings,
)
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.mixin import PostgresMixin

_FIGURES = (
    "succeeded",
    "failed",
    "cancelled",
    "skipped",
    "retried",
    "started",
    "late_total",
    "late_most",
    "took_total",
    "took_most",
)


class MetricMixin(PostgresMixin):
    async def minutes(self, tenant: str | None, since: Instant, until: Instant, step: Micros = MINUTE) -> list[Minute]:
        rows = await self._db.fetch(
            "minutes", tenant=await self._scope_number(tenant), since=since, until=until, step=step
        )
        await self._names.load_names({row["queue"] for row in rows} - {0})
        minutes = [
            Minute(
                at=row["at"],
                queue=self._names.get_name(row["queue"]) if row["queue"] else "",
                **{figure: row[figure] for figure in _FIGURES},
            )
            for row in rows
        ]
        return sorted(minutes, key=lambda minute: (minute.at, minute.queue))

    async def loads(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> list[Load]:
        tenant_number = await self._scope_number(tenant)
        if tenant_number is None and queue is None:
            rows = await self._db.fetch("loads", since=since, until=until)
        else:
            rows = await self._db.fetch(
                "loads_by_tenant", since=since, until=until, tenant=tenant_number, queue=await self._queue_number(queue)
            )
        return [Load(at=row["at"], queued=row["queued"], running=row["running"], lag=row["lag"]) for row in rows]

    async def timings(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> Timings:
        number = await self._queue_number(queue)
        rows = await self._db.fetch(
            "timings", after=since - TIMINGS_STEP, until=until, tenant=await self._scope_number(tenant), queue=number
        )
        return Timings(
            {row["bucket"]: row["late"] for row in rows if row["late"]},
            {row["bucket"]: row["took"] for row in rows if row["took"]},
        )

    async def _queue_number(self, queue: str | None) -> int | None:
        """Return the number of a queue, 0 if it is unknown, None for all queues."""
        return None if queue is None else await self._names.find_number(NameKind.QUEUE, queue) or 0

    async def due_by_minute(self, tenant: str | None, since: Instant, until: Instant) -> list[tuple[Instant, int]]:
        number = None if tenant is None else await self._names.find_number(NameKind.TENANT, tenant)
        if tenant is not None and number is None:
            return []
        rows = await self._db.fetch(
            "due_by_minute", shards=list(range(self.shards)), tenant=number, since=since, until=until
        )
        return [(row["minute"], row["runs"]) for row in rows]
