"""Builds the queries of lists: which index a list reads, and which rows it filters out."""

from typing import TypeAlias

import apsw
import msgspec

from mainspring.core.model.access.access import DEFAULT_TENANT
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import MILLISECOND, Instant
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.catalog import (
    LOOKED_AT,
    JobFilter,
    RunFilter,
)
from mainspring.stores.sqlite.rows.answers import decode_strings
from mainspring.stores.sqlite.rows.encoding import encode

Values: TypeAlias = dict[str, str | int | None]
_LIVE = frozenset({RunState.QUEUED, RunState.RUNNING, RunState.CANCELLING})
_WAITING = frozenset({RunState.SCHEDULED, RunState.BLOCKED})
_ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED})

#: The run tables: name, states in it, expression of the shown state, and what filters of dead letters compare.
_RUN_TABLES = (
    ("run", _LIVE, "iif(p.state = 'running' AND p.cancel_at IS NOT NULL, 'cancelling', p.state)", "0", "NULL"),
    ("waiting", _WAITING, "iif(p.state = 'scheduled', p.state, 'blocked')", "0", "NULL"),
    ("history", _ENDED, "p.state", "p.dead", "p.fingerprint"),
)
#: The tenants with a tag. The index begins with the tenant, so each tenant costs one step.
_TAG_TENANTS = """
    WITH RECURSIVE of(name) AS (
        SELECT min(tenant) FROM label
        UNION ALL SELECT (SELECT min(tenant) FROM label WHERE tenant > of.name) FROM of WHERE of.name IS NOT NULL)
    SELECT name FROM of WHERE name IS NOT NULL
"""


class RowSource(msgspec.Struct, frozen=True):
    """A query for rows in the order of an index, without its ORDER BY, and its parameters."""

    text: str
    values: Values
    #: The joins that filters need for each row.
    joins: str


class RowFilters(msgspec.Struct, frozen=True):
    """Conditions on each row, and their parameters."""

    texts: list[str]
    values: Values


def build_from_clause(source: RowSource, filters: RowFilters, max_rows: str = "") -> str:
    """Build the FROM and WHERE clauses for the wanted rows of a source."""
    return f"FROM ({source.text} {max_rows}) AS v {source.joins} WHERE {' AND '.join(filters.texts) or 'true'}"


def read_page(
    connection: apsw.Connection, source: RowSource, filters: RowFilters, limit: int
) -> tuple[list[str], str | None]:
    """Return the ids of a page, newest first, and the cursor of the next page. Reads a bounded number of rows."""
    newest_first = "ORDER BY id DESC LIMIT :max_rows"
    values: Values = {**source.values, **filters.values, "max_rows": LOOKED_AT, "limit": limit + 1}
    text = f"""
        SELECT json_group_array(id) FROM (
            SELECT v.id AS id {build_from_clause(source, filters, newest_first)} LIMIT :limit)
    """  # noqa: S608
    ids = decode_strings(str(connection.execute(text, values).get))
    if len(ids) > limit:
        return ids[:limit], ids[limit - 1] if limit else None
    if not filters.texts:
        return ids, None
    # The next page begins at the last row that was read, if another row follows it.
    text = f"SELECT json_group_array(id) FROM (SELECT id FROM ({source.text} {newest_first}) LIMIT 2 OFFSET :offset)"  # noqa: S608
    values = {**source.values, "max_rows": LOOKED_AT + 1, "offset": LOOKED_AT - 1}
    last = decode_strings(str(connection.execute(text, values).get))
    return ids, last[0] if len(last) == 2 else None


def build_run_source(wanted: RunFilter, after: RunId | None) -> RowSource:
    """Build the query for the runs of a tenant, a tag, a job or all, over the tables that hold the wanted states."""
    values: Values = {}
    texts: list[str] = []
    label = ""
    if wanted.tag:
        label = "label CROSS JOIN"
        condition = f"IN ({_TAG_TENANTS})" if wanted.tenant is None else "= :tenant"
        texts = [f"label.tenant {condition} AND label.label = :tag AND p.id = label.id AND p.tenant = label.tenant"]
        values["tag"] = wanted.tag
    if wanted.tenant is not None and not _filters_by_tenant(wanted):
        values["tenant"] = wanted.tenant
        if not wanted.tag:
            texts.append("p.tenant = :tenant")
        if _reads_by_tenant(wanted):
            texts.append("p.tenant <> 'default'")
    if wanted.job is not None:
        values["job"] = wanted.job
    if wanted.dead:
        texts.append("p.dead = 1")
    identifier = "label.id" if label else "p.id"
    for text, name, value in _build_id_range(wanted, after):
        texts.append(f"{identifier} {text}")
        values[name] = value
    states = frozenset({RunState.FAILED}) if wanted.dead or wanted.fingerprint else wanted.states
    selects = [
        f"SELECT {identifier} AS id, {state} AS state, p.tenant AS tenant, p.queue AS queue, p.job_id AS job_id,"  # noqa: S608
        f" p.body AS body, p.replay_of AS replay_of, {dead} AS dead, {fingerprint} AS fingerprint"
        f" FROM {label} {table} p {index} WHERE {' AND '.join([*texts, *of_job]) or 'true'}"
        for table, there, state, dead, fingerprint in _RUN_TABLES
        if not states or states & there
        for index, of_job in _list_indexes(wanted, table)
    ]
    return RowSource(" UNION ALL ".join(selects), values, "CROSS JOIN body b ON b.id = v.body")


def _list_indexes(wanted: RunFilter, table: str) -> list[tuple[str, list[str]]]:
    """Return the indexes to search by, each with its conditions on the job."""
    if wanted.job is None:
        return [(_choose_index(wanted, table), [])]
    if wanted.tag:
        return [("", ["(p.job_id = :job OR (p.id = :job AND p.job_id IS NULL))"])]
    return [(_choose_index(wanted, table), ["p.job_id = :job"]), ("", ["p.id = :job AND p.job_id IS NULL"])]


def _reads_by_tenant(wanted: RunFilter) -> bool:
    """Report whether rows are found by their tenant."""
    return wanted.tenant is not None and not (wanted.tag or wanted.job or wanted.dead)


def _filters_by_tenant(wanted: RunFilter) -> bool:
    """Report whether the tenant is checked row by row, without an index.

    The default tenant needs no index: in most stores it owns all rows.
    """
    return wanted.tenant == DEFAULT_TENANT and _reads_by_tenant(wanted)


def _choose_index(wanted: RunFilter, table: str) -> str:
    """Return the index that has the rows in the order of their ids."""
    if wanted.tag:
        return ""
    if wanted.job is not None:
        return f"INDEXED BY {table}_job"
    if wanted.dead:
        return "INDEXED BY history_dead" if wanted.tenant is None else "INDEXED BY history_dead_tenant"
    return f"INDEXED BY {table}_tenant" if _reads_by_tenant(wanted) and not _filters_by_tenant(wanted) else ""


def build_run_filters(wanted: RunFilter) -> RowFilters:
    filters = RowFilters([], {})
    if _filters_by_tenant(wanted):
        _add_filter(filters, "v.tenant = :tenant", tenant=wanted.tenant)
    if wanted.states:
        _add_filter(filters, "v.state IN (SELECT value FROM json_each(:states))", states=encode(sorted(wanted.states)))
    if wanted.task:
        _add_filter(filters, "b.task = :task", task=wanted.task)
    if wanted.queue:
        _add_filter(filters, "v.queue = :queue", queue=wanted.queue)
    if wanted.one_off:
        _add_filter(filters, "v.job_id IS NULL")
    if wanted.fingerprint:
        _add_filter(filters, "v.fingerprint = :fingerprint", fingerprint=wanted.fingerprint)
    if wanted.text:
        _add_filter(filters, _build_text_search("coalesce(b.about ->> 'name', '')", "b.task", "v.id"), text=wanted.text)
    return filters


def build_job_source(wanted: JobFilter, after: JobId | None) -> RowSource:
    values: Values = {}
    texts: list[str] = []
    if wanted.tenant is not None:
        texts.append("tenant = :tenant")
        values["tenant"] = wanted.tenant
    for text, name, value in _build_id_range(wanted, after):
        texts.append(f"id {text}")
        values[name] = value
    index = "" if wanted.tenant is None else "INDEXED BY job_tenant"
    return RowSource(
        f"SELECT id, name, state, version FROM job {index} WHERE {' AND '.join(texts) or 'true'}",  # noqa: S608
        values,
        "CROSS JOIN job_version j ON j.job_id = v.id AND j.version = v.version",
    )


def build_job_filters(wanted: JobFilter) -> RowFilters:
    filters = RowFilters([], {})
    if wanted.states:
        _add_filter(filters, "v.state IN (SELECT value FROM json_each(:states))", states=encode(sorted(wanted.states)))
    if wanted.task:
        _add_filter(filters, "j.spec ->> 'task' = :task", task=wanted.task)
    if wanted.queue:
        # A spec leaves out default values.
        _add_filter(filters, "coalesce(j.spec ->> 'queue', 'default') = :queue", queue=wanted.queue)
    if wanted.tag:
        _add_filter(filters, ":tag IN (SELECT value FROM json_each(j.spec, '$.tags'))", tag=wanted.tag)
    if wanted.source:
        _add_filter(filters, "j.spec ->> 'source' = :source", source=wanted.source)
    if wanted.text:
        _add_filter(filters, _build_text_search("v.name", "coalesce(j.spec ->> 'task', '')", "v.id"), text=wanted.text)
    return filters


def _add_filter(filters: RowFilters, condition: str, /, **values: str | int | None) -> None:
    filters.texts.append(condition)
    filters.values.update(values)


def _build_text_search(*columns: str) -> str:
    return "(" + " OR ".join(f"instr(lower({column}), lower(:text))" for column in columns) + ")"


def _build_id_range(wanted: RunFilter | JobFilter, after: str | None) -> list[tuple[str, str, str]]:
    """Return comparisons for ids, with parameter names and values. An id begins with its creation time."""
    found = []
    if after is not None:
        found.append(("< :after", "after", after))
    if wanted.since is not None:
        found.append((">= :since", "since", _compute_first_id(wanted.since)))
    if wanted.until is not None:
        found.append(("< :until", "until", _compute_first_id(wanted.until)))
    return found


def _compute_first_id(at: Instant) -> str:
    """Return the lower bound of the ids created at ``at`` or later. Ids hold whole milliseconds."""
    return f"{min(max(0, -(-at // MILLISECOND)), 0xFFFF_FFFF_FFFF):012x}"
