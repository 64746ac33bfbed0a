"""Values of the domain as the JSON that procedures take and give, and back.

Items are arrays, in the order that the procedures name. Payloads and results are JSON themselves: they travel as
strings inside it and lie as text in the database, byte for byte.
"""

from functools import lru_cache
from typing import Literal

import msgspec

from mainspring.adapters.store.unreadable import name_unreadable_job, read_rows
from mainspring.domain.ids import JobId, RunId, SessionId, stable_hash
from mainspring.domain.instant import Instant
from mainspring.domain.job import Fire, Job, JobSpec, JobState, LedgerEntry, Overlap, tick_run_id
from mainspring.domain.run import (
    DEFAULT_POLICY,
    AttemptView,
    HeldRun,
    NewRun,
    Outcome,
    RunPolicy,
    RunState,
    RunView,
    Settlement,
    Verdict,
    settle_unreadable,
)
from mainspring.ports.store import Depth, EventBatch

#: No JSON begins with this.
_MARK = "\x01"

_encoder = msgspec.json.Encoder()


def encode(value: object) -> str:
    return _encoder.encode(value).decode()


def text_of(content: bytes) -> str:
    """Bytes as text: JSON as it is, anything else marked and in hexadecimal digits."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return _MARK + content.hex()
    # SQLite's text functions end at a zero.
    return _MARK + content.hex() if "\x00" in text or text[:1] == _MARK else text


def bytes_of(text: str) -> bytes:
    return bytes.fromhex(text[1:]) if text[:1] == _MARK else text.encode()


@lru_cache(maxsize=10_000)
def policy_text(policy: RunPolicy) -> str | None:
    """As it lies in a body; nothing for one that is all defaults."""
    return None if policy == DEFAULT_POLICY else encode(policy)


@lru_cache(maxsize=10_000)
def policy_of(text: str | None) -> RunPolicy:
    return DEFAULT_POLICY if text is None else msgspec.json.decode(text, type=RunPolicy)


@lru_cache(maxsize=10_000)
def spec_of(text: str) -> JobSpec:
    return msgspec.json.decode(text, type=JobSpec)


def gate_of_run(tenant: str, policy: RunPolicy) -> int | None:
    """The gate of a one-off run: its ordering key's, if it has one."""
    return stable_hash(f"order:{tenant}:{policy.ordering_key}") if policy.ordering_key else None


def gate_of_tick(job: JobId, tenant: str, spec: JobSpec) -> int | None:
    """The gate of a tick's run: its ordering key's, or its job's if one run of it waits for another."""
    if spec.policy.ordering_key:
        return gate_of_run(tenant, spec.policy)
    return stable_hash(f"overlap:{job}") if spec.overlap in (Overlap.QUEUE, Overlap.CANCEL) else None


def submit_item(run: NewRun, shard: int) -> tuple[object, ...]:
    policy = run.policy
    default = policy is DEFAULT_POLICY
    return (
        run.id,
        shard,
        run.tenant,
        run.queue,
        run.priority,
        run.task,
        None if default else policy_text(policy),
        text_of(run.payload),
        run.at,
        run.delay,
        run.start_within,
        run.deadline,
        None if default else gate_of_run(run.tenant, policy),
        run.replay_of,
        policy.timeout,
    )


def settle_item(settlement: Settlement) -> tuple[object, ...]:
    result = settlement.result
    return (
        settlement.run,
        settlement.fence,
        settlement.outcome,
        settlement.state,
        settlement.reason,
        settlement.delay,
        None if result is None else text_of(result),
        settlement.error,
    )


def fire_item(fire: Fire) -> tuple[object, ...]:
    job = fire.job
    spec = job.spec
    return (
        job.id,
        job.rev,
        fire.next_fire,
        int(fire.finished),
        spec.fixed_delay,
        spec.overlap,
        spec.queue,
        spec.priority,
        spec.policy.timeout,
        gate_of_tick(job.id, job.tenant, spec),
        spec.start_within,
        spec.deadline,
        [
            (
                tick.scheduled_at,
                tick.decision,
                tick.reason,
                (tick.run_id or tick_run_id(job.id, tick.scheduled_at)) if tick.decision == "run" else None,
                tick.due,
                int(tick.late),
                tick.ticks,
                tick.last_at,
            )
            for tick in fire.ticks
        ],
    )


class _Held(msgspec.Struct, array_like=True, frozen=True, gc=False):
    id: RunId
    fence: int
    task: str
    payload: str
    policy: str | None
    queue: str
    tenant: str
    priority: int
    attempt: int
    lost: int
    due: Instant
    started_at: Instant
    attempt_until: Instant
    deadline: Instant | None
    job_id: JobId | None
    scheduled_at: Instant | None
    lets_go: int
    cancel_requested: int


class _View(msgspec.Struct, array_like=True, frozen=True, gc=False):
    id: RunId
    state: RunState
    task: str
    queue: str
    tenant: str
    priority: int
    attempt: int
    due: Instant
    created_at: Instant
    lost: int
    fence: int
    reason: str
    job_id: JobId | None
    scheduled_at: Instant | None
    started_at: Instant | None
    finished_at: Instant | None
    cancel_requested: int
    result: str | None
    error: str | None


class _Job(msgspec.Struct, array_like=True, frozen=True):
    id: JobId
    tenant: str
    spec: str
    version: int
    state: JobState
    next_fire: Instant | None
    rev: int
    payload: str


_held = msgspec.json.Decoder(list[_Held])
_views = msgspec.json.Decoder(list[_View])
_jobs = msgspec.json.Decoder(list[_Job])
_attempts = msgspec.json.Decoder(list[tuple[RunId, int, int, Outcome, str, str | None, Instant, Instant]])
_ledger = msgspec.json.Decoder(
    list[tuple[JobId, Instant, Literal["run", "skipped"], str, RunId | None, int, int, int, Instant | None]]
)
_depths = msgspec.json.Decoder(list[tuple[str, int, int, Instant | None]])
_events = msgspec.json.Decoder(list[tuple[int, Instant, str, tuple[RunId, ...]]])

accepted = msgspec.json.Decoder(list[tuple[int, RunState, int]])
verdicts = msgspec.json.Decoder(list[tuple[int, Verdict]])
run_states = msgspec.json.Decoder(list[tuple[RunId, RunState]])
job_states = msgspec.json.Decoder(list[tuple[JobId, JobState]])
beat = msgspec.json.Decoder(tuple[Instant, int, tuple[RunId, ...], int])
staged = msgspec.json.Decoder(tuple[Instant, int, list[str], int, int])
fired = msgspec.json.Decoder(list[tuple[int, int, list[str]]])
pairs = msgspec.json.Decoder(list[tuple[int, int]])
membership = msgspec.json.Decoder(tuple[Instant, tuple[SessionId, ...], list[tuple[int, int]]] | None)
candidates = msgspec.json.Decoder(tuple[list[int], list[str]])


def held_runs(text: str) -> tuple[list[HeldRun], list[Settlement]]:
    """Runs as their workers hold them, and the end of those that cannot be read."""
    held, unreadable = read_rows(_held.decode(text), _held_run)
    return held, [settle_unreadable(row.id, row.fence, error) for row, error in unreadable]


def _held_run(row: _Held) -> HeldRun:
    return HeldRun(
        id=row.id,
        fence=row.fence,
        task=row.task,
        payload=bytes_of(row.payload),
        policy=DEFAULT_POLICY if row.policy is None else policy_of(row.policy),
        queue=row.queue,
        tenant=row.tenant,
        priority=row.priority,
        attempt=row.attempt,
        lost=row.lost,
        due=row.due,
        started_at=row.started_at,
        attempt_until=row.attempt_until,
        deadline=row.deadline,
        job_id=row.job_id,
        scheduled_at=row.scheduled_at,
        lets_go=row.lets_go != 0,
        cancel_requested=row.cancel_requested != 0,
    )


def run_views(text: str) -> dict[RunId, RunView]:
    return {
        row.id: RunView(
            id=row.id,
            state=row.state,
            task=row.task,
            queue=row.queue,
            tenant=row.tenant,
            priority=row.priority,
            attempt=row.attempt,
            due=row.due,
            created_at=row.created_at,
            lost=row.lost,
            fence=row.fence,
            reason=row.reason,
            job_id=row.job_id,
            scheduled_at=row.scheduled_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            cancel_requested=row.cancel_requested != 0,
            result=None if row.result is None else bytes_of(row.result),
            error=row.error,
        )
        for row in _views.decode(text)
    }


def jobs(text: str) -> list[Job]:
    """Those that can be read; the others are named in the log."""
    found, unreadable = read_rows(_jobs.decode(text), _job)
    for row, error in unreadable:
        name_unreadable_job(row.id, row.version, str(error))
    return found


def _job(row: _Job) -> Job:
    return Job(
        id=row.id,
        tenant=row.tenant,
        spec=spec_of(row.spec),
        version=row.version,
        state=row.state,
        next_fire=row.next_fire,
        rev=row.rev,
        payload=bytes_of(row.payload),
    )


def attempts(text: str) -> list[AttemptView]:
    return [
        AttemptView(
            run_id=run,
            fence=fence,
            number=number,
            outcome=outcome,
            reason=reason,
            error=error,
            started_at=started_at,
            ended_at=ended_at,
        )
        for run, fence, number, outcome, reason, error, started_at, ended_at in _attempts.decode(text)
    ]


def ledger_entries(text: str) -> list[LedgerEntry]:
    return [
        LedgerEntry(
            job_id=job,
            scheduled_at=scheduled_at,
            decision=decision,
            reason=reason,
            run_id=run,
            job_version=version,
            epoch=epoch,
            ticks=ticks,
            last_at=last_at,
        )
        for job, scheduled_at, decision, reason, run, version, epoch, ticks, last_at in _ledger.decode(text)
    ]


def depths(text: str) -> list[Depth]:
    return [
        Depth(queue=queue, queued=queued, running=running, oldest_due=oldest_due)
        for queue, queued, running, oldest_due in _depths.decode(text)
    ]


def event_batches(text: str) -> list[EventBatch]:
    return [
        EventBatch(position=position, at=at, kind=kind, runs=runs) for position, at, kind, runs in _events.decode(text)
    ]
