"""Dependencies: runs that wait for parents, and the decision about them when the parents have ended."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import asyncpg
import msgspec

from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.dependencies import (
    DependencyRule,
    EndedParent,
    check_no_circle,
    decide,
    reason_of_skip,
)
from mainspring.stores.postgres.codes import RULE_CODES, RULES, STATE_CODES, STATES, NameKind
from mainspring.stores.postgres.columns import columns, columns_of_structs
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.work.limiters import LimiterMixin

_SUCCEEDED, _FAILED = STATE_CODES[RunState.SUCCEEDED], STATE_CODES[RunState.FAILED]
#: How often parents are looked for: a run may move between two tables during the search.
_LOOKS = 3
#: How many ended parents are resolved at once.
_PARENTS = 500
#: How many children a completion resolves at once.
FEW = 100


class DependencyDecisions(msgspec.Struct, frozen=True):
    """What the parents of new runs mean for them."""

    #: Runs that wait until their rule is met.
    waiting: frozenset[RunId] = frozenset()
    #: Runs whose rule can never be met, with the reason. They also wait, until the same transaction skips them.
    hopeless: Mapping[RunId, str] = {}
    #: Runs that others of the same batch wait for.
    parents: frozenset[RunId] = frozenset()


class _DependentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run that depends on others, with how many of its parents have ended, and how."""

    run: RunId
    tenant: int
    rule: int
    parents: int
    succeeded: int
    otherwise: int
    failed: int
    start_within: Micros | None
    deadline: Micros | None


def check_circles(runs: Sequence[NewRun]) -> None:
    """Raise an error if runs of a batch wait for each other."""
    edges = {run.id: run.after.parents for run in runs if run.after is not None}
    if edges:
        check_no_circle({child: [parent for parent in parents if parent in edges] for child, parents in edges.items()})


class DependencyMixin(LimiterMixin):
    async def _store_dependencies(
        self, connection: Connection, runs: Sequence[NewRun], others: Mapping[RunId, RunId]
    ) -> DependencyDecisions:
        """Store the dependencies of new runs. Their parents are locked and do not end before this commits.

        ``others``: for runs of the same batch that were not made, the runs that stand for them.
        """
        children = [run for run in runs if run.after is not None]
        if not children:
            return DependencyDecisions()
        new = {run.id: run for run in runs}
        wanted = {
            run.id: tuple(dict.fromkeys(others.get(parent, parent) for parent in run.after.parents))
            for run in children
            if run.after is not None
        }
        found = await self._find_parents(connection, {p for parents in wanted.values() for p in parents} - new.keys())
        edges: list[tuple[object, ...]] = []
        rows: list[_DependentRow] = []
        waiting: set[RunId] = set()
        hopeless: dict[RunId, str] = {}
        for run in children:
            assert run.after is not None
            tenant = self._names.get_number(NameKind.TENANT, run.tenant)
            states: dict[RunId, int | None] = {}
            for parent in wanted[run.id]:
                of, state = (
                    (self._names.get_number(NameKind.TENANT, new[parent].tenant), None)
                    if parent in new
                    else found[parent]
                )
                if of != tenant:
                    raise NotFound(f"there is no run {parent} to wait for")
                states[parent] = state
            edges += [
                (run.id, parent, position, tenant, state) for position, (parent, state) in enumerate(states.items())
            ]
            ended = _ended(len(states), states.values())
            rows.append(
                _DependentRow(
                    run=run.id,
                    tenant=tenant,
                    rule=RULE_CODES[run.after.rule],
                    parents=ended.parents,
                    succeeded=ended.succeeded,
                    otherwise=ended.otherwise,
                    failed=ended.failed,
                    start_within=run.start_within,
                    deadline=run.deadline,
                )
            )
            match decide(run.after.rule, ended):
                case "wait":
                    waiting.add(run.id)
                case "go":
                    pass
                case "skip":
                    hopeless[run.id] = _reason(run.after.rule, states.items())
        await connection.execute(
            *self._db.sql["add_edges"].bind(**columns(edges, "children", "parents", "positions", "tenants", "states"))
        )
        await connection.execute(*self._db.sql["add_dependents"].bind(**columns_of_structs(rows)))
        inside = {parent for parents in wanted.values() for parent in parents if parent in new}
        return DependencyDecisions(frozenset(waiting | hopeless.keys()), hopeless, frozenset(inside))

    async def _find_parents(
        self, connection: Connection, parents: Iterable[RunId]
    ) -> dict[RunId, tuple[int, int | None]]:
        """Return tenant and state of parents. Those that have not ended are locked, and marked as having children."""
        found: dict[RunId, tuple[int, int | None]] = {}
        missing = sorted(parents)
        for _ in range(_LOOKS):
            # Separate statements: the last one sees a parent that another transaction has ended meanwhile.
            for name in ("lock_waiting_parents", "lock_live_parents", "ended_parents"):
                if missing:
                    rows = await connection.fetch(*self._db.sql[name].bind(runs=missing))
                    found |= {RunId(row["id"]): (row["tenant"], row["state"]) for row in rows}
                    missing = [parent for parent in missing if parent not in found]
        if missing:
            raise NotFound(f"there is no run {missing[0]} to wait for")
        return found

    async def resolve(self, limit: int) -> int:
        [undone] = await self._db.fetch("pending_decisions")
        changed = 0
        queues: Counter[int] = Counter()
        if undone["families"]:
            changed, queues = await self._db.transaction(partial(self._resolve, limit=limit))
        if undone["recalls"]:
            called_back, more = await self._db.transaction(partial(self._finish_recalls, limit=limit))
            changed += called_back
            queues += more
        await self._notify(queues)
        return changed

    async def _resolve(self, connection: Connection, limit: int) -> tuple[int, Counter[int]]:
        """Decide children of ended parents.

        Return how many dependencies were handled, and how many runs were queued, by queue.
        """
        sql = self._db.sql
        parents = {
            row["run_id"]: row["state"]
            for row in await connection.fetch(*sql["take_ended_parents"].bind(limit=min(limit, _PARENTS)))
        }
        if not parents:
            return 0, Counter()
        edges = await connection.fetch(
            *sql["decide_edges"].bind(parents=list(parents), states=list(parents.values()), limit=limit)
        )
        queues: Counter[int] = Counter()
        if edges:
            queues = await self._count(connection, edges)
        await connection.execute(*sql["delete_ended_parents"].bind(parents=list(parents)))
        return max(len(edges), 1), queues

    async def _count(self, connection: Connection, edges: Sequence[asyncpg.Record]) -> Counter[int]:
        """Count the ended parents of children, then release or skip the children whose rule is decided."""
        by_child: dict[str, list[tuple[RunId, int]]] = {}
        for edge in edges:
            by_child.setdefault(edge["child"], []).append((RunId(edge["parent"]), edge["state"]))
        children = sorted(by_child)
        # A child that an earlier parent released, or that was canceled, no longer waits.
        still = {row["id"] for row in await connection.fetch(*self._db.sql["lock_children"].bind(children=children))}
        counts = [_ended(0, (state for _, state in by_child[child])) for child in children]
        rows = await connection.fetch(
            *self._db.sql["count_parents"].bind(
                children=children,
                succeeded=[count.succeeded for count in counts],
                otherwise=[count.otherwise for count in counts],
                failed=[count.failed for count in counts],
            ),
        )
        return await self._decide_children(connection, [row for row in rows if row["run_id"] in still], by_child)

    async def _decide_children(
        self,
        connection: Connection,
        rows: Sequence[asyncpg.Record],
        by_child: Mapping[str, Sequence[tuple[RunId, int]]],
    ) -> Counter[int]:
        """Decide locked children by the counts of their parents; return how many runs were queued, by queue."""
        going: list[str] = []
        skipped: dict[RunId, str] = {}
        for row in rows:
            ended = EndedParent(
                parents=row["parents"], succeeded=row["succeeded"], otherwise=row["otherwise"], failed=row["failed"]
            )
            rule = RULES[row["rule"]]
            match decide(rule, ended):
                case "go":
                    going.append(row["run_id"])
                case "wait":
                    pass
                case "skip":
                    skipped[RunId(row["run_id"])] = _reason(rule, by_child.get(row["run_id"], ()))
        queues = await self._skip(connection, skipped)
        if going:
            released = await connection.fetch(*self._db.sql["release_children"].bind(children=going))
            due = [row for row in released if row["is_due"]]
            if due:
                queues += await self._queue_due(connection, due)
        return queues

    async def _skip(self, connection: Connection, reasons: Mapping[RunId, str]) -> Counter[int]:
        """Skip runs that have not started; return how many others were queued because of it, by queue."""
        if not reasons:
            return Counter()
        ordered = sorted(reasons)
        rows = await connection.fetch(
            *self._db.sql["skip_runs"].bind(runs=ordered, reasons=[reasons[run] for run in ordered])
        )
        return await self._release_runs(connection, rows)


def _ended(parents: int, states: Iterable[int | None]) -> EndedParent:
    counts = Counter(states)
    ended = sum(count for state, count in counts.items() if state is not None)
    succeeded = counts[_SUCCEEDED]
    return EndedParent(parents=parents, succeeded=succeeded, otherwise=ended - succeeded, failed=counts[_FAILED])


def _reason(rule: DependencyRule, parents: Iterable[tuple[RunId, int | None]]) -> str:
    """Return the reason of a skip. Of several parents it names the first that did not succeed."""
    ended = [(parent, state) for parent, state in parents if state is not None]
    if not ended:
        return "its parents ended otherwise"
    parent, state = next(((parent, state) for parent, state in ended if state != _SUCCEEDED), ended[0])
    return reason_of_skip(rule, parent, STATES[state].value)
