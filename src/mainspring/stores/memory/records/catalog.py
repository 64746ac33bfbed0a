"""Memory store: lists of runs and jobs, and groups of dead letters."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from mainspring.core.model.base.ids import JobId, RunId, made_at
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.dead_letters import build_trend
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.storage.catalog import (
    DeadGroup,
    JobFilter,
    Page,
    RunFilter,
    Standings,
)
from mainspring.stores.filters import is_wanted_job, is_wanted_run
from mainspring.stores.memory.rows import JobRow, RunRow
from mainspring.stores.memory.tables import Tables

Row = TypeVar("Row", RunRow, JobRow)
Item = TypeVar("Item")


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

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        rows = _list_newest_first(self._tables.jobs.values(), wanted, after)
        return _build_page(rows, lambda job: is_wanted_job(job, wanted), lambda job: job.job(with_payload=False), limit)

    async def count_jobs(self, tenant: str, at_most: int) -> int:
        there = (JobState.SCHEDULED, JobState.PAUSED)
        mine = (job for job in self._tables.jobs.values() if job.tenant == tenant and job.state in there)
        return sum(1 for _ in islice(mine, at_most))

    async def dead_groups(self, wanted: RunFilter, limit: int) -> list[DeadGroup]:
        groups: dict[tuple[str, str], list[RunRow]] = {}
        for run in _list_newest_first(self._tables.runs.values(), wanted, None):
            if run.dead and _is_wanted(run, wanted):
                groups.setdefault((run.fingerprint, run.task), []).append(run)
        with self._tables.transaction() as now:
            found = [_build_group(runs, now) for runs in groups.values()]
        largest = sorted(found, key=lambda group: (-group.count, -group.last_at))
        return largest[:limit]


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
        trend=build_trend(times, now),
    )
