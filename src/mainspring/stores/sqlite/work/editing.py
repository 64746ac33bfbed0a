"""SQLite: edits runs that have not started."""

from typing import cast

import apsw
import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.rank import compute_rank
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.stores.changes import Change, what_differs, words_of_run
from mainspring.stores.key_locks import compute_run_key_lock
from mainspring.stores.sqlite.records.audit import write_audit
from mainspring.stores.sqlite.rows.encoding import (
    encode,
    encode_about,
    encode_bytes,
    encode_label_set,
    encode_limits,
    encode_policy,
)
from mainspring.stores.sqlite.rows.runs import decode_run_views
from mainspring.stores.sqlite.threads import read

#: Later than any instant.
_LATEST: Instant = 2**62


class _EditedRun(msgspec.Struct, array_like=True, frozen=True):
    """The fields of a run that an edit keeps, and its current position."""

    state: str
    shard: int
    tenant: str
    rev: int
    body: int
    created_at: Instant
    key_lock: int | None
    replay_of: RunId | None
    target: str | None
    limits: str | None
    waits: int | None
    queued_at: Instant | None
    ready_at: Instant | None


def edit(
    connection: apsw.Connection, new: NewRun, author: Author | None, was: RunView | None, now: Instant
) -> SubmitResult | None:
    """Edit a run that was never started; None if there is no such run.

    1. A run that stays queued keeps its age.
    2. A run that holds its key keeps it as long as it is the first in line.
    3. A run with limits, old or new, must pass its limiters again.
    4. A run that waits for its parents keeps waiting.
    5. A run that is not as in ``was`` is not edited; the answer says ``conflict``.
    """
    row = _find_editable(connection, new)
    if row is None:
        return None
    before = _read_view(connection, new.id)
    if was is not None and words_of_run(was) != words_of_run(before):
        return SubmitResult(new.id, before.state, new=False, conflict=True)
    due = new.at if new.at is not None else now + new.delay
    key_lock = compute_run_key_lock(row.tenant, new.policy)
    _release_limiters(connection, row)
    connection.execute("DELETE FROM run WHERE id = :id", {"id": new.id})
    connection.execute("DELETE FROM waiting WHERE id = :id", {"id": new.id})
    connection.execute(
        "UPDATE body SET task = :task, policy = :policy, payload = :payload WHERE id = :id",
        {"task": new.task, "policy": encode_policy(new.policy), "payload": encode_bytes(new.payload), "id": row.body},
    )
    holds = row.key_lock is not None and _find_holder(connection, row.key_lock) == new.id
    keeps = (
        holds and due <= now and key_lock == row.key_lock and not _is_waiting_before(connection, key_lock, due, new.id)
    )
    limits = encode_limits(row.tenant, new.task, new.policy)
    if row.state == "after":
        state = "after"
    elif due > now:
        state = "scheduled"
    elif (
        key_lock is None
        or keeps
        or (_find_holder(connection, key_lock) is None and not _is_waiting_before(connection, key_lock))
    ):
        state = "queued" if limits is None else "limited"
        if key_lock is not None and not keeps:
            connection.execute(
                "INSERT INTO key_lock (key, holder) VALUES (:key, :holder)", {"key": key_lock, "holder": new.id}
            )
    else:
        state = "blocked"
    _insert_edited(connection, new, row, state, due, key_lock, limits, now)
    if before.about != new.about:
        set_about(connection, before, new.about)
    if holds and not keeps:
        connection.execute(
            "INSERT INTO release_key_lock (key, holder, now) VALUES (:key, :holder, :now)",
            {"key": row.key_lock, "holder": new.id, "now": now},
        )
    connection.execute("INSERT INTO admit_runs (now) VALUES (:now)", {"now": now})
    connection.execute("INSERT INTO write_events (now) VALUES (:now)", {"now": now})
    after = _read_view(connection, new.id)
    differs = what_differs(words_of_run(before), words_of_run(after))
    if differs is not None:
        write_audit(connection, now, "runs.edit", author, [Change(row.tenant, new.id, *differs)])
    return SubmitResult(new.id, after.state, new=False)


def _release_limiters(connection: apsw.Connection, row: _EditedRun) -> None:
    """Release the limiters that the run occupies, or leave the line of the limiter that blocks it."""
    if row.state == "queued" and row.limits is not None:
        connection.execute(
            "INSERT INTO limit_release (limits, ending) VALUES (:limits, 'other')", {"limits": row.limits}
        )
    if row.waits is not None:
        connection.execute("INSERT OR IGNORE INTO changed_limiter (number) VALUES (:number)", {"number": row.waits})


def _find_editable(connection: apsw.Connection, new: NewRun) -> _EditedRun | None:
    """Return the run if it is a one-off of that tenant that was never claimed and has not ended."""
    found = connection.execute(
        "SELECT state, shard, tenant, rev, body, created_at, key_lock, replay_of, target, limits, NULL, queued_at,"
        " ready_at FROM run"
        " WHERE id = :id AND tenant = :tenant AND job_id IS NULL AND fence = 0"
        " UNION ALL SELECT state, shard, tenant, rev, body, created_at, key_lock, replay_of, target, limits, waits,"
        " NULL, NULL FROM waiting"
        " WHERE id = :id AND tenant = :tenant AND job_id IS NULL AND fence = 0",
        {"id": new.id, "tenant": new.tenant},
    ).fetchone()
    return None if found is None else msgspec.convert(found, _EditedRun)


def _read_view(connection: apsw.Connection, run: RunId) -> RunView:
    return decode_run_views(read(connection, "runs", ids=encode([run]), payloads=1, results=0))[run]


def _find_holder(connection: apsw.Connection, key_lock: int) -> str | None:
    return cast("str | None", connection.execute("SELECT holder FROM key_lock WHERE key = :key", {"key": key_lock}).get)


def _is_waiting_before(
    connection: apsw.Connection, key_lock: int | None, due: Instant = _LATEST, run: str = ""
) -> bool:
    """Report whether a run in the line of a key lock comes before (due, id)."""
    found = connection.execute(
        "SELECT 1 FROM waiting INDEXED BY waiting_blocked"
        " WHERE state = 'blocked' AND key_lock = :key_lock AND (due, id) < (:due, :run) LIMIT 1",
        {"key_lock": key_lock, "due": due, "run": run},
    ).get
    return found is not None


def _find_label_set(connection: apsw.Connection, new: NewRun) -> int:
    requires = encode_label_set(new.policy.requires)
    if requires is None:
        return 0
    connection.execute(
        "INSERT INTO label_set (requires) VALUES (:requires) ON CONFLICT DO NOTHING", {"requires": requires}
    )
    return cast(
        "int", connection.execute("SELECT id FROM label_set WHERE requires = :requires", {"requires": requires}).get
    )


def _insert_edited(
    connection: apsw.Connection,
    new: NewRun,
    row: _EditedRun,
    state: str,
    due: Instant,
    key_lock: int | None,
    limits: str | None,
    now: Instant,
) -> None:
    """Insert the run into the table of its state."""
    values: dict[str, str | int | None] = {
        "id": new.id,
        "state": state,
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
        "start_by": None if new.start_within is None or state == "after" else due + new.start_within,
        "deadline": None if new.deadline is None or state == "after" else due + new.deadline,
        "key_lock": key_lock,
        "replay_of": row.replay_of,
        "claim_group": _find_label_set(connection, new) if row.target is None else -int(row.target),
        "target": row.target,
        "limits": limits,
    }
    was_queued = row.state == "queued"
    eligible = row.queued_at if was_queued and row.queued_at is not None else now
    if state == "after":
        connection.execute(
            "UPDATE dependent SET start_within = :start_within, deadline = :deadline WHERE run_id = :run_id",
            {"start_within": new.start_within, "deadline": new.deadline, "run_id": new.id},
        )
    if state == "limited" and was_queued:
        connection.execute(
            "INSERT OR REPLACE INTO kept_position (id, rank, queued_at, ready_at)"
            " VALUES (:id, :rank, :queued_at, :ready_at)",
            {
                "id": new.id,
                "rank": compute_rank(eligible, new.priority),
                "queued_at": eligible,
                "ready_at": row.ready_at,
            },
        )
    if state == "queued":
        ready_at = row.ready_at if was_queued else now
        values |= {"rank": compute_rank(eligible, new.priority), "queued_at": eligible, "ready_at": ready_at}
        if not was_queued:
            connection.execute(
                "INSERT INTO new_event (kind, tenant, run)"
                " SELECT 'run.queued', :tenant, :run WHERE EXISTS (SELECT 1 FROM outbox_cursor)",
                {"tenant": row.tenant, "run": new.id},
            )
    table = "run" if state == "queued" else "waiting"
    names = ", ".join(values)
    parameters = ", ".join(f":{name}" for name in values)
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({parameters})", values)  # noqa: S608


def set_about(connection: apsw.Connection, run: RunView, about: About | None) -> None:
    """Set what describes a one-off run, such as its name and tags, in any state."""
    tags = () if run.about is None else run.about.tags
    connection.executemany(
        "DELETE FROM label WHERE tenant = :tenant AND label = :label AND id = :id",
        [{"tenant": run.tenant, "label": tag, "id": run.id} for tag in tags],
    )
    connection.executemany(
        "INSERT INTO label (tenant, label, id) VALUES (:tenant, :label, :id)",
        [{"tenant": run.tenant, "label": tag, "id": run.id} for tag in (() if about is None else about.tags)],
    )
    connection.execute(
        "UPDATE body SET about = :about WHERE id = coalesce((SELECT body FROM run WHERE id = :id),"
        " (SELECT body FROM waiting WHERE id = :id), (SELECT body FROM history WHERE id = :id))",
        {"about": encode_about(about), "id": run.id},
    )
