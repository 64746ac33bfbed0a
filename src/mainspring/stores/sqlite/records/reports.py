"""SQLite: the reports of running attempts: progress, checkpoints and logs."""

from collections.abc import Collection, Sequence

import apsw

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, Instant
from mainspring.core.model.runs.view import Progress
from mainspring.core.ports.storage.catalog import (
    LOG_CUT,
    LOG_DAY_CUT,
    Checkpoint,
    LogReport,
    ProgressReport,
)
from mainspring.stores.log_bounds import DayRoom, LogRoom
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.rows.answers import decode_flags, decode_ids
from mainspring.stores.sqlite.rows.encoding import encode, encode_bytes
from mainspring.stores.sqlite.rows.views import (
    decode_log_sizes,
)


class SqliteReports(SqliteBase):
    async def report_progress(self, progress: Sequence[ProgressReport]) -> list[bool]:
        if not progress:
            return []
        items = [
            (report.run, report.fence, encode(Progress(done=report.done, total=report.total, note=report.note)))
            for report in progress
        ]
        return decode_flags(await self._writer.call("report_progress", encode(items)))

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        if not checkpoints:
            return []
        items = [(checkpoint.run, checkpoint.fence, encode_bytes(checkpoint.state)) for checkpoint in checkpoints]
        return decode_flags(await self._writer.call("save_checkpoints", encode(items)))

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        if not lines:
            return []
        runs = list(dict.fromkeys(line.run for line in lines))
        cuts, today = encode([LOG_CUT, LOG_DAY_CUT]), self._time.now() // DAY
        found = decode_log_sizes(await self._reader.read("log_sizes", ids=encode(runs), cuts=cuts, day=today))
        sizes = {size.run: size for size in found}
        days = {
            size.tenant: DayRoom(size.bytes_per_day, size.bytes_today)
            for size in found
            if size.bytes_per_day is not None
        }
        # Keyed by fence, too: only the current attempt may append, and a stale one must not use up its room.
        rooms: dict[tuple[RunId, int], LogRoom] = {}
        items = []
        for line in lines:
            if (room := rooms.get((line.run, line.fence))) is None:
                size = sizes[line.run]
                room = LogRoom(size.pieces, size.bytes, cut=size.is_cut, today=days.get(size.tenant))
                rooms[line.run, line.fence] = room
            items.append((line.run, line.fence, room.fit(line.text)))
        return decode_flags(await self._writer.call("append_log", encode(items)))

    async def logged_runs(self, after: RunId | None, limit: int) -> list[RunId]:
        return decode_ids(await self._reader.read("logged_runs", after=after or "", limit=limit))

    async def forget_logs(self, runs: Collection[RunId]) -> None:
        def forget(connection: apsw.Connection, now: Instant) -> None:
            connection.execute(
                "DELETE FROM log WHERE run_id IN (SELECT value FROM json_each(:runs))", {"runs": encode(list(runs))}
            )

        await self._write(forget)
