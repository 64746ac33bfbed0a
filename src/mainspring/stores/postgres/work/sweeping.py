"""Sweeps for runs that wait for nothing and releases them. Finds nothing as long as every component does its part."""

import time
from functools import partial

from mainspring.core.model.limits.limits import LimiterState, room
from mainspring.core.rules import limits
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.work.dependencies import DependencyMixin
from mainspring.stores.postgres.work.limit_columns import unpack_limits
from mainspring.stores.postgres.work.limiter_rows import PostgresLimiterRows

#: The recount reads every run that has limits: it takes at most 1/20 of the time.
_SHARE = 20
_NOBODY = "0" * 32


class SweepMixin(DependencyMixin):
    #: Where the last sweep ended. Each sweep continues from there, and starts again at the end.
    _limits_swept = -1
    _children_swept = _NOBODY
    _recount_at = 0.0

    async def _sweep_limits(self, limit: int) -> int:
        found = await self._db.transaction(partial(self._sweep_unassigned, limit=limit))
        started = time.monotonic()  # noqa: TID251
        if started >= self._recount_at:
            found += await self._db.transaction(partial(self._recount, limit=limit))
            took = time.monotonic() - started  # noqa: TID251
            self._recount_at = started + took * _SHARE
        rows = await self._db.fetch("blocking_limiters", after=self._limits_swept, limit=limit)
        self._limits_swept = rows[-1]["number"] if len(rows) == limit else -1
        stuck: dict[int, int] = {}
        for row in rows:
            limiter = next(
                (limiter for limiter in unpack_limits(row["limits"]) if limiter.number == row["number"]), None
            )
            if row["kind"] is None or limiter is None:
                stuck[row["number"]] = 1 if limiter is None else limiter.kind
                continue
            state = LimiterState(used=row["used"], times=tuple(row["times"]), open_until=row["open_until"])
            # A limiter that has a wake-up time or a recall is checked anyway.
            if row["wake_at"] is None and not row["recalls"] and room(limiter, state, row["now"]):
                stuck[row["number"]] = limiter.kind
        if stuck:
            _, queues = await self._db.transaction(lambda connection: self._check_limiters(connection, stuck))
            await self._notify(queues)
            found += queues.total()
        return found

    async def _sweep_unassigned(self, connection: Connection, limit: int) -> int:
        rows = await connection.fetch(*self._db.sql["unassigned_blocked_runs"].bind(limit=limit))
        if rows:
            await self._admit(connection, rows)
        return len(rows)

    async def _recount(self, connection: Connection, limit: int) -> int:
        wrong = {
            row["number"]: row["kind"]
            for row in await connection.fetch(*self._db.sql["limiters_with_wrong_counts"].bind(limit=limit))
        }
        if not wrong:
            return 0
        await limits.repair(PostgresLimiterRows(self._db, connection), wrong)
        return len(wrong)

    async def _sweep_families(self, limit: int) -> int:
        rows = await self._db.fetch("undecided_children", after=self._children_swept, limit=limit)
        children = list(dict.fromkeys(row["child"] for row in rows))
        self._children_swept = children[-1] if len(children) == limit else _NOBODY
        ended = {row["parent"]: row["state"] for row in rows if row["parent"] is not None}
        if ended:
            await self._db.execute("add_ended_parents", parents=list(ended), states=list(ended.values()))
            await self.resolve(limit)
        decided = sorted({row["child"] for row in rows if row["decided"]})
        if not decided:
            return len(ended)
        return len(ended) + await self._db.transaction(partial(self._decide_again, children=decided))

    async def _decide_again(self, connection: Connection, children: list[str]) -> int:
        """Decide children that still wait although all of their parents have been counted."""
        still = [row["id"] for row in await connection.fetch(*self._db.sql["lock_children"].bind(children=children))]
        rows = await connection.fetch(*self._db.sql["recount_parents"].bind(children=still))
        await self._decide_children(connection, rows, {})
        return len(still)
