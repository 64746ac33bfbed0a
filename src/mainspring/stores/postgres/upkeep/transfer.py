"""Imports everything that another store holds, in one transaction: all of it, or nothing."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import asyncpg

from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.runs.retention import CLASSES
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.model.schedules.job import JobState, version_body_id
from mainspring.core.model.workflows.dependencies import DependencyRule
from mainspring.core.ports.upkeep.transfer import Row, RowCounts, StoreFacts
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.postgres.codes import (
    AT_LIMIT,
    BACKFILL,
    BY_PARENTS,
    FOREVER_BUCKET,
    JOB_STATE_CODES,
    KEPT_BUCKET,
    MANUAL,
    OUTCOME_CODES,
    RULE_CODES,
    STATE_CODES,
    SUBMITTED,
    TICK,
    TICK_OF_DELAY,
    NameKind,
)
from mainspring.stores.postgres.database import SESSION, connecting, prepare_connection
from mainspring.stores.postgres.partitions import FAMILIES
from mainspring.stores.postgres.records.usage import NO_JOB
from mainspring.stores.postgres.rows import build_label_set
from mainspring.stores.postgres.servers import get_servers
from mainspring.stores.postgres.store import PostgresStore
from mainspring.stores.postgres.work.queues import read_policy

#: The store is not new if any of these has a row.
_MUST_BE_EMPTY = (
    "job",
    "run",
    "waiting",
    "history",
    "attempt",
    "ledger",
    "audit",
    "api_key",
    "tenant",
    "pause",
    "calendar",
    "queue_policy",
    "replay",
    "body",
)
#: Locked, so that no other process writes them meanwhile.
_LOCKED = ("meta", "session", "job", "run", "waiting")
_DEAD = {"open": 1, "replayed": 2, "discarded": 3}
_SETTINGS = SESSION | {"statement_timeout": "0", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "0"}
_CHUNK = 20_000
#: Kind → query that reads the imported rows back, with the columns of ``KINDS`` by name.
_FOUND: Mapping[str, str] = {
    "session": "SELECT id FROM {s}.session",
    "tenant": "SELECT created_at, quotas FROM {s}.tenant",
    "api_key": "SELECT id, encode(secret_hash, 'hex') AS secret_hash FROM {s}.api_key",
    "pause": "SELECT since, why FROM {s}.pause",
    "calendar": "SELECT name, version, spec FROM {s}.calendar",
    "slo": "SELECT job_id, rev, next_check FROM {s}.slo",
    "job": "SELECT j.id, j.version, s.next_fire, s.rev FROM {s}.job j JOIN {s}.schedule s ON s.job_id = j.id",
    "job_version": "SELECT job_id, version, spec FROM {s}.job_version",
    "run": "SELECT id, fence FROM {s}.run",
    "waiting": "SELECT id, due FROM {s}.waiting",
    "key_lock": "SELECT key, holder FROM {s}.key_lock",
    "limiter": "SELECT number, used FROM {s}.limiter",
    "dependent": "SELECT run_id, parents FROM {s}.dependent",
    "edge": "SELECT child, parent, place FROM {s}.edge",
    "ended_parent": "SELECT run_id, at FROM {s}.ended_parent",
    "unique_run": "SELECT run_id, until FROM {s}.unique_run",
    "history": "SELECT id, finished_at FROM {s}.history",
    "dead_letter": "SELECT run_id AS id, fingerprint FROM {s}.dead_letter",
    "replay": "SELECT id, rev, record FROM {s}.replay",
    "attempt": "SELECT run_id, fence FROM {s}.attempt",
    "ledger": "SELECT job_id, scheduled_at, run_id FROM {s}.ledger",
    "label": "SELECT id, label FROM {s}.label",
    "idempotency": "SELECT id AS made, encode(fingerprint, 'hex') AS fingerprint FROM {s}.idempotency",
    "progress": "SELECT run_id, at FROM {s}.progress",
    "checkpoint": "SELECT run_id, convert_from(state, 'UTF8') AS state FROM {s}.checkpoint",
    "log": "SELECT run_id, position FROM {s}.log",
    "audit": "SELECT position, at FROM {s}.audit",
    "minute": "SELECT at, succeeded, failed FROM {s}.minute",
    "usage": "SELECT day, unit, amount FROM {s}.usage",
    "budget": "SELECT id, spec FROM {s}.budget",
    "queue_policy": "SELECT policy, retries FROM {s}.queue_policy",
}


class PostgresTarget:
    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self._store: PostgresStore | None = None
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._facts: StoreFacts | None = None
        self._is_there = False
        self._makers: dict[str, Callable[[Row], Mapping[str, Any]]] = {
            "session": self._session,
            "tenant": self._tenant,
            "api_key": self._api_key,
            "pause": self._pause,
            "calendar": self._calendar,
            "slo": lambda row: {**row, "tenant": self._number(NameKind.TENANT, row["tenant"])},
            "run": self._run,
            "waiting": self._waiting,
            "key_lock": lambda row: row,
            "limiter": _limiter,
            "dependent": self._dependent,
            "edge": self._edge,
            "ended_parent": lambda row: {**row, "state": STATE_CODES[RunState(row["state"])]},
            "unique_run": self._unique,
            "history": self._history,
            "dead_letter": self._dead_letter,
            "replay": lambda row: {**row, "open": bool(row["open"])},
            "attempt": self._attempt,
            "ledger": self._ledger,
            "label": self._label,
            "idempotency": self._key,
            "progress": self._progress,
            "checkpoint": self._checkpoint,
            "log": self._log,
            "audit": lambda row: row,
            "minute": self._minute,
            "usage": self._usage,
            "budget": self._budget,
            "queue_policy": self._queue_policy,
        }

    async def open(self, facts: StoreFacts) -> bool:
        self._facts = facts
        store = self._store = PostgresStore(self._dsn, schema=self._schema, shards=facts.shards, connections=2)
        await store.open()
        if store.shards != facts.shards:
            raise Conflict(
                f"the new store has {store.shards} shards and the old one {facts.shards}: ids would not fit; "
                "name a schema that is not there yet"
            )
        # Partitions and names are made outside the transaction. They do no harm if the import ends here.
        await store._partitions.make({family: set(days) for family, days in facts.days.items() if family in FAMILIES})
        wanted = [(NameKind.TENANT, name) for name in facts.tenants] + [(NameKind.TASK, name) for name in facts.tasks]
        wanted += [(NameKind.QUEUE, name) for name in facts.queues]
        wanted += [(NameKind.LABEL_SET, build_label_set(requires)) for requires in facts.requirements]
        await store._names.assign_numbers(wanted)
        with connecting():
            self._connection = await get_servers(self._dsn).connect(timeout=5, server_settings=_SETTINGS)
        await prepare_connection(self._connection)
        await self._connection.execute("BEGIN")
        await self._connection.execute(
            f"LOCK TABLE {', '.join(f'{self._schema}.{table}' for table in _LOCKED)} IN EXCLUSIVE MODE"
        )
        await self._refuse_live()
        self._is_there = await self._value(f"SELECT store_id FROM {self._schema}.meta") == facts.store_id
        if not self._is_there:
            await self._refuse_used()
        return self._is_there

    async def write(self, kind: str, rows: Sequence[Row]) -> None:
        if kind == "job":
            await self._copy("job", [self._job(row) for row in rows])
            await self._copy("schedule", [self._schedule(row) for row in rows])
        elif kind == "job_version":
            await self._copy("body", [self._version_body(row) for row in rows])
            await self._copy("job_version", [self._version(row) for row in rows])
        else:
            if kind in ("run", "waiting", "history"):
                own = [row for row in rows if not row["of_version"] and row["task"] is not None]
                await self._copy("body", [self._body(row) for row in own])
            make = self._makers[kind]
            await self._copy(kind, [make(row) for row in rows])

    async def tally(self, kind: str) -> RowCounts:
        tally = RowCounts()
        async for chunk in self._chunks(_FOUND[kind].format(s=self._schema)):
            tally = tally.plus(kind, chunk)
        return tally

    async def commit(self) -> None:
        facts, connection, schema = self._facts, self._connection, self._schema
        assert facts is not None
        assert connection is not None
        if not self._is_there:
            # One step further: everything that the old store handed out is older than what this one will.
            await connection.execute(
                f"UPDATE {schema}.meta SET store_id = $1, store_epoch = $2", facts.store_id, facts.store_epoch + 1
            )
            await connection.execute(f"SELECT setval('{schema}.fence_seq', $1)", max(facts.fence_seq, 1))
            await connection.execute(
                f"UPDATE {schema}.shard s SET epoch = e.epoch "
                "FROM unnest($1::smallint[], $2::bigint[]) AS e(id, epoch) WHERE e.id = s.id",
                list(facts.epochs),
                list(facts.epochs.values()),
            )
            last = await self._value(f"SELECT coalesce(max(id), 0) FROM {schema}.session")
            for sequence, value in (
                (f"pg_get_serial_sequence('{schema}.session', 'id')", max(last, facts.last_session)),
                (
                    f"pg_get_serial_sequence('{schema}.audit', 'position')",
                    await self._value(f"SELECT coalesce(max(position), 0) FROM {schema}.audit"),
                ),
                (f"'{schema}.log_position'", await self._value(f"SELECT coalesce(max(position), 0) FROM {schema}.log")),
            ):
                await connection.execute(f"SELECT setval({sequence}, $1)", max(value, 1))
            if facts.counted_until:
                await connection.execute(f"UPDATE {schema}.rolled_up SET until = $1", facts.counted_until)
        await connection.execute("COMMIT")
        # Otherwise the first plans would be made for empty tables.
        await connection.execute(
            "ANALYZE "
            + ", ".join(f"{schema}.{table}" for table in ("run", "waiting", "job", "schedule", "body", "history"))
        )

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def _copy(self, table: str, records: Sequence[Mapping[str, Any]]) -> None:
        assert self._connection is not None
        if records:
            columns = list(records[0])
            await self._connection.copy_records_to_table(
                table, schema_name=self._schema, columns=columns, records=[tuple(row.values()) for row in records]
            )

    async def _chunks(self, query: str) -> Any:
        assert self._connection is not None
        cursor = await self._connection.cursor(query)
        while chunk := await cursor.fetch(_CHUNK):
            yield chunk

    async def _value(self, query: str) -> Any:
        assert self._connection is not None
        return await self._connection.fetchval(query)

    async def _refuse_live(self) -> None:
        assert self._connection is not None
        schema = self._schema
        rows = await self._connection.fetch(
            f"SELECT name FROM {schema}.session WHERE live AND lease_until > {schema}.now_us() ORDER BY id LIMIT 10"
        )
        if rows:
            raise Conflict(f"processes work on the new store already: {', '.join(row['name'] for row in rows)}")

    async def _refuse_used(self) -> None:
        for table in _MUST_BE_EMPTY:
            if await self._value(f"SELECT EXISTS (SELECT FROM {self._schema}.{table})"):
                raise Conflict(
                    f"the new store is not empty: there are rows in {table}; name another schema or database"
                )
        assert self._connection is not None
        # Sessions left by processes that were tried out there: their ids are needed.
        await self._connection.execute(f"DELETE FROM {self._schema}.session")

    def _number(self, kind: NameKind, name: str) -> int:
        assert self._store is not None
        return self._store._names.get_number(kind, name) if name else 0

    def _get_claim_group(self, row: Row) -> int:
        if row["target"] is not None:
            return -int(row["target"])
        return self._number(NameKind.LABEL_SET, build_label_set(tuple(row["requires"])))

    def _session(self, row: Row) -> Mapping[str, Any]:
        return {
            "id": row["id"],
            "kind": 1 if row["kind"] == "worker" else 2,
            "live": bool(row["live"]),
            "name": row["name"],
            "datacenter": row["datacenter"],
            "version": row["version"],
            "started_at": row["started_at"],
            "lease_until": row["lease_until"],
            "ended_at": None if row["live"] else row["lease_until"],
            "queues": row["queues"],
            "tasks": row["tasks"],
            "owner": row["owner"],
            "lease": row["lease"],
            "draining": bool(row["draining"]),
            "labels": row["labels"],
            "priorities": row["priorities"],
            "slots": row["slots"],
        }

    def _tenant(self, row: Row) -> Mapping[str, Any]:
        return {
            "number": self._number(NameKind.TENANT, row["name"]),
            "created_at": row["created_at"],
            "running": row["running"],
            "quotas": row["quotas"],
        }

    def _api_key(self, row: Row) -> Mapping[str, Any]:
        return {**row, "secret_hash": bytes.fromhex(row["secret_hash"])}

    def _pause(self, row: Row) -> Mapping[str, Any]:
        return {
            **row,
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
            "queue": self._number(NameKind.QUEUE, row["queue"]),
        }

    def _calendar(self, row: Row) -> Mapping[str, Any]:
        return {**row, "tenant": self._number(NameKind.TENANT, row["tenant"]), "deleted": bool(row["deleted"])}

    def _queue_policy(self, row: Row) -> Mapping[str, Any]:
        fair = read_policy(row["policy"]).fair
        return {
            **row,
            "queue": self._number(NameKind.QUEUE, row["queue"]),
            "closely": bool(row["closely"]),
            "fair": fair,
            "grouped": fair or bool(row["pooled"]),
            "pooled": bool(row["pooled"]),
            "weighted": bool(row["weighted"]),
        }

    def _job(self, row: Row) -> Mapping[str, Any]:
        return {
            "id": row["id"],
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
            "name": row["name"],
            "version": row["version"],
            "state": JOB_STATE_CODES[JobState(row["state"])],
            "created_at": row["created_at"],
            "updated_at": row["updated_at"],
        }

    def _schedule(self, row: Row) -> Mapping[str, Any]:
        return {
            "job_id": row["id"],
            "shard": row["shard"],
            "rev": row["rev"],
            "active": bool(row["active"]),
            "next_fire": row["next_fire"],
            "delay": row["delay"],
            "tick_no": row["tick_no"],
            "resume_at": row["resume_at"],
            "paused_until": row["paused_until"],
            "pause_why": row["pause_why"],
            "tick": row["tick"],
            "calendar_rev": row["calendar_rev"],
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
        }

    def _version(self, row: Row) -> Mapping[str, Any]:
        columns = ("job_id", "version", "spec", "made_by", "why", "made_at")
        return {**{name: row[name] for name in columns}, "tenant": self._number(NameKind.TENANT, row["tenant"])}

    def _version_body(self, row: Row) -> Mapping[str, Any]:
        body_id = version_body_id(JobId(row["job_id"]), row["version"])
        return self._body({**row, "id": body_id, "about": None}, FOREVER_BUCKET)

    def _body(self, row: Row, bucket: int = KEPT_BUCKET) -> Mapping[str, Any]:
        return {
            "bucket": bucket,
            "id": row["id"],
            "task": self._number(NameKind.TASK, row["task"]),
            "policy": row["policy"],
            "payload": row["payload"],
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
            "about": row["about"],
        }

    def _of_a_run(self, row: Row) -> dict[str, Any]:
        """Return the columns that a run has in every table."""
        job, version = row["job_id"], row["job_version"]
        return {
            "id": row["id"],
            "state": STATE_CODES[RunState(row["state"])],
            "priority": row["priority"],
            "attempt": row["attempt"],
            "lost": row["lost"],
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
            "queue": self._number(NameKind.QUEUE, row["queue"]),
            "body_bucket": FOREVER_BUCKET if row["of_version"] else KEPT_BUCKET,
            "due": row["due"],
            "created_at": row["created_at"],
            "fence": row["fence"],
            "start_by": row["start_by"],
            "deadline": row["deadline"],
            "scheduled_at": row["scheduled_at"],
            "job_id": job,
            "job_version": version,
            "body_id": version_body_id(JobId(job), version) if row["of_version"] else None,
            "replay_of": row["replay_of"],
            "origin": _origin(row),
            "target": None if row["target"] is None else int(row["target"]),
        }

    def _run(self, row: Row) -> Mapping[str, Any]:
        runs = row["state"] == RunState.RUNNING
        return (
            self._of_a_run(row)
            | {
                "shard": row["shard"],
                "claim_group": self._get_claim_group(row),
                "rank": row["rank"],
                "timeout": row["timeout"],
                "claim": row["claim"] if runs else None,
                "session": row["session"] if runs else None,
                "started_at": row["started_at"] if runs else None,
                "attempt_until": row["attempt_until"] if runs else None,
                "cancel_at": row["cancel_at"],
                "key_lock": row["key_lock"],
                "queued_at": row["queued_at"],
                "ready_at": row["ready_at"],
            }
            | _policies(row)
        )

    def _waiting(self, row: Row) -> Mapping[str, Any]:
        return (
            self._of_a_run(row)
            | {
                "shard": row["shard"],
                "claim_group": self._get_claim_group(row),
                "timeout": row["timeout"],
                "late": bool(row["late"]) or row["attempt"] > 0,
                "holds": row["key_lock"] is not None and bool(row["holds"]),
                "key_lock": row["key_lock"],
                "waits": row["waits"],
                "state": _waiting_state(row),
            }
            | _policies(row)
        )

    def _history(self, row: Row) -> Mapping[str, Any]:
        return self._of_a_run(row) | {
            "class": _choose_class(row),
            "finished_at": row["finished_at"],
            "started_at": row["started_at"],
            # Only if the attempt itself ended the run, so that a repeated completion is recognized.
            "session": row["session"] if row["by_attempt"] else None,
            "result": row["result"],
            "reason": row["reason"],
            "error": row["error"],
            "queued_at": row["queued_at"],
            "cpu": row["cpu"],
            "units": row["units"],
        }

    def _dead_letter(self, row: Row) -> Mapping[str, Any]:
        return {
            "run_id": row["id"],
            "state": _DEAD[row["state"]],
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
            "task": None if row["task"] is None else self._number(NameKind.TASK, row["task"]),
            "queue": self._number(NameKind.QUEUE, row["queue"]),
            "at": row["at"],
            "fingerprint": row["fingerprint"],
        }

    def _attempt(self, row: Row) -> Mapping[str, Any]:
        reported = ("number", "session", "started_at", "ended_at", "reason", "error", "cpu", "units")
        columns = ("run_id", "fence", "job_id", *reported)
        return {
            **{name: row[name] for name in columns},
            "outcome": OUTCOME_CODES[Outcome(row["outcome"])],
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
            "queue": self._number(NameKind.QUEUE, row["queue"]),
        }

    def _ledger(self, row: Row) -> Mapping[str, Any]:
        return {
            **row,
            "decision": 1 if row["decision"] == "run" else 2,
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
        }

    def _label(self, row: Row) -> Mapping[str, Any]:
        tenant = self._number(NameKind.TENANT, row["tenant"])
        return {"bucket": KEPT_BUCKET, "id": row["id"], "tenant": tenant, "label": row["label"]}

    def _key(self, row: Row) -> Mapping[str, Any]:
        return {
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
            "key": hashlib.sha256(row["key"].encode()).digest(),
            "kind": 2 if row["of_job"] else 1,
            "id": row["made"],
            "fingerprint": bytes.fromhex(row["fingerprint"]),
            "expires_at": row["at"] + KEYS_KEPT,
        }

    def _dependent(self, row: Row) -> Mapping[str, Any]:
        return {
            **row,
            "rule": RULE_CODES[DependencyRule(row["rule"])],
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
        }

    def _edge(self, row: Row) -> Mapping[str, Any]:
        state = None if row["state"] is None else STATE_CODES[RunState(row["state"])]
        return {**row, "state": state, "tenant": self._number(NameKind.TENANT, row["tenant"])}

    def _unique(self, row: Row) -> Mapping[str, Any]:
        return {
            **row,
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
            "key": hashlib.sha256(row["key"].encode()).digest(),
        }

    def _progress(self, row: Row) -> Mapping[str, Any]:
        return {**row, "note": row["note"] or "", "tenant": self._number(NameKind.TENANT, row["tenant"])}

    def _checkpoint(self, row: Row) -> Mapping[str, Any]:
        return {**row, "state": row["state"].encode(), "tenant": self._number(NameKind.TENANT, row["tenant"])}

    def _log(self, row: Row) -> Mapping[str, Any]:
        return {**row, "tenant": self._number(NameKind.TENANT, row["tenant"])}

    def _minute(self, row: Row) -> Mapping[str, Any]:
        return {
            **row,
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
            "queue": self._number(NameKind.QUEUE, row["queue"]),
        }

    def _usage(self, row: Row) -> Mapping[str, Any]:
        return {
            **row,
            "tenant": self._number(NameKind.TENANT, row["tenant"]),
            "task": self._number(NameKind.TASK, row["task"]),
            "job_id": row["job_id"] or NO_JOB,
        }

    def _budget(self, row: Row) -> Mapping[str, Any]:
        return {**row, "tenant": self._number(NameKind.TENANT, row["tenant"]), "held": bool(row["held"])}


def _policies(row: Row) -> dict[str, Any]:
    return {"limits": row["limits"], "has_children": True if row["has_children"] else None}


def _waiting_state(row: Row) -> int:
    if row["waits_for_parents"]:
        return BY_PARENTS
    # Blocked by a limit: the first check finds out by which.
    if row["state"] == RunState.BLOCKED and row["limits"] is not None and (row["key_lock"] is None or row["holds"]):
        return AT_LIMIT
    return STATE_CODES[RunState(row["state"])]


def _limiter(row: Row) -> Mapping[str, Any]:
    times = row["times"]
    return {
        "number": row["number"],
        "kind": row["kind"],
        "used": row["used"],
        "times": times,
        "open_until": row["open_until"],
        "forget_at": times[-1] + row["per"] if times else 0,
        "recalls": bool(row["recalls"]),
        # The first check finds out which runs wait there, and until when.
        "head": 1,
        "wake_at": 0,
    }


def _choose_class(row: Row) -> int:
    if row["retention"] is not None:
        return CLASSES.index(row["retention"]) + 2
    return 1 if row["state"] == RunState.SUCCEEDED else 2


def _origin(row: Row) -> int:
    origin = row["origin"]
    if origin is not None:
        return TICK if origin == "tick" else TICK_OF_DELAY
    if row["job_id"] is None:
        return SUBMITTED
    return MANUAL if row["scheduled_at"] is None else BACKFILL
