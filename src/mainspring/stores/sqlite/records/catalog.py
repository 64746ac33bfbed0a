"""SQLite: queries for lists, charts and details, and the reports of running attempts."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

import apsw
import msgspec

from mainspring.core.model.access.access import DEFAULT_TENANT
from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, MINUTE, Instant, Micros
from mainspring.core.model.limits.limits import GateState
from mainspring.core.model.runs.dead_letters import TREND
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import Progress, RunView
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.storage.catalog import (
    LOG_CUT,
    LOG_DAY_CUT,
    LOOKED_AT,
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
from mainspring.stores.log_bounds import DayRoom, LogRoom
from mainspring.stores.sqlite import rows
from mainspring.stores.sqlite.part import Part
from mainspring.stores.sqlite.threads import read
from mainspring.stores.sqlite.work.jobs import stored_jobs

#: Where counting the runs ahead stops.
_COUNTED = 10_000
_NEWEST = 2**63 - 1
_is_position = re.compile("[0-9]{20}").fullmatch

_standings = msgspec.json.Decoder(Standings)
_gate = msgspec.json.Decoder(tuple[int, list[int], int | None, list[RunId]])

Values: TypeAlias = dict[str, str | int | None]

_LIVE = frozenset({RunState.QUEUED, RunState.RUNNING, RunState.CANCELLING})
_WAITING = frozenset({RunState.SCHEDULED, RunState.BLOCKED})
_ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED})

#: The run tables: name, states in it, expression of the shown state, and what filters of dead letters compare.
_PLACES = (
    ("run", _LIVE, "iif(p.state = 'running' AND p.cancel_at IS NOT NULL, 'cancelling', p.state)", "0", "NULL"),
    ("waiting", _WAITING, "iif(p.state = 'scheduled', p.state, 'blocked')", "0", "NULL"),
    ("history", _ENDED, "p.state", "p.dead", "p.fingerprint"),
)

#: Counts the dead letters ``s`` of each recent hour, oldest hour first.
_TREND = ", ".join(
    f"count(*) FILTER (WHERE s.at > :trend_now - {hours * HOUR} AND s.at <= :trend_now - {(hours - 1) * HOUR})"
    for hours in range(TREND, 0, -1)
)


class SqliteCatalog(Part):
    async def list_runs(self, wanted: RunFilter, after: RunId | None, limit: int) -> Page[RunView]:
        def look(connection: apsw.Connection) -> tuple[str, list[str], str | None]:
            ids, going_on = _page(connection, _runs(wanted, after), _run_filters(wanted), limit)
            return read(connection, "runs", ids=rows.encode(ids), payloads=0, results=0), ids, going_on

        text, ids, going_on = await self._look(look)
        views = rows.run_views(text)
        return Page([views[RunId(run)] for run in ids], going_on)

    async def count_runs(self, wanted: RunFilter, at_most: int) -> int:
        source, filters = _runs(wanted, None), _run_filters(wanted)
        text = f"SELECT count(*) FROM (SELECT 1 {_found(source, filters)} LIMIT :at_most)"  # noqa: S608
        values: Values = {**source.values, **filters.values, "at_most": at_most}
        return await self._look(lambda connection: int(str(connection.execute(text, values).get)))

    async def standings(self, tenant: str | None, tag: str, since: Instant, limit: int) -> Standings:
        source = _runs(RunFilter(tenant=tenant, tag=tag, since=since), None)
        text = f"""
            WITH found AS MATERIALIZED ({source.text} ORDER BY id DESC LIMIT :limit)
            SELECT json_object(
                'runs', json((SELECT json_group_object(state, json(ids)) FROM (
                    SELECT state, json_group_array(id ORDER BY id DESC) AS ids FROM found GROUP BY state))),
                'replays', json((SELECT json_group_object(replay_of, id) FROM found WHERE replay_of IS NOT NULL)))
        """  # noqa: S608
        values: Values = {**source.values, "limit": limit}
        return _standings.decode(await self._look(lambda connection: str(connection.execute(text, values).get)))

    async def ahead_of(self, run: RunId) -> int | None:
        ahead: int | None = rows.number.decode(await self._reader.read("ahead_of", run=run, limit=_COUNTED))
        return ahead

    async def gate(self, number: int, limit: int) -> tuple[GateState, list[RunId]]:
        text = await self._reader.read("gate", number=number, limit=limit)
        used, times, open_until, inside = _gate.decode(text)
        return GateState(used=used, times=tuple(times), open_until=open_until), inside

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        def look(connection: apsw.Connection) -> Page[Job]:
            ids, going_on = _page(connection, _jobs(wanted, after), _job_filters(wanted), limit)
            stored = stored_jobs(connection, [JobId(job) for job in ids], payloads=False)
            by_id = {str(job.id): job for job in stored}
            return Page([by_id[job] for job in ids if job in by_id], going_on)

        return await self._look(look)

    async def count_jobs(self, tenant: str, at_most: int) -> int:
        count: int = rows.number.decode(await self._reader.read("count_jobs", tenant=tenant, at_most=at_most))
        return count

    async def versions(self, job: JobId, *, before: int | None = None, limit: int = 100) -> list[JobVersion]:
        below = _NEWEST if before is None else before
        return rows.job_versions(await self._reader.read("versions", job=job, before=below, limit=limit))

    async def held(self, runs: Sequence[RunId]) -> list[HeldRun | None]:
        found, _ = rows.held_runs(await self._reader.read("held", ids=rows.encode(list(dict.fromkeys(runs)))))
        by_id = {run.id: run for run in found}
        return [by_id.get(run) for run in runs]

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        return rows.sessions(await self._reader.read("sessions", kind=kind, now=self._time.now()))

    async def session(self, session: SessionId) -> SessionView | None:
        return next(iter(rows.sessions(await self._reader.read("session", session=session))), None)

    async def pauses(self) -> list[Pause]:
        return rows.pauses(await self._reader.read("pauses", now=self._time.now()))

    async def minutes(self, tenant: str | None, since: Instant, until: Instant, step: Micros = MINUTE) -> list[Minute]:
        text = await self._reader.read("minutes", tenant=tenant, since=since, until=until, step=step)
        return rows.minutes(text)

    async def loads(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> list[Load]:
        text = await self._reader.read("loads", tenant=tenant, queue=queue, since=since, until=until)
        return rows.loads(text)

    async def timings(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> Timings:
        after = since - TIMINGS_STEP
        return rows.timings(await self._reader.read("timings", tenant=tenant, queue=queue, after=after, until=until))

    async def due_by_minute(self, tenant: str | None, since: Instant, until: Instant) -> list[tuple[Instant, int]]:
        shards = rows.encode(list(range(self.shards)))
        text = await self._reader.read("due_by_minute", shards=shards, tenant=tenant, since=since, until=until)
        return rows.pairs.decode(text)

    async def dead_groups(self, wanted: RunFilter, limit: int) -> list[DeadGroup]:
        wanted = msgspec.structs.replace(wanted, dead=True)
        source, filters = _runs(wanted, None), _run_filters(wanted)
        # Padded times sort as text, so the greatest text names the newest run. Only one sample is read per group.
        text = f"""
            SELECT json_group_array(json_array(
                coalesce(g.fingerprint, ''), g.task, h.reason, g.count, g.first_at, g.last_at, h.id,
                coalesce(h.error, ''), json(g.trend)) ORDER BY g.count DESC, g.last_at DESC)
            FROM (
                SELECT s.fingerprint, s.task, count(*) AS count, min(s.at) AS first_at, max(s.at) AS last_at,
                       substr(max(printf('%020d', s.at) || s.id), 21) AS sample, json_array({_TREND}) AS trend
                FROM (SELECT v.fingerprint AS fingerprint, b.task AS task, v.id AS id,
                             (SELECT finished_at FROM history WHERE history.id = v.id) AS at
                      {_found(source, filters)}) AS s
                GROUP BY s.fingerprint, s.task
                ORDER BY count DESC, last_at DESC LIMIT :limit
            ) AS g CROSS JOIN history h ON h.id = g.sample
        """  # noqa: S608
        values: Values = {**source.values, **filters.values, "limit": limit, "trend_now": self._time.now()}
        return rows.dead_groups(await self._look(lambda connection: str(connection.execute(text, values).get)))

    async def log(self, run: RunId, after: int, limit: int) -> list[LogLine]:
        return rows.log_lines(await self._reader.read("log", run=run, after=after, limit=limit))

    async def log_before(self, run: RunId, before: int, limit: int) -> list[LogLine]:
        return rows.log_lines(await self._reader.read("log_before", run=run, before=before, limit=limit))

    async def logs_after(self, places: Mapping[RunId, int], limit: int) -> dict[RunId, list[LogLine]]:
        return rows.logs(await self._reader.read("logs_after", places=rows.encode(dict(places)), limit=limit))

    async def events_after(self, position: str | None, limit: int) -> tuple[list[EventBatch], str]:
        if position is not None and _is_position(position) is None:
            raise NotFound("this is no position in the stream of events")
        at = _NEWEST if position is None else min(int(position), _NEWEST)
        horizon, newest, batches = rows.following(await self._reader.read("events_after", position=at, limit=limit))
        if position is None:
            return [], rows.place(newest)
        if not horizon <= at <= newest:
            raise NotFound("the events after this position are not kept any more")
        return batches, batches[-1].position if batches else position


class SqliteReports(Part):
    async def report_progress(self, progress: Sequence[ProgressReport]) -> list[bool]:
        if not progress:
            return []
        told = [
            (report.run, report.fence, rows.encode(Progress(done=report.done, total=report.total, note=report.note)))
            for report in progress
        ]
        return rows.heard(await self._writer.call("report_progress", rows.encode(told)))

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        if not checkpoints:
            return []
        told = [(checkpoint.run, checkpoint.fence, rows.text_of(checkpoint.state)) for checkpoint in checkpoints]
        return rows.heard(await self._writer.call("save_checkpoints", rows.encode(told)))

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        if not lines:
            return []
        runs = list(dict.fromkeys(line.run for line in lines))
        cuts, today = rows.encode([LOG_CUT, LOG_DAY_CUT]), self._time.now() // DAY
        sizes = rows.log_sizes(await self._reader.read("log_sizes", ids=rows.encode(runs), cuts=cuts, day=today))
        days = {tenant: DayRoom(most, used) for _, _, _, tenant, most, used in sizes.values() if most is not None}
        # Keyed by fence, too: only the current attempt may append, and a stale one must not use up its room.
        rooms: dict[tuple[RunId, int], LogRoom] = {}
        told = []
        for line in lines:
            if (room := rooms.get((line.run, line.fence))) is None:
                pieces, size, cut, tenant, _, _ = sizes[line.run]
                room = rooms[line.run, line.fence] = LogRoom(pieces, size, cut=bool(cut), today=days.get(tenant))
            told.append((line.run, line.fence, room.fit(line.text)))
        return rows.heard(await self._writer.call("append_log", rows.encode(told)))

    async def logged_runs(self, after: RunId | None, limit: int) -> list[RunId]:
        return rows.run_ids(await self._reader.read("logged_runs", after=after or "", limit=limit))

    async def forget_logs(self, runs: Collection[RunId]) -> None:
        def forget(connection: apsw.Connection, now: Instant) -> None:
            connection.execute(
                "DELETE FROM log WHERE run_id IN (SELECT value FROM json_each(?))", (rows.encode(list(runs)),)
            )

        await self._work(forget)


#: The tenants with a tag. The index begins with the tenant, so each tenant costs one step.
_TENANTS = """
    WITH RECURSIVE of(name) AS (
        SELECT min(tenant) FROM label
        UNION ALL SELECT (SELECT min(tenant) FROM label WHERE tenant > of.name) FROM of WHERE of.name IS NOT NULL)
    SELECT name FROM of WHERE name IS NOT NULL
"""


class _Source(msgspec.Struct, frozen=True):
    """A query for rows in the order of an index, without its ORDER BY, and its parameters."""

    text: str
    values: Values
    #: The joins that filters need for each row.
    joins: str


class _Filters(msgspec.Struct, frozen=True):
    """Conditions on each row, and their parameters."""

    texts: list[str]
    values: Values


def _found(source: _Source, filters: _Filters, looked_at: str = "") -> str:
    """Build the FROM and WHERE clauses for the wanted rows of a source."""
    return f"FROM ({source.text} {looked_at}) AS v {source.joins} WHERE {' AND '.join(filters.texts) or 'true'}"


def _page(connection: apsw.Connection, source: _Source, filters: _Filters, limit: int) -> tuple[list[str], str | None]:
    """Return the ids of a page, newest first, and the cursor of the next page. Reads a bounded number of rows."""
    newest_first = "ORDER BY id DESC LIMIT :looked_at"
    values: Values = {**source.values, **filters.values, "looked_at": LOOKED_AT, "limit": limit + 1}
    text = f"""
        SELECT json_group_array(id) FROM (SELECT v.id AS id {_found(source, filters, newest_first)} LIMIT :limit)
    """  # noqa: S608
    ids = rows.strings.decode(str(connection.execute(text, values).get))
    if len(ids) > limit:
        return ids[:limit], ids[limit - 1] if limit else None
    if not filters.texts:
        return ids, None
    # The next page begins at the last row that was read, if another row follows it.
    text = f"SELECT json_group_array(id) FROM (SELECT id FROM ({source.text} {newest_first}) LIMIT 2 OFFSET :offset)"  # noqa: S608
    values = {**source.values, "looked_at": LOOKED_AT + 1, "offset": LOOKED_AT - 1}
    last = rows.strings.decode(str(connection.execute(text, values).get))
    return ids, last[0] if len(last) == 2 else None


def _runs(wanted: RunFilter, after: RunId | None) -> _Source:
    """Build the query for the runs of a tenant, a tag, a job or all, over the tables that hold the wanted states."""
    values: Values = {}
    texts: list[str] = []
    label = ""
    if wanted.tag:
        label = "label CROSS JOIN"
        whose = f"IN ({_TENANTS})" if wanted.tenant is None else "= :tenant"
        texts = [f"label.tenant {whose} AND label.label = :tag AND p.id = label.id AND p.tenant = label.tenant"]
        values["tag"] = wanted.tag
    if wanted.tenant is not None and not _is_looked_for(wanted):
        values["tenant"] = wanted.tenant
        if not wanted.tag:
            texts.append("p.tenant = :tenant")
        if _by_tenant(wanted):
            texts.append("p.tenant <> 'default'")
    if wanted.job is not None:
        values["job"] = wanted.job
    if wanted.dead:
        texts.append("p.dead = 1")
    identifier = "label.id" if label else "p.id"
    for text, name, value in _span(wanted, after):
        texts.append(f"{identifier} {text}")
        values[name] = value
    states = frozenset({RunState.FAILED}) if wanted.dead or wanted.fingerprint else wanted.states
    selects = [
        f"SELECT {identifier} AS id, {state} AS state, p.tenant AS tenant, p.queue AS queue, p.job_id AS job_id,"  # noqa: S608
        f" p.body AS body, p.replay_of AS replay_of, {dead} AS dead, {fingerprint} AS fingerprint"
        f" FROM {label} {table} p {index} WHERE {' AND '.join([*texts, *of_job]) or 'true'}"
        for table, there, state, dead, fingerprint in _PLACES
        if not states or states & there
        for index, of_job in _of_job(wanted, table)
    ]
    return _Source(" UNION ALL ".join(selects), values, "CROSS JOIN body b ON b.id = v.body")


def _of_job(wanted: RunFilter, table: str) -> list[tuple[str, list[str]]]:
    """Return the indexes to search by, each with its conditions on the job."""
    if wanted.job is None:
        return [(_index(wanted, table), [])]
    if wanted.tag:
        return [("", ["(p.job_id = :job OR (p.id = :job AND p.job_id IS NULL))"])]
    return [(_index(wanted, table), ["p.job_id = :job"]), ("", ["p.id = :job AND p.job_id IS NULL"])]


def _by_tenant(wanted: RunFilter) -> bool:
    """Report whether rows are found by their tenant."""
    return wanted.tenant is not None and not (wanted.tag or wanted.job or wanted.dead)


def _is_looked_for(wanted: RunFilter) -> bool:
    """Report whether the tenant is checked row by row, without an index.

    The default tenant needs no index: in most stores it owns all rows.
    """
    return wanted.tenant == DEFAULT_TENANT and _by_tenant(wanted)


def _index(wanted: RunFilter, table: str) -> str:
    """Return the index that has the rows in the order of their ids."""
    if wanted.tag:
        return ""
    if wanted.job is not None:
        return f"INDEXED BY {table}_job"
    if wanted.dead:
        return "INDEXED BY history_dead" if wanted.tenant is None else "INDEXED BY history_dead_of"
    return f"INDEXED BY {table}_tenant" if _by_tenant(wanted) and not _is_looked_for(wanted) else ""


def _run_filters(wanted: RunFilter) -> _Filters:
    filters = _Filters([], {})
    if _is_looked_for(wanted):
        _add(filters, "v.tenant = :tenant", tenant=wanted.tenant)
    if wanted.states:
        _add(filters, "v.state IN (SELECT value FROM json_each(:states))", states=rows.encode(sorted(wanted.states)))
    if wanted.task:
        _add(filters, "b.task = :task", task=wanted.task)
    if wanted.queue:
        _add(filters, "v.queue = :queue", queue=wanted.queue)
    if wanted.one_off:
        _add(filters, "v.job_id IS NULL")
    if wanted.fingerprint:
        _add(filters, "v.fingerprint = :fingerprint", fingerprint=wanted.fingerprint)
    if wanted.text:
        _add(filters, _says("coalesce(b.about ->> 'name', '')", "b.task", "v.id"), text=wanted.text)
    return filters


def _jobs(wanted: JobFilter, after: JobId | None) -> _Source:
    values: Values = {}
    texts: list[str] = []
    if wanted.tenant is not None:
        texts.append("tenant = :tenant")
        values["tenant"] = wanted.tenant
    for text, name, value in _span(wanted, after):
        texts.append(f"id {text}")
        values[name] = value
    index = "" if wanted.tenant is None else "INDEXED BY job_tenant"
    return _Source(
        f"SELECT id, name, state, version FROM job {index} WHERE {' AND '.join(texts) or 'true'}",  # noqa: S608
        values,
        "CROSS JOIN job_version j ON j.job_id = v.id AND j.version = v.version",
    )


def _job_filters(wanted: JobFilter) -> _Filters:
    filters = _Filters([], {})
    if wanted.states:
        _add(filters, "v.state IN (SELECT value FROM json_each(:states))", states=rows.encode(sorted(wanted.states)))
    if wanted.task:
        _add(filters, "j.spec ->> 'task' = :task", task=wanted.task)
    if wanted.queue:
        # A spec leaves out default values.
        _add(filters, "coalesce(j.spec ->> 'queue', 'default') = :queue", queue=wanted.queue)
    if wanted.tag:
        _add(filters, ":tag IN (SELECT value FROM json_each(j.spec, '$.tags'))", tag=wanted.tag)
    if wanted.source:
        _add(filters, "j.spec ->> 'source' = :source", source=wanted.source)
    if wanted.text:
        _add(filters, _says("v.name", "coalesce(j.spec ->> 'task', '')", "v.id"), text=wanted.text)
    return filters


def _add(filters: _Filters, condition: str, /, **values: str | int | None) -> None:
    filters.texts.append(condition)
    filters.values.update(values)


def _says(*places: str) -> str:
    return "(" + " OR ".join(f"instr(lower({place}), lower(:text))" for place in places) + ")"


def _span(wanted: RunFilter | JobFilter, after: str | None) -> list[tuple[str, str, str]]:
    """Return comparisons for ids, with parameter names and values. An id begins with its creation time."""
    found = []
    if after is not None:
        found.append(("< :after", "after", after))
    if wanted.since is not None:
        found.append((">= :since", "since", _first_id(wanted.since)))
    if wanted.until is not None:
        found.append(("< :until", "until", _first_id(wanted.until)))
    return found


def _first_id(at: Instant) -> str:
    """Return the lower bound of the ids created at ``at`` or later. Ids hold whole milliseconds."""
    return f"{min(max(0, -(-at // MILLISECOND)), 0xFFFF_FFFF_FFFF):012x}"
