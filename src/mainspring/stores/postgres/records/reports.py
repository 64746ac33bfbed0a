"""Reports of running attempts: progress, checkpoints and logs."""

from collections.abc import Collection, Mapping, Sequence

import asyncpg
import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.ports.storage.catalog import (
    LOG_CUT,
    LOG_DAY_CUT,
    Checkpoint,
    LogLine,
    LogReport,
    ProgressReport,
)
from mainspring.stores.log_bounds import DayRoom, LogRoom
from mainspring.stores.postgres.columns import columns
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin

_FIRST_ID, _LAST_ID = "0" * 32, "f" * 32


class _RunningAttempt(msgspec.Struct, frozen=True):
    """A running attempt."""

    number: int
    tenant: int


class ReportMixin(PostgresMixin):
    async def log(self, run: RunId, after: int, limit: int) -> list[LogLine]:
        return [
            _line(row)
            for row in await self._db.fetch("log", run=run, after=after, limit=limit, tenant=await self._scope_number())
        ]

    async def log_before(self, run: RunId, before: int, limit: int) -> list[LogLine]:
        rows = await self._db.fetch(
            "log_before", run=run, before=before, limit=limit, tenant=await self._scope_number()
        )
        return [_line(row) for row in reversed(rows)]

    async def logs_after(self, places: Mapping[RunId, int], limit: int) -> dict[RunId, list[LogLine]]:
        found: dict[RunId, list[LogLine]] = {}
        for row in await self._db.fetch("logs_after", runs=list(places), positions=list(places.values()), limit=limit):
            found.setdefault(RunId(row["run_id"]), []).append(_line(row))
        return found

    async def report_progress(self, progress: Sequence[ProgressReport]) -> list[bool]:
        async def work(connection: Connection) -> list[bool]:
            under_way = await self._under_way(connection, [report.run for report in progress])
            accepted = [(report.run, report.fence) in under_way for report in progress]
            last = {report.run: report for report, is_accepted in zip(progress, accepted, strict=True) if is_accepted}
            if last:
                rows = [
                    (report.run, report.done, report.total, report.note, under_way[run, report.fence].tenant)
                    for run, report in last.items()
                ]
                await connection.execute(
                    *self._db.sql["report_progress"].bind(**columns(rows, "runs", "done", "totals", "notes", "tenants"))
                )
            return accepted

        return await self._db.transaction(work) if progress else []

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        async def work(connection: Connection) -> list[bool]:
            under_way = await self._under_way(connection, [checkpoint.run for checkpoint in checkpoints])
            accepted = [(checkpoint.run, checkpoint.fence) in under_way for checkpoint in checkpoints]
            last = {one.run: one for one, is_accepted in zip(checkpoints, accepted, strict=True) if is_accepted}
            if last:
                rows = [(run, under_way[run, one.fence].tenant, one.state) for run, one in last.items()]
                await connection.execute(
                    *self._db.sql["save_checkpoints"].bind(**columns(rows, "runs", "tenants", "states"))
                )
            return accepted

        return await self._db.transaction(work) if checkpoints else []

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        async def work(connection: Connection) -> list[bool]:
            under_way = await self._under_way(connection, [line.run for line in lines])
            accepted = [line for line in lines if (line.run, line.fence) in under_way]
            runs = [(line.run, under_way[line.run, line.fence].tenant) for line in accepted]
            sizes = await connection.fetch(
                *self._db.sql["log_sizes"].bind(
                    runs=[run for run, _ in runs], cut_marks=[LOG_CUT, LOG_DAY_CUT], tenants=[one for _, one in runs]
                )
            )
            days = {row["tenant"]: DayRoom(row["most"], row["used"]) for row in sizes if row["most"] is not None}
            rooms = {
                RunId(row["id"]): LogRoom(row["pieces"], row["size"], cut=row["cut"], today=days.get(row["tenant"]))
                for row in sizes
            }
            kept = []
            for line in accepted:
                attempt = under_way[line.run, line.fence]
                if (text := rooms[line.run].fit(line.text)) is not None:
                    kept.append((line.run, attempt.number, text, attempt.tenant))
            if kept:
                await connection.execute(
                    *self._db.sql["append_log"].bind(**columns(kept, "runs", "attempts", "texts", "tenants"))
                )
            if taken := [(tenant, room.taken) for tenant, room in days.items() if room.taken]:
                await connection.execute(*self._db.sql["count_log_bytes"].bind(**columns(taken, "tenants", "bytes")))
            return [(line.run, line.fence) in under_way for line in lines]

        return await self._db.transaction(work) if lines else []

    async def logged_runs(self, after: RunId | None, limit: int) -> list[RunId]:
        return [
            RunId(row["run_id"]) for row in await self._db.fetch("logged_runs", after=after or _FIRST_ID, limit=limit)
        ]

    async def forget_logs(self, runs: Collection[RunId]) -> None:
        await self._db.execute("delete_logs", runs=list(runs))

    async def _under_way(self, connection: Connection, runs: list[RunId]) -> dict[tuple[RunId, int], _RunningAttempt]:
        """Return those of the runs that are running an attempt, by run and fence."""
        rows = await connection.fetch(*self._db.sql["running_attempts"].bind(runs=runs))
        return {(RunId(row["id"]), row["fence"]): _RunningAttempt(row["attempt"], row["tenant"]) for row in rows}


def _line(row: asyncpg.Record) -> LogLine:
    return LogLine(position=row["position"], at=row["at"], attempt=row["attempt"], text=row["text"])
