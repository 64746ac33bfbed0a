"""SQLite: watches on dead letters, and replays."""

from collections.abc import Sequence
from typing import cast

import apsw
import msgspec

from mainspring.core.model.base.instant import DAY, HOUR, SECOND, Instant, Micros
from mainspring.core.model.runs.dead_letters import QUIET, DeadLetterWatch, watch
from mainspring.core.model.runs.replay import Replay
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.fetch import fetch_rows
from mainspring.stores.sqlite.rows.encoding import encode

#: How far the watch lags: processes that share a file do not agree on the time to the microsecond.
_LAG: Micros = 15 * SECOND
_KEPT: Micros = 30 * DAY
_IDLE: Micros = HOUR
_decode = msgspec.json.Decoder(Replay).decode
_NEWLY_DEAD = """
    SELECT n.tenant AS tenant, n.task AS task, n.fingerprint AS fingerprint, n.new AS new, n.sample AS sample,
           coalesce(g.since, 0) AS since, coalesce(g.count, 0) AS count, g.seen_at AS seen_at, g.grew_at AS grew_at
    FROM (
        SELECT h.tenant AS tenant, b.task AS task, coalesce(h.fingerprint, '') AS fingerprint, count(*) AS new,
               substr(max(printf('%020d', h.finished_at) || h.id), 21) AS sample
        FROM history h INDEXED BY history_unsuccessful CROSS JOIN body b ON b.id = h.body
        WHERE h.state <> 'succeeded' AND h.dead = 1 AND h.finished_at >= :since AND h.finished_at < :until
        GROUP BY 1, 2, 3
    ) AS n LEFT JOIN dead_group g ON g.tenant = n.tenant AND g.task = n.task AND g.fingerprint = n.fingerprint
"""


class _DeadGroupRow(msgspec.Struct, frozen=True):
    """New dead letters of a group, and what is known of the group."""

    tenant: str
    task: str
    fingerprint: str
    new: int
    sample: str
    since: Instant
    count: int
    seen_at: Instant | None
    grew_at: Instant | None


class _ReplayRow(msgspec.Struct, frozen=True):
    rev: int
    record: str


class SqliteDeadLetters(SqliteBase):
    async def watch_dead_letters(self) -> int:
        return await self._write(_watch_groups)

    async def put_replay(self, replay: Replay) -> None:
        values = _bind(replay)

        def put(connection: apsw.Connection, now: Instant) -> None:
            connection.execute(
                "INSERT INTO replay (id, tenant, open, rev, ended_at, record)"
                " VALUES (:id, :tenant, :open, :rev, :ended_at, :record)"
                " ON CONFLICT DO NOTHING",
                values,
            )

        await self._write(put)

    async def move_replay(self, replay: Replay) -> bool:
        values = _bind(replay)

        def move(connection: apsw.Connection, now: Instant) -> bool:
            connection.execute(
                "UPDATE replay SET open = :open, rev = rev + 1, ended_at = :ended_at, record = :record"
                " WHERE id = :id AND rev = :rev",
                values,
            )
            return connection.changes() > 0

        return await self._write(move)

    async def open_replays(self) -> Sequence[Replay]:
        return await self._read_replays("open = 1 ORDER BY id LIMIT 100")

    async def replays(self, tenant: str | None, limit: int) -> Sequence[Replay]:
        return await self._read_replays(
            ":tenant IS NULL OR tenant = :tenant ORDER BY id DESC LIMIT :limit", tenant=tenant, limit=limit
        )

    async def replay(self, identifier: str) -> Replay | None:
        return next(iter(await self._read_replays("id = :id", id=identifier)), None)

    async def _read_replays(self, wanted: str, **values: str | int | None) -> list[Replay]:
        text = f"SELECT rev, record FROM replay WHERE {wanted}"  # noqa: S608
        found = await self._read(lambda connection: fetch_rows(connection, _ReplayRow, text, values))
        return [msgspec.structs.replace(_decode(row.record), rev=row.rev) for row in found]


def _bind(replay: Replay) -> dict[str, str | int | None]:
    return {
        "id": replay.id,
        "tenant": replay.tenant,
        "open": replay.is_open,
        "rev": replay.rev,
        "ended_at": replay.ended_at,
        "record": encode(replay),
    }


def _watch_groups(connection: apsw.Connection, now: Instant) -> int:
    until = now - _LAG
    since = cast("int", connection.execute("SELECT until FROM dead_watch").get)
    alarms = 0
    groups = fetch_rows(connection, _DeadGroupRow, _NEWLY_DEAD, {"since": since, "until": until})
    for group in groups:
        before = None
        if group.seen_at is not None:
            before = DeadLetterWatch(since=group.since, count=group.count, seen_at=group.seen_at, grew_at=group.grew_at)
        after, alarm = watch(before, group.new, until)
        connection.execute(
            "INSERT OR REPLACE INTO dead_group (tenant, task, fingerprint, since, count, seen_at, grew_at)"
            " VALUES (:tenant, :task, :fingerprint, :since, :count, :seen_at, :grew_at)",
            {
                "tenant": group.tenant,
                "task": group.task,
                "fingerprint": group.fingerprint,
                "since": after.since,
                "count": after.count,
                "seen_at": after.seen_at,
                "grew_at": after.grew_at,
            },
        )
        if alarm is not None:
            connection.execute(
                "INSERT INTO outbox (at, kind, tenant, runs) SELECT :at, :kind, :tenant, json_array(:sample)"
                " WHERE EXISTS (SELECT 1 FROM outbox_cursor)",
                {"at": now, "kind": alarm, "tenant": group.tenant, "sample": group.sample},
            )
            alarms += 1
    if groups or until - since > _IDLE:
        # Not on every pass: an idle file must not be written to.
        connection.execute("UPDATE dead_watch SET until = max(until, :until)", {"until": until})
    connection.execute("DELETE FROM dead_group WHERE seen_at < :before", {"before": until - QUIET})
    connection.execute("DELETE FROM replay WHERE open = 0 AND ended_at < :before", {"before": now - _KEPT})
    return alarms
