"""SQLite: lists of runs and jobs, and groups of dead letters."""

import apsw
import msgspec

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import HOUR, Instant
from mainspring.core.model.runs.dead_letters import TREND
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.storage.catalog import (
    DeadGroup,
    JobFilter,
    Page,
    RunFilter,
    Standings,
)
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.records.list_queries import (
    Values,
    build_from_clause,
    build_job_filters,
    build_job_source,
    build_run_filters,
    build_run_source,
    read_page,
)
from mainspring.stores.sqlite.rows.answers import decode_number
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.rows.runs import decode_run_views
from mainspring.stores.sqlite.rows.views import (
    decode_dead_groups,
    decode_standings,
)
from mainspring.stores.sqlite.threads import read
from mainspring.stores.sqlite.work.jobs import read_jobs

#: Counts the dead letters ``s`` of each recent hour, oldest hour first.
_TREND = ", ".join(
    f"count(*) FILTER (WHERE s.at > :trend_now - {hours * HOUR} AND s.at <= :trend_now - {(hours - 1) * HOUR})"
    for hours in range(TREND, 0, -1)
)


class SqliteCatalog(SqliteBase):
    async def list_runs(self, wanted: RunFilter, after: RunId | None, limit: int) -> Page[RunView]:
        def read_runs(connection: apsw.Connection) -> tuple[str, list[str], str | None]:
            ids, cursor = read_page(connection, build_run_source(wanted, after), build_run_filters(wanted), limit)
            return read(connection, "runs", ids=encode(ids), payloads=0, results=0), ids, cursor

        text, ids, cursor = await self._read(read_runs)
        views = decode_run_views(text)
        return Page([views[RunId(run)] for run in ids], cursor)

    async def count_runs(self, wanted: RunFilter, at_most: int) -> int:
        source, filters = build_run_source(wanted, None), build_run_filters(wanted)
        text = f"SELECT count(*) FROM (SELECT 1 {build_from_clause(source, filters)} LIMIT :at_most)"  # noqa: S608
        values: Values = {**source.values, **filters.values, "at_most": at_most}
        return await self._read(lambda connection: int(str(connection.execute(text, values).get)))

    async def standings(self, tenant: str | None, tag: str, since: Instant, limit: int) -> Standings:
        source = build_run_source(RunFilter(tenant=tenant, tag=tag, since=since), None)
        text = f"""
            WITH found AS MATERIALIZED ({source.text} ORDER BY id DESC LIMIT :limit)
            SELECT json_object(
                'runs', json((SELECT json_group_object(state, json(ids)) FROM (
                    SELECT state, json_group_array(id ORDER BY id DESC) AS ids FROM found GROUP BY state))),
                'replays', json((SELECT json_group_object(replay_of, id) FROM found WHERE replay_of IS NOT NULL)))
        """  # noqa: S608
        values: Values = {**source.values, "limit": limit}
        return decode_standings(await self._read(lambda connection: str(connection.execute(text, values).get)))

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        def read_page_of_jobs(connection: apsw.Connection) -> Page[Job]:
            ids, cursor = read_page(connection, build_job_source(wanted, after), build_job_filters(wanted), limit)
            stored = read_jobs(connection, [JobId(job) for job in ids], payloads=False)
            by_id = {str(job.id): job for job in stored}
            return Page([by_id[job] for job in ids if job in by_id], cursor)

        return await self._read(read_page_of_jobs)

    async def count_jobs(self, tenant: str, at_most: int) -> int:
        return decode_number(await self._reader.read("count_jobs", tenant=tenant, at_most=at_most))

    async def dead_groups(self, wanted: RunFilter, limit: int) -> list[DeadGroup]:
        wanted = msgspec.structs.replace(wanted, dead=True)
        source, filters = build_run_source(wanted, None), build_run_filters(wanted)
        # Padded times sort as text, so the greatest text names the newest run. Only one sample is read per group.
        text = f"""
            SELECT json_group_array(json_object(
                'fingerprint', coalesce(g.fingerprint, ''), 'task', g.task, 'reason', h.reason, 'count', g.count,
                'first_at', g.first_at, 'last_at', g.last_at, 'sample', h.id, 'error', coalesce(h.error, ''),
                'trend', json(g.trend)) ORDER BY g.count DESC, g.last_at DESC)
            FROM (
                SELECT s.fingerprint, s.task, count(*) AS count, min(s.at) AS first_at, max(s.at) AS last_at,
                       substr(max(printf('%020d', s.at) || s.id), 21) AS sample, json_array({_TREND}) AS trend
                FROM (SELECT v.fingerprint AS fingerprint, b.task AS task, v.id AS id,
                             (SELECT finished_at FROM history WHERE history.id = v.id) AS at
                      {build_from_clause(source, filters)}) AS s
                GROUP BY s.fingerprint, s.task
                ORDER BY count DESC, last_at DESC LIMIT :limit
            ) AS g CROSS JOIN history h ON h.id = g.sample
        """  # noqa: S608
        values: Values = {**source.values, **filters.values, "limit": limit, "trend_now": self._time.now()}
        return decode_dead_groups(await self._read(lambda connection: str(connection.execute(text, values).get)))
