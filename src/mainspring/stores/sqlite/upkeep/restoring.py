"""Restores an archive into an SQLite file, for reading."""

from collections.abc import Sequence
from pathlib import Path

import apsw

from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.upkeep.archive import ArchivedRun
from mainspring.stores.sqlite.rows.encoding import encode, encode_bytes, encode_policy
from mainspring.stores.sqlite.store import SqliteStore

_INSERT_BODY = "INSERT INTO body (task, policy, payload, about) VALUES (?, ?, ?, ?)"
# The class ``audit`` keeps a scheduler that is started on the file by mistake from pruning the runs. None of them is a
# dead letter, which could be replayed there.
_INSERT_RUN = (
    "INSERT INTO history (id, state, tenant, queue, rev, priority, attempt, lost, fence, by_attempt, session, body,"
    " due, created_at, started_at, finished_at, job_id, job_version, scheduled_at, replay_of, reason, result, error,"
    " executor, start_by, deadline, fingerprint, dead, queued_at, retention)"
    " VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 'audit')"
)
_INSERT_ATTEMPT = (
    "INSERT OR IGNORE INTO attempt (run_id, fence, number, outcome, reason, error, started_at, ended_at, counted)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)"
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
            return sum(_write_run(connection, one) for one in runs)

        return await self._store._write(put)


def _write_run(connection: apsw.Connection, one: ArchivedRun) -> bool:
    run = one.run
    if connection.execute("SELECT 1 FROM history WHERE id = ?", (run.id,)).get is not None:
        return False
    about = None if run.about is None else encode(run.about)
    connection.execute(_INSERT_BODY, (run.task, encode_policy(run.policy), encode_bytes(run.payload or b"null"), about))
    connection.execute(
        _INSERT_RUN,
        (
            run.id,
            run.state.value,
            run.tenant,
            run.queue,
            run.priority,
            run.attempt,
            run.lost,
            run.fence,
            run.session,
            connection.last_insert_rowid(),
            run.due,
            run.created_at,
            run.started_at,
            run.finished_at,
            run.job_id,
            run.job_version,
            run.scheduled_at,
            run.replay_of,
            run.reason,
            None if run.result is None else encode_bytes(run.result),
            run.error,
            run.executor or None,
            run.start_by,
            run.deadline,
            run.fingerprint or None,
            run.queued_at,
        ),
    )
    for tag in () if run.about is None else run.about.tags:
        connection.execute(
            "INSERT OR IGNORE INTO label (tenant, label, id) VALUES (?, ?, ?)", (run.tenant, tag, run.id)
        )
    connection.executemany(
        _INSERT_ATTEMPT,
        [
            (one.run_id, one.fence, one.number, one.outcome.value, one.reason, one.error, one.started_at, one.ended_at)
            for one in one.attempts
        ],
    )
    return True
