"""What a scheduler does: stage due runs and fire ticks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import asyncpg

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import DAY, Instant
from mainspring.core.model.cluster.datacenters import placed
from mainspring.core.model.schedules.job import Fire, Job, Overlap
from mainspring.core.ports.storage.answers import FireResult, StageResult
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.columns import columns_of_structs
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.partitions import Partitions
from mainspring.stores.postgres.rows import build_job, build_label_set, compute_job_key_lock, readable_jobs
from mainspring.stores.postgres.work.firing import TickMixin, TickRow, last_tick

_NOT_APPLIED = FireResult(applied=False)
#: Limiters checked in one transaction.
_AT_ONCE = 200


class SchedulerMixin(TickMixin):
    _partitions: Partitions

    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> StageResult:
        row = (await self._db.fetch("stage", owner=owner, shards=list(shards), limit=limit))[0]
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
            woken, taken = await self._db.transaction(lambda connection: self._check_due_limiters(connection, _AT_ONCE))
            more |= woken >= _AT_ONCE
            queues |= set(taken)
            runs += taken.total()
        await self._names.load_names(queues)
        return StageResult(
            now=row["now"],
            runs=runs,
            queues=tuple(sorted(self._names.get_name(queue) for queue in queues)),
            more=more,
            schedules_due=row["schedules_due"],
        )

    async def _stage_gated(
        self, connection: Connection, owner: SessionId, shards: Sequence[int], limit: int
    ) -> tuple[int, Counter[int]]:
        """Let due runs take their keys and pass their limits; return how many there were, and how many were queued."""
        rows = await connection.fetch(
            *self._db.sql["due_with_limits"].bind(owner=owner, shards=list(shards), limit=limit)
        )
        queued = await self._queue_due(connection, rows)
        return len(rows), queued

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        rows = await self._db.fetch("upcoming", shards=list(shards), until=until, limit=limit)
        return [(row["shard"], row["due"]) for row in rows]

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        rows = await self._db.fetch("due_jobs", shards=list(shards), until=until, limit=limit)
        await self._names.load_names({row["tenant"] for row in rows})
        return readable_jobs(rows, lambda row: build_job(row, self._names))

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[FireResult]:
        if not fires:
            return []
        await self._names.assign_numbers(_list_names(fires))
        await self._partitions.make_ledger({tick.scheduled_at // DAY for fire in fires for tick in fire.ticks})
        free = await self._limit_skips([fire for fire in fires if not _fires_alone(fire.job)])
        await self._add_bodies(fires)
        await self._add_classed(fires)
        answers: dict[str, FireResult] = {}
        if free:
            arguments = self._fire_arguments(free)
            if any(map(_has_limits, free)):
                made_runs = [tick.run_id for fire in free for tick in fire.ticks if tick.run_id is not None]
                rows = await self._db.transaction(
                    partial(self._fire_limited, owner=owner, arguments=arguments, runs=made_runs)
                )
            else:
                rows = await self._db.fetch("fire", owner=owner, **arguments)
            made = {row["job_id"]: row["runs"] for row in rows}
            for fire in free:
                if fire.job.id in made:
                    runs = made[fire.job.id]
                    queues = (fire.job.spec.queue,) if runs else ()
                    answers[fire.job.id] = FireResult(applied=True, runs=runs, queues=queues)
        for fire in fires:
            if _fires_alone(fire.job):
                work = partial(self._fire_gated, owner=owner, fire=fire)
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
            # The tick of a fixed delay made no run: no end of a run would restart the delay.
            await self._db.execute("end_delay", jobs=sorted(stalled))
        return [answers.get(fire.job.id, _NOT_APPLIED) for fire in fires]

    async def _fire_limited(
        self, connection: Connection, owner: SessionId, arguments: Mapping[str, Any], runs: Sequence[RunId]
    ) -> list[asyncpg.Record]:
        """Fire ticks whose runs have limits: the runs are made as scheduled, and due ones try their limits at once."""
        rows = await connection.fetch(*self._db.sql["fire"].bind(owner=owner, **arguments))
        due = await connection.fetch(*self._db.sql["due_rows"].bind(runs=sorted(runs)))
        await self._queue_due(connection, due, is_silent=True)
        return rows

    def _fire_arguments(self, fires: list[Fire]) -> dict[str, Any]:
        jobs = {
            "jobs": [fire.job.id for fire in fires],
            "revs": [fire.job.rev for fire in fires],
            "next_fires": [fire.next_fire for fire in fires],
            "finished": [fire.finished for fire in fires],
            "tick_counts": [len(fire.ticks) for fire in fires],
            "exclusive": [fire.job.spec.overlap is Overlap.SKIP for fire in fires],
            "last_ticks": [last_tick(fire) for fire in fires],
            "next_ticks": [fire.next_tick for fire in fires],
        }
        rows = list(chain.from_iterable(map(self._tick_rows, fires)))
        ticks = columns_of_structs(rows) if rows else {name: [] for name in TickRow.__struct_fields__}
        return jobs | ticks


def _list_names(fires: Sequence[Fire]) -> set[tuple[NameKind, str]]:
    wanted: set[tuple[NameKind, str]] = set()
    for fire in fires:
        spec = fire.job.spec
        wanted |= {(NameKind.QUEUE, spec.queue), (NameKind.TENANT, fire.job.tenant)}
        for target in {tick.target for tick in fire.ticks if tick.decision == "run"}:
            if requires := placed(spec.policy, target).requires:
                wanted.add((NameKind.LABEL_SET, build_label_set(requires)))
    return wanted


def _has_limits(fire: Fire) -> bool:
    policy = fire.job.spec.policy
    return bool(policy.limits) or policy.breaker is not None


def _fires_alone(job: Job) -> bool:
    """Whether its ticks must be recorded one by one: they have a key, or an overlap rule per data center."""
    return compute_job_key_lock(job) is not None or (bool(job.spec.datacenters) and job.spec.overlap is Overlap.SKIP)
