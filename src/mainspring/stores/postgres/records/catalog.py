"""Lists, counts, metrics and logs for users, and the reports of running attempts."""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Literal

import asyncpg
import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import HOUR, MILLISECOND, MINUTE, Instant, Micros
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.limits.limits import LimiterState
from mainspring.core.model.runs.run import ENDED, HeldRun, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, version_body_id
from mainspring.core.ports.storage.catalog import (
    COUNTED_AMONG,
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
from mainspring.stores.filters import is_wanted_job, is_wanted_run
from mainspring.stores.log_bounds import DayRoom, LogRoom
from mainspring.stores.postgres.codes import AT_LIMIT, BY_PARENTS, SESSION_KINDS, STATE_CODES, STATES, NameKind
from mainspring.stores.postgres.columns import columns
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.records.dead_letters import dead_groups_sql
from mainspring.stores.postgres.records.reading import ReadMixin
from mainspring.stores.postgres.rows import build_held_runs, build_job, decode_spec, readable_jobs

#: How many rows the first statement of a filtered list examines, and how many candidates one returns at most.
_CHUNK = 1_000
#: Where few rows are candidates, each statement examines four times as many as the one before, up to this.
_LARGEST_STEP = 16_000
#: One read of a list ends after as much work as examining this many rows. Looking into the body of a row costs several
#: times as much, and reading all of a candidate costs more again.
_MOST_EXAMINED = 16_000
_BODY_COST = 4
_VIEW_COST = 80
_NEWEST_VERSION = 2**31 - 1
_FIRST_ID, _LAST_ID = "0" * 32, "f" * 32
_WAITING = frozenset({RunState.SCHEDULED, RunState.BLOCKED})
_LIVE = frozenset({RunState.QUEUED, RunState.RUNNING, RunState.CANCELLING})
_FIGURES = (
    "succeeded",
    "failed",
    "cancelled",
    "skipped",
    "retried",
    "started",
    "late_total",
    "late_most",
    "took_total",
    "took_most",
)


#: The state codes that statements return; 0 is a running run that was asked to stop.
_STANDS = {0: RunState.CANCELLING, **STATES}


#: The columns that filters test, and where the body is. The task is empty for a run that waits, or that has waited.
_BODY = "body_bucket AS bucket, CASE WHEN body_id IS NULL THEN id ELSE body_id END AS body"
_COLUMNS = {
    "run": (
        "id, (CASE WHEN state = 4 AND cancel_at IS NOT NULL THEN 0 ELSE state END)::smallint AS state, queue, job_id, "
        f"of_task AS task, {_BODY}"
    ),
    "waiting": f"id, state, queue, job_id, NULL::int AS task, {_BODY}",
    "history": f"id, state, queue, job_id, of_task AS task, {_BODY}",
}
_LABEL_COLUMNS = (
    "id, NULL::smallint AS state, NULL::int AS queue, NULL::uuid AS job_id, NULL::int AS task, bucket, id AS body"
)
_DEAD_COLUMNS = (
    "run_id AS id, 6::smallint AS state, queue, NULL::uuid AS job_id, task, NULL::int AS bucket, NULL::uuid AS body"
)


class _ExaminedRun(msgspec.Struct, frozen=True):
    """A run that a list has reached, with its view if it matches."""

    id: RunId
    view: RunView | None
    cost: int


class _RunningAttempt(msgspec.Struct, frozen=True):
    """A running attempt."""

    number: int
    tenant: int


class _SearchedTables:
    """The tables to search for runs. The first arguments are always: ids from, ids below, and how many."""

    def __init__(self, wanted: RunFilter) -> None:
        self.selects: list[str] = []
        self.first = _bound(wanted.since, _FIRST_ID)
        self.below = _bound(wanted.until, _LAST_ID)
        self._arguments: list[object] = []

    def argument(self, value: object) -> str:
        self._arguments.append(value)
        return f"${len(self._arguments) + 3}"

    def arguments(self, below: str, limit: int) -> list[object]:
        return [self.first, below, limit, *self._arguments]

    def look_in(self, columns: str, table: str, key: str, conditions: Sequence[str]) -> None:
        within = " AND ".join([f"{key} >= $1::uuid", f"{key} < $2::uuid", *conditions])
        self.selects.append(f"(SELECT {columns} FROM {table} WHERE {within} ORDER BY {key} DESC LIMIT $3)")

    def count_among(self, columns: str, table: str, conditions: Sequence[str], which: str) -> None:
        """Count among the newest rows only, however few of them match: no index covers their states and queues."""
        within = " AND ".join(["id >= $1::uuid", "id < $2::uuid", *conditions])
        newest = f"SELECT {columns} FROM {table} WHERE {within} ORDER BY id DESC LIMIT {COUNTED_AMONG}"
        self.selects.append(f"(SELECT * FROM ({newest}) AS newest WHERE {which} LIMIT $3)")

    @property
    def found(self) -> str:
        return " UNION ALL ".join(self.selects)


class CatalogMixin(ReadMixin):
    async def list_runs(self, wanted: RunFilter, after: RunId | None, limit: int) -> Page[RunView]:
        items: list[RunView] = []
        last: str | None = None
        cost = 0
        async for examined in self._examine(wanted, after, limit + 1):
            if len(items) == limit:
                return Page(items, last)
            last = examined.id
            cost += examined.cost
            if examined.view is not None:
                items.append(examined.view)
            elif cost >= _MOST_EXAMINED:
                return Page(items, last)
        return Page(items)

    async def count_runs(self, wanted: RunFilter, at_most: int) -> int:
        if wanted.task or wanted.tag or wanted.text or wanted.dead or wanted.fingerprint:
            count = 0
            async for examined in self._examine(wanted, None, _CHUNK):
                count += examined.view is not None
                if count >= at_most:
                    break
            return min(count, at_most)
        sources = await self._sources(wanted, exactly=True)
        if not sources.selects:
            return 0
        statement = f"SELECT count(*) FROM (SELECT FROM ({sources.found}) AS found LIMIT $3) AS counted"
        [row] = await self._fetch(statement, sources.arguments(sources.below, at_most))
        return int(row[0])

    async def standings(self, tenant: str | None, tag: str, since: Instant, limit: int) -> Standings:
        number = await self._scope_number(tenant)
        tenants = await self._tenant_numbers() if number is None else [number]
        rows = await self._db.fetch(
            "standings", tenants=tenants, tag=tag, since=_bound(since, _FIRST_ID), limit=limit, ended_since=since - HOUR
        )
        found = Standings({}, {})
        for row in rows:
            found.runs[_STANDS[row["state"]]] = row["ids"]
            found.replays.update(zip(row["replayed"] or (), row["replays"] or (), strict=True))
        return found

    async def _examine(self, wanted: RunFilter, after: RunId | None, size: int) -> AsyncIterator[_ExaminedRun]:
        """Search back from a run: yield every candidate, and the last run of each statement, newest first."""
        sources = await self._sources(wanted)
        if not sources.selects:
            return
        conditions = await self._conditions(wanted, sources)
        if conditions is None:
            return
        filtered, weight = _is_filtered(wanted), _BODY_COST if wanted.task or wanted.text else 1
        statement = f"""
            WITH examined AS MATERIALIZED (SELECT * FROM ({sources.found}) AS found ORDER BY id DESC LIMIT $3)
            SELECT ARRAY(SELECT id FROM examined WHERE {" AND ".join(conditions) or "true"}
                         ORDER BY id DESC LIMIT {_CHUNK}) AS candidates,
                   (SELECT id FROM examined ORDER BY id LIMIT 1) AS last, (SELECT count(*) FROM examined) AS examined
        """
        below = sources.below if after is None else min(after, sources.below)
        few = max(size, 50)
        # Without a filter every row that is read is returned.
        size = _CHUNK if filtered else min(size, _CHUNK)
        while True:
            [row] = await self._fetch(statement, sources.arguments(below, size))
            # A run has two label rows while its body is being moved.
            candidates = list(dict.fromkeys(map(RunId, row["candidates"])))
            for start, stop in _growing(few, len(candidates)):
                views = await self._views(candidates[start:stop], results=False)
                for run in candidates[start:stop]:
                    view = views.get(run)
                    matches = view is not None and is_wanted_run(view, view.state, wanted)
                    yield _ExaminedRun(run, view if matches else None, _VIEW_COST)
            is_cut = len(row["candidates"]) == _CHUNK
            if row["examined"] < size and not is_cut:
                return
            below = row["candidates"][-1] if is_cut else row["last"]
            yield _ExaminedRun(RunId(below), None, row["examined"] * weight)
            if filtered:
                size = _CHUNK if is_cut else min(size * 4, _LARGEST_STEP // weight)

    async def _conditions(self, wanted: RunFilter, sources: _SearchedTables) -> list[str] | None:
        """Return the conditions that make an examined row a candidate; None if no run can match.

        A field that a row lacks is looked up in the body, or counts as a match.
        """
        conditions: list[str] = []
        if wanted.states:
            codes = sources.argument([code for code, state in _STANDS.items() if state in wanted.states])
            conditions.append(f"(state IS NULL OR state = ANY ({codes}::smallint[]))")
        if wanted.queue:
            queue = sources.argument(await self._names.find_number(NameKind.QUEUE, wanted.queue))
            conditions.append(f"(queue IS NULL OR queue = {queue}::int)")
        if wanted.one_off:
            conditions.append("job_id IS NULL")
        if wanted.task:
            task = await self._names.find_number(NameKind.TASK, wanted.task)
            if task is None:
                return None
            of_body = self._of_body("b.task")
            conditions.append(f"coalesce(task, {of_body}) = {sources.argument(task)}::int")
        text = wanted.text.lower()
        if text and _is_plain(text):
            said = sources.argument(text)
            tasks = sources.argument(await self._names.find_numbers_containing(NameKind.TASK, text))
            of_body = self._of_body(
                f"b.task = ANY ({tasks}::int[])"
                f" OR coalesce(strpos(lower(convert_from(b.about, 'UTF8')), {said}::text) > 0, false)"
            )
            conditions.append(
                f"(body IS NULL OR task = ANY ({tasks}::int[]) OR strpos(replace(id::text, '-', ''), {said}::text) > 0"
                f" OR {of_body})"
            )
        return conditions

    def _of_body(self, column: str) -> str:
        """Return an expression about the body of an examined row, which may have been moved to the bucket -1."""
        found = f"SELECT {column} FROM {self._db.schema}.body b WHERE b.id = examined.body AND b.bucket ="
        return f"coalesce(({found} examined.bucket), ({found} -1))"

    async def _sources(self, wanted: RunFilter, *, exactly: bool = False) -> _SearchedTables:
        """Choose the tables to search by their indexes. ``exactly``: only rows that match all of the filter."""
        sources = _SearchedTables(wanted)
        tenant = await self._scope_number(wanted.tenant)
        queue = await self._names.find_number(NameKind.QUEUE, wanted.queue) if wanted.queue else None
        if tenant == 0 or (wanted.queue and queue is None):
            return sources
        schema = self._db.schema
        mine = [] if tenant is None else [f"tenant = {sources.argument(tenant)}::int"]
        states = wanted.states
        if wanted.dead or wanted.fingerprint:
            if not states or RunState.FAILED in states:
                conditions = list(mine)
                if wanted.dead:
                    conditions.append("state = 1")
                if wanted.fingerprint:
                    conditions.append(f"fingerprint = {sources.argument(wanted.fingerprint)}::text")
                sources.look_in(_DEAD_COLUMNS, f"{schema}.dead_letter", "run_id", conditions)
            return sources
        if wanted.tag:
            tag = f"label = {sources.argument(wanted.tag)}::text"
            if mine:
                sources.look_in(_LABEL_COLUMNS, f"{schema}.label", "id", [*mine, tag])
            else:
                # The index begins with the tenant, so every tenant is searched for its newest.
                tenants = sources.argument(await self._tenant_numbers())
                sources.selects.append(
                    f"(SELECT l.* FROM unnest({tenants}::int[]) AS t(number), LATERAL ("
                    f"SELECT {_LABEL_COLUMNS} FROM {schema}.label WHERE tenant = t.number AND {tag} AND id >= $1::uuid "
                    "AND id < $2::uuid ORDER BY id DESC LIMIT $3) AS l)"
                )
            return sources
        own: list[list[str]] = [[]]
        if wanted.job is not None:
            # By the index of the job, not of the tenant: a job has fewer runs. A one-off job also has its own run.
            mine = [condition.replace("tenant =", "tenant + 0 =") for condition in mine]
            job = f"{sources.argument(wanted.job)}::uuid"
            own = [[f"job_id = {job}"], [f"id = {job}", "job_id IS NULL"]]
        chosen = [f"queue = {sources.argument(queue)}::int"] if exactly and queue is not None else []
        if exactly and wanted.one_off:
            mine.append("job_id IS NULL")
        for table, there in (("run", _LIVE), ("waiting", _WAITING), ("history", ENDED)):
            asked = states & there if states else there
            if not asked:
                continue
            conditions = list(mine)
            if table == "history" and RunState.SUCCEEDED not in asked:
                conditions += ["class <> 1", "state <> 5"]
            elif table == "history" and asked == {RunState.SUCCEEDED}:
                conditions += ["class <> 2", "state = 5"]
            columns = _COLUMNS[table]
            which = list(chosen)
            if exactly and asked != there:
                which.append(f"({' OR '.join(sorted(map(_is_in, asked)))})")
            for of_job in own:
                if which and table == "history" and (chosen or RunState.SUCCEEDED not in asked):
                    sources.count_among(columns, f"{schema}.{table}", [*conditions, *of_job], " AND ".join(which))
                else:
                    sources.look_in(columns, f"{schema}.{table}", "id", [*conditions, *of_job, *which])
        return sources

    async def _tenant_numbers(self) -> list[int]:
        return [row["id"] for row in await self._db.fetch("names") if row["kind"] == NameKind.TENANT]

    async def _fetch(self, statement: str, arguments: Sequence[object]) -> list[asyncpg.Record]:
        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(statement, *arguments)

        return await self._db.run(work)

    async def ahead_of(self, run: RunId) -> int | None:
        rows = await self._db.fetch("ahead_of", run=run)
        return rows[0]["ahead"] if rows else None

    async def limiter(self, number: int, limit: int) -> tuple[LimiterState, list[RunId]]:
        inside = [RunId(row["id"]) for row in await self._db.fetch("runs_inside_limiter", number=number, limit=limit)]
        for row in await self._db.fetch("limiter_state", number=number):
            return LimiterState(used=row["used"], times=tuple(row["times"]), open_until=row["open_until"]), inside
        return LimiterState(), inside

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        tenant = await self._scope_number(wanted.tenant)
        if tenant == 0:
            return Page([])
        first, below = _bound(wanted.since, _FIRST_ID), _bound(wanted.until, _LAST_ID)
        below = below if after is None else min(after, below)
        items: list[Job] = []
        looked_at = 0
        while True:
            if tenant is None:
                rows = await self._db.fetch("list_all_jobs", below=below, first=first, limit=_CHUNK)
            else:
                rows = await self._db.fetch("list_jobs", tenant=tenant, below=below, first=first, limit=_CHUNK)
            await self._names.load_names({row["tenant"] for row in rows})
            jobs = {job.id: job for job in readable_jobs(rows, lambda row: build_job(row, self._names))}
            for row in rows:
                if len(items) == limit or looked_at == LOOKED_AT:
                    return Page(items, below)
                below = row["id"]
                looked_at += 1
                job = jobs.get(JobId(below))
                if job is not None and is_wanted_job(job, wanted):
                    items.append(job)
            if len(rows) < _CHUNK:
                return Page(items)

    async def count_jobs(self, tenant: str, at_most: int) -> int:
        number = await self._scope_number(tenant)
        return (await self._db.fetch("count_jobs", tenant=number, limit=at_most))[0]["count"] if number else 0

    async def versions(self, job: JobId, *, before: int | None = None, limit: int = 100) -> list[JobVersion]:
        tenant = await self._scope_number()
        below = _NEWEST_VERSION if before is None else min(before, _NEWEST_VERSION)
        rows = await self._db.fetch("versions", job=job, tenant=tenant, below=below, limit=limit)
        bodies = await self._db.fetch(
            "bodies", bodies=[version_body_id(job, row["version"]) for row in rows], tenant=tenant
        )
        payloads = {row["id"]: row["payload"] for row in bodies}
        versions = []
        for row in rows:
            spec = decode_spec(row["spec"])
            if spec is not None:
                versions.append(
                    JobVersion(
                        version=row["version"],
                        spec=spec,
                        payload=payloads.get(version_body_id(job, row["version"]), b"null"),
                        made_by=row["made_by"],
                        why=row["why"],
                        made_at=row["made_at"],
                    )
                )
        return versions

    async def held(self, runs: Sequence[RunId]) -> list[HeldRun | None]:
        rows = await self._db.fetch("held", runs=list(runs))
        await self._names.load_names({row[column] for row in rows for column in ("task", "queue", "tenant")})
        # A run that cannot be read has no holder; the worker that claims it ends it.
        readable, _ = build_held_runs(rows, self._names, self._policies)
        held = {run.id: run for run in readable}
        for row in rows:
            if row["id"] in held:
                held[row["id"]].session = row["session"]
        return [held.get(run) for run in runs]

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        return [build_session_view(row) for row in await self._db.fetch("sessions", kind=SESSION_KINDS[kind])]

    async def session(self, session: SessionId) -> SessionView | None:
        return next((build_session_view(row) for row in await self._db.fetch("session", session=session)), None)

    async def pauses(self) -> list[Pause]:
        rows = await self._db.fetch("pauses", tenant=await self._scope_number())
        await self._names.load_names({number for row in rows for number in (row["tenant"], row["queue"])} - {0})
        pauses = [
            Pause(
                tenant=self._names.get_name(row["tenant"]) if row["tenant"] else None,
                queue=self._names.get_name(row["queue"]) if row["queue"] else None,
                since=row["since"],
                author=row["author"],
                why=row["why"],
                until=row["until"],
            )
            for row in rows
        ]
        return sorted(pauses, key=lambda pause: (pause.tenant or "", pause.queue or ""))

    async def minutes(self, tenant: str | None, since: Instant, until: Instant, step: Micros = MINUTE) -> list[Minute]:
        rows = await self._db.fetch(
            "minutes", tenant=await self._scope_number(tenant), since=since, until=until, step=step
        )
        await self._names.load_names({row["queue"] for row in rows} - {0})
        minutes = [
            Minute(
                at=row["at"],
                queue=self._names.get_name(row["queue"]) if row["queue"] else "",
                **{figure: row[figure] for figure in _FIGURES},
            )
            for row in rows
        ]
        return sorted(minutes, key=lambda minute: (minute.at, minute.queue))

    async def loads(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> list[Load]:
        tenant_number = await self._scope_number(tenant)
        if tenant_number is None and queue is None:
            rows = await self._db.fetch("loads", since=since, until=until)
        else:
            rows = await self._db.fetch(
                "loads_by_tenant", since=since, until=until, tenant=tenant_number, queue=await self._queue_number(queue)
            )
        return [Load(at=row["at"], queued=row["queued"], running=row["running"], lag=row["lag"]) for row in rows]

    async def timings(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> Timings:
        number = await self._queue_number(queue)
        rows = await self._db.fetch(
            "timings", after=since - TIMINGS_STEP, until=until, tenant=await self._scope_number(tenant), queue=number
        )
        return Timings(
            {row["bucket"]: row["late"] for row in rows if row["late"]},
            {row["bucket"]: row["took"] for row in rows if row["took"]},
        )

    async def _queue_number(self, queue: str | None) -> int | None:
        """Return the number of a queue, 0 if it is unknown, None for all queues."""
        return None if queue is None else await self._names.find_number(NameKind.QUEUE, queue) or 0

    async def due_by_minute(self, tenant: str | None, since: Instant, until: Instant) -> list[tuple[Instant, int]]:
        number = None if tenant is None else await self._names.find_number(NameKind.TENANT, tenant)
        if tenant is not None and number is None:
            return []
        rows = await self._db.fetch(
            "due_by_minute", shards=list(range(self.shards)), tenant=number, since=since, until=until
        )
        return [(row["minute"], row["runs"]) for row in rows]

    async def dead_groups(self, wanted: RunFilter, limit: int) -> list[DeadGroup]:
        wanted = msgspec.structs.replace(wanted, dead=True)
        sources = await self._sources(msgspec.structs.replace(wanted, tag=""))
        if not sources.selects:
            return []
        conditions = ["d.state = 1"]
        arguments: list[object] = [limit]

        def condition(text: str, value: object) -> None:
            arguments.append(value)
            conditions.append(text.format(f"${len(arguments)}"))

        # Without conditions that always hold: the planner expects few rows of any range, even of one that covers all.
        if wanted.since is not None:
            condition("d.run_id >= {}::uuid", sources.first)
        if wanted.until is not None:
            condition("d.run_id < {}::uuid", sources.below)
        tenant = await self._scope_number(wanted.tenant)
        if tenant is not None:
            condition("d.tenant = {}::int", tenant)
        if wanted.queue:
            condition("d.queue = {}::int", await self._names.find_number(NameKind.QUEUE, wanted.queue))
        if wanted.task:
            condition("d.task = {}::int", await self._names.find_number(NameKind.TASK, wanted.task))
        if wanted.fingerprint:
            condition("d.fingerprint = {}::text", wanted.fingerprint)
        if wanted.tag or wanted.text or wanted.job is not None or wanted.one_off:
            # Filters on what dead letters do not contain are tested run by run.
            examined = [one async for one in self._examine(wanted, None, _CHUNK)]
            found = [one.id for one in examined if one.view is not None]
            condition("d.run_id = ANY ({}::uuid[])", found)
        rows = await self._fetch(dead_groups_sql(self._db.schema, " AND ".join(conditions)), arguments)
        samples = await self._samples(rows, tenant)
        await self._names.load_names({row["task"] for row in rows if row["task"] is not None})
        groups = []
        for row in rows:
            sample = samples.get(row["sample"])
            groups.append(
                DeadGroup(
                    fingerprint=row["fingerprint"],
                    task="" if row["task"] is None else self._names.get_name(row["task"]),
                    reason="" if sample is None else sample["reason"] or "",
                    count=row["count"],
                    first_at=row["first_at"],
                    last_at=row["last_at"],
                    sample=RunId(row["sample"]),
                    error="" if sample is None else sample["error"] or "",
                    trend=tuple(row["trend"]),
                )
            )
        return groups

    async def _samples(self, groups: Sequence[asyncpg.Record], tenant: int | None) -> dict[str, asyncpg.Record]:
        """Return the newest dead letter of each group, by id. The times of death limit the days to search."""
        if not groups:
            return {}
        ids, times = [group["sample"] for group in groups], [group["last_at"] for group in groups]
        rows = await self._db.fetch("dead_samples", runs=ids, since=min(times), until=max(times), tenant=tenant)
        return {row["id"]: row for row in rows}

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
            heard = [(report.run, report.fence) in under_way for report in progress]
            last = {report.run: report for report, is_heard in zip(progress, heard, strict=True) if is_heard}
            if last:
                rows = [
                    (report.run, report.done, report.total, report.note, under_way[run, report.fence].tenant)
                    for run, report in last.items()
                ]
                await connection.execute(
                    *self._db.sql["report_progress"].bind(**columns(rows, "runs", "done", "totals", "notes", "tenants"))
                )
            return heard

        return await self._db.transaction(work) if progress else []

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        async def work(connection: Connection) -> list[bool]:
            under_way = await self._under_way(connection, [checkpoint.run for checkpoint in checkpoints])
            heard = [(checkpoint.run, checkpoint.fence) in under_way for checkpoint in checkpoints]
            last = {one.run: one for one, is_heard in zip(checkpoints, heard, strict=True) if is_heard}
            if last:
                rows = [(run, under_way[run, one.fence].tenant, one.state) for run, one in last.items()]
                await connection.execute(
                    *self._db.sql["save_checkpoints"].bind(**columns(rows, "runs", "tenants", "states"))
                )
            return heard

        return await self._db.transaction(work) if checkpoints else []

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        async def work(connection: Connection) -> list[bool]:
            under_way = await self._under_way(connection, [line.run for line in lines])
            heard = [line for line in lines if (line.run, line.fence) in under_way]
            runs = [(line.run, under_way[line.run, line.fence].tenant) for line in heard]
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
            for line in heard:
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


def build_session_view(row: asyncpg.Record) -> SessionView:
    return SessionView(
        id=SessionId(row["id"]),
        kind="worker" if row["kind"] == SESSION_KINDS["worker"] else "scheduler",
        name=row["name"],
        version=row["version"],
        datacenter=row["datacenter"],
        started_at=row["started_at"],
        lease_until=row["lease_until"],
        lease=row["lease"],
        owner=row["owner"],
        serves=row["serves"],
        queues=tuple(row["queues"]),
        tasks=tuple(row["tasks"]),
        labels=tuple(row["labels"]),
        priorities=tuple(row["priorities"]),
        slots=row["slots"],
        running=row["running"],
        draining=row["draining"],
        shards=row["shards"],
        clock=None if row["clock_offset"] is None else ClockReading(row["clock_offset"], row["clock_error"]),
        tzdata=row["tzdata"],
    )


def _bound(instant: Instant | None, otherwise: str) -> str:
    """Return the lowest id that could have been made at an instant."""
    if instant is None:
        return otherwise
    millisecond = min(max(-(-instant // MILLISECOND), 0), (1 << 48) - 1)
    return f"{millisecond:012x}{'0' * 20}"


def _is_filtered(wanted: RunFilter) -> bool:
    """Whether some of the examined rows may not match."""
    return bool(wanted.states or wanted.task or wanted.queue or wanted.one_off or wanted.text or wanted.tag)


def _growing(first: int, total: int) -> Iterator[tuple[int, int]]:
    """Yield ranges up to a total, each twice as large as the one before: the caller may have enough after the first."""
    start = 0
    while start < total:
        yield start, start + first
        start, first = start + first, first * 2


def _is_in(state: RunState) -> str:
    match state:
        case RunState.CANCELLING:
            return "state = 4 AND cancel_at IS NOT NULL"
        case RunState.RUNNING:
            return "state = 4 AND cancel_at IS NULL"
        case RunState.BLOCKED:
            # In line for a key, blocked by a limit, or waiting for parents.
            return f"state IN ({STATE_CODES[state]}, {AT_LIMIT}, {BY_PARENTS})"
        case _:
            return f"state = {STATE_CODES[state]}"


def _is_plain(text: str) -> bool:
    """Whether a text appears unchanged in JSON, and the server lower-cases it in the same way."""
    return text.isascii() and text.isprintable() and not {'"', "\\"} & set(text)
