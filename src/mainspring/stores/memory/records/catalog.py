"""Memory store: queries for lists, charts and details, and the reports of running attempts."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Literal, TypeVar

import msgspec

from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import JobId, RunId, SessionId, made_at
from mainspring.core.model.base.instant import DAY, MINUTE, Instant, Micros
from mainspring.core.model.limits.limits import GateState
from mainspring.core.model.limits.queues import NO_POLICY, QueuePolicy
from mainspring.core.model.runs.dead_letters import trend_of
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import Progress, RunView
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.storage.catalog import (
    LOG_CUT,
    LOG_DAY_CUT,
    TIMINGS_STEP,
    Checkpoint,
    DeadGroup,
    JobFilter,
    JobVersion,
    Load,
    LogLine,
    LogReport,
    Minute,
    Page,
    Pause,
    ProgressReport,
    RunFilter,
    SessionView,
    Standings,
    Timings,
)
from mainspring.core.store import EventBatch
from mainspring.stores.filters import is_wanted_job, is_wanted_run
from mainspring.stores.log_bounds import DayRoom, LogRoom
from mainspring.stores.memory.rows import JobRow, RunRow, SessionRow
from mainspring.stores.memory.tables import Tables

Row = TypeVar("Row", RunRow, JobRow)
Item = TypeVar("Item")
#: Where counting the runs ahead stops.
COUNTED = 10_000


class MemoryCatalog:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def list_runs(self, wanted: RunFilter, after: RunId | None, limit: int) -> Page[RunView]:
        rows = _list_newest_first(self._tables.runs.values(), wanted, after)
        return _build_page(rows, lambda run: _is_wanted(run, wanted), lambda run: run.view(with_result=False), limit)

    async def count_runs(self, wanted: RunFilter, at_most: int) -> int:
        rows = _list_newest_first(self._tables.runs.values(), wanted, None)
        return sum(1 for _ in islice((run for run in rows if _is_wanted(run, wanted)), at_most))

    async def standings(self, tenant: str | None, tag: str, since: Instant, limit: int) -> Standings:
        wanted = RunFilter(tenant=tenant, tag=tag, since=since)
        rows = (run for run in _list_newest_first(self._tables.runs.values(), wanted, None) if _is_wanted(run, wanted))
        found = Standings({}, {})
        for run in islice(rows, limit):
            found.runs.setdefault(run.shown_state(), []).append(run.id)
            if run.replay_of is not None:
                found.replays[run.replay_of] = run.id
        return found

    async def ahead_of(self, run: RunId) -> int | None:
        row = self._tables.runs.get(run)
        if row is None or row.state is not RunState.QUEUED:
            return None
        return min(bisect_left(self._tables.ready[row.queue][row.label_set].entries, (row.rank, row.id)), COUNTED)

    async def gate(self, number: int, limit: int) -> tuple[GateState, list[RunId]]:
        limiter = self._tables.limiters.by_number.get(number)
        return (GateState(), []) if limiter is None else (limiter.state, sorted(limiter.occupants)[:limit])

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        rows = _list_newest_first(self._tables.jobs.values(), wanted, after)
        return _build_page(rows, lambda job: is_wanted_job(job, wanted), lambda job: job.job(with_payload=False), limit)

    async def count_jobs(self, tenant: str, at_most: int) -> int:
        there = (JobState.SCHEDULED, JobState.PAUSED)
        mine = (job for job in self._tables.jobs.values() if job.tenant == tenant and job.state in there)
        return sum(1 for _ in islice(mine, at_most))

    async def versions(self, job: JobId, *, before: int | None = None, limit: int = 100) -> list[JobVersion]:
        newest_first = self._tables.versions.get(job, [])[::-1]
        return [version for version in newest_first if before is None or version.version < before][:limit]

    async def held(self, runs: Sequence[RunId]) -> list[HeldRun | None]:
        rows = [self._tables.runs.get(run) for run in runs]
        return [
            msgspec.structs.replace(row.held(), session=row.session)
            if row is not None and row.state is RunState.RUNNING
            else None
            for row in rows
        ]

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        tables = self._tables
        with tables.transaction() as now:
            owners = Counter(row.owner for row in tables.shard_rows)
            alive = [row for row in tables.sessions.values() if row.kind == kind and row.alive(now)]
            return [_build_session_view(row, len(tables.running_by_session[row.id]), owners[row.id]) for row in alive]

    async def session(self, session: SessionId) -> SessionView | None:
        tables = self._tables
        row = tables.sessions.get(session)
        if row is None:
            return None
        return _build_session_view(
            row, len(tables.running_by_session[row.id]), sum(shard.owner == row.id for shard in tables.shard_rows)
        )

    async def pauses(self) -> list[Pause]:
        with self._tables.transaction() as now:
            pauses = [pause for pause in self._tables.pauses.values() if not pause.is_over(now)]
        return sorted(pauses, key=lambda pause: (pause.tenant or "", pause.queue or ""))

    async def queue_policies(self) -> dict[str, QueuePolicy]:
        said = self._tables.queue_policies
        return {queue: said[queue] for queue in sorted(said) if said[queue] != NO_POLICY}

    async def minutes(self, tenant: str | None, since: Instant, until: Instant, step: Micros = MINUTE) -> list[Minute]:
        merged: dict[tuple[Instant, str], Counter[str]] = {}
        for (at, queue, owner), figures in self._tables.minute_counts.items():
            if since <= at < until and tenant in (None, owner):
                sums = merged.setdefault((at // step * step, queue), Counter())
                for name, number in figures.items():
                    sums[name] = max(sums[name], number) if name.endswith("_most") else sums[name] + number
        return [Minute(at=at, queue=queue, **figures) for (at, queue), figures in sorted(merged.items())]

    async def loads(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> list[Load]:
        found = []
        for at, kept in sorted(self._tables.loads.items()):
            if since <= at < until:
                meant = [load for (whose, of), load in kept.items() if tenant in (None, whose) and queue in (None, of)]
                found.append(
                    Load(
                        at=at,
                        queued=sum(load.queued for load in meant),
                        running=sum(load.running for load in meant),
                        lag=max((load.lag for load in meant), default=0),
                    )
                )
        return found

    async def timings(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> Timings:
        late: Counter[int] = Counter()
        took: Counter[int] = Counter()
        for (at, of, whose), (began, lasted) in self._tables.timings.items():
            if since - TIMINGS_STEP < at < until and tenant in (None, whose) and queue in (None, of):
                late += began
                took += lasted
        return Timings(dict(late), dict(took))

    async def due_by_minute(self, tenant: str | None, since: Instant, until: Instant) -> list[tuple[Instant, int]]:
        counts: Counter[Instant] = Counter()
        for index in self._tables.scheduled:
            for due, run in index.entries:
                if since <= due < until and tenant in (None, self._tables.runs[RunId(run)].tenant):
                    counts[due - due % MINUTE] += 1
        return sorted(counts.items())

    async def dead_groups(self, wanted: RunFilter, limit: int) -> list[DeadGroup]:
        groups: dict[tuple[str, str], list[RunRow]] = {}
        for run in _list_newest_first(self._tables.runs.values(), wanted, None):
            if run.dead and _is_wanted(run, wanted):
                groups.setdefault((run.fingerprint, run.task), []).append(run)
        with self._tables.transaction() as now:
            found = [_build_group(runs, now) for runs in groups.values()]
        largest = sorted(found, key=lambda group: (-group.count, -group.last_at))
        return largest[:limit]

    async def log(self, run: RunId, after: int, limit: int) -> list[LogLine]:
        lines = self._tables.logs.get(run, [])
        return list(islice((line for line in lines if line.position > after), limit))

    async def log_before(self, run: RunId, before: int, limit: int) -> list[LogLine]:
        lines = self._tables.logs.get(run, [])
        return list(islice((line for line in reversed(lines) if line.position < before), limit))[::-1]

    async def logs_after(self, places: Mapping[RunId, int], limit: int) -> dict[RunId, list[LogLine]]:
        found = {run: await self.log(run, after, limit) for run, after in places.items()}
        return {run: lines for run, lines in found.items() if lines}

    async def events_after(self, position: str | None, limit: int) -> tuple[list[EventBatch], str]:
        tables = self._tables
        if position is None:
            return [], tables.position
        if not tables.horizon <= position <= tables.position:
            raise NotFound("the events after this position are not kept any more")
        following = (batch for batch in tables.outbox if batch.position > position)
        batches = list(islice(following, limit))
        return batches, batches[-1].position if batches else position


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


def _list_newest_first(rows: Iterable[Row], wanted: RunFilter | JobFilter, after: str | None) -> list[Row]:
    """Return the rows of a tenant within the wanted time, newest first. Other stores use an index for this part."""
    since, until = wanted.since, wanted.until
    mine = [
        row
        for row in rows
        if wanted.tenant in (None, row.tenant)
        and (after is None or row.id < after)
        and (since is None or since <= made_at(row.id))
        and (until is None or made_at(row.id) < until)
    ]
    return sorted(mine, key=lambda row: row.id, reverse=True)


def _build_page(
    rows: Iterable[Row], is_wanted: Callable[[Row], bool], convert: Callable[[Row], Item], limit: int
) -> Page[Item]:
    found = list(islice(filter(is_wanted, rows), limit + 1))
    return Page([convert(row) for row in found[:limit]], found[limit - 1].id if len(found) > limit else None)


def _is_wanted(run: RunRow, wanted: RunFilter) -> bool:
    return (not wanted.dead or run.dead) and is_wanted_run(run, run.shown_state(), wanted)


def _build_group(runs: list[RunRow], now: Instant) -> DeadGroup:
    times = [run.finished_at for run in runs if run.finished_at is not None]
    newest = max(runs, key=lambda run: (run.finished_at, run.id))
    return DeadGroup(
        fingerprint=newest.fingerprint,
        task=newest.task,
        reason=newest.reason,
        count=len(runs),
        first_at=min(times),
        last_at=max(times),
        sample=newest.id,
        error=newest.error or "",
        trend=trend_of(times, now),
    )


def _build_session_view(row: SessionRow, running: int, shards: int) -> SessionView:
    return SessionView(
        id=row.id,
        kind=row.kind,
        name=row.name,
        version=row.version,
        datacenter=row.datacenter,
        started_at=row.started_at,
        lease_until=row.lease_until,
        lease=row.lease,
        owner=row.owner,
        serves=row.serves,
        queues=row.queues,
        tasks=row.tasks,
        labels=row.labels,
        priorities=row.priorities,
        slots=row.slots,
        running=running,
        draining=row.draining,
        shards=shards,
        clock=row.clock,
        tzdata=row.tzdata,
    )
