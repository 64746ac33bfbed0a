"""Ordering keys and limits: when a run leaves, the next runs pass.

An ordering key admits one run at a time, a limit as many as configured. Rows are locked in this order: runs, ordering
keys, limiters, each by id or number. A transaction that holds a limiter never waits for a run.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import asyncpg

from mainspring.core.model.limits.limits import AT_A_TIME, Ending, Gate
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
    candidate,
    gates_in,
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
    async def _let_go(self, connection: Connection, rows: Sequence[asyncpg.Record]) -> Counter[int]:
        """After runs have left, in the same transaction: queue the runs that waited for them, and restart fixed delays.

        Return how many were queued, by queue.
        """
        gates = sorted({row["gate"] for row in rows if row["gate"] is not None})
        next_ones = await self._open_gates(connection, gates) if gates else []
        jobs = sorted({row["delayed_job"] for row in rows if row["delayed_job"] is not None})
        if jobs:
            await connection.execute(*self._db.sql["end_delay"].bind(jobs=jobs))
        limited = [row for row in rows if row["limits"] is not None]
        arriving = [candidate(row) for row in next_ones if row["limits"] is not None]
        arriving += [candidate(row, is_told=True) for row in limited if row.get("final") == _QUEUED]
        left = {row["waits"] for row in rows if row.get("waits") is not None}
        queues = Counter(row["queue"] for row in next_ones if row["limits"] is None)
        if limited or arriving or left:
            queues += await self._pass(connection, [_leaver(row) for row in limited], arriving, left)
        return queues

    async def _open_gates(self, connection: Connection, gates: list[int]) -> list[asyncpg.Record]:
        """Give each ordering key to its next run. A run with limits must still pass them; the others are queued."""
        # A separate statement takes the locks, so that the next one sees what a submit committed while it held them.
        await connection.fetch(*self._db.sql["lock_held_gates"].bind(keys=gates))
        return await connection.fetch(*self._db.sql["let_go"].bind(keys=gates))

    async def _lock_gates(self, connection: Connection, gates: Iterable[int]) -> dict[int, str | None]:
        keys = sorted(set(gates))
        if not keys:
            return {}
        rows = await connection.fetch(*self._db.sql["lock_gates"].bind(keys=keys))
        return {row["key"]: row["holder"] for row in rows}

    async def _enter(
        self, connection: Connection, rows: Sequence[asyncpg.Record], *, is_told: bool = False
    ) -> Counter[int]:
        """Let due, locked rows of the waiting table take their keys and pass their limits.

        The runs are queued, or wait for either. Return how many were queued, by queue.
        """
        taken = await self._lock_gates(
            connection, [row["gate"] for row in rows if row["gate"] is not None and not row["holds"]]
        )
        held: dict[int, str] = {}
        going, blocked = [], []
        for row in sorted(rows, key=lambda row: (row["due"], row["id"])):
            gate = row["gate"]
            if gate is None or row["holds"]:
                going.append(row)
            elif taken[gate] is None:
                taken[gate] = held[gate] = row["id"]
                going.append(row)
            else:
                blocked.append(row["id"])
        if blocked:
            await connection.execute(*self._db.sql["block"].bind(runs=blocked))
        if held:
            await connection.execute(*self._db.sql["hold_gates"].bind(keys=list(held), holders=list(held.values())))
        free = [row for row in going if row["limits"] is None]
        if free:
            going_on = [row["id"] for row in free]
            await connection.execute(
                *self._db.sql["queue_waiting"].bind(runs=going_on, silent=going_on if is_told else [])
            )
        queues = Counter(row["queue"] for row in free)
        limited = [candidate(row, is_told=is_told) for row in going if row["limits"] is not None]
        if limited:
            queues += await self._pass(connection, (), limited)
        return queues

    async def _pass(
        self,
        connection: Connection,
        leaving: Sequence[LimitRelease],
        arriving: Sequence[LimitCandidate],
        left: Collection[int] = (),
    ) -> Counter[int]:
        """Let runs leave their limits, and others pass, including runs that waited.

        ``left``: limiters that a run no longer waits for; that run may have kept others waiting.

        Return how many runs were queued, by queue.
        """
        passage = await self._decide(connection, leaving, arriving, left)
        return await self._carry_out(connection, passage)

    async def _decide(
        self,
        connection: Connection,
        leaving: Sequence[LimitRelease],
        arriving: Sequence[LimitCandidate],
        left: Collection[int] = (),
    ) -> LimiterDecisions:
        """Lock the limiters and decide. Only the runs that an opening breaker calls back are written."""
        kinds = dict.fromkeys(left, AT_A_TIME)
        kinds |= {gate.number: gate.kind for leaver in leaving for gate in leaver.gates}
        kinds |= {gate.number: gate.kind for one in arriving for gate in one.gates}
        leaves = Counter(gate.number for leaver in leaving for gate in leaver.gates)
        passage = await self._lock_limits(connection, kinds, {number: leaves[number] or 1 for number in kinds})
        passage.look_at(left)
        opened = [number for leaver in leaving for number in passage.leave(leaver)]
        if opened:
            await self._call_back(connection, passage, opened)
        await self._look_for_more(connection, passage, arriving)
        return passage

    async def _look_for_more(
        self, connection: Connection, passage: LimiterDecisions, arriving: Sequence[LimitCandidate] = ()
    ) -> None:
        pool = list(arriving)
        passage.expect(pool)
        for _ in range(_ROUNDS):
            rooms = passage.with_room()
            if rooms:
                rows = await connection.fetch(
                    *self._db.sql["limit_waiters"].bind(
                        numbers=list(rooms), limits=list(rooms.values()), seen=list(passage.seen)
                    )
                )
                found = Counter(row["waits"] for row in rows)
                for number, most in rooms.items():
                    passage.looked_at(number, all_of_them=found[number] < most)
                pool += [candidate(row, row["waits"]) for row in rows]
            if not pool:
                return
            await self._lock_more(connection, passage, {gate.number: gate for one in pool for gate in one.gates})
            passage.decide(pool)
            pool = []

    async def _lock_limits(
        self, connection: Connection, kinds: dict[int, int], peeks: dict[int, int]
    ) -> LimiterDecisions:
        numbers = sorted(kinds)
        passage = LimiterDecisions()
        passage.learn(
            await connection.fetch(
                *self._db.sql["lock_limiters"].bind(numbers=numbers, peeks=[peeks[number] for number in numbers])
            )
        )
        missing = [number for number in numbers if not passage.has(number)]
        if missing:
            passage.learn(
                await connection.fetch(
                    *self._db.sql["make_limiters"].bind(numbers=missing, kinds=[kinds[number] for number in missing])
                )
            )
            missing = [number for number in missing if not passage.has(number)]
        if missing:
            # Another transaction has just made them.
            passage.learn(
                await connection.fetch(*self._db.sql["lock_limiters"].bind(numbers=missing, peeks=[0] * len(missing)))
            )
        return passage

    async def _lock_more(self, connection: Connection, passage: LimiterDecisions, gates: dict[int, Gate]) -> None:
        """Lock more limiters, as far as possible without waiting."""
        missing = sorted(number for number in gates if not passage.has(number))
        if missing:
            passage.learn(await connection.fetch(*self._db.sql["try_limiters"].bind(numbers=missing)))
            missing = [number for number in missing if not passage.has(number)]
        if missing:
            kinds = [gates[number].kind for number in missing]
            passage.learn(await connection.fetch(*self._db.sql["make_limiters"].bind(numbers=missing, kinds=kinds)))

    async def _call_back(self, connection: Connection, passage: LimiterDecisions, breakers: Sequence[int]) -> int:
        """Move runs that are queued behind opened breakers back to waiting; return how many."""
        rows = await connection.fetch(
            *self._db.sql["queued_of_breakers"].bind(breakers=list(breakers), limit=_CALLED_BACK)
        )
        leaving = {row["id"]: gates_in(row["limits"]) for row in rows}
        await self._lock_more(connection, passage, {gate.number: gate for gates in leaving.values() for gate in gates})
        going = {run: gates for run, gates in leaving.items() if all(map(passage.knows, gates))}
        for gates in going.values():
            passage.leave(LimitRelease(gates))
        if going:
            await connection.execute(*self._db.sql["call_back"].bind(runs=sorted(going)))
        return len(going)

    async def _carry_out(self, connection: Connection, passage: LimiterDecisions) -> Counter[int]:
        """Write the decisions; return how many runs were queued, by queue. New runs are in the tables by now."""
        passing = [one for one in passage.passing if one.id not in passage.is_new]
        if passing:
            told = [one.id for one in passing if one.is_told]
            await connection.execute(*self._db.sql["queue_waiting"].bind(runs=[one.id for one in passing], silent=told))
        waits = {run: number for run, number in passage.waits.items() if run not in passage.is_new}
        if waits:
            await connection.execute(*self._db.sql["wait_for"].bind(runs=list(waits), numbers=list(waits.values())))
        rows = passage.rows()
        if rows:
            await connection.execute(*self._db.sql["save_limiters"].bind(**columns_of_structs(rows)))
        return Counter(one.queue for one in passing)

    async def _wake_limits(self, connection: Connection, limit: int) -> tuple[int, Counter[int]]:
        """Check limiters that time gives room; return how many, and how many runs were queued, by queue."""
        due = {
            row["number"]: row["kind"]
            for row in await connection.fetch(*self._db.sql["waking_limiters"].bind(limit=limit))
        }
        if not due:
            return 0, Counter()
        return len(due), (await self._look_at_limits(connection, due))[1]

    async def _finish_recalls(self, connection: Connection, limit: int) -> tuple[int, Counter[int]]:
        """Continue the recalls of opened breakers.

        Return how many runs were called back, and how many others were queued, by queue.
        """
        rows = await connection.fetch(*self._db.sql["recalling_limiters"].bind(limit=limit))
        return await self._look_at_limits(connection, {row["number"]: row["kind"] for row in rows})

    async def _look_at_limits(self, connection: Connection, kinds: dict[int, int]) -> tuple[int, Counter[int]]:
        """Check limiters; return how many runs were called back, and how many were queued, by queue."""
        passage = await self._lock_limits(connection, kinds, dict.fromkeys(kinds, 10))
        recalling = passage.recalling()
        called_back = await self._call_back(connection, passage, recalling) if recalling else 0
        passage.look_at(kinds)
        passage.suspect(kinds)
        await self._look_for_more(connection, passage)
        return called_back, await self._carry_out(connection, passage)

    async def _notify(self, queues: Collection[int]) -> None:
        """After the commit: notify the workers that these queues have work."""
        if queues and self._wakeups is not None:
            await self._names.name_all(queues)
            self._wakeups.notify([queue_topic(self._names.name(queue)) for queue in queues])


def _leaver(row: asyncpg.Record) -> LimitRelease:
    outcome = row.get("outcome")
    if outcome is None:
        return LimitRelease(gates_in(row["limits"]))
    return LimitRelease(gates_in(row["limits"]), _ENDINGS.get(outcome, "other"), row["started_at"])
