"""Reads runs, jobs, queues and events."""

import re
from collections.abc import Collection, Sequence
from itertools import chain

import asyncpg

from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import HOUR, Instant, Micros
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.events.events import MAX_EVENT_ERROR, RunFacts, WorkerFacts
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.model.schedules.job import Job, LedgerEntry, version_body_id
from mainspring.core.ports.events_out import ReaderView
from mainspring.core.ports.storage.outbox import EVENTS_KEPT, EventBatch
from mainspring.core.ports.storage.reads import QueueBacklog
from mainspring.stores.depths import fold_depths
from mainspring.stores.postgres.codes import OUTCOMES
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.postgres.rows import build_job, build_ledger_entry, build_run_view, decode_about, readable_jobs

_is_position = re.compile(r"[0-9]{20}\.[0-9]{20}").fullmatch
#: The largest bigint: no limit.
_ALL = 2**63 - 1
_NO_ABOUT = About()
#: The tenant number of events about workers.
_NOBODY = 0


class ReadMixin(PostgresMixin):
    async def now(self) -> Instant:
        now: Instant = (await self._db.fetch("now"))[0][0]
        return now

    async def runs(self, ids: Sequence[RunId], *, payloads: bool = False) -> list[RunView | None]:
        found = await self._views(ids, payloads=payloads)
        return [found.get(run) for run in ids]

    async def _views(
        self, ids: Sequence[RunId], *, payloads: bool = False, results: bool = True, within: "Connection | None" = None
    ) -> dict[RunId, RunView]:
        """Return runs by id. ``within``: the connection of a transaction to read in."""
        call = self._db.sql["runs"].bind(
            runs=list(ids), payloads=payloads, results=results, tenant=await self._scope_number()
        )
        if within is None:
            rows = await self._db.run(lambda connection: connection.fetch(*call))
        else:
            rows = await within.fetch(*call)
        numbers = {row[column] for row in rows for column in ("queue", "tenant", "task")}
        await self._names.load_names(numbers - {None}, within)
        return {RunId(row["id"]): build_run_view(row, self._names, self._policies) for row in rows}

    async def attempts(self, run: RunId) -> list[AttemptView]:
        rows = await self._db.fetch("attempts", run=run, tenant=await self._scope_number())
        return [build_attempt_view(row) for row in rows]

    async def parents(self, run: RunId) -> list[RunView]:
        return await self._known(await self.parent_ids(run))

    async def parent_ids(self, run: RunId) -> list[RunId]:
        rows = await self._db.fetch("parents", run=run, tenant=await self._scope_number())
        return [RunId(row["id"]) for row in rows]

    async def children(self, run: RunId, after: RunId | None, limit: int) -> list[RunView]:
        rows = await self._db.fetch(
            "children", run=run, after=after or "0" * 32, limit=limit, tenant=await self._scope_number()
        )
        return await self._known([RunId(row["id"]) for row in rows])

    async def _known(self, ids: Sequence[RunId]) -> list[RunView]:
        return [run for run in await self.runs(ids) if run is not None]

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        tenant = await self._scope_number()
        rows = await self._db.fetch("jobs", jobs=list(ids), tenant=tenant)
        await self._names.load_names({row["tenant"] for row in rows})
        wanted = [version_body_id(JobId(row["id"]), row["version"]) for row in rows]
        bodies = await self._db.fetch("bodies", bodies=wanted, tenant=tenant)
        payloads = {row["id"]: row["payload"] for row in bodies}

        def read(row: asyncpg.Record) -> Job:
            body = version_body_id(JobId(row["id"]), row["version"])
            return build_job(row, self._names, payloads.get(body, b"null"))

        found = {job.id: job for job in readable_jobs(rows, read)}
        return [found.get(job_id) for job_id in ids]

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        rows = await self._db.fetch(
            "ledger", job=job, since=since, until=until, limit=limit, tenant=await self._scope_number()
        )
        return [build_ledger_entry(row) for row in rows]

    async def last_ticks(self, jobs: Sequence[JobId], limit: int) -> list[list[LedgerEntry]]:
        found: dict[JobId, list[LedgerEntry]] = {}
        asked = list(dict.fromkeys(jobs))
        for row in await self._db.fetch("last_ticks", jobs=asked, limit=limit, tenant=await self._scope_number()):
            entry = build_ledger_entry(row)
            found.setdefault(entry.job_id, []).append(entry)
        return [found.get(job, [])[::-1] for job in jobs]

    async def depths(self, tenant: str | None = None) -> list[QueueBacklog]:
        rows = await self._db.fetch("depths", tenant=await self._scope_number(tenant))
        await self._names.load_names({row["queue"] for row in rows})
        datacenters = await self._names.find_datacenters(row["claim_group"] for row in rows)
        return fold_depths(
            (
                self._names.get_name(row["queue"]),
                datacenters.get(row["claim_group"]),
                row["queued"],
                row["running"],
                row["oldest_due"],
                row["oldest_ready"],
            )
            for row in rows
        )

    async def hint_key(self) -> str:
        [row] = await self._db.fetch("hint_key")
        return str(row["hint_key"])

    async def find_hints(self, runs: Sequence[RunId]) -> list[Hint]:
        return await self._hints(await self._db.fetch("hints", runs=list(runs)))

    async def find_ready_hints(self, queues: Collection[str] | None, limit: int) -> list[Hint]:
        return await self._hints(
            await self._db.fetch("hints_ready", queues=None if queues is None else list(queues), limit=limit)
        )

    async def _hints(self, rows: list[asyncpg.Record]) -> list[Hint]:
        await self._names.load_names({row["queue"] for row in rows})
        return [
            Hint(
                RunId(row["id"]),
                self._names.get_name(row["queue"]),
                row["rank"],
                row["priority"],
                "" if row["key_lock"] is None else str(row["key_lock"]),
                row["attempt"] + 1,
                row["datacenter"],
            )
            for row in rows
        ]

    async def read_run_facts(self, runs: Sequence[RunId], since: Instant) -> list[RunFacts]:
        # Events of dead letters name runs that ended a while before.
        rows = await self._db.fetch("event_facts", runs=list(runs), since=since - HOUR, max_error=MAX_EVENT_ERROR)
        names = self._names
        await names.load_names({row[column] for row in rows for column in ("queue", "task")} - {None})
        return [
            RunFacts(
                id=RunId(row["id"]),
                task="" if row["task"] is None else names.get_name(row["task"]),
                queue=names.get_name(row["queue"]),
                job_id=row["job_id"],
                scheduled_at=row["scheduled_at"],
                ended=row["ended"],
                attempt=row["attempt"],
                reason=row["reason"] or "",
                error=row["error"],
                tags=(decode_about(row["about"]) or _NO_ABOUT).tags,
            )
            for row in rows
        ]

    async def read_worker_facts(self, sessions: Sequence[SessionId]) -> list[WorkerFacts]:
        return [
            WorkerFacts(
                id=row["id"],
                name=row["name"],
                version=row["version"],
                datacenter=row["datacenter"],
                queues=tuple(row["queues"]),
            )
            for row in await self._db.fetch("worker_facts", sessions=list(sessions))
        ]

    async def readers(self) -> list[ReaderView]:
        return [ReaderView(row["reader"], row["oldest"]) for row in await self._db.fetch("readers")]

    async def attach_reader(self, name: str, ttl: Micros | None = None) -> None:
        if await self._db.execute("keep_reader", reader=name, ttl=ttl):
            return

        async def attach(connection: Connection) -> None:
            await connection.execute(*self._db.sql["begin_outbox"].bind())
            await connection.execute(*self._db.sql["attach_reader"].bind(reader=name, ttl=ttl))

        # Transactions in progress do not know this reader: they finish first.
        await self._db.transaction_alone("lock_readers", attach)

    async def detach_reader(self, name: str) -> None:
        async def detach(connection: Connection) -> None:
            await connection.execute(*self._db.sql["detach_reader"].bind(reader=name))
            await self._forget_events(connection, _ALL)

        await self._db.transaction(detach)

    async def _forget_events(self, connection: Connection, limit: int) -> int:
        """Delete events that no reader needs any more, oldest first; without a reader, all of them. Return how many."""
        gone: int = await connection.fetchval(*self._db.sql["prune_outbox"].bind(limit=limit, kept=EVENTS_KEPT))
        return gone

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        return await self._batches(await self._db.fetch("events", reader=name, limit=limit))

    async def events_after(self, position: str | None, limit: int) -> tuple[list[EventBatch], str]:
        rows: list[asyncpg.Record] = []
        if position is not None:
            xid, number = _parse_position(position)
            rows = await self._db.fetch("events_after", xid=xid, id=number, limit=limit)
        # After the events: the horizon then covers every event that was deleted before they were read.
        ends = (await self._db.fetch("outbox_ends"))[0]
        horizon = (ends["horizon_xid"], ends["horizon_id"])
        if position is None:
            # Every event still to come has at least xmin, and is after the horizon.
            return [], _position(*max((ends["xmin"] - 1, _ALL), horizon))
        if (xid, number) < horizon or xid >= ends["xmax"]:
            raise NotFound("the events after this position are not kept any more")
        batches = await self._batches(rows)
        return batches, batches[-1].position if batches else position

    async def _batches(self, rows: Sequence[asyncpg.Record]) -> list[EventBatch]:
        names = self._names
        made = [*chain.from_iterable(row[column] or () for row in rows for column in ("tasks", "queues"))]
        await names.load_names(({row["tenant"] for row in rows} - {_NOBODY}).union(made))
        return [
            EventBatch(
                position=_position(row["xid"], row["id"]),
                at=row["at"],
                kind=row["kind"],
                runs=tuple(row["runs"]),
                tenant="" if row["tenant"] == _NOBODY else names.get_name(row["tenant"]),
                tasks=tuple(map(names.get_name, row["tasks"] or ())),
                queues=tuple(map(names.get_name, row["queues"] or ())),
            )
            for row in rows
        ]

    async def acknowledge(self, name: str, position: str) -> None:
        xid, number = _parse_position(position)
        await self._db.execute("acknowledge", reader=name, xid=xid, id=number)


def _position(xid: int, number: int) -> str:
    return f"{xid:020d}.{number:020d}"


def _parse_position(position: str) -> tuple[int, int]:
    """Split a position into the numbers of its transaction and its event."""
    if _is_position(position) is None:
        raise NotFound(f"{position!r:.60} is no position")
    xid, number = int(position[:20]), int(position[21:])
    if max(xid, number) > _ALL:
        raise NotFound(f"{position} is no position")
    return xid, number


def build_attempt_view(row: asyncpg.Record) -> AttemptView:
    return AttemptView(
        run_id=RunId(row["run_id"]),
        fence=row["fence"],
        number=row["number"],
        outcome=OUTCOMES[row["outcome"]],
        reason=row["reason"],
        error=row["error"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )
