"""Unique runs: one run per key, and what happens to a second one."""

import hashlib
from collections.abc import Iterator, Sequence

import asyncpg
import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.completion import REPLACED
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.dependencies import parents_first
from mainspring.core.store import Accepted
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.names import NameKind
from mainspring.stores.postgres.rows import bucket_of
from mainspring.stores.postgres.work.dependencies import DependencyMixin

#: How often a key is requested again while it is being deleted.
_ROUNDS = 5

#: A tenant's number and the hash of the key.
_Place = tuple[int, bytes]


def in_turns(runs: Sequence[NewRun]) -> Iterator[list[int]]:
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
    for place in sorted(range(len(runs)), key=lambda place: order[runs[place].id]):
        unique = runs[place].unique
        key = None if unique is None else (runs[place].tenant, unique.key)
        if key in seen:
            yield turn
            turn, seen = [], set()
        turn.append(place)
        if key is not None:
            seen.add(key)
    yield turn


class UniqueRunMixin(DependencyMixin):
    async def _edit_first(self, connection: Connection, run: NewRun, tenant: int) -> RunState | None:
        """Replace payload, due time and so on of a run that never started; None: it has started meanwhile."""
        raise NotImplementedError

    async def _use_uniques(self, connection: Connection, runs: Sequence[NewRun]) -> dict[RunId, Accepted]:
        """Take the keys of unique runs; return the answers for runs that are not made because their key is in use."""
        keyed = [run for run in runs if run.unique is not None]
        if not keyed:
            return {}
        rows = await connection.fetch(
            *self._db.sql["known_bodies"].bind([run.id for run in keyed], [bucket_of(run) for run in keyed])
        )
        known = {row["id"] for row in rows}
        left = {self._place_of(run): run for run in keyed if run.id not in known}
        answers: dict[RunId, Accepted] = {}
        for _ in range(_ROUNDS):
            if not left:
                return answers
            for row in await connection.fetch(*self._db.sql["take_uniques"].bind(*_columns(left))):
                del left[row["tenant"], row["key"]]
            if left:
                places = _columns(left)[:2]
                await connection.fetch(*self._db.sql["lock_uniques"].bind(*places))
                rows = await connection.fetch(*self._db.sql["first_of_uniques"].bind(*places))
                first = {(row["tenant"], row["key"]): row for row in rows}
                free: dict[_Place, NewRun] = {}
                # In the order of the batch: debounced runs may compete for an ordering key.
                for place in [place for place in left if place in first]:
                    run = left.pop(place)
                    answer = await self._second(connection, run, first[place])
                    if answer is None:
                        free[place] = run
                    else:
                        answers[run.id] = answer
                if free:
                    await connection.execute(*self._db.sql["use_uniques"].bind(*_columns(free)))
        raise StoreUnavailable("a unique key is used by too many at once")

    async def _second(self, connection: Connection, run: NewRun, first: asyncpg.Record) -> Accepted | None:
        """Handle a run whose locked key was used before; None: the run is made and gets the key."""
        assert run.unique is not None
        before = RunId(first["run_id"])
        if not first["counts"] or before == run.id:
            return None
        # The caller looks up the state after everything is done.
        there = Accepted(before, RunState.QUEUED, False)
        match run.unique.otherwise:
            case "reject":
                return msgspec.structs.replace(there, conflict=True)
            case "replace" if not first["started"]:
                rows = await connection.fetch(*self._db.sql["skip"].bind([before], [REPLACED]))
                await self._let_go(connection, rows)
                return None if rows else there
            case "debounce" if not first["started"]:
                await self._edit_first(connection, msgspec.structs.replace(run, id=before), first["tenant"])
        return there

    def _place_of(self, run: NewRun) -> _Place:
        assert run.unique is not None
        return self._names.number(NameKind.TENANT, run.tenant), hashlib.sha256(run.unique.key.encode()).digest()


def _columns(wanted: dict[_Place, NewRun]) -> list[list[object]]:
    ordered = [(*place, run.id, _period(run)) for place, run in sorted(wanted.items(), key=lambda item: item[0])]
    return [list(column) for column in zip(*ordered, strict=True)]


def _period(run: NewRun) -> Micros | None:
    return None if run.unique is None else run.unique.period
