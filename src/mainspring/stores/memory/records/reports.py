"""Memory store: the reports of running attempts: progress, checkpoints and logs."""

from collections.abc import Collection, Sequence

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, Instant
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import Progress
from mainspring.core.ports.storage.catalog import (
    LOG_CUT,
    LOG_DAY_CUT,
    Checkpoint,
    LogLine,
    LogReport,
    ProgressReport,
)
from mainspring.stores.log_bounds import DayRoom, LogRoom
from mainspring.stores.memory.rows import RunRow
from mainspring.stores.memory.tables import Tables


class MemoryReports:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def report_progress(self, progress: Sequence[ProgressReport]) -> list[bool]:
        with self._tables.transaction() as now:
            answers = []
            for report in progress:
                run = self._find_running(report.run, report.fence)
                if run is not None:
                    run.progress = Progress(done=report.done, total=report.total, note=report.note, at=now)
                answers.append(run is not None)
            return answers

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        with self._tables.transaction():
            answers = []
            for checkpoint in checkpoints:
                run = self._find_running(checkpoint.run, checkpoint.fence)
                if run is not None:
                    run.checkpoint = checkpoint.state
                answers.append(run is not None)
            return answers

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        rooms: dict[RunId, LogRoom] = {}
        days: dict[str, DayRoom | None] = {}
        with self._tables.transaction() as now:
            answers = []
            for report in lines:
                run = self._find_running(report.run, report.fence)
                if run is not None:
                    log = self._tables.logs[run.id]
                    if run.id not in rooms:
                        size = sum(len(line.text.encode()) for line in log)
                        if run.tenant not in days:
                            days[run.tenant] = self._find_day_room(run.tenant, now)
                        cut = bool(log) and log[-1].text in (LOG_CUT, LOG_DAY_CUT)
                        rooms[run.id] = LogRoom(len(log), size, cut=cut, today=days[run.tenant])
                    kept = rooms[run.id].fit(report.text)
                    if kept is not None:
                        log.append(LogLine(position=len(log) + 1, at=now, attempt=run.attempt, text=kept))
                answers.append(run is not None)
            for tenant, room in days.items():
                if room is not None:
                    self._tables.log_days[tenant, now // DAY] += room.taken
            return answers

    def _find_day_room(self, tenant: str, now: Instant) -> DayRoom | None:
        known = self._tables.tenants.get(tenant)
        most = None if known is None else known.quotas.log_bytes_per_day
        return None if most is None else DayRoom(most, self._tables.log_days[tenant, now // DAY])

    async def logged_runs(self, after: RunId | None, limit: int) -> list[RunId]:
        having = sorted(run for run, lines in self._tables.logs.items() if lines and run > (after or ""))
        return having[:limit]

    async def forget_logs(self, runs: Collection[RunId]) -> None:
        for run in runs:
            self._tables.logs.pop(run, None)

    def _find_running(self, run: RunId, fence: int) -> RunRow | None:
        row = self._tables.runs.get(run)
        return row if row is not None and row.state is RunState.RUNNING and row.fence == fence else None
