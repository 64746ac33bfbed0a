"""Jobs, sessions, limiters and pauses for users, with the lists, metrics and reports."""

from collections.abc import Sequence
from typing import Literal

import asyncpg

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.limits.limits import LimiterState
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.schedules.job import Job, version_body_id
from mainspring.core.ports.storage.catalog import (
    LOOKED_AT,
    JobFilter,
    JobVersion,
    Page,
    Pause,
    SessionView,
)
from mainspring.stores.filters import is_wanted_job
from mainspring.stores.postgres.codes import SESSION_KINDS
from mainspring.stores.postgres.records.metrics import MetricMixin
from mainspring.stores.postgres.records.reports import ReportMixin
from mainspring.stores.postgres.records.run_lists import RunListMixin, compute_lowest_id
from mainspring.stores.postgres.rows import build_held_runs, build_job, decode_spec, readable_jobs

#: How many rows the first statement of a filtered list examines, and how many candidates one returns at most.
_CHUNK = 1_000
_NEWEST_VERSION = 2**31 - 1
_FIRST_ID, _LAST_ID = "0" * 32, "f" * 32


class CatalogMixin(RunListMixin, MetricMixin, ReportMixin):
    async def count_ahead(self, run: RunId) -> int | None:
        rows = await self._db.fetch("count_ahead", run=run)
        return rows[0]["ahead"] if rows else None

    async def limiter(self, number: int, limit: int) -> tuple[LimiterState, list[RunId]]:
        inside = [RunId(row["id"]) for row in await self._db.fetch("runs_inside_limiter", number=number, limit=limit)]
        for row in await self._db.fetch("limiter_state", number=number):
            return LimiterState(used=row["used"], times=tuple(row["times"]), open_until=row["open_until"]), inside
        return LimiterState(), inside

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        tenant = await self._scope_number(wanted.tenant)
        if tenant == 0:
            return Page([])
        first, below = compute_lowest_id(wanted.since, _FIRST_ID), compute_lowest_id(wanted.until, _LAST_ID)
        below = below if after is None else min(after, below)
        items: list[Job] = []
        looked_at = 0
        while True:
            if tenant is None:
                rows = await self._db.fetch("list_all_jobs", below=below, first=first, limit=_CHUNK)
            else:
                rows = await self._db.fetch("list_jobs", tenant=tenant, below=below, first=first, limit=_CHUNK)
            await self._names.load_names({row["tenant"] for row in rows})
            jobs = {job.id: job for job in readable_jobs(rows, lambda row: build_job(row, self._names))}
            for row in rows:
                if len(items) == limit or looked_at == LOOKED_AT:
                    return Page(items, below)
                below = row["id"]
                looked_at += 1
                job = jobs.get(JobId(below))
                if job is not None and is_wanted_job(job, wanted):
                    items.append(job)
            if len(rows) < _CHUNK:
                return Page(items)

    async def count_jobs(self, tenant: str, at_most: int) -> int:
        number = await self._scope_number(tenant)
        return (await self._db.fetch("count_jobs", tenant=number, limit=at_most))[0]["count"] if number else 0

    async def versions(self, job: JobId, *, before: int | None = None, limit: int = 100) -> list[JobVersion]:
        tenant = await self._scope_number()
        below = _NEWEST_VERSION if before is None else min(before, _NEWEST_VERSION)
        rows = await self._db.fetch("versions", job=job, tenant=tenant, below=below, limit=limit)
        bodies = await self._db.fetch(
            "bodies", bodies=[version_body_id(job, row["version"]) for row in rows], tenant=tenant
        )
        payloads = {row["id"]: row["payload"] for row in bodies}
        versions = []
        for row in rows:
            spec = decode_spec(row["spec"])
            if spec is not None:
                versions.append(
                    JobVersion(
                        version=row["version"],
                        spec=spec,
                        payload=payloads.get(version_body_id(job, row["version"]), b"null"),
                        made_by=row["made_by"],
                        why=row["why"],
                        made_at=row["made_at"],
                    )
                )
        return versions

    async def held(self, runs: Sequence[RunId]) -> list[HeldRun | None]:
        rows = await self._db.fetch("held", runs=list(runs))
        await self._names.load_names({row[column] for row in rows for column in ("task", "queue", "tenant")})
        # A run that cannot be read has no holder; the worker that claims it ends it.
        readable, _ = build_held_runs(rows, self._names, self._policies)
        held = {run.id: run for run in readable}
        for row in rows:
            if row["id"] in held:
                held[row["id"]].session = row["session"]
        return [held.get(run) for run in runs]

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        return [build_session_view(row) for row in await self._db.fetch("sessions", kind=SESSION_KINDS[kind])]

    async def session(self, session: SessionId) -> SessionView | None:
        return next((build_session_view(row) for row in await self._db.fetch("session", session=session)), None)

    async def pauses(self) -> list[Pause]:
        rows = await self._db.fetch("pauses", tenant=await self._scope_number())
        await self._names.load_names({number for row in rows for number in (row["tenant"], row["queue"])} - {0})
        pauses = [
            Pause(
                tenant=self._names.get_name(row["tenant"]) if row["tenant"] else None,
                queue=self._names.get_name(row["queue"]) if row["queue"] else None,
                since=row["since"],
                author=row["author"],
                why=row["why"],
                until=row["until"],
            )
            for row in rows
        ]
        return sorted(pauses, key=lambda pause: (pause.tenant or "", pause.queue or ""))


def build_session_view(row: asyncpg.Record) -> SessionView:
    return SessionView(
        id=SessionId(row["id"]),
        kind="worker" if row["kind"] == SESSION_KINDS["worker"] else "scheduler",
        name=row["name"],
        version=row["version"],
        datacenter=row["datacenter"],
        started_at=row["started_at"],
        lease_until=row["lease_until"],
        lease=row["lease"],
        owner=row["owner"],
        serves=row["serves"],
        queues=tuple(row["queues"]),
        tasks=tuple(row["tasks"]),
        labels=tuple(row["labels"]),
        priorities=tuple(row["priorities"]),
        slots=row["slots"],
        running=row["running"],
        draining=row["draining"],
        shards=row["shards"],
        clock=None if row["clock_offset"] is None else ClockReading(row["clock_offset"], row["clock_error"]),
        tzdata=row["tzdata"],
    )
