"""Ticks that are recorded one by one, for jobs whose runs have a key or an overlap rule per data center."""

from collections.abc import Sequence

import asyncpg
import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.datacenters import placed
from mainspring.core.model.runs.rank import compute_rank
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import OVERLAP, Fire, Overlap, Tick, version_body_id
from mainspring.core.ports.storage.answers import FireResult
from mainspring.stores.postgres.codes import DECISION_CODES, STATE_CODES, TICK, TICK_OF_DELAY, NameKind
from mainspring.stores.postgres.columns import columns_of_structs
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.rows import class_number, compute_job_key_lock, forever_bucket
from mainspring.stores.postgres.work.limit_columns import pack_limits
from mainspring.stores.postgres.work.live_rows import LiveRow, build_queued_row, build_waiting_row
from mainspring.stores.postgres.work.submissions import SubmitMixin

#: How many bodies are remembered as made.
_REMEMBERED = 10_000


class TickRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tick to record, and the run to make of it. ``tenant``, ``queue`` and ``claim_group`` are numbers of names."""

    job_id: str
    scheduled_at: Instant
    decision: int
    reason: str
    run_id: str | None
    due: Instant
    late: bool
    #: How many ticks it stands for, and the last of them.
    ticks: int
    last_at: Instant | None
    version: int
    tenant: int
    queue: int
    priority: int
    timeout: Micros | None
    start_by: Instant | None
    deadline: Instant | None
    #: The body of the run, and its bucket.
    body_id: str
    bucket: int
    origin: int
    claim_group: int
    limits: str | None
    #: The data center that it is for; empty: any.
    target: str


class TickMixin(SubmitMixin):
    _bodies_made: set[str]

    async def _add_bodies(self, fires: Sequence[Fire]) -> None:
        """Make the bodies of runs for one data center, before the runs are made.

        A body has the version's payload, and a policy that names the data center.
        """
        missing = {
            body: (body, version_body_id(fire.job.id, fire.job.version), placed(fire.job.spec.policy, tick.target))
            for fire in fires
            if fire.job.spec.datacenters
            for tick in fire.ticks
            if tick.target
            and tick.decision == "run"
            and (body := version_body_id(fire.job.id, fire.job.version, tick.target)) not in self._bodies_made
        }
        if not missing:
            return
        ids, versions, policies = zip(*missing.values(), strict=True)
        await self._db.execute(
            "add_datacenter_bodies",
            bodies=ids,
            versions=versions,
            policies=[self._policies.encode(one) for one in policies],
        )
        if len(self._bodies_made) > _REMEMBERED:
            self._bodies_made.clear()
        self._bodies_made |= set(ids)

    async def _add_classed(self, fires: Sequence[Fire]) -> None:
        """Make the bodies of runs of a non-standard retention class, before the runs are made.

        A body has the version's payload, and is in the bucket of the class.
        """
        await self._refresh_classes()
        missing = {}
        for fire in fires:
            job = fire.job
            policy = self._assign_class(job.spec.policy, job.tenant)
            if not class_number(policy):
                continue
            for tick in fire.ticks:
                body = version_body_id(job.id, job.version, tick.target)
                bucket = forever_bucket(policy)
                if tick.decision == "run" and f"{bucket}:{body}" not in self._bodies_made:
                    missing[bucket, body] = placed(policy, tick.target)
        if not missing:
            return
        await self._make_classes({class_number(policy) for policy in missing.values()})
        buckets, ids = zip(*missing, strict=True)
        encoded = [self._policies.encode(policy) for policy in missing.values()]
        await self._db.execute("add_classed_bodies", buckets=buckets, bodies=ids, policies=encoded)
        if len(self._bodies_made) > _REMEMBERED:
            self._bodies_made.clear()
        self._bodies_made |= {f"{bucket}:{body}" for bucket, body in missing}

    async def _limit_skips(self, fires: Sequence[Fire]) -> list[Fire]:
        """Let one tick of each job run whose overlap rule is ``skip``: the first that is not recorded yet.

        The statement that records the fires compares a tick only to the runs that were there before. A tick that is
        recorded in the meantime has changed the revision of its schedule, so the fire is not applied.
        """
        planned = {
            fire.job.id: runs
            for fire in fires
            if fire.job.spec.overlap is Overlap.SKIP
            and len(runs := [tick.scheduled_at for tick in fire.ticks if tick.decision == "run"]) > 1
        }
        if not planned:
            return list(fires)
        jobs, ticks = zip(*((job, at) for job, runs in planned.items() for at in runs), strict=True)
        rows = await self._db.fetch("recorded_ticks", jobs=jobs, times=ticks, targets=[""] * len(ticks))
        recorded = {(row["job_id"], row["scheduled_at"]) for row in rows}
        first = {job: next((at for at in runs if (job, at) not in recorded), None) for job, runs in planned.items()}
        return [_keep_run(fire, first[fire.job.id]) if fire.job.id in planned else fire for fire in fires]

    def _tick_rows(self, fire: Fire) -> list[TickRow]:
        job = fire.job
        spec = job.spec
        tenant = self._names.get_number(NameKind.TENANT, job.tenant)
        queue = self._names.get_number(NameKind.QUEUE, spec.queue)
        policies = {tick.target: placed(spec.policy, tick.target) for tick in fire.ticks if tick.decision == "run"}
        claim_groups = {target: self._get_claim_group(policy) for target, policy in policies.items()}
        bucket = forever_bucket(self._assign_class(spec.policy, job.tenant))
        return [
            TickRow(
                job_id=job.id,
                scheduled_at=tick.scheduled_at,
                decision=DECISION_CODES[tick.decision],
                reason=tick.reason,
                run_id=tick.run_id,
                due=tick.due,
                late=tick.late,
                ticks=tick.ticks,
                last_at=tick.last_at,
                version=job.version,
                tenant=tenant,
                queue=queue,
                priority=spec.priority,
                timeout=spec.policy.timeout,
                start_by=None if spec.start_within is None else tick.due + spec.start_within,
                deadline=None if spec.deadline is None else tick.due + spec.deadline,
                body_id=version_body_id(job.id, job.version, tick.target),
                origin=TICK if spec.fixed_delay is None else TICK_OF_DELAY,
                claim_group=claim_groups.get(tick.target, 0),
                limits=pack_limits(spec.policy.limiters(job.tenant, spec.task)),
                target=tick.target,
                bucket=bucket,
            )
            for tick in fire.ticks
        ]

    async def _fire_gated(self, connection: Connection, owner: SessionId, fire: Fire) -> FireResult:
        """Fire one job whose runs have a key, or an overlap rule per data center.

        The schedule moves first. Then, for each data center by itself, the ticks take the key, queue behind it or are
        skipped.
        """
        job = fire.job
        moved = await connection.fetchrow(
            *self._db.sql["move_schedule"].bind(
                owner=owner,
                job=job.id,
                rev=job.rev,
                next_fire=fire.next_fire,
                finished=fire.finished,
                ticks=len(fire.ticks),
                last_tick=last_tick(fire),
                next_tick=fire.next_tick,
            ),
        )
        if moved is None:
            return FireResult(applied=False)
        if fire.finished:
            await connection.execute(*self._db.sql["finish_job"].bind(job=job.id))
        made = 0
        for target in dict.fromkeys(tick.target for tick in fire.ticks):
            made += await self._fire_in_datacenter(connection, fire, target, moved)
        return FireResult(applied=True, runs=made, queues=(job.spec.queue,) if made else ())

    async def _fire_in_datacenter(self, connection: Connection, fire: Fire, target: str, moved: asyncpg.Record) -> int:
        """Record the ticks for one data center, or for none; return how many runs were made."""
        job, key_lock = fire.job, compute_job_key_lock(fire.job, target)
        active = await self._active(connection, job.id, target)
        ticks = [tick for tick in fire.ticks if tick.target == target]
        if job.spec.overlap is Overlap.CANCEL and active and await self._has_new_run(connection, job.id, ticks, target):
            await self._stop_job_runs(connection, job.id, target)
            active = await self._active(connection, job.id, target)
        holder = None if key_lock is None else (await self._lock_keys(connection, [key_lock]))[key_lock]
        has_one_key = all(row["key_lock"] == key_lock for row in active)
        blocked = any(row["state"] == STATE_CODES[RunState.BLOCKED] for row in active)
        count = len(active)
        made: list[tuple[Tick, RunState]] = []
        for tick in ticks:
            decision, reason = tick.decision, tick.reason
            room = job.spec.overlap.has_room(count, is_one_blocked=blocked, has_one_key=has_one_key)
            if decision == "run" and not room:
                decision, reason = "skipped", OVERLAP
            recorded = await connection.fetchrow(
                *self._db.sql["record_tick"].bind(
                    job=job.id,
                    scheduled_at=tick.scheduled_at,
                    decision=DECISION_CODES[decision],
                    version=job.version,
                    epoch=moved["epoch"],
                    run=tick.run_id if decision == "run" else None,
                    reason=reason,
                    ticks=tick.ticks,
                    last_at=tick.last_at,
                    tenant=self._names.get_number(NameKind.TENANT, job.tenant),
                    target=target,
                ),
            )
            if recorded is None or decision != "run":
                continue
            count += 1
            if tick.due > moved["now"]:
                made.append((tick, RunState.SCHEDULED))
            elif key_lock is None:
                made.append((tick, RunState.QUEUED))
            elif holder is None:
                holder = tick.run_id
                made.append((tick, RunState.QUEUED))
                await connection.execute(*self._db.sql["set_key_holders"].bind(keys=[key_lock], holders=[tick.run_id]))
            else:
                blocked = True
                made.append((tick, RunState.BLOCKED))
        await self._insert_tick_runs(connection, fire, made, key_lock, moved["now"])
        return len(made)

    async def _has_new_run(self, connection: Connection, job: JobId, ticks: Sequence[Tick], target: str) -> bool:
        """Whether one of the ticks is to run and is not recorded yet."""
        planned = [tick.scheduled_at for tick in ticks if tick.decision == "run"]
        count = len(planned)
        recorded = await connection.fetch(
            *self._db.sql["recorded_ticks"].bind(jobs=[job] * count, times=planned, targets=[target] * count)
        )
        return len(recorded) < count

    async def _active(self, connection: Connection, job: JobId, target: str) -> list[asyncpg.Record]:
        if target:
            return await connection.fetch(*self._db.sql["active_in_datacenter"].bind(job=job, target=target))
        return await connection.fetch(*self._db.sql["active_of_job"].bind(job=job))

    async def _insert_tick_runs(
        self, connection: Connection, fire: Fire, made: list[tuple[Tick, RunState]], key_lock: int | None, now: Instant
    ) -> None:
        job = fire.job
        limits = pack_limits(job.spec.policy.limiters(job.tenant, job.spec.task))
        for tick, state in made:
            [row] = self._tick_rows(msgspec.structs.replace(fire, ticks=(tick,)))
            common = LiveRow(
                id=row.run_id,
                shard=job.shard,
                priority=row.priority,
                tenant=row.tenant,
                queue=row.queue,
                bucket=row.bucket,
                body_id=row.body_id,
                due=row.due,
                created_at=now,
                timeout=row.timeout,
                start_by=row.start_by,
                deadline=row.deadline,
                key_lock=key_lock,
                job_id=row.job_id,
                job_version=row.version,
                scheduled_at=row.scheduled_at,
                origin=row.origin,
                claim_group=row.claim_group,
                limits=limits,
            )
            if state is RunState.QUEUED and limits is None:
                queued = build_queued_row(common, rank=compute_rank(now, row.priority, late=row.late))
                await connection.execute(*self._db.sql["insert_queued"].bind(**columns_of_structs([queued])))
            else:
                # A run that holds its key and has limits is made as scheduled, and tries its limits below.
                holds = state is RunState.QUEUED
                code = STATE_CODES[RunState.SCHEDULED if holds else state]
                waiting = build_waiting_row(common, state=code, late=row.late, holds=holds)
                await connection.execute(*self._db.sql["insert_waiting"].bind(**columns_of_structs([waiting])))
        tenant = self._names.get_number(NameKind.TENANT, job.tenant)
        await self._emit(connection, "run.submitted", [(RunId(str(tick.run_id)), tenant) for tick, _ in made])
        holding = [tick.run_id for tick, state in made if state is RunState.QUEUED]
        if limits is not None and holding:
            await self._queue_due(
                connection, await connection.fetch(*self._db.sql["due_rows"].bind(runs=holding)), is_silent=True
            )


def _keep_run(fire: Fire, at: Instant | None) -> Fire:
    """Return the fire with this tick as its only run. The other ticks that would run are skipped for overlap."""
    ticks = tuple(
        tick
        if tick.decision == "skipped" or tick.scheduled_at == at
        else msgspec.structs.replace(tick, decision="skipped", reason=OVERLAP, run_id=None)
        for tick in fire.ticks
    )
    return msgspec.structs.replace(fire, ticks=ticks)


def last_tick(fire: Fire) -> Instant:
    return max((tick.happens_at for tick in fire.ticks), default=0)
