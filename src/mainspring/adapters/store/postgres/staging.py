"""What a scheduler does: stage what is due, fire ticks."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain

import asyncpg

from mainspring.adapters.store.postgres.database import Connection
from mainspring.adapters.store.postgres.names import Kind
from mainspring.adapters.store.postgres.partitions import Partitions
from mainspring.adapters.store.postgres.passage import flat
from mainspring.adapters.store.postgres.rows import (
    FOREVER_BUCKET,
    STATE_CODES,
    TICK,
    TICK_OF_DELAY,
    gate_of_job,
    job_of,
    readable_jobs,
    set_of_labels,
)
from mainspring.adapters.store.postgres.submissions import Submissions
from mainspring.domain.ids import RunId, SessionId
from mainspring.domain.instant import DAY, Instant
from mainspring.domain.job import Fire, Job, Overlap, Tick, version_body_id
from mainspring.domain.rank import rank_of
from mainspring.domain.run import RunState
from mainspring.ports.store import Fired, Staged

_NOT_APPLIED = Fired(applied=False)
#: Gates of limits that are looked at in one transaction.
_AT_ONCE = 200


class Staging(Submissions):
    _partitions: Partitions

    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> Staged:
        row = (await self._db.fetch("stage", owner, list(shards), limit))[0]
        queues = set(row["queues"])
        runs = row["runs"]
        more = runs >= limit
        if row["gated"] and not more:
            looked_at, taken = await self._db.transaction(
                lambda connection: self._stage_gated(connection, owner, shards, limit - runs)
            )
            more = looked_at >= limit - runs
            queues |= set(taken)
            runs += taken.total()
        if row["waking"]:
            woken, taken = await self._db.transaction(lambda connection: self._wake_limits(connection, _AT_ONCE))
            more |= woken >= _AT_ONCE
            queues |= set(taken)
            runs += taken.total()
        await self._names.name_all(queues)
        return Staged(
            now=row["now"],
            runs=runs,
            queues=tuple(sorted(self._names.name(queue) for queue in queues)),
            more=more,
            schedules_due=row["schedules_due"],
        )

    async def _stage_gated(
        self, connection: Connection, owner: SessionId, shards: Sequence[int], limit: int
    ) -> tuple[int, Counter[int]]:
        """Due runs that must take their key or pass their limits: how many there were, and how many were queued."""
        rows = await connection.fetch(self._db.sql["gated_due"], owner, list(shards), limit)
        queued = await self._enter(connection, rows)
        return len(rows), queued

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        rows = await self._db.fetch("upcoming", list(shards), until, limit)
        return [(row["shard"], row["due"]) for row in rows]

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        rows = await self._db.fetch("due_jobs", list(shards), until, limit)
        await self._names.name_all({row["tenant"] for row in rows})
        return readable_jobs(rows, lambda row: job_of(row, self._names))

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[Fired]:
        if not fires:
            return []
        await self._names.number_all(_names_of(fires))
        await self._partitions.make_ledger({tick.scheduled_at // DAY for fire in fires for tick in fire.ticks})
        free = [fire for fire in fires if gate_of_job(fire.job) is None]
        answers: dict[str, Fired] = {}
        if free:
            arguments = self._fire_arguments(free)
            if any(map(_has_limits, free)):
                made_runs = [tick.run_id for fire in free for tick in fire.ticks if tick.run_id is not None]
                rows = await self._db.transaction(
                    partial(self._fire_limited, owner=owner, arguments=arguments, runs=made_runs)
                )
            else:
                rows = await self._db.fetch("fire", owner, *arguments)
            made = {row["job_id"]: row["runs"] for row in rows}
            for fire in free:
                if fire.job.id in made:
                    runs = made[fire.job.id]
                    queues = (fire.job.spec.queue,) if runs else ()
                    answers[fire.job.id] = Fired(applied=True, runs=runs, queues=queues)
        for fire in fires:
            gate = gate_of_job(fire.job)
            if gate is not None:
                work = partial(self._fire_gated, owner=owner, fire=fire, gate=gate)
                answers[fire.job.id] = await self._db.transaction(work)
        stalled = [
            fire.job.id
            for fire in fires
            if fire.next_fire is None
            and not fire.finished
            and (fired := answers.get(fire.job.id)) is not None
            and not fired.runs
        ]
        if stalled:
            # A fixed delay whose tick left no run: nothing will end that could start it again.
            await self._db.execute("end_delay", sorted(stalled))
        return [answers.get(fire.job.id, _NOT_APPLIED) for fire in fires]

    async def _fire_limited(
        self, connection: Connection, owner: SessionId, arguments: Sequence[object], runs: Sequence[RunId]
    ) -> list[asyncpg.Record]:
        """Some of the runs have limits: they are made as scheduled, and those that are due go on at once."""
        rows = await connection.fetch(self._db.sql["fire"], owner, *arguments)
        due = await connection.fetch(self._db.sql["due_rows"], sorted(runs))
        await self._enter(connection, due, is_told=True)
        return rows

    def _fire_arguments(self, fires: list[Fire]) -> list[object]:
        jobs: list[object] = [
            [fire.job.id for fire in fires],
            [fire.job.rev for fire in fires],
            [fire.next_fire for fire in fires],
            [fire.finished for fire in fires],
            [len(fire.ticks) for fire in fires],
            [fire.job.spec.overlap is Overlap.SKIP for fire in fires],
        ]
        rows = list(chain.from_iterable(self._tick_rows(fire) for fire in fires))
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(19)]
        limits = [
            flat(fire.job.spec.policy.gates(fire.job.tenant, fire.job.spec.task)) for fire in fires for _ in fire.ticks
        ]
        return [*jobs, *columns, [_last_tick(fire) for fire in fires], [fire.next_tick for fire in fires], limits]

    def _tick_rows(self, fire: Fire) -> list[tuple[object, ...]]:
        job = fire.job
        spec = job.spec
        tenant = self._names.number(Kind.TENANT, job.tenant)
        queue = self._names.number(Kind.QUEUE, spec.queue)
        lane = self._lane(spec.policy)
        body = version_body_id(job.id, job.version)
        origin = TICK if spec.fixed_delay is None else TICK_OF_DELAY
        return [
            (
                job.id,
                tick.scheduled_at,
                1 if tick.decision == "run" else 2,
                tick.reason,
                tick.run_id,
                tick.due,
                tick.late,
                tick.ticks,
                tick.last_at,
                job.version,
                tenant,
                queue,
                spec.priority,
                spec.policy.timeout,
                None if spec.start_within is None else tick.due + spec.start_within,
                None if spec.deadline is None else tick.due + spec.deadline,
                body,
                origin,
                lane,
            )
            for tick in fire.ticks
        ]

    async def _fire_gated(self, connection: Connection, owner: SessionId, fire: Fire, gate: int) -> Fired:
        """One job whose runs have a key: its schedule moves, then its ticks take the key, queue behind it, or not."""
        job = fire.job
        moved = await connection.fetchrow(
            self._db.sql["move_schedule"],
            owner,
            job.id,
            job.rev,
            fire.next_fire,
            fire.finished,
            len(fire.ticks),
            _last_tick(fire),
            fire.next_tick,
        )
        if moved is None:
            return _NOT_APPLIED
        if fire.finished:
            await connection.execute(self._db.sql["finish_job"], job.id)
        active = await connection.fetch(self._db.sql["active_of_job"], job.id)
        if job.spec.overlap is Overlap.CANCEL and active and any(tick.decision == "run" for tick in fire.ticks):
            await self._stop_runs_of(connection, job.id)
            active = await connection.fetch(self._db.sql["active_of_job"], job.id)
        holder = (await self._lock_gates(connection, [gate]))[gate]
        # What an older version made under another rule or key stands in another line: nobody could wait for it.
        in_line = all(row["gate"] == gate for row in active)
        # One may run and one wait behind it: no room when somebody waits there already.
        waiting = any(row["state"] == STATE_CODES[RunState.BLOCKED] for row in active)
        room = 2 - len(active) if in_line and not waiting else 0
        made: list[tuple[Tick, RunState]] = []
        for tick in fire.ticks:
            decision, reason = tick.decision, tick.reason
            if decision == "run" and job.spec.overlap is Overlap.SKIP and active:
                decision, reason = "skipped", "overlap"
            if decision == "run" and job.spec.overlap is Overlap.QUEUE:
                if room <= 0:
                    decision, reason = "skipped", "overlap"
                room -= 1
            if decision == "run" and job.spec.overlap is Overlap.CANCEL and not in_line:
                decision, reason = "skipped", "overlap"
            recorded = await connection.fetchrow(
                self._db.sql["record_tick"],
                job.id,
                tick.scheduled_at,
                1 if decision == "run" else 2,
                job.version,
                moved["epoch"],
                tick.run_id if decision == "run" else None,
                reason,
                tick.ticks,
                tick.last_at,
                self._names.number(Kind.TENANT, job.tenant),
            )
            if recorded is None or decision != "run":
                continue
            if tick.due > moved["now"]:
                made.append((tick, RunState.SCHEDULED))
            elif holder is None:
                holder = tick.run_id
                made.append((tick, RunState.QUEUED))
                await connection.execute(self._db.sql["hold_gates"], [gate], [tick.run_id])
            else:
                made.append((tick, RunState.BLOCKED))
        await self._insert_ticks(connection, fire, made, gate, moved["now"])
        return Fired(applied=True, runs=len(made), queues=(job.spec.queue,) if made else ())

    async def _insert_ticks(
        self, connection: Connection, fire: Fire, made: list[tuple[Tick, RunState]], gate: int, now: Instant
    ) -> None:
        job = fire.job
        limits = flat(job.spec.policy.gates(job.tenant, job.spec.task))
        for tick, state in made:
            row = next(row for row in self._tick_rows(fire) if row[1] == tick.scheduled_at)
            common = (
                tick.run_id,
                job.shard,
                job.spec.priority,
                row[10],
                row[11],
                FOREVER_BUCKET,
                tick.due,
                now,
                job.spec.policy.timeout,
                row[14],
                row[15],
                gate,
                tick.scheduled_at,
                job.id,
                job.version,
                row[16],
                None,
                row[17],
                row[18],
                None,
                limits,
                None,
            )
            if state is RunState.QUEUED and limits is None:
                queued = (*common, rank_of(now, job.spec.priority, late=tick.late), None)
                await connection.execute(self._db.sql["insert_queued"], *([value] for value in queued))
            else:
                # What holds its key and has limits is made as scheduled, and passes them now.
                holds = state is RunState.QUEUED
                code = STATE_CODES[RunState.SCHEDULED if holds else state]
                waiting = (*common, code, tick.late, None, holds)
                await connection.execute(self._db.sql["insert_waiting"], *([value] for value in waiting))
        tenant = self._names.number(Kind.TENANT, job.tenant)
        await self._tell(connection, "run.submitted", [(RunId(str(tick.run_id)), tenant) for tick, _ in made])
        holding = [tick.run_id for tick, state in made if state is RunState.QUEUED]
        if limits is not None and holding:
            await self._enter(connection, await connection.fetch(self._db.sql["due_rows"], holding), is_told=True)


def _names_of(fires: Sequence[Fire]) -> set[tuple[Kind, str]]:
    wanted: set[tuple[Kind, str]] = set()
    for fire in fires:
        spec = fire.job.spec
        wanted |= {(Kind.QUEUE, spec.queue), (Kind.TENANT, fire.job.tenant)}
        if spec.policy.requires:
            wanted.add((Kind.LABELS, set_of_labels(spec.policy.requires)))
    return wanted


def _has_limits(fire: Fire) -> bool:
    policy = fire.job.spec.policy
    return bool(policy.limits) or policy.breaker is not None


def _last_tick(fire: Fire) -> Instant:
    return max((tick.happens_at for tick in fire.ticks), default=0)
