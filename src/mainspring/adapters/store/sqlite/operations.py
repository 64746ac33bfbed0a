"""What people change, beyond submitting. Seldom asked for: each is a transaction of its own."""

from collections.abc import Collection, Iterable
from typing import cast

import apsw
import msgspec

from mainspring.adapters.store.changes import retagged, what_differs, words_of_run
from mainspring.adapters.store.sqlite import rows
from mainspring.adapters.store.sqlite.audit import Change, write_audit
from mainspring.adapters.store.sqlite.jobs import add_version, stored_jobs
from mainspring.adapters.store.sqlite.part import Part
from mainspring.adapters.store.sqlite.threads import read
from mainspring.domain.ids import JobId, RunId, SessionId
from mainspring.domain.instant import Instant
from mainspring.domain.rank import rank_of
from mainspring.domain.run import About, NewRun, RunState, RunView
from mainspring.ports.access import Author
from mainspring.ports.catalog import Pause
from mainspring.ports.store import Accepted

#: Later than any time.
_EVER: Instant = 2**62


class SqliteOperations(Part):
    async def edit_run(self, run: NewRun, author: Author, *, was: RunView | None = None) -> Accepted | None:
        return await self._work(lambda connection, now: _edit(connection, run, author, was, now))

    async def discard(self, runs: Collection[RunId], author: Author) -> int:
        def discard(connection: apsw.Connection, now: Instant) -> int:
            dead = _pairs(
                connection,
                "SELECT h.tenant, h.id FROM json_each(?) AS i CROSS JOIN history h ON h.id = i.value"
                " WHERE h.dead = 1 ORDER BY i.key",
                list(dict.fromkeys(runs)),
            )
            connection.execute(
                "UPDATE history SET dead = 0 WHERE id IN (SELECT value FROM json_each(?))",
                (rows.encode([run for _, run in dead]),),
            )
            write_audit(connection, now, "runs.discard", author, [Change(*pair) for pair in dead])
            return len(dead)

        return await self._work(discard)

    async def purge(self, ids: Collection[RunId | JobId], author: Author) -> list[str]:
        def purge(connection: apsw.Connection, now: Instant) -> list[str]:
            order = list(dict.fromkeys(str(identifier) for identifier in ids))
            tenants = {target: tenant for tenant, target in _purge_runs(connection, order, now)}
            tenants |= {target: tenant for tenant, target in _purge_jobs(connection, order)}
            gone = [Change(tenants[target], target) for target in order if target in tenants]
            write_audit(connection, now, "jobs.purge", author, gone)
            return [change.target for change in gone]

        return await self._work(purge)

    async def retag(
        self, ids: Collection[RunId | JobId], add: Collection[str], remove: Collection[str], author: Author
    ) -> int:
        def retag(connection: apsw.Connection, now: Instant) -> int:
            order = list(dict.fromkeys(str(identifier) for identifier in ids))
            views = rows.run_views(read(connection, "runs", ids=rows.encode(order), payloads=0, results=0))
            jobs = {job.id: job for job in stored_jobs(connection, [JobId(job) for job in order])}
            changes: list[Change] = []
            for identifier in order:
                run, job = views.get(RunId(identifier)), jobs.get(JobId(identifier))
                if run is not None and run.job_id is None and author.tenant in (None, run.tenant):
                    about = run.about or About()
                    tags = retagged(about.tags, add, remove)
                    if tags is not None:
                        changes.append(_retag(run.tenant, run.id, about.tags, tags))
                        changed = msgspec.structs.replace(about, tags=tags)
                        _set_about(connection, run, None if changed == About() else changed)
                if job is not None and author.tenant in (None, job.tenant):
                    tags = retagged(job.spec.tags, add, remove)
                    if tags is not None:
                        changes.append(_retag(job.tenant, job.id, job.spec.tags, tags))
                        spec = msgspec.structs.replace(job.spec, tags=tags)
                        payload = rows.text_of(job.payload)
                        add_version(connection, job.id, job.version + 1, spec, payload, author, now)
            write_audit(connection, now, "jobs.retag", author, changes)
            return len(changes)

        return await self._work(retag)

    async def pause(self, pause: Pause, author: Author) -> None:
        tenant, queue = pause.tenant or "", pause.queue or ""

        def put(connection: apsw.Connection, now: Instant) -> None:
            connection.execute(
                "INSERT INTO pause (tenant, queue, since, author, why) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (tenant, queue, now, author.name, author.why),
            )
            if connection.changes():
                write_audit(connection, now, "queues.pause", author, [Change(tenant, queue or "*")])

        await self._work(put)

    async def resume(self, tenant: str | None, queue: str | None, author: Author) -> bool:
        def lift(connection: apsw.Connection, now: Instant) -> bool:
            connection.execute("DELETE FROM pause WHERE tenant = ? AND queue = ?", (tenant or "", queue or ""))
            lifted = connection.changes() > 0
            if lifted:
                write_audit(connection, now, "queues.resume", author, [Change(tenant or "", queue or "*")])
            return lifted

        return await self._work(lift)

    async def drain(self, worker: SessionId, author: Author) -> bool:
        def drain(connection: apsw.Connection, now: Instant) -> bool:
            draining = connection.execute(
                "SELECT draining FROM session WHERE id = ? AND kind = 'worker' AND dead = 0 AND lease_until >= ?",
                (worker, now),
            ).get
            if draining == 0:
                connection.execute("UPDATE session SET draining = 1 WHERE id = ?", (worker,))
                write_audit(connection, now, "workers.drain", author, [Change("", str(worker))])
            return draining is not None

        return await self._work(drain)


def _retag(tenant: str, target: str, before: tuple[str, ...], after: tuple[str, ...]) -> Change:
    return Change(tenant, target, *(what_differs({"tags": before}, {"tags": after}) or ()))


def _set_about(connection: apsw.Connection, run: RunView, about: About | None) -> None:
    """What people call a one-off, wherever it is."""
    tags = () if run.about is None else run.about.tags
    connection.executemany(
        "DELETE FROM label WHERE tenant = ? AND label = ? AND id = ?", [(run.tenant, tag, run.id) for tag in tags]
    )
    connection.executemany(
        "INSERT INTO label (tenant, label, id) VALUES (?, ?, ?)",
        [(run.tenant, tag, run.id) for tag in (() if about is None else about.tags)],
    )
    connection.execute(
        "UPDATE body SET about = ?1 WHERE id = coalesce((SELECT body FROM run WHERE id = ?2),"
        " (SELECT body FROM waiting WHERE id = ?2), (SELECT body FROM history WHERE id = ?2))",
        (rows.about_text(about), run.id),
    )


# Purging


def _purge_runs(connection: apsw.Connection, ids: list[str], now: Instant) -> list[tuple[str, str]]:
    """(tenant, id) of those that had ended."""
    ended = _pairs(
        connection, "SELECT h.tenant, h.id FROM json_each(?) AS i CROSS JOIN history h ON h.id = i.value", ids
    )
    if ended:
        # They stay in the figures.
        while connection.execute(
            "SELECT history_counted < (SELECT max(seq) FROM history)"
            " OR EXISTS (SELECT 1 FROM attempt INDEXED BY attempt_uncounted WHERE counted = 0) FROM meta"
        ).get:
            connection.execute("INSERT INTO roll_up (until) VALUES (?)", (_EVER,))
        connection.execute("DELETE FROM picked")
        connection.execute(
            "INSERT INTO picked (n, id)"
            " SELECT h.seq, h.id FROM json_each(?) AS i CROSS JOIN history h ON h.id = i.value",
            (rows.encode(ids),),
        )
        connection.execute("INSERT INTO forget_picked (now) VALUES (?)", (now,))
    return ended


def _purge_jobs(connection: apsw.Connection, ids: list[str]) -> list[tuple[str, str]]:
    """(tenant, id) of those that were over. Their runs stay, with the payloads that they need."""
    over = _pairs(
        connection,
        "SELECT j.tenant, j.id FROM json_each(?) AS i CROSS JOIN job j ON j.id = i.value"
        " WHERE j.state IN ('cancelled', 'finished')",
        ids,
    )
    for _, job in over:
        connection.execute(
            "DELETE FROM body WHERE id IN (SELECT body FROM job_version WHERE job_id = ?1) AND id NOT IN ("
            " SELECT body FROM run WHERE job_id = ?1 UNION ALL SELECT body FROM waiting WHERE job_id = ?1"
            " UNION ALL SELECT body FROM history WHERE job_id = ?1)",
            (job,),
        )
        for table in ("job_version", "schedule", "ledger"):
            connection.execute(f"DELETE FROM {table} WHERE job_id = ?", (job,))  # noqa: S608
        connection.execute("DELETE FROM job WHERE id = ?", (job,))
    return over


def _pairs(connection: apsw.Connection, statement: str, ids: Iterable[str]) -> list[tuple[str, str]]:
    return [cast(tuple[str, str], row) for row in connection.execute(statement, (rows.encode(list(ids)),))]


# Editing


class _Row(msgspec.Struct, array_like=True, frozen=True):
    """What an edit keeps of a run, and where it stands."""

    state: str
    shard: int
    tenant: str
    rev: int
    body: int
    created_at: Instant
    gate: int | None
    replay_of: RunId | None
    target: str | None
    queued_at: Instant | None


def _edit(
    connection: apsw.Connection, new: NewRun, author: Author, was: RunView | None, now: Instant
) -> Accepted | None:
    """What stays queued keeps its age. What holds its key keeps it as long as it is the first of its line."""
    row = _editable(connection, new)
    if row is None:
        return None
    before = _view(connection, new.id)
    if was is not None and words_of_run(was) != words_of_run(before):
        return Accepted(new.id, before.state, new=False, conflict=True)
    due = new.at if new.at is not None else now + new.delay
    gate = rows.gate_of_run(row.tenant, new.policy)
    connection.execute("DELETE FROM run WHERE id = ?", (new.id,))
    connection.execute("DELETE FROM waiting WHERE id = ?", (new.id,))
    connection.execute(
        "UPDATE body SET task = ?, policy = ?, payload = ? WHERE id = ?",
        (new.task, rows.policy_text(new.policy), rows.text_of(new.payload), row.body),
    )
    holds = row.gate is not None and _holder(connection, row.gate) == new.id
    keeps = holds and due <= now and gate == row.gate and not _stands_before(connection, gate, due, new.id)
    if due > now:
        state = RunState.SCHEDULED
    elif gate is None or keeps or (_holder(connection, gate) is None and not _stands_before(connection, gate)):
        state = RunState.QUEUED
        if gate is not None and not keeps:
            connection.execute("INSERT INTO gate (key, holder) VALUES (?, ?)", (gate, new.id))
    else:
        state = RunState.BLOCKED
    _put_back(connection, new, row, state, due, gate, now)
    if before.about != new.about:
        _set_about(connection, before, new.about)
    if holds and not keeps:
        connection.execute("INSERT INTO free_gate (key, holder, now) VALUES (?, ?, ?)", (row.gate, new.id, now))
    connection.execute("INSERT INTO tell (now) VALUES (?)", (now,))
    differs = what_differs(words_of_run(before), words_of_run(_view(connection, new.id)))
    if differs is not None:
        write_audit(connection, now, "runs.edit", author, [Change(row.tenant, new.id, *differs)])
    return Accepted(new.id, state, new=False)


def _editable(connection: apsw.Connection, new: NewRun) -> _Row | None:
    """The run, if it is a one-off of that tenant that was never claimed and has not ended."""
    found = connection.execute(
        "SELECT state, shard, tenant, rev, body, created_at, gate, replay_of, target, queued_at FROM run"
        " WHERE id = :id AND tenant = :tenant AND job_id IS NULL AND fence = 0"
        " UNION ALL SELECT state, shard, tenant, rev, body, created_at, gate, replay_of, target, NULL FROM waiting"
        " WHERE id = :id AND tenant = :tenant AND job_id IS NULL AND fence = 0",
        {"id": new.id, "tenant": new.tenant},
    ).fetchone()
    return None if found is None else msgspec.convert(found, _Row)


def _view(connection: apsw.Connection, run: RunId) -> RunView:
    return rows.run_views(read(connection, "runs", ids=rows.encode([run]), payloads=1, results=0))[run]


def _holder(connection: apsw.Connection, gate: int) -> str | None:
    return cast(str | None, connection.execute("SELECT holder FROM gate WHERE key = ?", (gate,)).get)


def _stands_before(connection: apsw.Connection, gate: int | None, due: Instant = _EVER, run: str = "") -> bool:
    """Whether anybody in the line of a gate comes before (due, id)."""
    found = connection.execute(
        "SELECT 1 FROM waiting INDEXED BY waiting_blocked"
        " WHERE state = 'blocked' AND gate = ? AND (due, id) < (?, ?) LIMIT 1",
        (gate, due, run),
    ).get
    return found is not None


def _lane(connection: apsw.Connection, new: NewRun) -> int:
    requires = rows.lane_text(new.policy.requires)
    if requires is None:
        return 0
    connection.execute("INSERT INTO lane (requires) VALUES (?) ON CONFLICT DO NOTHING", (requires,))
    return cast(int, connection.execute("SELECT id FROM lane WHERE requires = ?", (requires,)).get)


def _put_back(
    connection: apsw.Connection,
    new: NewRun,
    row: _Row,
    state: RunState,
    due: Instant,
    gate: int | None,
    now: Instant,
) -> None:
    """Where its state belongs."""
    values: dict[str, str | int | None] = {
        "id": new.id,
        "state": state.value,
        "shard": row.shard,
        "tenant": row.tenant,
        "queue": new.queue,
        "rev": row.rev + 1,
        "priority": new.priority,
        "attempt": 0,
        "lost": 0,
        "late": 0,
        "fence": 0,
        "body": row.body,
        "timeout": new.policy.timeout,
        "due": due,
        "created_at": row.created_at,
        "start_by": None if new.start_within is None else due + new.start_within,
        "deadline": None if new.deadline is None else due + new.deadline,
        "gate": gate,
        "replay_of": row.replay_of,
        "lane": _lane(connection, new) if row.target is None else -int(row.target),
        "target": row.target,
    }
    if state is RunState.QUEUED:
        was_queued = row.state == RunState.QUEUED
        eligible = row.queued_at if was_queued and row.queued_at is not None else now
        values |= {"rank": rank_of(eligible, new.priority), "queued_at": eligible}
        if not was_queued:
            connection.execute(
                "INSERT INTO happened (kind, tenant, run)"
                " SELECT 'run.queued', ?, ? WHERE EXISTS (SELECT 1 FROM outbox_cursor)",
                (row.tenant, new.id),
            )
    table = "run" if state is RunState.QUEUED else "waiting"
    names = ", ".join(values)
    places = ", ".join(f":{name}" for name in values)
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", values)  # noqa: S608
