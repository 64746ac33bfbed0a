"""Converts rows of PostgreSQL to values of the model, and back."""

from collections.abc import Callable, Sequence

import asyncpg
import msgspec

from mainspring.core.model.base.ids import JobId, RunId, is_derived, made_at, stable_hash
from mainspring.core.model.base.instant import DAY
from mainspring.core.model.runs.completion import Completion, complete_unreadable
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.policy import DEFAULT_POLICY, RunPolicy
from mainspring.core.model.runs.retention import CLASSES, STANDARD
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import Progress, RunView
from mainspring.core.model.schedules.job import Job, JobSpec, LedgerEntry, Overlap, compute_overlap_lock
from mainspring.stores.postgres.codes import (
    BACKFILL,
    CLASS_WIDTH,
    DAYS_AHEAD,
    FOREVER_BUCKET,
    JOB_STATES,
    KEPT_BUCKET,
    MANUAL,
    RULES,
    STATES,
    SUBMITTED,
    TICK_OF_DELAY,
    UNITS,
)
from mainspring.stores.postgres.names import NameCache
from mainspring.stores.unreadable import UNREADABLE, name_unreadable_job, read_rows

_encode = msgspec.json.Encoder().encode
_decode_policy = msgspec.json.Decoder(RunPolicy).decode
_decode_spec = msgspec.json.Decoder(JobSpec).decode
_decode_about = msgspec.json.Decoder(About).decode


class PolicyCodec:
    """Encodes and decodes policies with a cache, because millions of runs share a few policies."""

    def __init__(self) -> None:
        self._by_bytes: dict[bytes, RunPolicy] = {}
        self._by_policy: dict[RunPolicy, bytes | None] = {DEFAULT_POLICY: None}

    def encode(self, policy: RunPolicy) -> bytes | None:
        if policy is DEFAULT_POLICY:
            return None
        known = self._by_policy.get(policy, b"")
        if known == b"":
            known = _encode(policy)
            # A policy with a trace is used only once.
            if len(self._by_policy) < 10_000 and not policy.trace:
                self._by_policy[policy] = known
        return known

    def decode_to_show(self, encoded: bytes | None) -> RunPolicy:
        """Decode a policy for display. One that this program cannot read shows as the default."""
        try:
            return self.decode(encoded)
        except UNREADABLE:
            return DEFAULT_POLICY

    def decode(self, encoded: bytes | None) -> RunPolicy:
        if encoded is None:
            return DEFAULT_POLICY
        policy = self._by_bytes.get(encoded)
        if policy is None:
            policy = _decode_policy(encoded)
            if len(self._by_bytes) < 10_000 and not policy.trace:
                self._by_bytes[encoded] = policy
        return policy


def compute_order_lock(tenant: str, ordering_key: str) -> int:
    return stable_hash(f"order:{tenant}:{ordering_key}")


def compute_key_lock(run: NewRun) -> int | None:
    return compute_order_lock(run.tenant, run.policy.ordering_key) if run.policy.ordering_key else None


def compute_job_key_lock(job: Job, target: str = "") -> int | None:
    """Return the key that serializes a job's runs: its ordering key, or the job itself if its ticks queue or cancel."""
    if job.spec.policy.ordering_key:
        return compute_order_lock(job.tenant, job.spec.policy.ordering_key)
    if job.spec.overlap in (Overlap.QUEUE, Overlap.CANCEL):
        return compute_overlap_lock(job.id, target)
    return None


def compute_bucket(run: NewRun) -> int:
    """Return the bucket of a run's body, usually its day.

    It depends on the run alone, so that a second submit finds the first.
    """
    if is_derived(run.id):
        # A derived id carries the time of its origin, a tick or a failure, whose day may be gone.
        return kept_bucket(run.policy)
    made = made_at(run.id)
    day = max(made, run.at if run.at is not None else made + run.delay) // DAY
    if day >= made // DAY + DAYS_AHEAD - 1:
        return kept_bucket(run.policy)
    number = class_number(run.policy)
    return number * CLASS_WIDTH + day // UNITS[number] if number else day


def class_number(policy: RunPolicy) -> int:
    return CLASSES.index(policy.retention) if policy.retention else 0


def read_class(bucket: int) -> int:
    return (bucket + 1) // CLASS_WIDTH


def kept_bucket(policy: RunPolicy) -> int:
    return class_number(policy) * CLASS_WIDTH + KEPT_BUCKET


def forever_bucket(policy: RunPolicy) -> int:
    return class_number(policy) * CLASS_WIDTH + FOREVER_BUCKET


def build_held_runs(
    rows: Sequence[asyncpg.Record], names: NameCache, policies: PolicyCodec
) -> tuple[list[HeldRun], list[Completion]]:
    """Return runs as their workers hold them, and completions for those that cannot be read."""

    def build_held_run(row: asyncpg.Record) -> HeldRun:
        held = HeldRun(
            id=RunId(row["id"]),
            fence=row["fence"],
            task=names.get_name(row["task"]),
            payload=row["payload"],
            policy=policies.decode(row["policy"]),
            queue=names.get_name(row["queue"]),
            tenant=names.get_name(row["tenant"]),
            priority=row["priority"],
            attempt=row["attempt"],
            lost=row["lost"],
            due=row["due"],
            started_at=row["started_at"],
            attempt_until=row["attempt_until"],
            deadline=row["deadline"],
            job_id=row["job_id"],
            scheduled_at=row["scheduled_at"],
            unblocks_others=row["key_lock"] is not None
            or row["origin"] == TICK_OF_DELAY
            or row["limits"] is not None
            or row["has_children"] is not None,
            cancel_requested=row["cancel_at"] is not None,
            # Only claims read checkpoints.
            state=row.get("checkpoint"),
        )
        if (ready_at := row["ready_at"]) is not None:
            # Few runs have it. As an argument it would cost a microsecond for every run.
            held.ready_at = ready_at
        return held

    held, unreadable = read_rows(rows, build_held_run)
    return held, [complete_unreadable(RunId(row["id"]), row["fence"], error) for row, error in unreadable]


def get_public_state(row: asyncpg.Record) -> RunState:
    """Return the state to show: a running run that was asked to stop shows as ``cancelling``."""
    state = STATES[row["state"]]
    return RunState.CANCELLING if state is RunState.RUNNING and row["cancel_at"] is not None else state


def build_ledger_entry(row: asyncpg.Record) -> LedgerEntry:
    return LedgerEntry(
        job_id=JobId(row["job_id"]),
        scheduled_at=row["scheduled_at"],
        decision="run" if row["decision"] == 1 else "skipped",
        reason=row["reason"],
        run_id=row["run_id"],
        job_version=row["job_version"],
        epoch=row["epoch"],
        ticks=row["ticks"],
        last_at=row["last_at"],
        target=row["target"],
    )


def get_origin(run: NewRun) -> int:
    if run.job is None:
        return SUBMITTED
    return BACKFILL if run.job.kind == "backfill" else MANUAL


def build_label_set(requires: tuple[str, ...]) -> str:
    """Return the name of a label set."""
    return ",".join(requires)


def encode_about(about: About | None) -> bytes | None:
    return None if about is None else _encode(about)


def decode_about(encoded: bytes | None) -> About | None:
    try:
        return None if encoded is None else _decode_about(encoded)
    except UNREADABLE:
        return None


def build_run_view(row: asyncpg.Record, names: NameCache, policies: PolicyCodec) -> RunView:
    return RunView(
        id=RunId(row["id"]),
        state=get_public_state(row),
        task="" if row["task"] is None else names.get_name(row["task"]),
        queue=names.get_name(row["queue"]),
        tenant=names.get_name(row["tenant"]),
        priority=row["priority"],
        attempt=row["attempt"],
        due=row["due"],
        created_at=row["created_at"],
        lost=row["lost"],
        fence=row["fence"],
        reason=row["reason"] or "",
        job_id=row["job_id"],
        job_version=row["job_version"],
        scheduled_at=row["scheduled_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        cancel_requested=row["cancel_at"] is not None,
        result=row["result"],
        error=row["error"],
        about=decode_about(row["about"]),
        policy=policies.decode_to_show(row["policy"]),
        queued_at=row["queued_at"],
        session=row["session"],
        executor=row["executor"] or "",
        start_by=row["start_by"],
        deadline=row["deadline"],
        replay_of=row["replay_of"],
        progress=_progress(row),
        fingerprint=row["fingerprint"] or "",
        target=row["target"],
        parents=row["parents"] or 0,
        rule=None if row["rule"] is None else RULES[row["rule"]],
        limiter=row["waits"],
        kept_as=_class_of_history(row["class"]),
        payload=row["payload"],
    )


def _class_of_history(number: int | None) -> str:
    """Return the retention class of a history class. The first two are the standard: succeeded, and all others."""
    return STANDARD if number is None or number < 3 else CLASSES[number - 2]


def _progress(row: asyncpg.Record) -> Progress | None:
    if row["progress_at"] is None:
        return None
    return Progress(done=row["done"], total=row["total"], note=row["note"], at=row["progress_at"])


def build_job(row: asyncpg.Record, names: NameCache, payload: bytes = b"null") -> Job:
    return Job(
        id=JobId(row["id"]),
        tenant=names.get_name(row["tenant"]),
        spec=_decode_spec(row["spec"]),
        version=row["version"],
        state=JOB_STATES[row["state"]],
        next_fire=row["next_fire"],
        rev=row["rev"],
        payload=payload,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        resume_at=row["resume_at"],
        paused_until=row["paused_until"],
        pause_why=row["pause_why"],
        next_tick=row["tick"],
        calendar_rev=row["calendar_rev"],
    )


def encode_spec(spec: JobSpec) -> bytes:
    return _encode(spec)


def decode_spec(encoded: bytes | None) -> JobSpec | None:
    """Decode a job's spec; None if there is none, or none that this program can read."""
    try:
        return None if encoded is None else _decode_spec(encoded)
    except UNREADABLE:
        return None


def readable_jobs(rows: Sequence[asyncpg.Record], read: Callable[[asyncpg.Record], Job]) -> list[Job]:
    """Return the jobs that can be read; the others are named in the log."""
    jobs, unreadable = read_rows(rows, read)
    for row, error in unreadable:
        name_unreadable_job(row["id"], row["version"], str(error))
    return jobs
