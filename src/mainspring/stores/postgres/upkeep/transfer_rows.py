"""Builds PostgreSQL's rows of the rows that another store exports: one function for each kind."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.runs.retention import CLASSES
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.model.schedules.job import JobState, version_body_id
from mainspring.core.model.workflows.dependencies import DependencyRule
from mainspring.core.ports.upkeep.transfer import Row
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
from mainspring.stores.postgres.records.usage import NO_JOB
from mainspring.stores.postgres.rows import build_label_set
from mainspring.stores.postgres.work.queues import read_policy

#: Returns the number of a name in the new store; 0 for an empty name.
Numbers: TypeAlias = Callable[[NameKind, str], int]

_DEAD = {"open": 1, "replayed": 2, "discarded": 3}


def _with_tenant(row: Row, number: Numbers, **changed: object) -> Mapping[str, Any]:
    """Return the row with the number of its tenant, and with these columns changed."""
    return {**row, **changed, "tenant": number(NameKind.TENANT, row["tenant"])}


def _get_claim_group(row: Row, number: Numbers) -> int:
    if row["target"] is not None:
        return -int(row["target"])
    return number(NameKind.LABEL_SET, build_label_set(tuple(row["requires"])))


def _build_session(row: Row, number: Numbers) -> Mapping[str, Any]:
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


def _build_tenant(row: Row, number: Numbers) -> Mapping[str, Any]:
    return {
        "number": number(NameKind.TENANT, row["name"]),
        "created_at": row["created_at"],
        "running": row["running"],
        "quotas": row["quotas"],
    }


def _build_api_key(row: Row) -> Mapping[str, Any]:
    return {**row, "secret_hash": bytes.fromhex(row["secret_hash"])}


def _build_pause(row: Row, number: Numbers) -> Mapping[str, Any]:
    return _with_tenant(row, number, queue=number(NameKind.QUEUE, row["queue"]))


def _build_calendar(row: Row, number: Numbers) -> Mapping[str, Any]:
    return _with_tenant(row, number, deleted=bool(row["deleted"]))


def _build_queue_policy(row: Row, number: Numbers) -> Mapping[str, Any]:
    fair = read_policy(row["policy"]).fair
    return {
        **row,
        "queue": number(NameKind.QUEUE, row["queue"]),
        "closely": bool(row["closely"]),
        "fair": fair,
        "grouped": fair or bool(row["pooled"]),
        "pooled": bool(row["pooled"]),
        "weighted": bool(row["weighted"]),
    }


def build_job(row: Row, number: Numbers) -> Mapping[str, Any]:
    return {
        "id": row["id"],
        "tenant": number(NameKind.TENANT, row["tenant"]),
        "name": row["name"],
        "version": row["version"],
        "state": JOB_STATE_CODES[JobState(row["state"])],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }


def build_schedule(row: Row, number: Numbers) -> Mapping[str, Any]:
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
        "tenant": number(NameKind.TENANT, row["tenant"]),
    }


def build_version(row: Row, number: Numbers) -> Mapping[str, Any]:
    columns = ("job_id", "version", "spec", "made_by", "why", "made_at")
    return {**{name: row[name] for name in columns}, "tenant": number(NameKind.TENANT, row["tenant"])}


def build_version_body(row: Row, number: Numbers) -> Mapping[str, Any]:
    body_id = version_body_id(JobId(row["job_id"]), row["version"])
    return build_body({**row, "id": body_id, "about": None}, number, FOREVER_BUCKET)


def build_body(row: Row, number: Numbers, bucket: int = KEPT_BUCKET) -> Mapping[str, Any]:
    return {
        "bucket": bucket,
        "id": row["id"],
        "task": number(NameKind.TASK, row["task"]),
        "policy": row["policy"],
        "payload": row["payload"],
        "tenant": number(NameKind.TENANT, row["tenant"]),
        "about": row["about"],
    }


def _build_shared(row: Row, number: Numbers) -> dict[str, Any]:
    """Return the columns that a run has in every table."""
    job, version = row["job_id"], row["job_version"]
    return {
        "id": row["id"],
        "state": STATE_CODES[RunState(row["state"])],
        "priority": row["priority"],
        "attempt": row["attempt"],
        "lost": row["lost"],
        "tenant": number(NameKind.TENANT, row["tenant"]),
        "queue": number(NameKind.QUEUE, row["queue"]),
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


def _build_run(row: Row, number: Numbers) -> Mapping[str, Any]:
    runs = row["state"] == RunState.RUNNING
    return (
        _build_shared(row, number)
        | {
            "shard": row["shard"],
            "claim_group": _get_claim_group(row, number),
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


def _build_waiting(row: Row, number: Numbers) -> Mapping[str, Any]:
    return (
        _build_shared(row, number)
        | {
            "shard": row["shard"],
            "claim_group": _get_claim_group(row, number),
            "timeout": row["timeout"],
            "late": bool(row["late"]) or row["attempt"] > 0,
            "holds": row["key_lock"] is not None and bool(row["holds"]),
            "key_lock": row["key_lock"],
            "waits": row["waits"],
            "state": _waiting_state(row),
        }
        | _policies(row)
    )


def _build_history(row: Row, number: Numbers) -> Mapping[str, Any]:
    return _build_shared(row, number) | {
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


def _build_dead_letter(row: Row, number: Numbers) -> Mapping[str, Any]:
    return {
        "run_id": row["id"],
        "state": _DEAD[row["state"]],
        "tenant": number(NameKind.TENANT, row["tenant"]),
        "task": None if row["task"] is None else number(NameKind.TASK, row["task"]),
        "queue": number(NameKind.QUEUE, row["queue"]),
        "at": row["at"],
        "fingerprint": row["fingerprint"],
    }


def _build_attempt(row: Row, number: Numbers) -> Mapping[str, Any]:
    reported = ("number", "session", "started_at", "ended_at", "reason", "error", "cpu", "units")
    columns = ("run_id", "fence", "job_id", *reported)
    return {
        **{name: row[name] for name in columns},
        "outcome": OUTCOME_CODES[Outcome(row["outcome"])],
        "tenant": number(NameKind.TENANT, row["tenant"]),
        "queue": number(NameKind.QUEUE, row["queue"]),
    }


def _build_ledger(row: Row, number: Numbers) -> Mapping[str, Any]:
    return _with_tenant(row, number, decision=1 if row["decision"] == "run" else 2)


def _build_label(row: Row, number: Numbers) -> Mapping[str, Any]:
    tenant = number(NameKind.TENANT, row["tenant"])
    return {"bucket": KEPT_BUCKET, "id": row["id"], "tenant": tenant, "label": row["label"]}


def _build_key(row: Row, number: Numbers) -> Mapping[str, Any]:
    return {
        "tenant": number(NameKind.TENANT, row["tenant"]),
        "key": hashlib.sha256(row["key"].encode()).digest(),
        "kind": 2 if row["of_job"] else 1,
        "id": row["made"],
        "fingerprint": bytes.fromhex(row["fingerprint"]),
        "expires_at": row["at"] + KEYS_KEPT,
    }


def _build_dependent(row: Row, number: Numbers) -> Mapping[str, Any]:
    return _with_tenant(row, number, rule=RULE_CODES[DependencyRule(row["rule"])])


def _build_edge(row: Row, number: Numbers) -> Mapping[str, Any]:
    state = None if row["state"] is None else STATE_CODES[RunState(row["state"])]
    return _with_tenant(row, number, state=state)


def _build_unique(row: Row, number: Numbers) -> Mapping[str, Any]:
    return _with_tenant(row, number, key=hashlib.sha256(row["key"].encode()).digest())


def _build_progress(row: Row, number: Numbers) -> Mapping[str, Any]:
    return _with_tenant(row, number, note=row["note"] or "")


def _build_checkpoint(row: Row, number: Numbers) -> Mapping[str, Any]:
    return _with_tenant(row, number, state=row["state"].encode())


def _build_minute(row: Row, number: Numbers) -> Mapping[str, Any]:
    return _with_tenant(row, number, queue=number(NameKind.QUEUE, row["queue"]))


def _build_usage(row: Row, number: Numbers) -> Mapping[str, Any]:
    task = number(NameKind.TASK, row["task"])
    return _with_tenant(row, number, task=task, job_id=row["job_id"] or NO_JOB)


def _build_budget(row: Row, number: Numbers) -> Mapping[str, Any]:
    return _with_tenant(row, number, held=bool(row["held"]))


def _policies(row: Row) -> dict[str, Any]:
    return {"limits": row["limits"], "has_children": True if row["has_children"] else None}


def _waiting_state(row: Row) -> int:
    if row["waits_for_parents"]:
        return BY_PARENTS
    # Blocked by a limit: the first check finds out by which.
    if row["state"] == RunState.BLOCKED and row["limits"] is not None and (row["key_lock"] is None or row["holds"]):
        return AT_LIMIT
    return STATE_CODES[RunState(row["state"])]


def _build_limiter(row: Row) -> Mapping[str, Any]:
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


#: The builder of each kind that is stored in a table of the same name.
BUILDERS: Mapping[str, Callable[[Row, Numbers], Mapping[str, Any]]] = {
    "session": _build_session,
    "tenant": _build_tenant,
    "api_key": lambda row, number: _build_api_key(row),
    "pause": _build_pause,
    "calendar": _build_calendar,
    "slo": _with_tenant,
    "run": _build_run,
    "waiting": _build_waiting,
    "key_lock": lambda row, number: row,
    "limiter": lambda row, number: _build_limiter(row),
    "dependent": _build_dependent,
    "edge": _build_edge,
    "ended_parent": lambda row, number: {**row, "state": STATE_CODES[RunState(row["state"])]},
    "unique_run": _build_unique,
    "history": _build_history,
    "dead_letter": _build_dead_letter,
    "replay": lambda row, number: {**row, "open": bool(row["open"])},
    "attempt": _build_attempt,
    "ledger": _build_ledger,
    "label": _build_label,
    "idempotency": _build_key,
    "progress": _build_progress,
    "checkpoint": _build_checkpoint,
    "log": _with_tenant,
    "audit": lambda row, number: row,
    "minute": _build_minute,
    "usage": _build_usage,
    "budget": _build_budget,
    "queue_policy": _build_queue_policy,
}
