"""Finding what was lost, ending what came too late, forgetting what is old."""

from collections import Counter
from functools import partial

import asyncpg

from mainspring.adapters.store.postgres.database import Connection, rows_of
from mainspring.adapters.store.postgres.partitions import Partitions, day_of
from mainspring.adapters.store.postgres.passage import candidate
from mainspring.adapters.store.postgres.reading import Reading
from mainspring.adapters.store.postgres.sweeping import Sweeping
from mainspring.adapters.store.postgres.workforce import Workforce
from mainspring.domain.fingerprint import fingerprint_of
from mainspring.domain.instant import DAY, Instant, Micros
from mainspring.domain.run import HeldRun
from mainspring.domain.usage import USAGE_KEPT
from mainspring.ports.store import Retention

#: A dead session is kept this long for those who ask what happened.
_SESSIONS_KEPT = 7 * DAY
#: Another process is just dropping the same partition, or has dropped it.
_SOMEBODY_ELSE = (asyncpg.ObjectNotInPrerequisiteStateError, asyncpg.UndefinedTableError)


class Reaping(Sweeping, Workforce, Reading):
    _partitions: Partitions

    async def lost_runs(self, limit: int) -> list[HeldRun]:
        await self._db.execute("bury")
        return await self._held(await self._db.fetch("lost_runs", limit))

    async def overdue_runs(self, grace: Micros, limit: int) -> list[HeldRun]:
        return await self._held(await self._db.fetch("overdue_runs", grace, limit))

    async def expire(self, limit: int) -> int:
        async def work(connection: Connection) -> tuple[list[asyncpg.Record], Counter[int]]:
            rows = await connection.fetch(self._db.sql["expire"], limit, fingerprint_of("deadline", ""))
            return rows, await self._let_go(connection, rows)

        rows, queues = await self._db.transaction(work)
        await self._ring(queues)
        return len(rows)

    async def sweep(self, limit: int) -> int:
        async def work(connection: Connection) -> int:
            gates = [row["gate"] for row in await connection.fetch(self._db.sql["stuck_gates"], limit)]
            opened = []
            if gates:
                # Made where they are missing: a line without its gate would never move again.
                await connection.fetch(self._db.sql["lock_gates"], sorted(gates))
                opened = await self._open_gates(connection, sorted(gates))
                limited = [candidate(row) for row in opened if row["limits"] is not None]
                if limited:
                    await self._pass(connection, (), limited)
            jobs = [row["job_id"] for row in await connection.fetch(self._db.sql["stuck_delays"], limit)]
            if jobs:
                await connection.execute(self._db.sql["end_delay"], sorted(jobs))
            return len(opened) + len(jobs)

        found = await self._db.transaction(work)
        return found + await self._sweep_limits(limit) + await self._sweep_families(limit)

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
            ("log", max(retention.succeeded, retention.unsuccessful)),
        ):
            for day in _past(days, family, now - kept):
                gone += await self._drop(family, day)
        for day in await self._empty_bodies(_past(days, "body", now - retention.succeeded)):
            gone += await self._drop("body", day)
            gone += await self._drop("label", day)
        await self._db.execute("prune_minutes", now - retention.unsuccessful)
        await self._db.execute("prune_usage", now - USAGE_KEPT)
        await self._db.execute("prune_log_days")
        await self._db.execute("prune_sessions", _SESSIONS_KEPT)
        gone += await self._db.execute("prune_gates", limit)
        gone += await self._db.execute("prune_limiters", limit)
        gone += await self._db.execute("prune_uniques", limit)
        gone += await self._db.transaction(lambda connection: self._forget_events(connection, limit))
        return gone

    async def _drop(self, family: str, day: int) -> bool:
        try:
            if family.startswith("history"):
                await self._forget_beside(f"{family}_d{day}")
            await self._partitions.drop(family, day)
        except _SOMEBODY_ELSE:
            return False
        return True

    async def _forget_beside(self, history: str) -> None:
        """What belongs to runs and is not dropped by the day goes with their history: bodies that outlived their day,
        and what only few runs have."""
        schema = self._db.schema
        for table, column, where in (
            ("body", "id", "b.bucket = -1 AND "),
            ("label", "id", "b.bucket = -1 AND "),
            ("progress", "run_id", ""),
            ("checkpoint", "run_id", ""),
            ("dependent", "run_id", ""),
            ("edge", "child", ""),
            ("dead_letter", "run_id", ""),
        ):
            these = f"SELECT h.id FROM {schema}.{history} h JOIN {schema}.{table} b ON {where}b.{column} = h.id"
            statement = f"DELETE FROM {schema}.{table} b WHERE {where}b.{column} = ANY (ARRAY({these} LIMIT 10000))"

            async def work(connection: Connection, statement: str = statement) -> int:
                return rows_of(await connection.execute(statement))

            while await self._db.run(work):
                pass

    async def _empty_bodies(self, days: list[int]) -> list[int]:
        """Re-home the bodies of these days that are still needed; the days that nothing points at any more."""
        empty = [day for day in days if await self._db.transaction(partial(self._empty_of_live, day=day))]
        if not empty:
            return []
        # Nothing live is left there, so nothing more of those days can fail.
        schema = self._db.schema
        for past in sorted((await self._partitions.days()).get("history_unsuccessful", ())):
            failed = f"SELECT id FROM {schema}.history_unsuccessful_d{past} WHERE body_bucket = ANY ($1)"
            try:
                await self._db.run(partial(self._keep_bodies, days=empty, of=failed))
            except _SOMEBODY_ELSE:
                return []
        return empty

    async def _empty_of_live(self, connection: Connection, day: int) -> bool:
        schema = self._db.schema
        # A waiting run that was never claimed lies in the day it is due. Past that it only waits for somebody to look
        # after its shard: then it moves, and until then the day stays.
        queued, kept = "body_bucket = ANY ($1)", "body_bucket = ANY ($1) AND (fence > 0 OR state + 0 IN (2, 9, 10))"
        overdue = (
            f"body_bucket = ANY ($1) AND state = 1 AND due <= {schema}.now_us() "
            f"AND shard = ANY (ARRAY(SELECT id FROM {schema}.shard))"
        )
        live = f"SELECT id FROM {schema}.run WHERE {queued} UNION ALL SELECT id FROM {schema}.waiting WHERE {kept}"
        await self._keep_bodies(connection, [day], live)
        for table, these in (("run", queued), ("waiting", kept)):
            # Only those whose body was moved: what has come from the other table since is left for the next time.
            await connection.execute(
                f"UPDATE {schema}.{table} r SET body_bucket = -1 "
                f"WHERE {these} AND EXISTS (SELECT FROM {schema}.body b WHERE b.bucket = -1 AND b.id = r.id)",
                [day],
            )
        # One snapshot over both tables: a run that moved between them while they were updated is found here.
        left = f"{live} UNION ALL SELECT id FROM {schema}.waiting WHERE {overdue} LIMIT 1"
        return not await connection.fetch(left, [day])

    async def _keep_bodies(self, connection: Connection, days: list[int], of: str) -> None:
        schema = self._db.schema
        await connection.execute(
            f"WITH labels AS (INSERT INTO {schema}.label (bucket, id, tenant, label) "
            f"SELECT -1, id, tenant, label FROM {schema}.label WHERE bucket = ANY ($1) AND id IN ({of}) "
            "ON CONFLICT DO NOTHING) "
            f"INSERT INTO {schema}.body (bucket, id, task, policy, payload, tenant, about) "
            f"SELECT -1, id, task, policy, payload, tenant, about FROM {schema}.body "
            f"WHERE bucket = ANY ($1) AND id IN ({of}) ON CONFLICT DO NOTHING",
            days,
        )


def _past(days: dict[str, set[int]], family: str, kept_since: Instant) -> list[int]:
    """The days of a family that lie wholly before an instant."""
    return sorted(day for day in days.get(family, ()) if (day + 1) * DAY <= kept_since)
