"""Ordering keys and limits: when a run leaves, the next runs pass.

An ordering key admits one run at a time, a limit as many as configured. Rows are locked in this order: runs, ordering
keys, limiters, each by id or number. A transaction that holds a limiter never waits for a run.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import asyncpg

from mainspring.core.model.limits.limits import AT_A_TIME, Ending, Limiter
from mainspring.core.model.runs.run import Outcome
from mainspring.core.ports.wakeups import queue_topic
from mainspring.stores.postgres.codes import OUTCOME_CODES
from mainspring.stores.postgres.columns import columns_of_structs
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.postgres.work.limiter_decisions import (
    LimitCandidate,
    LimiterDecisions,
    LimitRelease,
    build_limit_candidate,
    unpack_limits,
)

_ENDINGS: dict[int, Ending] = {
    OUTCOME_CODES[Outcome.SUCCESS]: "succeeded",
    OUTCOME_CODES[Outcome.ERROR]: "failed",
    OUTCOME_CODES[Outcome.TIMEOUT]: "failed",
}
_QUEUED = 3
#: How many rounds look for more runs that could pass when the first in line is locked elsewhere.
_ROUNDS = 3
#: How many queued runs a breaker calls back at once when it opens; the others follow later.
_CALLED_BACK = 500


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
        arriving = [build_limit_candidate(row) for row in next_ones if row["limits"] is not None]
        arriving += [build_limit_candidate(row, is_silent=True) for row in limited if row.get("final") == _QUEUED]
        left = {row["waits"] for row in rows if row.get("waits") is not None}
        queues = Counter(row["queue"] for row in next_ones if row["limits"] is None)
        if limited or arriving or left:
            queues += await self._admit(connection, [_build_release(row) for row in limited], arriving, left)
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
        limited = [build_limit_candidate(row, is_silent=is_silent) for row in going if row["limits"] is not None]
        if limited:
            queues += await self._admit(connection, (), limited)
        return queues

    async def _admit(
        self,
        connection: Connection,
        releases: Sequence[LimitRelease],
        arriving: Sequence[LimitCandidate],
        left: Collection[int] = (),
    ) -> Counter[int]:
        """Let runs leave their limits, and others pass, including runs that waited.

        ``left``: limiters that a run no longer waits for; that run may have kept others waiting.

        Return how many runs were queued, by queue.
        """
        decisions = await self._decide(connection, releases, arriving, left)
        return await self._write_decisions(connection, decisions)

    async def _decide(
        self,
        connection: Connection,
        releases: Sequence[LimitRelease],
        arriving: Sequence[LimitCandidate],
        left: Collection[int] = (),
    ) -> LimiterDecisions:
        """Lock the limiters and decide. Only the runs that an opening breaker calls back are written."""
        kinds = dict.fromkeys(left, AT_A_TIME)
        kinds |= {limiter.number: limiter.kind for release in releases for limiter in release.limiters}
        kinds |= {limiter.number: limiter.kind for one in arriving for limiter in one.limiters}
        leaves = Counter(limiter.number for release in releases for limiter in release.limiters)
        decisions = await self._lock_limits(connection, kinds, {number: leaves[number] or 1 for number in kinds})
        decisions.look_at(left)
        opened = [number for release in releases for number in decisions.leave(release)]
        if opened:
            await self._recall_runs(connection, decisions, opened)
        await self._admit_blocked(connection, decisions, arriving)
        return decisions

    async def _admit_blocked(
        self, connection: Connection, decisions: LimiterDecisions, arriving: Sequence[LimitCandidate] = ()
    ) -> None:
        pool = list(arriving)
        decisions.expect(pool)
        for _ in range(_ROUNDS):
            rooms = decisions.with_room()
            if rooms:
                rows = await connection.fetch(
                    *self._db.sql["runs_blocked_by_limiters"].bind(
                        numbers=list(rooms), limits=list(rooms.values()), seen=list(decisions.seen)
                    )
                )
                found = Counter(row["waits"] for row in rows)
                for number, most in rooms.items():
                    decisions.looked_at(number, all_of_them=found[number] < most)
                pool += [build_limit_candidate(row, row["waits"]) for row in rows]
            if not pool:
                return
            await self._lock_more(
                connection, decisions, {limiter.number: limiter for one in pool for limiter in one.limiters}
            )
            decisions.decide(pool)
            pool = []

    async def _lock_limits(
        self, connection: Connection, kinds: dict[int, int], peeks: dict[int, int]
    ) -> LimiterDecisions:
        numbers = sorted(kinds)
        decisions = LimiterDecisions()
        decisions.learn(
            await connection.fetch(
                *self._db.sql["lock_limiters"].bind(numbers=numbers, peeks=[peeks[number] for number in numbers])
            )
        )
        missing = [number for number in numbers if not decisions.has(number)]
        if missing:
            decisions.learn(
                await connection.fetch(
                    *self._db.sql["make_limiters"].bind(numbers=missing, kinds=[kinds[number] for number in missing])
                )
            )
            missing = [number for number in missing if not decisions.has(number)]
        if missing:
            # Another transaction has just made them.
            decisions.learn(
                await connection.fetch(*self._db.sql["lock_limiters"].bind(numbers=missing, peeks=[0] * len(missing)))
            )
        return decisions

    async def _lock_more(
        self, connection: Connection, decisions: LimiterDecisions, limiters: dict[int, Limiter]
    ) -> None:
        """Lock more limiters, as far as possible without waiting."""
        missing = sorted(number for number in limiters if not decisions.has(number))
        if missing:
            decisions.learn(await connection.fetch(*self._db.sql["try_limiters"].bind(numbers=missing)))
            missing = [number for number in missing if not decisions.has(number)]
        if missing:
            kinds = [limiters[number].kind for number in missing]
            decisions.learn(await connection.fetch(*self._db.sql["make_limiters"].bind(numbers=missing, kinds=kinds)))

    async def _recall_runs(self, connection: Connection, decisions: LimiterDecisions, breakers: Sequence[int]) -> int:
        """Move runs that are queued behind opened breakers back to waiting; return how many."""
        rows = await connection.fetch(
            *self._db.sql["runs_queued_behind_breakers"].bind(breakers=list(breakers), limit=_CALLED_BACK)
        )
        releases = {row["id"]: unpack_limits(row["limits"]) for row in rows}
        await self._lock_more(
            connection, decisions, {limiter.number: limiter for limiters in releases.values() for limiter in limiters}
        )
        going = {run: limiters for run, limiters in releases.items() if all(map(decisions.knows, limiters))}
        for limiters in going.values():
            decisions.leave(LimitRelease(limiters))
        if going:
            await connection.execute(*self._db.sql["recall_runs"].bind(runs=sorted(going)))
        return len(going)

    async def _write_decisions(self, connection: Connection, decisions: LimiterDecisions) -> Counter[int]:
        """Write the decisions; return how many runs were queued, by queue. New runs are in the tables by now."""
        passing = [one for one in decisions.passing if one.id not in decisions.is_new]
        if passing:
            silent = [one.id for one in passing if one.is_silent]
            await connection.execute(*self._db.sql["queue_runs"].bind(runs=[one.id for one in passing], silent=silent))
        waits = {run: number for run, number in decisions.waits.items() if run not in decisions.is_new}
        if waits:
            await connection.execute(
                *self._db.sql["block_by_limiters"].bind(runs=list(waits), numbers=list(waits.values()))
            )
        rows = decisions.rows()
        if rows:
            await connection.execute(*self._db.sql["save_limiters"].bind(**columns_of_structs(rows)))
        return Counter(one.queue for one in passing)

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

        Return how many runs were called back, and how many others were queued, by queue.
        """
        rows = await connection.fetch(*self._db.sql["recalling_limiters"].bind(limit=limit))
        return await self._check_limiters(connection, {row["number"]: row["kind"] for row in rows})

    async def _check_limiters(self, connection: Connection, kinds: dict[int, int]) -> tuple[int, Counter[int]]:
        """Check limiters; return how many runs were called back, and how many were queued, by queue."""
        decisions = await self._lock_limits(connection, kinds, dict.fromkeys(kinds, 10))
        recalling = decisions.recalling()
        called_back = await self._recall_runs(connection, decisions, recalling) if recalling else 0
        decisions.look_at(kinds)
        decisions.suspect(kinds)
        await self._admit_blocked(connection, decisions)
        return called_back, await self._write_decisions(connection, decisions)

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
