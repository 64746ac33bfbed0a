"""What can be asked, and the events of what happened."""

from collections.abc import Sequence

from mainspring.adapters.store.postgres.database import Connection
from mainspring.adapters.store.postgres.part import Part
from mainspring.adapters.store.postgres.rows import OUTCOMES, run_view
from mainspring.domain.ids import JobId, RunId
from mainspring.domain.instant import Instant
from mainspring.domain.job import LedgerEntry
from mainspring.domain.run import AttemptView, RunView
from mainspring.ports.store import Depth, EventBatch


class Reading(Part):
    async def now(self) -> Instant:
        now: Instant = (await self._db.fetch("now"))[0][0]
        return now

    async def runs(self, ids: Sequence[RunId]) -> list[RunView | None]:
        rows = await self._db.fetch("runs", list(ids))
        await self._names.name_all(
            {number for row in rows for number in (row["queue"], row["tenant"], row["task"]) if number is not None}
        )
        found = {row["id"]: run_view(row, self._names) for row in rows}
        return [found.get(run) for run in ids]

    async def attempts(self, run: RunId) -> list[AttemptView]:
        return [
            AttemptView(
                run_id=RunId(row["run_id"]),
                fence=row["fence"],
                number=row["number"],
                outcome=OUTCOMES[row["outcome"]],
                reason=row["reason"],
                error=row["error"],
                started_at=row["started_at"],
                ended_at=row["ended_at"],
            )
            for row in await self._db.fetch("attempts", run)
        ]

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        return [
            LedgerEntry(
                job_id=JobId(row["job_id"]),
                scheduled_at=row["scheduled_at"],
                decision="run" if row["decision"] == 1 else "skipped",
                reason=row["reason"],
                run_id=row["run_id"],
                job_version=row["job_version"],
                epoch=row["epoch"],
                ticks=row["ticks"],
                last_at=row["last_at"],
            )
            for row in await self._db.fetch("ledger", job, since, until, limit)
        ]

    async def depths(self) -> list[Depth]:
        return [
            Depth(queue=row["name"], queued=row["queued"], running=row["running"], oldest_due=row["oldest_due"])
            for row in await self._db.fetch("depths")
        ]

    async def attach_reader(self, name: str) -> None:
        async def attach(connection: Connection) -> None:
            if await connection.fetchval(self._db.sql["is_reader"], name):
                return
            # What is under way has not seen this reader: it ends first. Others wait behind this, so not for long.
            await connection.execute("SET LOCAL lock_timeout = '500ms'")
            await connection.execute(self._db.sql["lock_readers"])
            await connection.execute(self._db.sql["attach_reader"], name)

        await self._db.transaction(attach)

    async def detach_reader(self, name: str) -> None:
        await self._db.execute("detach_reader", name)

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        return [
            EventBatch(position=row["id"], at=row["at"], kind=row["kind"], runs=tuple(row["runs"]))
            for row in await self._db.fetch("events", name, limit)
        ]

    async def acknowledge(self, name: str, position: int) -> None:
        await self._db.execute("acknowledge", name, position)
