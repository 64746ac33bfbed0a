"""The SLOs of schedules, and whether they are met."""

from collections.abc import Collection, Sequence

import msgspec

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.schedules.slo import SloState
from mainspring.core.ports.storage.slos import SloDue, SloResult
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.work.jobs import JobMixin

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SloState).decode


class SloMixin(JobMixin):
    async def slos_due(self, limit: int) -> list[SloDue]:
        rows = {JobId(row["job_id"]): row for row in await self._db.fetch("slos_due", limit=limit)}
        if not rows:
            return []
        jobs = await self.jobs(list(rows))
        successes = {
            row["job_id"]: row["finished_at"] for row in await self._db.fetch("last_successes", jobs=list(rows))
        }
        return [
            SloDue(
                job=job,
                state=_decode(rows[job.id]["state"]),
                rev=rows[job.id]["rev"],
                last_success=successes.get(job.id),
            )
            for job in jobs
            if job is not None
        ]

    async def save_slos(self, results: Sequence[SloResult]) -> int:
        given = sorted(results, key=lambda one: one.job)
        events = {one.job: one.events for one in given if one.events}

        async def complete(connection: Connection) -> int:
            rows = await connection.fetch(
                *self._db.sql["save_slos"].bind(
                    jobs=[one.job for one in given],
                    revs=[one.rev for one in given],
                    next_checks=[one.next_check for one in given],
                    states=[_encode(one.state) for one in given],
                ),
            )
            for row in rows:
                for event in events.get(row["job_id"], ()):
                    await self._emit(connection, event, [(RunId(row["job_id"]), row["tenant"])])
            return len(rows)

        return await self._db.transaction(complete) if given else 0

    async def slo_states(self, jobs: Collection[JobId]) -> dict[JobId, SloState]:
        rows = await self._db.fetch("slo_states", jobs=list(jobs))
        return {JobId(row["job_id"]): _decode(row["state"]) for row in rows}

    async def slos_missed(self, tenant: str | None, limit: int) -> dict[JobId, SloState]:
        rows = await self._db.fetch("slos_missed", tenant=await self._scope_number(tenant), limit=limit)
        return {JobId(row["job_id"]): _decode(row["state"]) for row in rows}
