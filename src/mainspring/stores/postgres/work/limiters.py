"""Ordering keys and limits: when a run leaves, the next runs pass.

An ordering key admits one run at a time, a limit as many as configured. Rows are locked in this order: runs, ordering
keys, limiters, each by id or number. A transaction that holds a limiter never waits for a run.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import asyncpg

from mainspring.core.model.limits.limits import Ending
from mainspring.core.model.runs.run import Outcome
from mainspring.core.ports.wakeups import queue_topic
from mainspring.core.rules import limits
from mainspring.core.rules.limit_decisions import LimitRelease
from mainspring.stores.postgres.codes import OUTCOME_CODES
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.postgres.work.limit_columns import unpack_limits
from mainspring.stores.postgres.work.limiter_rows import PostgresLimiterRows

_ENDINGS: dict[int, Ending] = {
    OUTCOME_CODES[Outcome.SUCCESS]: "succeeded",
    OUTCOME_CODES[Outcome.ERROR]: "failed",
    OUTCOME_CODES[Outcome.TIMEOUT]: "failed",
}
_QUEUED = 3


class LimiterMixin(PostgresMixin):
    async def _release_runs(self, connection: Connection, rows: Sequence[asyncpg.Record]) -> Counter[int]:
        """After runs have left, in the same transaction: queue the runs that waited for them, and restart fixed delays.

        Return how many were queued, by queue.
        """
        limiters = sorted({row["key_lock"] for row in rows if row["key_lock"] is not None})
        next_ones = await self._pass_keys_on(connection, limiters) if limiters else []
        jobs = sorted({row["delayed_job"] for row in rows if row["delayed_job"] is not None})
        if jobs:
            await connection.execute(*self._db.sql["end_delay"].bind(jobs=jobs))
        limited = [row for row in rows if row["limits"] is not None]
        again = [row for row in limited if row.get("final") == _QUEUED]
        arriving = [row for row in next_ones if row["limits"] is not None] + again
        left = {row["waits"] for row in rows if row.get("waits") is not None}
        queues = Counter(row["queue"] for row in next_ones if row["limits"] is None)
        if limited or arriving or left:
            queues += await self._admit(
                connection,
                arriving,
                releases=[_build_release(row) for row in limited],
                left=left,
                silent={row["id"] for row in again},
            )
        return queues

    async def _pass_keys_on(self, connection: Connection, limiters: list[int]) -> list[asyncpg.Record]:
        """Give each ordering key to its next run. A run with limits must still pass them; the others are queued."""
        # A separate statement takes the locks, so that the next one sees what a submit committed while it held them.
        await connection.fetch(*self._db.sql["lock_held_keys"].bind(keys=limiters))
        return await connection.fetch(*self._db.sql["pass_keys_on"].bind(keys=limiters))

    async def _lock_keys(self, connection: Connection, limiters: Iterable[int]) -> dict[int, str | None]:
        keys = sorted(set(limiters))
        if not keys:
            return {}
        rows = await connection.fetch(*self._db.sql["lock_ordering_keys"].bind(keys=keys))
        return {row["key"]: row["holder"] for row in rows}

    async def _queue_due(
        self, connection: Connection, rows: Sequence[asyncpg.Record], *, is_silent: bool = False
    ) -> Counter[int]:
        """Let due, locked rows of the waiting table take their keys and pass their limits.

        The runs are queued, or wait for either. Return how many were queued, by queue.
        """
        taken = await self._lock_keys(
            connection, [row["key_lock"] for row in rows if row["key_lock"] is not None and not row["holds"]]
        )
        held: dict[int, str] = {}
        going, blocked = [], []
        for row in sorted(rows, key=lambda row: (row["due"], row["id"])):
            limiter = row["key_lock"]
            if limiter is None or row["holds"]:
                going.append(row)
            elif taken[limiter] is None:
                taken[limiter] = held[limiter] = row["id"]
                going.append(row)
            else:
                blocked.append(row["id"])
        if blocked:
            await connection.execute(*self._db.sql["block_by_keys"].bind(runs=blocked))
        if held:
            await connection.execute(
                *self._db.sql["set_key_holders"].bind(keys=list(held), holders=list(held.values()))
            )
        free = [row for row in going if row["limits"] is None]
        if free:
            going_on = [row["id"] for row in free]
            await connection.execute(
                *self._db.sql["queue_runs"].bind(runs=going_on, silent=going_on if is_silent else [])
            )
        queues = Counter(row["queue"] for row in free)
        limited = [row for row in going if row["limits"] is not None]
        if limited:
            silent = [row["id"] for row in limited] if is_silent else []
            queues += await self._admit(connection, limited, silent=silent)
        return queues

    async def _admit(
        self,
        connection: Connection,
        arriving: Sequence[asyncpg.Record],
        *,
        releases: Sequence[LimitRelease] = (),
        left: Collection[int] = (),
        silent: Collection[str] = (),
    ) -> Counter[int]:
        """Release limiters, and admit runs that arrive or that were blocked; return how many were queued, by queue.

        ``left``: limiters that block one run less. ``silent``: arriving runs that need no event.
        """
        rows = PostgresLimiterRows(self._db, connection)
        runs = [rows.read_run(row, is_silent=row["id"] in silent) for row in arriving]
        await limits.admit(rows, releases=releases, arriving=runs, left=left)
        return rows.queued

    async def _check_due_limiters(self, connection: Connection, limit: int) -> tuple[int, Counter[int]]:
        """Check limiters that time gives room; return how many, and how many runs were queued, by queue."""
        due = {
            row["number"]: row["kind"]
            for row in await connection.fetch(*self._db.sql["due_limiters"].bind(limit=limit))
        }
        if not due:
            return 0, Counter()
        return len(due), (await self._check_limiters(connection, due))[1]

    async def _finish_recalls(self, connection: Connection, limit: int) -> tuple[int, Counter[int]]:
        """Continue the recalls of opened breakers.

        Return how many runs were recalled, and how many others were queued, by queue.
        """
        rows = await connection.fetch(*self._db.sql["recalling_limiters"].bind(limit=limit))
        return await self._check_limiters(connection, {row["number"]: row["kind"] for row in rows})

    async def _check_limiters(self, connection: Connection, kinds: dict[int, int]) -> tuple[int, Counter[int]]:
        """Check limiters; return how many runs were recalled, and how many were queued, by queue."""
        rows = PostgresLimiterRows(self._db, connection)
        decisions = await limits.check(rows, kinds)
        return decisions.recalled, rows.queued

    async def _notify(self, queues: Collection[int]) -> None:
        """After the commit: notify the workers that these queues have work."""
        if queues and self._wakeups is not None:
            await self._names.load_names(queues)
            self._wakeups.notify([queue_topic(self._names.get_name(queue)) for queue in queues])


def _build_release(row: asyncpg.Record) -> LimitRelease:
    outcome = row.get("outcome")
    if outcome is None:
        return LimitRelease(unpack_limits(row["limits"]))
    return LimitRelease(unpack_limits(row["limits"]), _ENDINGS.get(outcome, "other"), row["started_at"])
