"""Unique runs: one run per key, and what happens to a second one."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg
import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.completion import REPLACED
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.dependencies import parents_first
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.columns import columns
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.rows import compute_bucket
from mainspring.stores.postgres.work.dependencies import DependencyMixin

#: How often a key is requested again while it is being deleted.
_ROUNDS = 5

#: A tenant's number and the hash of a key of one of its runs.
_TenantKey = tuple[int, bytes]


def split_by_unique_key(runs: Sequence[NewRun]) -> Iterator[list[int]]:
    """Split a batch so that no part has a key twice; yield the positions of each part.

    What happens to the second run of a key depends on the first.
    """
    keys = [(run.tenant, run.unique.key) for run in runs if run.unique is not None]
    if len(set(keys)) == len(keys):
        yield list(range(len(runs)))
        return
    turn: list[int] = []
    seen: set[tuple[str, str]] = set()
    # Parents come before their children, otherwise the order of the batch is kept.
    edges = {run.id: () if run.after is None else run.after.parents for run in runs}
    order = {run: number for number, run in enumerate(parents_first(edges))}
    for position in sorted(range(len(runs)), key=lambda position: order[runs[position].id]):
        unique = runs[position].unique
        key = None if unique is None else (runs[position].tenant, unique.key)
        if key in seen:
            yield turn
            turn, seen = [], set()
        turn.append(position)
        if key is not None:
            seen.add(key)
    yield turn


class UniqueRunMixin(DependencyMixin):
    async def _edit_earlier(self, connection: Connection, run: NewRun, tenant: int) -> RunState | None:
        """Replace payload, due time and so on of a run that never started; None: it has started meanwhile."""
        raise NotImplementedError

    async def _take_unique_keys(self, connection: Connection, runs: Sequence[NewRun]) -> dict[RunId, SubmitResult]:
        """Take the keys of unique runs; return the answers for runs that are not made because their key is in use."""
        keyed = [run for run in runs if run.unique is not None]
        if not keyed:
            return {}
        rows = await connection.fetch(
            *self._db.sql["known_bodies"].bind(
                runs=[run.id for run in keyed], buckets=[compute_bucket(run) for run in keyed]
            )
        )
        known = {row["id"] for row in rows}
        left = {self._hash_key(run): run for run in keyed if run.id not in known}
        answers: dict[RunId, SubmitResult] = {}
        for _ in range(_ROUNDS):
            if not left:
                return answers
            for row in await connection.fetch(*self._db.sql["take_unique_keys"].bind(**_key_columns(left))):
                del left[row["tenant"], row["key"]]
            if left:
                keys = columns(sorted(left), "tenants", "keys")
                await connection.fetch(*self._db.sql["lock_unique_keys"].bind(**keys))
                rows = await connection.fetch(*self._db.sql["unique_runs"].bind(**keys))
                first = {(row["tenant"], row["key"]): row for row in rows}
                free: dict[_TenantKey, NewRun] = {}
                # In the order of the batch: debounced runs may compete for an ordering key.
                for key in [key for key in left if key in first]:
                    run = left.pop(key)
                    answer = await self._apply_unique_rule(connection, run, first[key])
                    if answer is None:
                        free[key] = run
                    else:
                        answers[run.id] = answer
                if free:
                    await connection.execute(*self._db.sql["replace_unique_keys"].bind(**_key_columns(free)))
        raise StoreUnavailable("a unique key is used by too many at once")

    async def _apply_unique_rule(
        self, connection: Connection, run: NewRun, first: asyncpg.Record
    ) -> SubmitResult | None:
        """Handle a run whose locked key was used before; None: the run is made and gets the key."""
        assert run.unique is not None
        before = RunId(first["run_id"])
        if not first["counts"] or before == run.id:
            return None
        # The caller looks up the state after everything is done.
        there = SubmitResult(before, RunState.QUEUED, False)
        match run.unique.otherwise:
            case "reject":
                return msgspec.structs.replace(there, conflict=True)
            case "replace" if not first["started"]:
                rows = await connection.fetch(*self._db.sql["skip_runs"].bind(runs=[before], reasons=[REPLACED]))
                await self._release_runs(connection, rows)
                return None if rows else there
            case "debounce" if not first["started"]:
                await self._edit_earlier(connection, msgspec.structs.replace(run, id=before), first["tenant"])
        return there

    def _hash_key(self, run: NewRun) -> _TenantKey:
        assert run.unique is not None
        return self._names.get_number(NameKind.TENANT, run.tenant), hashlib.sha256(run.unique.key.encode()).digest()


def _key_columns(wanted: dict[_TenantKey, NewRun]) -> dict[str, Any]:
    ordered = [(*key, run.id, _period(run)) for key, run in sorted(wanted.items(), key=lambda item: item[0])]
    return columns(ordered, "tenants", "keys", "runs", "periods")


def _period(run: NewRun) -> Micros | None:
    return None if run.unique is None else run.unique.period
