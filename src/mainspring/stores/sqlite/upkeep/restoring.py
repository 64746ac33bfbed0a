"""Restores an archive into an SQLite file, for reading."""

from collections.abc import Sequence
from pathlib import Path

import apsw
import msgspec

from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.upkeep.archive import ArchivedRun
from mainspring.stores.sqlite.rows.encoding import encode, encode_bytes, encode_policy
from mainspring.stores.sqlite.store import SqliteStore

_INSERT_BODY = "INSERT INTO body (task, policy, payload, about) VALUES (:task, :policy, :payload, :about)"
# The class ``audit`` keeps a scheduler that is started on the file by mistake from pruning the runs. None of them is a
# dead letter, which could be replayed there.
_INSERT_RUN = (
    "INSERT INTO history (id, state, tenant, queue, rev, priority, attempt, lost, fence, by_attempt, session, body,"
    " due, created_at, started_at, finished_at, job_id, job_version, scheduled_at, replay_of, reason, result, error,"
    " executor, start_by, deadline, fingerprint, dead, queued_at, retention)"
    " VALUES (:id, :state, :tenant, :queue, 1, :priority, :attempt, :lost, :fence, 1, :session, :body,"
    " :due, :created_at, :started_at, :finished_at, :job_id, :job_version, :scheduled_at, :replay_of, :reason, :result,"
    " :error, :executor, :start_by, :deadline, :fingerprint, 0, :queued_at, 'audit')"
)
_INSERT_ATTEMPT = (
    "INSERT OR IGNORE INTO attempt (run_id, fence, number, outcome, reason, error, started_at, ended_at, counted)"
    " VALUES (:run_id, :fence, :number, :outcome, :reason, :error, :started_at, :ended_at, 1)"
)


class SqliteArchiveWriter:
    """A new store, or one that earlier parts were restored into. Runs that exist there are not changed."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._store = SqliteStore(path, clock)

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def write(self, runs: Sequence[ArchivedRun]) -> int:
        """Write runs; return how many are new."""

        def put(connection: apsw.Connection, now: Instant) -> int:
            return sum(_write_run(connection, archived) for archived in runs)

        return await self._store._write(put)


def _write_run(connection: apsw.Connection, archived: ArchivedRun) -> bool:
    run = archived.run
    if connection.execute("SELECT 1 FROM history WHERE id = :id", {"id": run.id}).get is not None:
        return False
    about = None if run.about is None else encode(run.about)
    connection.execute(
        _INSERT_BODY,
        {
            "task": run.task,
            "policy": encode_policy(run.policy),
            "payload": encode_bytes(run.payload or b"null"),
            "about": about,
        },
    )
    connection.execute(
        _INSERT_RUN,
        {
            "id": run.id,
            "state": run.state.value,
            "tenant": run.tenant,
            "queue": run.queue,
            "priority": run.priority,
            "attempt": run.attempt,
            "lost": run.lost,
            "fence": run.fence,
            "session": run.session,
            "body": connection.last_insert_rowid(),
            "due": run.due,
            "created_at": run.created_at,
            "started_at": run.started_at,
            "finished_at": run.finished_at,
            "job_id": run.job_id,
            "job_version": run.job_version,
            "scheduled_at": run.scheduled_at,
            "replay_of": run.replay_of,
            "reason": run.reason,
            "result": None if run.result is None else encode_bytes(run.result),
            "error": run.error,
            "executor": run.executor or None,
            "start_by": run.start_by,
            "deadline": run.deadline,
            "fingerprint": run.fingerprint or None,
            "queued_at": run.queued_at,
        },
    )
    for tag in () if run.about is None else run.about.tags:
        connection.execute(
            "INSERT OR IGNORE INTO label (tenant, label, id) VALUES (:tenant, :label, :id)",
            {"tenant": run.tenant, "label": tag, "id": run.id},
        )
    connection.executemany(
        _INSERT_ATTEMPT,
        [{**msgspec.structs.asdict(attempt), "outcome": attempt.outcome.value} for attempt in archived.attempts],
    )
    return True
