"""SQLite: changes by users other than submitting. They are rare, so each is a transaction of its own."""

from collections.abc import Collection, Iterable, Sequence

import apsw
import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import Pause
from mainspring.stores.changes import Change, retagged, what_differs
from mainspring.stores.sqlite.fetch import fetch_rows
from mainspring.stores.sqlite.records.audit import find_state_changes, write_audit
from mainspring.stores.sqlite.rows.answers import decode_new_states, decode_stored_states
from mainspring.stores.sqlite.rows.encoding import encode, encode_bytes
from mainspring.stores.sqlite.rows.runs import decode_run_views
from mainspring.stores.sqlite.threads import ProcedureCall, call_procedures, read
from mainspring.stores.sqlite.work.editing import edit, set_about
from mainspring.stores.sqlite.work.jobs import add_version, read_jobs
from mainspring.stores.sqlite.work.queues import SqliteQueues

#: Later than any instant.
_LATEST: Instant = 2**62


#: Values of ``dead`` for a dead letter and for a discarded one. All other ended runs have 0.
_OPEN, _DISCARDED = 1, 2


class SqliteOperations(SqliteQueues):
    async def edit_run(self, run: NewRun, author: Author, *, was: RunView | None = None) -> SubmitResult | None:
        await self._mark_weighted([run.queue] if run.policy.weight > 1 else [])
        return await self._write(lambda connection, now: edit(connection, run, author, was, now))

    async def finish(self, ends: Sequence[KnownOutcome], author: Author) -> dict[RunId, RunState]:
        for end in ends:
            end.check()
        known = {end.run: end for end in ends}
        ids = encode(list(known))
        call = ProcedureCall("finish", encode([_build_end_item(end) for end in known.values()]))

        def finish(connection: apsw.Connection, now: Instant) -> dict[RunId, RunState]:
            before = decode_stored_states(read(connection, "run_states", ids=ids))
            [answer] = call_procedures(connection, [call], now)
            after = decode_new_states(answer)
            write_audit(connection, now, "runs.finish", author, find_state_changes(before, after))
            return after

        return await self._write(finish)

    async def discard(self, runs: Collection[RunId], author: Author) -> int:
        return await self._change_dead_letters("runs.discard", _OPEN, _DISCARDED, runs, author)

    async def bring_back(self, runs: Collection[RunId], author: Author) -> int:
        return await self._change_dead_letters("runs.bring_back", _DISCARDED, _OPEN, runs, author)

    async def _change_dead_letters(
        self, action: str, was: int, becomes: int, runs: Collection[RunId], author: Author
    ) -> int:
        def work(connection: apsw.Connection, now: Instant) -> int:
            meant = _read_targets(
                connection,
                "SELECT h.tenant AS tenant, h.id AS id FROM json_each(:ids) AS i CROSS JOIN history h ON h.id = i.value"
                " WHERE h.dead = :dead ORDER BY i.key",
                list(dict.fromkeys(runs)),
                dead=was,
            )
            connection.execute(
                "UPDATE history SET dead = :dead WHERE id IN (SELECT value FROM json_each(:ids))",
                {"dead": becomes, "ids": encode([run for _, run in meant])},
            )
            write_audit(connection, now, action, author, [Change(*pair) for pair in meant])
            return len(meant)

        return await self._write(work)

    async def purge(self, ids: Collection[RunId | JobId], author: Author) -> list[str]:
        def purge(connection: apsw.Connection, now: Instant) -> list[str]:
            order = list(dict.fromkeys(str(identifier) for identifier in ids))
            tenants = {target: tenant for tenant, target in _purge_runs(connection, order, now)}
            tenants |= {target: tenant for tenant, target in _purge_jobs(connection, order)}
            purged = [Change(tenants[target], target) for target in order if target in tenants]
            write_audit(connection, now, "jobs.purge", author, purged)
            return [change.target for change in purged]

        return await self._write(purge)

    async def retag(
        self, ids: Collection[RunId | JobId], add: Collection[str], remove: Collection[str], author: Author
    ) -> int:
        def retag(connection: apsw.Connection, now: Instant) -> int:
            order = list(dict.fromkeys(str(identifier) for identifier in ids))
            views = decode_run_views(read(connection, "runs", ids=encode(order), payloads=0, results=0))
            jobs = {job.id: job for job in read_jobs(connection, [JobId(job) for job in order])}
            changes: list[Change] = []
            for identifier in order:
                run, job = views.get(RunId(identifier)), jobs.get(JobId(identifier))
                if run is not None and run.job_id is None and author.tenant in (None, run.tenant):
                    about = run.about or About()
                    tags = retagged(about.tags, add, remove)
                    if tags is not None:
                        changes.append(_describe_retag(run.tenant, run.id, about.tags, tags))
                        changed = msgspec.structs.replace(about, tags=tags)
                        set_about(connection, run, None if changed == About() else changed)
                if job is not None and author.tenant in (None, job.tenant):
                    tags = retagged(job.spec.tags, add, remove)
                    if tags is not None:
                        changes.append(_describe_retag(job.tenant, job.id, job.spec.tags, tags))
                        spec = msgspec.structs.replace(job.spec, tags=tags)
                        payload = encode_bytes(job.payload)
                        add_version(connection, job.id, job.version + 1, spec, payload, author, now)
            write_audit(connection, now, "jobs.retag", author, changes)
            return len(changes)

        return await self._write(retag)

    async def pause(self, pause: Pause, author: Author) -> None:
        tenant, queue = pause.tenant or "", pause.queue or ""

        def put(connection: apsw.Connection, now: Instant) -> None:
            connection.execute(
                "INSERT INTO pause AS p (tenant, queue, since, author, why, until)"
                " VALUES (:tenant, :queue, :since, :author, :why, :until)"
                " ON CONFLICT DO UPDATE SET since = excluded.since, author = excluded.author, why = excluded.why,"
                " until = excluded.until WHERE p.until IS NOT excluded.until OR p.until <= excluded.since",
                {
                    "tenant": tenant,
                    "queue": queue,
                    "since": now,
                    "author": author.name,
                    "why": author.why,
                    "until": pause.until,
                },
            )
            if connection.changes():
                write_audit(connection, now, "queues.pause", author, [Change(tenant, queue or "*")])

        await self._write(put)

    async def resume(self, tenant: str | None, queue: str | None, author: Author, *, back: Pause | None = None) -> bool:
        def lift(connection: apsw.Connection, now: Instant) -> bool:
            # Kept for a while: runs that it held back do not count as late.
            connection.execute(
                "UPDATE pause SET until = :now"
                " WHERE tenant = :tenant AND queue = :queue AND (until IS NULL OR until > :now)",
                {"now": now, "tenant": tenant or "", "queue": queue or ""},
            )
            lifted = connection.changes() > 0
            if lifted and back is not None and not back.is_over(now):
                connection.execute(
                    "INSERT OR REPLACE INTO pause (tenant, queue, since, author, why, until)"
                    " VALUES (:tenant, :queue, :since, :author, :why, :until)",
                    {
                        "tenant": tenant or "",
                        "queue": queue or "",
                        "since": back.since,
                        "author": back.author,
                        "why": back.why,
                        "until": back.until,
                    },
                )
            if lifted:
                write_audit(connection, now, "queues.resume", author, [Change(tenant or "", queue or "*")])
            return lifted

        return await self._write(lift)

    async def drain(self, worker: SessionId, author: Author) -> bool:
        def drain(connection: apsw.Connection, now: Instant) -> bool:
            draining = connection.execute(
                "SELECT draining FROM session WHERE id = :id AND kind = 'worker' AND live = 1 AND lease_until > :now",
                {"id": worker, "now": now},
            ).get
            if draining == 0:
                connection.execute("UPDATE session SET draining = 1 WHERE id = :id", {"id": worker})
                write_audit(connection, now, "workers.drain", author, [Change("", str(worker))])
            return draining is not None

        return await self._write(drain)

    async def revoke_lease(self, scheduler: SessionId, author: Author) -> Instant | None:
        def revoke(connection: apsw.Connection, now: Instant) -> Instant | None:
            revoked = connection.execute(
                "UPDATE session SET live = 0"
                " WHERE id = :id AND kind = 'scheduler' AND live = 1 AND lease_until > :now RETURNING id",
                {"id": scheduler, "now": now},
            ).get
            if revoked is None:
                return None
            write_audit(connection, now, "schedulers.revoke", author, [Change("", str(scheduler))])
            return now

        return await self._write(revoke)


def _describe_retag(tenant: str, target: str, before: tuple[str, ...], after: tuple[str, ...]) -> Change:
    return Change(tenant, target, *(what_differs({"tags": before}, {"tags": after}) or ()))


# Purging


def _purge_runs(connection: apsw.Connection, ids: list[str], now: Instant) -> list[tuple[str, str]]:
    """Delete the runs that have ended; return (tenant, id) of each."""
    ended = _read_targets(
        connection,
        "SELECT h.tenant AS tenant, h.id AS id FROM json_each(:ids) AS i CROSS JOIN history h ON h.id = i.value",
        ids,
    )
    if ended:
        # Count them first: deleted runs stay in the metrics.
        while connection.execute(
            "SELECT history_counted < (SELECT max(seq) FROM history)"
            " OR EXISTS (SELECT 1 FROM attempt INDEXED BY attempt_uncounted WHERE counted = 0) FROM meta"
        ).get:
            connection.execute("INSERT INTO roll_up_metrics (until) VALUES (:until)", {"until": _LATEST})
        connection.execute("DELETE FROM picked")
        connection.execute(
            "INSERT INTO picked (n, id)"
            " SELECT h.seq, h.id FROM json_each(:ids) AS i CROSS JOIN history h ON h.id = i.value",
            {"ids": encode(ids)},
        )
        connection.execute("INSERT INTO delete_picked_runs (now) VALUES (:now)", {"now": now})
    return ended


def _purge_jobs(connection: apsw.Connection, ids: list[str]) -> list[tuple[str, str]]:
    """Delete the jobs that have ended; return (tenant, id) of each. Their runs stay, with the payloads they need."""
    over = _read_targets(
        connection,
        "SELECT j.tenant AS tenant, j.id AS id FROM json_each(:ids) AS i CROSS JOIN job j ON j.id = i.value"
        " WHERE j.state IN ('cancelled', 'finished')",
        ids,
    )
    for _, job in over:
        connection.execute(
            "DELETE FROM body WHERE id IN (SELECT body FROM job_version WHERE job_id = :job_id"
            " UNION ALL SELECT body FROM version_target WHERE job_id = :job_id) AND id NOT IN ("
            " SELECT body FROM run WHERE job_id = :job_id UNION ALL SELECT body FROM waiting WHERE job_id = :job_id"
            " UNION ALL SELECT body FROM history WHERE job_id = :job_id)",
            {"job_id": job},
        )
        for table in ("job_version", "version_target", "schedule", "ledger", "slo"):
            connection.execute(f"DELETE FROM {table} WHERE job_id = :job_id", {"job_id": job})  # noqa: S608
        connection.execute("DELETE FROM job WHERE id = :id", {"id": job})
    return over


def _read_targets(
    connection: apsw.Connection, statement: str, ids: Iterable[str], **values: int
) -> list[tuple[str, str]]:
    """Return (tenant, id) of the rows that a statement selects."""
    rows = fetch_rows(connection, _Target, statement, {"ids": encode(list(ids)), **values})
    return [(row.tenant, row.id) for row in rows]


class _Target(msgspec.Struct, frozen=True):
    tenant: str
    id: str


def _build_end_item(end: KnownOutcome) -> tuple[str, str, str, str | None, str | None, str | None]:
    result = None if end.result is None else encode_bytes(end.result)
    return end.run, end.state.value, end.reason, result, end.error, end.fingerprint or None
