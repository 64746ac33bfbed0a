"""Watches dead letters, and stores replays."""

from collections.abc import Sequence

import asyncpg
import msgspec

from mainspring.core.model.base.instant import DAY, HOUR, SECOND, Micros
from mainspring.core.model.runs.dead_letters import QUIET, TREND, DeadLetterWatch, watch
from mainspring.core.model.runs.replay import Replay
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin

#: The watch stays this far behind: longer than a transaction may take, so that it misses no dead letter.
_BEHIND: Micros = 15 * SECOND
_KEPT: Micros = 30 * DAY
_IDLE: Micros = HOUR
_decode = msgspec.json.Decoder(Replay).decode


class DeadLetterMixin(PostgresMixin):
    async def watch_dead_letters(self) -> int:
        return await self._db.transaction(self._watch)

    async def _watch(self, connection: Connection) -> int:
        sql = self._db.sql
        if not await connection.fetchval(*sql["try_lock"].bind(name=f"{self._db.schema}.dead_letters")):
            return 0
        alarms = 0
        rows = await connection.fetch(*sql["new_dead_letters"].bind(behind=_BEHIND))
        for row in rows:
            before = row["seen_at"] and DeadLetterWatch(
                since=row["since"], count=row["count"], seen_at=row["seen_at"], grew_at=row["grew_at"]
            )
            after, alarm = watch(before, row["new"], row["until"])
            await connection.execute(
                *sql["put_dead_group"].bind(
                    tenant=row["tenant"],
                    task=row["task"],
                    fingerprint=row["fingerprint"],
                    since=after.since,
                    count=after.count,
                    seen_at=after.seen_at,
                    grew_at=after.grew_at,
                )
            )
            if alarm is not None:
                await connection.execute(
                    *sql["emit_dead_letter_event"].bind(kind=alarm, tenant=row["tenant"], run=row["sample"])
                )
                alarms += 1
        # Not on every watch: an idle database is not written to.
        await connection.execute(*sql["advance_dead_letter_watch"].bind(behind=_BEHIND, idle=0 if rows else _IDLE))
        await connection.execute(*sql["prune_dead_groups"].bind(quiet=QUIET + _BEHIND))
        await connection.execute(*sql["prune_replays"].bind(kept=_KEPT))
        return alarms

    async def put_replay(self, replay: Replay) -> None:
        record = msgspec.json.encode(replay)
        await self._db.fetch(
            "put_replay",
            replay=replay.id,
            tenant=replay.tenant,
            open=replay.is_open,
            rev=replay.rev,
            ended_at=replay.ended_at,
            record=record,
        )

    async def move_replay(self, replay: Replay) -> bool:
        record = msgspec.json.encode(replay)
        moved = await self._db.fetch(
            "move_replay",
            replay=replay.id,
            rev=replay.rev,
            open=replay.is_open,
            ended_at=replay.ended_at,
            record=record,
        )
        return bool(moved)

    async def open_replays(self) -> Sequence[Replay]:
        return [_replay(row) for row in await self._db.fetch("open_replays")]

    async def replays(self, tenant: str | None, limit: int) -> Sequence[Replay]:
        return [_replay(row) for row in await self._db.fetch("replays", tenant=tenant, limit=limit)]

    async def replay(self, identifier: str) -> Replay | None:
        return next((_replay(row) for row in await self._db.fetch("replay", replay=identifier)), None)


def _replay(row: asyncpg.Record) -> Replay:
    return msgspec.structs.replace(_decode(row["record"]), rev=row["rev"])


def dead_groups_sql(schema: str, conditions: str) -> str:
    """Return SQL for the groups of dead letters ``d`` that meet the conditions.

    Only for the groups that are returned, it counts the trend within its hours and looks up the newest dead letter.
    """
    hours = ", ".join(f"coalesce(sum(count) FILTER (WHERE hour = {ago}), 0)" for ago in reversed(range(TREND)))
    # A sub-select, because the clock would be read for every row otherwise.
    now = f"(SELECT {schema}.now_us())"
    return f"""
        WITH g AS MATERIALIZED (
            SELECT d.fingerprint, d.task, count(*) AS count, min(d.at) AS first_at, max(d.at) AS last_at
            FROM {schema}.dead_letter d WHERE {conditions}
            GROUP BY d.fingerprint, d.task ORDER BY count(*) DESC, max(d.at) DESC LIMIT $1
        ), t AS (
            SELECT fingerprint, task, ARRAY[{hours}]::bigint[] AS trend
            FROM (
                SELECT d.fingerprint, d.task, ({now} - d.at) / {HOUR} AS hour, count(*) AS count
                FROM {schema}.dead_letter d
                WHERE {conditions} AND d.at > {now} - {TREND * HOUR} AND d.at <= {now}
                  AND d.fingerprint IN (SELECT g.fingerprint FROM g)
                GROUP BY d.fingerprint, d.task, hour
            ) AS by_hour
            GROUP BY fingerprint, task
        )
        SELECT g.*, coalesce(t.trend, array_fill(0::bigint, ARRAY[{TREND}])) AS trend, newest.run_id AS sample
        FROM g LEFT JOIN t ON t.fingerprint = g.fingerprint AND t.task IS NOT DISTINCT FROM g.task, LATERAL (
            SELECT d.run_id FROM {schema}.dead_letter d
            WHERE {conditions} AND d.at = g.last_at AND d.fingerprint = g.fingerprint
              AND d.task IS NOT DISTINCT FROM g.task
            ORDER BY d.run_id DESC LIMIT 1
        ) AS newest
        ORDER BY g.count DESC, g.last_at DESC
    """
