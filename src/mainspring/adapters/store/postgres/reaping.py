"""Finding what was lost, ending what came too late, forgetting what is old."""

from mainspring.adapters.store.postgres.database import Connection, rows_of
from mainspring.adapters.store.postgres.partitions import Partitions, day_of
from mainspring.adapters.store.postgres.reading import Reading
from mainspring.adapters.store.postgres.workforce import Workforce
from mainspring.domain.instant import DAY, Micros
from mainspring.domain.run import HeldRun
from mainspring.ports.store import Retention

#: A dead session is kept this long for those who ask what happened.
_SESSIONS_KEPT = 7 * DAY


class Reaping(Workforce, Reading):
    _partitions: Partitions

    async def lost_runs(self, limit: int) -> list[HeldRun]:
        await self._db.execute("bury")
        return await self._held(await self._db.fetch("lost_runs", limit))

    async def overdue_runs(self, grace: Micros, limit: int) -> list[HeldRun]:
        return await self._held(await self._db.fetch("overdue_runs", grace, limit))

    async def expire(self, limit: int) -> int:
        async def work(connection: Connection) -> int:
            rows = await connection.fetch(self._db.sql["expire"], limit)
            await self._let_go(connection, rows)
            return len(rows)

        return await self._db.transaction(work)

    async def sweep(self, limit: int) -> int:
        async def work(connection: Connection) -> int:
            gates = [row["gate"] for row in await connection.fetch(self._db.sql["stuck_gates"], limit)]
            opened = await self._open_gates(connection, sorted(gates)) if gates else []
            jobs = [row["job_id"] for row in await connection.fetch(self._db.sql["stuck_delays"], limit)]
            if jobs:
                await connection.execute(self._db.sql["end_delay"], sorted(jobs))
            return len(opened) + len(jobs)

        return await self._db.transaction(work)

    async def prune(self, retention: Retention, limit: int) -> int:
        now = await self.now()
        await self._partitions.make_ahead(day_of(now))
        gone = await self._partitions.drop_orphans()
        days = await self._partitions.days()
        for family, kept in (
            ("history_succeeded", retention.succeeded),
            ("history_unsuccessful", retention.unsuccessful),
            ("attempt", retention.unsuccessful),
            ("ledger", retention.ledger),
        ):
            for day in sorted(days.get(family, ())):
                if (day + 1) * DAY <= now - kept:
                    if family.startswith("history"):
                        await self._forget_kept_bodies(f"{family}_d{day}")
                    await self._partitions.drop(family, day)
                    gone += 1
        for day in sorted(days.get("body", ())):
            if (day + 1) * DAY <= now - retention.succeeded and await self._empty_bodies(day):
                await self._partitions.drop("body", day)
                gone += 1
        await self._db.execute("prune_sessions", _SESSIONS_KEPT)
        gone += await self._db.execute("prune_gates", limit)
        gone += await self._db.execute("prune_outbox", limit)
        return gone

    async def _forget_kept_bodies(self, history: str) -> None:
        """Bodies that outlived their day go with the history that they belong to."""
        schema = self._db.schema
        statement = (
            f"DELETE FROM {schema}.body WHERE bucket = -1 AND id = ANY (ARRAY("
            f"SELECT h.id FROM {schema}.{history} h JOIN {schema}.body b ON b.bucket = -1 AND b.id = h.id LIMIT 10000))"
        )

        async def work(connection: Connection) -> int:
            return rows_of(await connection.execute(statement))

        while await self._db.run(work):
            pass

    async def _empty_bodies(self, day: int) -> bool:
        """Re-home the bodies of a day that are still needed. True when nothing live points at the day any more."""
        schema = self._db.schema
        live = (
            f"SELECT id FROM {schema}.run WHERE body_bucket = $1 "
            f"UNION ALL SELECT id FROM {schema}.waiting WHERE body_bucket = $1 AND (attempt > 0 OR state = 2)"
        )
        needed = f"{live} UNION ALL SELECT id FROM {schema}.history WHERE class = 2 AND body_bucket = $1"

        async def work(connection: Connection) -> bool:
            await connection.execute(
                f"INSERT INTO {schema}.body (bucket, id, task, policy, payload) "
                f"SELECT -1, id, task, policy, payload FROM {schema}.body WHERE bucket = $1 AND id IN ({needed}) "
                "ON CONFLICT DO NOTHING",
                day,
            )
            for table in ("run", "waiting"):
                await connection.execute(
                    f"UPDATE {schema}.{table} SET body_bucket = -1 WHERE body_bucket = $1 "
                    + ("AND (attempt > 0 OR state = 2)" if table == "waiting" else ""),
                    day,
                )
            # One snapshot over both tables: a run that moved between them while they were updated is found here.
            return not await connection.fetch(f"{live} LIMIT 1", day)

        return await self._db.transaction(work)
