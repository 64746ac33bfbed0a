"""SQLite: watches on dead letters, and replays."""

from collections.abc import Sequence
from typing import cast

import apsw
import msgspec

from mainspring.core.model.base.instant import DAY, HOUR, SECOND, Instant, Micros
from mainspring.core.model.runs.dead_letters import QUIET, DeadLetterWatch, watch
from mainspring.core.model.runs.replay import Replay
from mainspring.stores.sqlite.base import SqliteBase

#: How far the watch lags: processes that share a file do not agree on the time to the microsecond.
_LAG: Micros = 15 * SECOND
_KEPT: Micros = 30 * DAY
_IDLE: Micros = HOUR
_decode = msgspec.json.Decoder(Replay).decode
_NEWLY_DEAD = """
    SELECT n.tenant, n.task, n.fingerprint, n.new, n.sample, g.since, g.count, g.seen_at, g.grew_at FROM (
        SELECT h.tenant AS tenant, b.task AS task, coalesce(h.fingerprint, '') AS fingerprint, count(*) AS new,
               substr(max(printf('%020d', h.finished_at) || h.id), 21) AS sample
        FROM history h INDEXED BY history_unsuccessful CROSS JOIN body b ON b.id = h.body
        WHERE h.state <> 'succeeded' AND h.dead = 1 AND h.finished_at >= ?1 AND h.finished_at < ?2
        GROUP BY 1, 2, 3
    ) AS n LEFT JOIN dead_group g ON g.tenant = n.tenant AND g.task = n.task AND g.fingerprint = n.fingerprint
"""


class SqliteDeadLetters(SqliteBase):
    async def watch_dead_letters(self) -> int:
        return await self._write(_watch_groups)

    async def put_replay(self, replay: Replay) -> None:
        values = (replay.id, replay.tenant, replay.is_open, replay.rev, replay.ended_at, _encode(replay))

        def put(connection: apsw.Connection, now: Instant) -> None:
            connection.execute(
                "INSERT INTO replay (id, tenant, open, rev, ended_at, record) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                values,
            )

        await self._write(put)

    async def move_replay(self, replay: Replay) -> bool:
        values = (replay.is_open, replay.rev + 1, replay.ended_at, _encode(replay), replay.id, replay.rev)

        def move(connection: apsw.Connection, now: Instant) -> bool:
            connection.execute(
                "UPDATE replay SET open = ?, rev = ?, ended_at = ?, record = ? WHERE id = ? AND rev = ?", values
            )
            return connection.changes() > 0

        return await self._write(move)

    async def open_replays(self) -> Sequence[Replay]:
        return await self._read_replays("open = 1 ORDER BY id LIMIT 100", ())

    async def replays(self, tenant: str | None, limit: int) -> Sequence[Replay]:
        return await self._read_replays("?1 IS NULL OR tenant = ?1 ORDER BY id DESC LIMIT ?2", (tenant, limit))

    async def replay(self, identifier: str) -> Replay | None:
        return next(iter(await self._read_replays("id = ?", (identifier,))), None)

    async def _read_replays(self, wanted: str, values: tuple[str | int | None, ...]) -> list[Replay]:
        text = f"SELECT rev, record FROM replay WHERE {wanted}"  # noqa: S608
        found = await self._read(lambda connection: connection.execute(text, values).fetchall())
        return [msgspec.structs.replace(_decode(cast("str", record)), rev=cast("int", rev)) for rev, record in found]


def _encode(replay: Replay) -> str:
    return msgspec.json.encode(replay).decode()


def _watch_groups(connection: apsw.Connection, now: Instant) -> int:
    until = now - _LAG
    since = cast("int", connection.execute("SELECT until FROM dead_watch").get)
    alarms = 0
    groups = connection.execute(_NEWLY_DEAD, (since, until)).fetchall()
    for found in groups:
        tenant, task, fingerprint, new, sample, began, count, seen_at, grew_at = cast(
            "tuple[str, str, str, int, str, int, int, int | None, int | None]", found
        )
        before = (
            None if seen_at is None else DeadLetterWatch(since=began, count=count, seen_at=seen_at, grew_at=grew_at)
        )
        after, alarm = watch(before, new, until)
        connection.execute(
            "INSERT OR REPLACE INTO dead_group (tenant, task, fingerprint, since, count, seen_at, grew_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (tenant, task, fingerprint, after.since, after.count, after.seen_at, after.grew_at),
        )
        if alarm is not None:
            connection.execute(
                "INSERT INTO outbox (at, kind, tenant, runs) SELECT ?, ?, ?, json_array(?)"
                " WHERE EXISTS (SELECT 1 FROM outbox_cursor)",
                (now, alarm, tenant, sample),
            )
            alarms += 1
    if groups or until - since > _IDLE:
        # Not on every pass: an idle file must not be written to.
        connection.execute("UPDATE dead_watch SET until = max(until, ?)", (until,))
    connection.execute("DELETE FROM dead_group WHERE seen_at < ?", (until - QUIET,))
    connection.execute("DELETE FROM replay WHERE open = 0 AND ended_at < ?", (now - _KEPT,))
    return alarms
