"""SQLite: submits runs that involve other runs: their parents, or the run that holds their unique key.

Python decides, in one transaction. Only one process writes at a time, so what it reads stays true until it is done.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import apsw
import msgspec

from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.completion import REPLACED
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.dependencies import check_no_circle
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.sqlite.rows.answers import StoredState, decode_stored_states
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.rows.items import build_full_submit_item
from mainspring.stores.sqlite.threads import ProcedureCall, call_procedures, read
from mainspring.stores.sqlite.work.editing import edit


class _Decision(msgspec.Struct, frozen=True):
    id: RunId
    new: bool = False
    conflict: bool = False


class _KeyHolder(msgspec.Struct, frozen=True, array_like=True):
    """The run that holds a unique key."""

    id: RunId
    #: Never started, not ended, and not of a recurring job.
    untouched: int


def submit_linked_runs(
    connection: apsw.Connection, runs: Sequence[NewRun], shards: Sequence[int], now: Instant
) -> list[SubmitResult]:
    check_no_circle({run.id: run.after.parents for run in runs if run.after is not None})
    batch = _SubmitBatch(connection, runs, now)
    answers = [batch.add(run) for run in runs]
    shards_by_run = {run.id: shard for run, shard in zip(runs, shards, strict=True)}
    _create_runs(connection, batch.replaced.values(), shards_by_run, now)
    for run in batch.replaced:
        _skip_replaced(connection, run, now)
    _create_runs(connection, batch.fresh.values(), shards_by_run, now)
    connection.executemany(
        "INSERT OR REPLACE INTO unique_run (tenant, key, run_id, until) VALUES (:tenant, :key, :run_id, :until)",
        [
            {
                "tenant": run.tenant,
                "key": run.unique.key,
                "run_id": run.id,
                "until": None if run.unique.period is None else now + run.unique.period,
            }
            for run in batch.fresh.values()
            if run.unique is not None
        ],
    )
    named = {run.id: answer.id for run, answer in zip(runs, answers, strict=True)}
    _add_dependencies(connection, [*batch.replaced.values(), *batch.fresh.values()], named, now)
    states = _read_states(connection, [answer.id for answer in answers])
    return [
        # A key that was used for a recurring job names an id of another kind.
        SubmitResult(
            answer.id,
            states[answer.id].state if answer.id in states else RunState.SCHEDULED,
            answer.new,
            answer.conflict,
        )
        for answer in answers
    ]


class _SubmitBatch:
    """Decides which runs of a batch to create, one after the other."""

    def __init__(self, connection: apsw.Connection, runs: Sequence[NewRun], now: Instant) -> None:
        self._connection = connection
        self._now = now
        self._known = set(_read_states(connection, [run.id for run in runs]))
        #: By (tenant, key): the run created with an idempotency key, and its fingerprint.
        self._used: dict[tuple[str, str], tuple[RunId, bytes | None]] = {}
        #: By (tenant, key): the run of this batch that holds a unique key.
        self._first: dict[tuple[str, str], RunId] = {}
        self.fresh: dict[RunId, NewRun] = {}
        #: New runs that another run of the batch replaces.
        self.replaced: dict[RunId, NewRun] = {}

    def add(self, run: NewRun) -> _Decision:
        if run.id in self._known or run.id in self.fresh or run.id in self.replaced:
            return _Decision(run.id)
        used = self._find_used_key(run)
        if used is not None:
            return used
        if run.unique is not None:
            first = self._resolve_unique_key(run)
            if first is not None:
                return _Decision(first, conflict=run.unique.otherwise == "reject")
            self._first[run.tenant, run.unique.key] = run.id
        if run.idempotency is not None:
            self._used[run.tenant, run.idempotency.key] = run.id, run.idempotency.fingerprint
        self.fresh[run.id] = run
        return _Decision(run.id, new=True)

    def _find_used_key(self, run: NewRun) -> _Decision | None:
        """Answer with the existing run, of this batch or from before, that used the idempotency key."""
        if run.idempotency is None:
            return None
        fingerprint = run.idempotency.fingerprint
        mine = self._used.get((run.tenant, run.idempotency.key))
        if mine is not None:
            return _Decision(mine[0], conflict=mine[1] != fingerprint)
        found = self._connection.execute(
            "SELECT u.made, u.fingerprint <> :fingerprint, EXISTS (SELECT 1 FROM job j"
            " WHERE j.id = u.made) FROM idempotency u"
            " WHERE u.tenant = :tenant AND u.key = :key AND u.at > :since",
            {
                "fingerprint": fingerprint.hex(),
                "tenant": run.tenant,
                "key": run.idempotency.key,
                "since": self._now - KEYS_KEPT,
            },
        ).fetchone()
        if found is None:
            return None
        made, differs, of_job = cast("tuple[RunId, int, int]", found)
        there = of_job or _read_states(self._connection, [made])
        return _Decision(made, conflict=bool(differs or of_job)) if there else None

    def _resolve_unique_key(self, run: NewRun) -> RunId | None:
        """Resolve a conflict over a unique key.

        Return the run that keeps the key; None if the new run is to be created.
        """
        assert run.unique is not None
        mine = self._first.get((run.tenant, run.unique.key))
        if mine is not None:
            if run.unique.otherwise == "replace":
                self.replaced[mine] = self.fresh.pop(mine)
                return None
            if run.unique.otherwise == "debounce":
                self.fresh[mine] = _merge_runs(self.fresh[mine], run)
            return mine
        first = self._find_key_holder(run.tenant, run.unique.key)
        if first is None:
            return None
        if first.untouched and run.unique.otherwise == "replace":
            _skip_replaced(self._connection, first.id, self._now)
            return None
        if first.untouched and run.unique.otherwise == "debounce":
            edit(self._connection, msgspec.structs.replace(run, id=first.id), None, None, self._now)
        return first.id

    def _find_key_holder(self, tenant: str, key: str) -> _KeyHolder | None:
        found = self._connection.execute(
            "SELECT u.run_id, coalesce(r.fence = 0 AND r.job_id IS NULL, w.fence = 0 AND w.job_id IS NULL, 0)"
            " FROM unique_run u LEFT JOIN run r ON r.id = u.run_id LEFT JOIN waiting w ON w.id = u.run_id"
            " WHERE u.tenant = :tenant AND u.key = :key AND (r.id IS NOT NULL OR w.id IS NOT NULL"
            " OR EXISTS (SELECT 1 FROM history h WHERE h.id = u.run_id AND u.until IS NOT NULL))"
            " AND (u.until IS NULL OR u.until > :now)",
            {"tenant": tenant, "key": key, "now": self._now},
        ).fetchone()
        return None if found is None else msgspec.convert(found, _KeyHolder)


def _merge_runs(first: NewRun, second: NewRun) -> NewRun:
    """Merge two new runs as an edit of the first by the second would."""
    return msgspec.structs.replace(
        second,
        id=first.id,
        unique=first.unique,
        after=first.after,
        replay_of=first.replay_of,
        target=first.target,
        idempotency=first.idempotency,
        author=first.author,
    )


def _create_runs(
    connection: apsw.Connection, runs: Iterable[NewRun], shards_by_run: Mapping[RunId, int], now: Instant
) -> None:
    items = [build_full_submit_item(run, shards_by_run[run.id]) for run in runs]
    if items:
        call_procedures(connection, [ProcedureCall("submit_full", encode(items), argument=KEYS_KEPT)], now)


def _skip_replaced(connection: apsw.Connection, run: RunId, now: Instant) -> None:
    connection.execute(
        "INSERT INTO end_run (id, state, reason, now) VALUES (:id, 'skipped', :reason, :now)",
        {"id": run, "reason": REPLACED, "now": now},
    )
    connection.execute("INSERT INTO admit_runs (now) VALUES (:now)", {"now": now})
    connection.execute("INSERT INTO write_events (now) VALUES (:now)", {"now": now})


def _add_dependencies(
    connection: apsw.Connection, made: Iterable[NewRun], named: Mapping[RunId, RunId], now: Instant
) -> None:
    """Add the dependencies. A parent named in the same batch may already exist under another id."""
    dependents = {
        run: list(dict.fromkeys(named.get(parent, parent) for parent in run.after.parents))
        for run in made
        if run.after is not None
    }
    if not dependents:
        return
    found = _read_states(connection, {parent for parents in dependents.values() for parent in parents})
    edges: list[dict[str, str | int | None]] = []
    for run, parents in dependents.items():
        for position, parent in enumerate(parents):
            stored = found.get(parent)
            if stored is None or stored.tenant != run.tenant:
                raise NotFound(f"there is no run {parent}, which {run.id} depends on")
            state = stored.state.value if stored.state.ended else None
            edges.append({"child": run.id, "parent": parent, "position": position, "state": state})
    connection.executemany(
        "INSERT INTO edge (child, parent, place, state) VALUES (:child, :parent, :position, :state)", edges
    )
    connection.executemany(
        "UPDATE dependent SET parents = :parents WHERE run_id = :run_id",
        [{"parents": len(parents), "run_id": run.id} for run, parents in dependents.items()],
    )
    # Children with ended parents are decided at once: released, skipped, or left blocked.
    connection.execute("DELETE FROM ended_edge")
    connection.executemany(
        "INSERT INTO ended_edge (child, parent, state) VALUES (:child, :parent, :state)",
        [edge for edge in edges if edge["state"] is not None],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO kept_position (id) VALUES (:id)", [{"id": run.id} for run in dependents]
    )
    connection.execute("INSERT INTO decide_children (now) VALUES (:now)", {"now": now})
    connection.execute("INSERT INTO admit_runs (now) VALUES (:now)", {"now": now})
    connection.execute("INSERT INTO write_events (now) VALUES (:now)", {"now": now})
    connection.execute("DELETE FROM kept_position")


def _read_states(connection: apsw.Connection, ids: Iterable[str]) -> dict[RunId, StoredState]:
    """Return tenant and state of the runs that exist."""
    found = decode_stored_states(read(connection, "run_states", ids=encode(list(ids))))
    return {run.id: run for run in found}
