"""SQLite: details of runs, processes, logs and events."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.limits.limits import LimiterState
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.catalog import (
    JobVersion,
    LogLine,
    Pause,
    SessionView,
)
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.rows.answers import (
    decode_number_or_none,
)
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.rows.events import decode_following, format_position
from mainspring.stores.sqlite.rows.jobs import decode_job_versions
from mainspring.stores.sqlite.rows.runs import decode_held_runs
from mainspring.stores.sqlite.rows.views import (
    decode_limiter,
    decode_log_lines,
    decode_logs,
    decode_pauses,
    decode_sessions,
)

#: Where counting the runs ahead stops.
_MAX_COUNT = 10_000
_NEWEST = 2**63 - 1
_is_position = re.compile("[0-9]{20}").fullmatch


class SqliteDetails(SqliteBase):
    async def count_ahead(self, run: RunId) -> int | None:
        return decode_number_or_none(await self._reader.read("count_ahead", run=run, limit=_MAX_COUNT))

    async def limiter(self, number: int, limit: int) -> tuple[LimiterState, list[RunId]]:
        row = decode_limiter(await self._reader.read("limiter", number=number, limit=limit))
        return row.state, row.occupants

    async def versions(self, job: JobId, *, before: int | None = None, limit: int = 100) -> list[JobVersion]:
        below = _NEWEST if before is None else before
        return decode_job_versions(await self._reader.read("versions", job=job, before=below, limit=limit))

    async def held(self, runs: Sequence[RunId]) -> list[HeldRun | None]:
        found, _ = decode_held_runs(await self._reader.read("held", ids=encode(list(dict.fromkeys(runs)))))
        by_id = {run.id: run for run in found}
        return [by_id.get(run) for run in runs]

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        return decode_sessions(await self._reader.read("sessions", kind=kind, now=self._time.now()))

    async def session(self, session: SessionId) -> SessionView | None:
        return next(iter(decode_sessions(await self._reader.read("session", session=session))), None)

    async def pauses(self) -> list[Pause]:
        return decode_pauses(await self._reader.read("pauses", now=self._time.now()))

    async def log(self, run: RunId, after: int, limit: int) -> list[LogLine]:
        return decode_log_lines(await self._reader.read("log", run=run, after=after, limit=limit))

    async def log_before(self, run: RunId, before: int, limit: int) -> list[LogLine]:
        return decode_log_lines(await self._reader.read("log_before", run=run, before=before, limit=limit))

    async def logs_after(self, cursors: Mapping[RunId, int], limit: int) -> dict[RunId, list[LogLine]]:
        return decode_logs(await self._reader.read("logs_after", cursors=encode(dict(cursors)), limit=limit))

    async def events_after(self, position: str | None, limit: int) -> tuple[list[EventBatch], str]:
        if position is not None and _is_position(position) is None:
            raise NotFound("this is no position in the stream of events")
        at = _NEWEST if position is None else min(int(position), _NEWEST)
        found = decode_following(await self._reader.read("events_after", position=at, limit=limit))
        if position is None:
            return [], format_position(found.newest)
        if not found.horizon <= at <= found.newest:
            raise NotFound("the events after this position are not kept any more")
        return found.batches, found.batches[-1].position if found.batches else position
