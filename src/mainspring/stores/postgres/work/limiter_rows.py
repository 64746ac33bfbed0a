"""The rows of limits in one transaction of PostgreSQL."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import asyncpg

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.limits import BREAKER, Limiter, LimiterState
from mainspring.core.rules.limit_decisions import LimitedRun, LimiterRow, SavedLimiter
from mainspring.core.rules.limits import LimiterRequest
from mainspring.stores.postgres.columns import columns
from mainspring.stores.postgres.database import Connection, StatementRunner
from mainspring.stores.postgres.work.limit_columns import unpack_limits


class PostgresLimiterRows:
    def __init__(self, db: StatementRunner, connection: Connection) -> None:
        self.now: Instant = 0
        #: How many runs were queued, by queue.
        self.queued: Counter[int] = Counter()
        self._sql = db.sql
        self._connection = connection
        self._queues: dict[RunId, int] = {}
        #: Runs of which another event already implies that they are queued, so that none is emitted.
        self._silent: set[RunId] = set()

    def read_run(self, row: asyncpg.Record, waits: int | None = None, *, is_silent: bool = False) -> LimitedRun:
        """Build a run from a row of the waiting table."""
        run = RunId(row["id"])
        self._queues[run] = row["queue"]
        if is_silent:
            self._silent.add(run)
        return LimitedRun(row["due"], run, unpack_limits(row["limits"]), waits)

    async def lock(self, wanted: Mapping[int, LimiterRequest]) -> Sequence[LimiterRow]:
        found = await self._connection.fetch(
            *self._sql["lock_limiters"].bind(
                numbers=list(wanted), peeks=[request.expected for request in wanted.values()]
            )
        )
        found += await self._create(
            {number: request.kind for number, request in wanted.items()}, (row["number"] for row in found)
        )
        missing = sorted(wanted.keys() - {row["number"] for row in found})
        if missing:
            # Another transaction has just created them.
            found += await self._connection.fetch(
                *self._sql["lock_limiters"].bind(numbers=missing, peeks=[0] * len(missing))
            )
        return self._read_limiters(found)

    async def try_lock(self, limiters: Mapping[int, Limiter]) -> Sequence[LimiterRow]:
        found = await self._connection.fetch(*self._sql["try_limiters"].bind(numbers=list(limiters)))
        found += await self._create(
            {number: limiter.kind for number, limiter in limiters.items()}, (row["number"] for row in found)
        )
        return self._read_limiters(found)

    async def _create(self, kinds: Mapping[int, int], existing: Iterable[int]) -> list[asyncpg.Record]:
        missing = sorted(kinds.keys() - set(existing))
        if not missing:
            return []
        return await self._connection.fetch(
            *self._sql["make_limiters"].bind(numbers=missing, kinds=[kinds[number] for number in missing])
        )

    def _read_limiters(self, rows: Sequence[asyncpg.Record]) -> list[LimiterRow]:
        if rows:
            self.now = rows[-1]["now"]
        return [
            LimiterRow(
                row["number"],
                # Claims of several workers add their times in any order.
                LimiterState(used=row["used"], times=tuple(sorted(row["times"])), open_until=row["open_until"]),
                row["head"],
                row["recalls"],
            )
            for row in rows
        ]

    async def find_blocked(self, most: Mapping[int, int], seen: Collection[RunId]) -> Sequence[LimitedRun]:
        rows = await self._connection.fetch(
            *self._sql["runs_blocked_by_limiters"].bind(numbers=list(most), limits=list(most.values()), seen=list(seen))
        )
        return [self.read_run(row, row["waits"]) for row in rows]

    async def find_queued(self, breakers: Sequence[int], most: int) -> Mapping[RunId, tuple[Limiter, ...]]:
        rows = await self._connection.fetch(
            *self._sql["runs_queued_behind_breakers"].bind(breakers=list(breakers), limit=most)
        )
        return {RunId(row["id"]): unpack_limits(row["limits"]) for row in rows}

    async def count_holders(self, numbers: Sequence[int]) -> Mapping[int, int]:
        rows = await self._connection.fetch(*self._sql["limiter_holders"].bind(numbers=list(numbers)))
        return {row["number"]: row["runs"] for row in rows}

    async def queue(self, runs: Sequence[LimitedRun]) -> None:
        ids = [run.id for run in runs]
        await self._connection.execute(
            *self._sql["queue_runs"].bind(runs=ids, silent=[run for run in ids if run in self._silent])
        )
        self.queued.update(self._queues[run] for run in ids)

    async def block(self, waits: Mapping[RunId, int]) -> None:
        await self._connection.execute(
            *self._sql["block_by_limiters"].bind(runs=list(waits), numbers=list(waits.values()))
        )

    async def recall(self, runs: Sequence[RunId]) -> None:
        await self._connection.execute(*self._sql["recall_runs"].bind(runs=list(runs)))

    async def save(self, limiters: Sequence[SavedLimiter]) -> None:
        await self._connection.execute(
            *self._sql["save_limiters"].bind(
                **columns(
                    map(_build_saved, limiters),
                    "number",
                    "used",
                    "times",
                    "open_until",
                    "forget_at",
                    "recalls",
                    "wake_at",
                )
            )
        )


def _build_saved(saved: SavedLimiter) -> tuple[int, int, str | None, Instant | None, Instant, bool, Instant | None]:
    """Return the columns of a limiter. Times of starts are written by claims, those of failures here."""
    state, limiter = saved.state, saved.limiter
    times, forget_at = None, 0
    if limiter is not None and limiter.kind == BREAKER:
        times = "{" + ",".join(map(str, state.times)) + "}"
        forget_at = state.times[-1] + limiter.per if state.times else 0
    return saved.number, state.used, times, state.open_until, forget_at, saved.recalls, saved.wake_at
