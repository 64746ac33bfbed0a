"""Lists, counts and groups of runs, by filters."""

from collections.abc import AsyncIterator, Iterator, Sequence

import asyncpg
import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MILLISECOND, Instant
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.catalog import (
    COUNTED_AMONG,
    DeadGroup,
    Page,
    RunFilter,
    Standings,
)
from mainspring.stores.filters import is_wanted_run
from mainspring.stores.postgres.codes import AT_LIMIT, BY_PARENTS, STATE_CODES, STATES, NameKind
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.records.dead_letters import dead_groups_sql
from mainspring.stores.postgres.records.reading import ReadMixin

#: How many rows the first statement of a filtered list examines, and how many candidates one returns at most.
_CHUNK = 1_000
#: Where few rows are candidates, each statement examines four times as many as the one before, up to this.
_LARGEST_STEP = 16_000
#: One read of a list ends after as much work as examining this many rows. Looking into the body of a row costs a page
#: of the disk if it is not in memory, and reading all of a candidate costs several.
_MOST_EXAMINED = 16_000
_BODY_COST = 16
_VIEW_COST = 80
_FIRST_ID, _LAST_ID = "0" * 32, "f" * 32
_WAITING = frozenset({RunState.SCHEDULED, RunState.BLOCKED})
_LIVE = frozenset({RunState.QUEUED, RunState.RUNNING, RunState.CANCELLING})
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


class _SearchedTables:
    """The tables to search for runs. The first arguments are always: ids from, ids below, and how many."""

    def __init__(self, wanted: RunFilter) -> None:
        self.selects: list[str] = []
        self.first = compute_lowest_id(wanted.since, _FIRST_ID)
        self.below = compute_lowest_id(wanted.until, _LAST_ID)
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


class RunListMixin(ReadMixin):
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
            "standings",
            tenants=tenants,
            tag=tag,
            since=compute_lowest_id(since, _FIRST_ID),
            limit=limit,
            ended_since=since - HOUR,
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


def compute_lowest_id(instant: Instant | None, otherwise: str) -> str:
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
