"""Memory store: details of runs, processes, queues, logs and events."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal

import msgspec

from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.limits.limits import LimiterState
from mainspring.core.model.limits.queues import NO_POLICY, QueuePolicy
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.ports.storage.catalog import (
    JobVersion,
    LogLine,
    Pause,
    SessionView,
)
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.stores.memory.rows import SessionRow
from mainspring.stores.memory.tables import Tables

#: Where counting the runs ahead stops.
MAX_COUNT = 10_000


class MemoryDetails:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def count_ahead(self, run: RunId) -> int | None:
        row = self._tables.runs.get(run)
        if row is None or row.state is not RunState.QUEUED:
            return None
        return min(bisect_left(self._tables.ready[row.queue][row.label_set].entries, (row.rank, row.id)), MAX_COUNT)

    async def limiter(self, number: int, limit: int) -> tuple[LimiterState, list[RunId]]:
        limiter = self._tables.limiters.by_number.get(number)
        return (LimiterState(), []) if limiter is None else (limiter.state, sorted(limiter.occupants)[:limit])

    async def versions(self, job: JobId, *, before: int | None = None, limit: int = 100) -> list[JobVersion]:
        newest_first = self._tables.versions.get(job, [])[::-1]
        return [version for version in newest_first if before is None or version.version < before][:limit]

    async def held(self, runs: Sequence[RunId]) -> list[HeldRun | None]:
        rows = [self._tables.runs.get(run) for run in runs]
        return [
            msgspec.structs.replace(row.held(), session=row.session)
            if row is not None and row.state is RunState.RUNNING
            else None
            for row in rows
        ]

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        tables = self._tables
        with tables.transaction() as now:
            owners = Counter(row.owner for row in tables.shard_rows)
            alive = [row for row in tables.sessions.values() if row.kind == kind and row.is_live(now)]
            return [_build_session_view(row, len(tables.running_by_session[row.id]), owners[row.id]) for row in alive]

    async def session(self, session: SessionId) -> SessionView | None:
        tables = self._tables
        row = tables.sessions.get(session)
        if row is None:
            return None
        return _build_session_view(
            row, len(tables.running_by_session[row.id]), sum(shard.owner == row.id for shard in tables.shard_rows)
        )

    async def pauses(self) -> list[Pause]:
        with self._tables.transaction() as now:
            pauses = [pause for pause in self._tables.pauses.values() if not pause.is_over(now)]
        return sorted(pauses, key=lambda pause: (pause.tenant or "", pause.queue or ""))

    async def queue_policies(self) -> dict[str, QueuePolicy]:
        policies = self._tables.queue_policies
        return {queue: policies[queue] for queue in sorted(policies) if policies[queue] != NO_POLICY}

    async def log(self, run: RunId, after: int, limit: int) -> list[LogLine]:
        lines = self._tables.logs.get(run, [])
        return list(islice((line for line in lines if line.position > after), limit))

    async def log_before(self, run: RunId, before: int, limit: int) -> list[LogLine]:
        lines = self._tables.logs.get(run, [])
        return list(islice((line for line in reversed(lines) if line.position < before), limit))[::-1]

    async def logs_after(self, cursors: Mapping[RunId, int], limit: int) -> dict[RunId, list[LogLine]]:
        found = {run: await self.log(run, after, limit) for run, after in cursors.items()}
        return {run: lines for run, lines in found.items() if lines}

    async def events_after(self, position: str | None, limit: int) -> tuple[list[EventBatch], str]:
        tables = self._tables
        if position is None:
            return [], tables.position
        if not tables.horizon <= position <= tables.position:
            raise NotFound("the events after this position are not kept any more")
        following = (batch for batch in tables.outbox if batch.position > position)
        batches = list(islice(following, limit))
        return batches, batches[-1].position if batches else position


def _build_session_view(row: SessionRow, running: int, shards: int) -> SessionView:
    return SessionView(
        id=row.id,
        kind=row.kind,
        name=row.name,
        version=row.version,
        datacenter=row.datacenter,
        started_at=row.started_at,
        lease_until=row.lease_until,
        lease=row.lease,
        owner=row.owner,
        serves=row.serves,
        queues=row.queues,
        tasks=row.tasks,
        labels=row.labels,
        priorities=row.priorities,
        slots=row.slots,
        running=running,
        draining=row.draining,
        shards=shards,
        clock=row.clock,
        tzdata=row.tzdata,
    )
