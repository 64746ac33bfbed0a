"""The reaper: finds lost runs, ends overdue ones and prunes old data."""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial

import asyncpg

from mainspring.core.model.base.fingerprint import compute_fingerprint
from mainspring.core.model.base.ids import first_id
from mainspring.core.model.base.instant import DAY, Instant, Micros
from mainspring.core.model.runs.retention import CLASSES
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.usage import USAGE_KEPT
from mainspring.core.ports.storage.catalog import TIMINGS_KEPT
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.stores.postgres.codes import CLASS_WIDTH, DAYS_AHEAD, FOREVER_BUCKET, KEPT_BUCKET, UNITS
from mainspring.stores.postgres.database import Connection, count_rows
from mainspring.stores.postgres.partitions import HISTORIES, Partitions, compute_day
from mainspring.stores.postgres.records.reading import ReadMixin
from mainspring.stores.postgres.rows import read_class
from mainspring.stores.postgres.work.sweeping import SweepMixin
from mainspring.stores.postgres.work.workforce import WorkerMixin

#: An ended session is kept this long for diagnosis.
_SESSIONS_KEPT = 7 * DAY
#: Another process is dropping the same partition, or has dropped it.
_SOMEBODY_ELSE = (asyncpg.ObjectNotInPrerequisiteStateError, asyncpg.UndefinedTableError)

#: Numbers of the retention classes that may be kept longer than attempts, ticks and log lines.
_LONGER = (2, 3)
#: Condition for rows ``x`` that belong to runs of such a class.
_OF_A_LONGER_RUN = "EXISTS (SELECT FROM {schema}.history h WHERE h.id = x.run_id AND h.class IN (4, 5))"
_KEPT_FOR_LONGER = {"attempt": "x.body_bucket >= 199999", "ledger": _OF_A_LONGER_RUN, "log": _OF_A_LONGER_RUN}
_COLUMNS = (
    "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute "
    "WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped"
)
#: The history tables of each retention class, by number.
_HISTORIES_OF = (("history_succeeded", "history_unsuccessful"), *((family,) for family in HISTORIES.values()))
#: How many bodies are moved at a time.
_AT_ONCE = 2_000
#: How many blocks of a table one statement scans: 8 MB.
_BLOCKS = 1_000


class ReaperMixin(SweepMixin, WorkerMixin, ReadMixin):
    _partitions: Partitions

    async def lost_runs(self, limit: int) -> list[HeldRun]:
        await self._db.execute("expire_sessions")
        return await self._held(await self._db.fetch("lost_runs", limit=limit))

    async def overdue_runs(self, grace: Micros, limit: int) -> list[HeldRun]:
        return await self._held(await self._db.fetch("overdue_runs", grace=grace, limit=limit))

    async def expire(self, limit: int) -> int:
        async def work(connection: Connection) -> tuple[list[asyncpg.Record], Counter[int]]:
            rows = await connection.fetch(
                *self._db.sql["expire"].bind(limit=limit, fingerprint=compute_fingerprint("deadline", ""))
            )
            return rows, await self._release_runs(connection, rows)

        rows, queues = await self._db.transaction(work)
        await self._notify(queues)
        return len(rows)

    async def sweep(self, limit: int) -> int:
        async def work(connection: Connection) -> int:
            key_locks = [
                row["key_lock"]
                for row in await connection.fetch(*self._db.sql["stuck_ordering_keys"].bind(limit=limit))
            ]
            opened = []
            if key_locks:
                # Missing key locks are made here: a line without its key lock would never move again.
                await connection.fetch(*self._db.sql["lock_ordering_keys"].bind(keys=sorted(key_locks)))
                opened = await self._pass_keys_on(connection, sorted(key_locks))
                limited = [row for row in opened if row["limits"] is not None]
                if limited:
                    await self._admit(connection, limited)
            jobs = [row["job_id"] for row in await connection.fetch(*self._db.sql["stuck_delays"].bind(limit=limit))]
            if jobs:
                await connection.execute(*self._db.sql["end_delay"].bind(jobs=sorted(jobs)))
            return len(opened) + len(jobs)

        found = await self._db.transaction(work)
        return found + await self._sweep_limits(limit) + await self._sweep_families(limit)

    async def prune(self, retention: Retention, limit: int) -> int:
        now = await self.now()
        await self._partitions.make_ahead(compute_day(now))
        gone = await self._partitions.drop_orphans()
        days = await self._partitions.days()
        longer = {family for number, family in HISTORIES.items() if number in _LONGER and days.get(family)}
        for number, family in HISTORIES.items():
            for day in _past(days, family, retention.cut(CLASSES[number], now), UNITS[number] * DAY):
                gone += await self._drop(family, day, number)
        succeeded, unsuccessful = retention.cut("succeeded", now), retention.cut("unsuccessful", now)
        # Nothing is moved aside for runs of this class, and it may be kept longer than the others.
        short = retention.cut("short", now)
        for family, cut in (
            ("history_succeeded", succeeded),
            ("history_unsuccessful", unsuccessful),
            ("attempt", min(unsuccessful, short)),
            ("ledger", min(retention.cut("ledger", now), short)),
            ("log", min(succeeded, unsuccessful, short)),
        ):
            for day in _past(days, family, cut):
                if longer and family in _KEPT_FOR_LONGER:
                    await self._keep_longer(family, day)
                gone += await self._drop(family, day)
        cuts = [succeeded, *(retention.cut(CLASSES[number], now) for number in HISTORIES)]
        for bucket in _past_bodies(days.get("body", ()), cuts):
            if await self._empty(bucket):
                gone += await self._drop("body", bucket)
                gone += await self._drop("label", bucket)
        await self._db.execute("prune_minutes", before=now - retention.unsuccessful)
        await self._db.execute("prune_timings", before=now - TIMINGS_KEPT)
        await self._db.execute("prune_usage", before=now - USAGE_KEPT)
        await self._db.execute("prune_log_days")
        await self._db.execute("prune_sessions", kept=_SESSIONS_KEPT)
        gone += await self._db.execute("prune_ordering_keys", limit=limit)
        gone += await self._db.execute("prune_limiters", limit=limit)
        gone += await self._db.execute("prune_unique_keys", limit=limit)
        gone += await self._db.transaction(lambda connection: self._forget_events(connection, limit))
        return gone

    async def _drop(self, family: str, day: int, number: int = 0) -> bool:
        try:
            if family.startswith("history"):
                await self._forget_beside(f"{family}_d{day}", number * CLASS_WIDTH + KEPT_BUCKET)
            await self._partitions.drop(family, day)
        except _SOMEBODY_ELSE:
            return False
        return True

    async def _keep_longer(self, family: str, day: int) -> None:
        """Move rows of runs of the longer classes aside before their day is dropped, some MB at a time."""
        schema, table, kept = self._db.schema, f"{self._db.schema}.{family}_d{day}", f"{self._db.schema}.{family}_kept"

        async def look(connection: Connection) -> tuple[int, str]:
            """Return the number of blocks, and the columns of the target.

            A later migration may have added columns to only one of the tables.
            """
            blocks = await connection.fetchval("SELECT pg_relation_size($1::text::regclass) / 8192 + 1", table)
            return blocks, await connection.fetchval(_COLUMNS, kept)

        try:
            blocks, columns = await self._db.run(look)
            statement = (
                f"WITH moved AS (DELETE FROM {table} x WHERE ctid >= $1::text::tid AND ctid < $2::text::tid "
                f"AND {_KEPT_FOR_LONGER[family].format(schema=schema)} RETURNING *) "
                f"INSERT INTO {kept} ({columns}) SELECT {columns} FROM moved ON CONFLICT DO NOTHING"
            )
            for first in range(0, blocks, _BLOCKS):

                async def work(connection: Connection, first: int = first) -> None:
                    await connection.execute(statement, f"({first},0)", f"({first + _BLOCKS},0)")

                await self._db.run(work)
        except _SOMEBODY_ELSE:
            return

    async def _forget_beside(self, history: str, bucket: int) -> None:
        """Delete rows of runs together with their history, from tables that are not dropped by the day.

        These are bodies and labels that outlived their day, and rows that only few runs have.
        """
        schema = self._db.schema
        for table, column, where in (
            ("body", "id", f"b.bucket IN ({KEPT_BUCKET}, {bucket}) AND "),
            ("label", "id", f"b.bucket IN ({KEPT_BUCKET}, {bucket}) AND "),
            ("attempt_kept", "run_id", ""),
            ("ledger_kept", "run_id", ""),
            ("log_kept", "run_id", ""),
            ("progress", "run_id", ""),
            ("checkpoint", "run_id", ""),
            ("dependent", "run_id", ""),
            ("edge", "child", ""),
            ("dead_letter", "run_id", ""),
        ):
            these = f"SELECT h.id FROM {schema}.{history} h JOIN {schema}.{table} b ON {where}b.{column} = h.id"
            statement = f"DELETE FROM {schema}.{table} b WHERE {where}b.{column} = ANY (ARRAY({these} LIMIT 10000))"

            async def work(connection: Connection, statement: str = statement) -> int:
                return count_rows(await connection.execute(statement))

            while await self._db.run(work):
                pass

    async def _empty(self, bucket: int) -> bool:
        """Move the bodies that are still needed out of a bucket; return whether nothing refers to it any more."""
        if not await self._db.transaction(partial(self._empty_of_live, bucket=bucket)):
            return False
        # No live run is left in the bucket, so no more runs of that day can end.
        number = read_class(bucket)
        unit = UNITS[number] * DAY
        first = (bucket - number * CLASS_WIDTH) * unit
        days = await self._partitions.days()
        try:
            for family in _HISTORIES_OF[number]:
                for day in sorted(days.get(family, ())):
                    # A body lies at most this many days ahead, so runs that ended earlier have none here.
                    if (day + 1) * unit > first - DAYS_AHEAD * DAY:
                        await self._keep_late_bodies(f"{family}_d{day}", bucket, first + unit)
        except _SOMEBODY_ELSE:
            return False
        return True

    async def _keep_late_bodies(self, history: str, bucket: int, over: Instant) -> None:
        """Move the bodies of a past day's runs that ended much later, which are few.

        The runs are found by id, which contains when they were made. That was before the day was over, on clocks that
        differ by less than a day.
        """
        ended = (
            f"SELECT id FROM {self._db.schema}.{history} "
            "WHERE id > $1::uuid AND id < $2::uuid AND body_bucket = $3 ORDER BY id LIMIT $4"
        )
        after, until = first_id(0), first_id(over + DAY)

        async def work(connection: Connection) -> list[str]:
            ids = [row["id"] for row in await connection.fetch(ended, after, until, bucket, _AT_ONCE)]
            if ids:
                await self._keep_bodies(connection, [bucket], "SELECT unnest($2::uuid[])", KEPT_BUCKET, ids)
            return ids

        while ids := await self._db.transaction(work):
            after = ids[-1]

    async def _empty_of_live(self, connection: Connection, bucket: int) -> bool:
        schema = self._db.schema
        day, kept_in = bucket, read_class(bucket) * CLASS_WIDTH + KEPT_BUCKET
        # A waiting run that was never claimed lies in the bucket of its due day. If it is overdue, it only waits for a
        # scheduler that owns its shard. Then it moves, and until then the bucket stays.
        queued, kept = "body_bucket = ANY ($1)", "body_bucket = ANY ($1) AND (fence > 0 OR state + 0 IN (2, 9, 10))"
        overdue = (
            f"body_bucket = ANY ($1) AND state = 1 AND due <= {schema}.now_us() "
            f"AND shard = ANY (ARRAY(SELECT id FROM {schema}.shard))"
        )
        live = f"SELECT id FROM {schema}.run WHERE {queued} UNION ALL SELECT id FROM {schema}.waiting WHERE {kept}"
        await self._keep_bodies(connection, [day], live, kept_in)
        for table, these in (("run", queued), ("waiting", kept)):
            # Only runs whose body was moved: one that has since come from the other table is left for the next time.
            await connection.execute(
                f"UPDATE {schema}.{table} r SET body_bucket = {kept_in} "
                f"WHERE {these} AND EXISTS (SELECT FROM {schema}.body b WHERE b.bucket = {kept_in} AND b.id = r.id)",
                [day],
            )
        # One snapshot over both tables: it finds a run that moved between them during the updates.
        left = f"{live} UNION ALL SELECT id FROM {schema}.waiting WHERE {overdue} LIMIT 1"
        return not await connection.fetch(left, [day])

    async def _keep_bodies(
        self, connection: Connection, days: list[int], of: str, bucket: int, *arguments: object
    ) -> None:
        schema = self._db.schema
        await connection.execute(
            f"WITH labels AS (INSERT INTO {schema}.label (bucket, id, tenant, label) "
            f"SELECT {bucket}, id, tenant, label FROM {schema}.label WHERE bucket = ANY ($1) AND id IN ({of}) "
            "ON CONFLICT DO NOTHING) "
            f"INSERT INTO {schema}.body (bucket, id, task, policy, payload, tenant, about) "
            f"SELECT {bucket}, id, task, policy, payload, tenant, about FROM {schema}.body "
            f"WHERE bucket = ANY ($1) AND id IN ({of}) ON CONFLICT DO NOTHING",
            days,
            *arguments,
        )


def _past(days: dict[str, set[int]], family: str, kept_since: Instant, unit: Micros = DAY) -> list[int]:
    """Return the days, or wider units, of a parent table's partitions that lie entirely before an instant."""
    return sorted(day for day in days.get(family, ()) if (day + 1) * unit <= kept_since)


def _past_bodies(buckets: Collection[int], cuts: Sequence[Instant]) -> list[int]:
    """Return the buckets of past days, or wider units of a class, that hold hardly any body still needed.

    Most runs end on the day they are for, or on the next. ``cuts``: the oldest instant kept, by class number.
    """
    past = []
    for bucket in buckets:
        number = read_class(bucket)
        day = bucket - number * CLASS_WIDTH
        if day > FOREVER_BUCKET and (day + 2) * UNITS[number] * DAY <= cuts[number]:
            past.append(bucket)
    return sorted(past)
