"""Converts values of the model to the JSON that SQLite procedures take and return, and back.

Items are arrays, in the order of the procedures' columns. Payloads and results are JSON themselves: they are strings
inside it, and text in the database, byte for byte.
"""

from functools import lru_cache
from typing import Literal

import msgspec

from mainspring.core.model.access.access import ApiKey, Quotas, Role, Tenant
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.cluster.datacenters import placed
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.events.events import RunFacts, WorkerFacts
from mainspring.core.model.limits.limits import BREAKER
from mainspring.core.model.runs.completion import Completion, CompletionAnswer, complete_unreadable
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.policy import DEFAULT_POLICY, RunPolicy
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.runs.view import AttemptView, Progress, RunView
from mainspring.core.model.schedules.job import (
    Fire,
    Job,
    JobSpec,
    JobState,
    LedgerEntry,
    Tick,
    tick_run_id,
)
from mainspring.core.model.workflows.dependencies import Rule
from mainspring.core.ports.events_out import ReaderView
from mainspring.core.ports.storage.access import AuditEntry
from mainspring.core.ports.storage.catalog import (
    DeadGroup,
    JobVersion,
    Load,
    LogLine,
    Minute,
    Pause,
    SessionView,
    Timings,
)
from mainspring.core.store import Depth, EventBatch
from mainspring.stores.depths import fold_depths
from mainspring.stores.key_locks import compute_run_key_lock, compute_tick_key_lock
from mainspring.stores.unreadable import UNREADABLE, name_unreadable_job, read_rows

#: No JSON text begins with this character.
_MARK = "\x01"

_encoder = msgspec.json.Encoder()


def encode(value: object) -> str:
    return _encoder.encode(value).decode()


def text_of(content: bytes) -> str:
    """Encode bytes as text: text stays as it is, other bytes become a mark and hexadecimal digits."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return _MARK + content.hex()
    # SQLite's text functions stop at a zero character.
    return _MARK + content.hex() if "\x00" in text or text[:1] == _MARK else text


def bytes_of(text: str) -> bytes:
    return bytes.fromhex(text[1:]) if text[:1] == _MARK else text.encode()


@lru_cache(maxsize=10_000)
def policy_text(policy: RunPolicy) -> str | None:
    """Encode a policy as it is stored in a body; None if every field has its default."""
    return None if policy == DEFAULT_POLICY else encode(policy)


@lru_cache(maxsize=10_000)
def policy_of(text: str | None) -> RunPolicy:
    return DEFAULT_POLICY if text is None else msgspec.json.decode(text, type=RunPolicy)


_NO_ABOUT = About()


def about_text(about: About | None) -> str | None:
    return None if about is None else encode(about)


def about_of(text: str | None) -> About | None:
    return None if text is None else msgspec.json.decode(text, type=About)


@lru_cache(maxsize=10_000)
def spec_of(text: str) -> JobSpec:
    return msgspec.json.decode(text, type=JobSpec)


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
        None if default else compute_run_key_lock(run.tenant, policy),
        run.replay_of,
        policy.timeout,
    )


@lru_cache(maxsize=10_000)
def limits_text(tenant: str, task: str, policy: RunPolicy) -> str | None:
    """Encode the limiters that a run must pass, a breaker first; None for most runs."""
    gates = policy.gates(tenant, task)
    if not gates:
        return None
    first = sorted(gates, key=lambda gate: gate.kind != BREAKER)
    return encode([(gate.kind, gate.number, gate.most, gate.per, gate.pause) for gate in first])


def lane_text(requires: tuple[str, ...]) -> str | None:
    """Encode the label set that a run requires; None if it is empty."""
    return encode(requires) if requires else None


def asks_for_more(run: NewRun) -> bool:
    """Report whether a run has fields that the basic submit does not take. Most runs have none."""
    policy = run.policy
    return bool(
        run.about
        or run.job
        or run.idempotency
        or run.author
        or run.replay_of
        or run.target
        or (policy is not DEFAULT_POLICY and (policy.requires or policy.limits or policy.breaker))
    )


def is_tied(run: NewRun) -> bool:
    """Report whether submitting a run involves other runs: its parents, or the run that holds its unique key."""
    return run.after is not None or run.unique is not None


def submit_more_item(run: NewRun, shard: int) -> tuple[object, ...]:
    job, idempotency = run.job, run.idempotency
    return (
        *submit_item(run, shard),
        about_text(run.about),
        None if job is None else job.id,
        None if job is None else job.version,
        None if job is None else job.scheduled_at,
        int(job is not None and job.kind == "backfill"),
        None if idempotency is None else idempotency.key,
        None if idempotency is None else idempotency.fingerprint.hex(),
        run.author,
        lane_text(run.policy.requires),
        run.target,
        limits_text(run.tenant, run.task, run.policy),
        None if run.after is None else run.after.rule,
    )


def complete_item(completion: Completion) -> tuple[object, ...]:
    result = completion.result
    return (
        completion.run,
        completion.fence,
        completion.outcome,
        completion.state,
        completion.reason,
        completion.delay,
        None if result is None else text_of(result),
        completion.error,
        completion.fingerprint or None,
    )


def metered_item(completion: Completion) -> tuple[object, ...]:
    """Encode a completion, with the cost of the attempt beyond its time."""
    spent = completion.spent
    cpu, units = (None, None) if spent is None else (spent.cpu, encode(spent.units) if spent.units else None)
    return (*complete_item(completion), cpu, units)


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
        compute_tick_key_lock(job.id, job.tenant, spec),
        spec.start_within,
        spec.deadline,
        [
            (
                tick.scheduled_at,
                tick.decision,
                tick.reason,
                (tick.run_id or tick_run_id(job.id, tick.scheduled_at, tick.target))
                if tick.decision == "run"
                else None,
                tick.due,
                int(tick.late),
                tick.ticks,
                tick.last_at,
                tick.happens_at,
                *(_place_of_tick(job, tick) if tick.target else ()),
            )
            for tick in fire.ticks
        ],
        lane_text(spec.policy.requires),
        limits_text(job.tenant, spec.task, spec.policy),
        fire.next_tick,
        int(bool(spec.datacenters)),
    )


def _place_of_tick(job: Job, tick: Tick) -> tuple[object, ...]:
    """Return the fields of a tick that differ between data centers."""
    policy = placed(job.spec.policy, tick.target)
    gate = compute_tick_key_lock(job.id, job.tenant, job.spec, tick.target)
    return tick.target, lane_text(policy.requires), gate, policy_text(policy)


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
    #: Set for claimed runs only.
    state: str | None = None
    #: Set by the ``held`` query only.
    session: SessionId | None = None
    #: Set for claimed runs only: when a limit or key released it, and when the last pause that applied to it ended.
    ready_at: Instant | None = None
    resumed_at: Instant | None = None


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
    job_version: int | None
    about: str | None
    policy: str | None
    queued_at: Instant | None
    session: SessionId | None
    executor: str
    start_by: Instant | None
    deadline: Instant | None
    replay_of: RunId | None
    progress: str | None
    fingerprint: str
    target: SessionId | None
    parents: int
    rule: Rule | None
    gate: int | None
    kept_as: str
    payload: str | None


class _Job(msgspec.Struct, array_like=True, frozen=True):
    id: JobId
    tenant: str
    spec: str
    version: int
    state: JobState
    next_fire: Instant | None
    rev: int
    payload: str
    created_at: Instant
    updated_at: Instant
    resume_at: Instant | None
    paused_until: Instant | None
    pause_why: str
    next_tick: Instant | None
    calendar_rev: int


class _Session(msgspec.Struct, array_like=True, frozen=True):
    id: SessionId
    kind: Literal["worker", "scheduler"]
    name: str
    version: str
    datacenter: str
    started_at: Instant
    lease_until: Instant
    lease: int
    owner: str
    serves: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    labels: tuple[str, ...]
    priorities: tuple[int, ...]
    slots: int | None
    running: int
    draining: int
    shards: int
    clock: tuple[int, int] | None = None
    tzdata: str = ""


class _Minute(msgspec.Struct, array_like=True, frozen=True):
    at: Instant
    queue: str
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    retried: int
    late_total: int
    late_most: int
    took_total: int
    took_most: int
    started: int


class _Key(msgspec.Struct, array_like=True, frozen=True):
    id: str
    tenant: str | None
    name: str
    role: Role
    secret_hash: str
    queues: tuple[str, ...]
    made_by: str
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None
    last_used_at: Instant | None


class _Audit(msgspec.Struct, array_like=True, frozen=True):
    position: int
    at: Instant
    tenant: str
    author: str
    action: str
    target: str
    count: int
    before: str | None
    after: str | None
    why: str


_held = msgspec.json.Decoder(list[_Held])
_views = msgspec.json.Decoder(list[_View])
_jobs = msgspec.json.Decoder(list[_Job])
_attempts = msgspec.json.Decoder(list[tuple[RunId, int, int, Outcome, str, str | None, Instant, Instant]])
_ledger = msgspec.json.Decoder(
    list[tuple[JobId, Instant, Literal["run", "skipped"], str, RunId | None, int, int, int, Instant | None, str]]
)
_hints = msgspec.json.Decoder(list[tuple[str, str, int, int, str, int, str]])
_depths = msgspec.json.Decoder(list[tuple[str, str | None, int, int, Instant | None, Instant | None]])
_facts = msgspec.json.Decoder(
    list[tuple[RunId, str, str, JobId | None, Instant | None, int, int, str, str | None, str | None]]
)
_workers = msgspec.json.Decoder(list[tuple[SessionId, str, str, str, tuple[str, ...]]])
_readers = msgspec.json.Decoder(list[tuple[str, Instant | None]])
_Event = tuple[int, Instant, str, tuple[RunId, ...], str]
_events = msgspec.json.Decoder(list[_Event])
_following = msgspec.json.Decoder(tuple[int, int, list[_Event]])
_versions = msgspec.json.Decoder(list[tuple[int, str, str, str, str, Instant]])
_sessions = msgspec.json.Decoder(list[_Session])
_pauses = msgspec.json.Decoder(list[tuple[str, str, Instant, str, str, Instant | None]])
_minutes = msgspec.json.Decoder(list[_Minute])
_timings = msgspec.json.Decoder(list[tuple[int, int, int]])
_loads = msgspec.json.Decoder(list[tuple[Instant, int, int, Micros]])
_log = msgspec.json.Decoder(list[tuple[int, Instant, int, str]])
_ids = msgspec.json.Decoder(list[RunId])
_logs = msgspec.json.Decoder(dict[str, list[tuple[int, Instant, int, str]]])
_log_sizes = msgspec.json.Decoder(dict[RunId, tuple[int, int, int, str, int | None, int]])
_tenants = msgspec.json.Decoder(list[tuple[str, str, Instant]])
_keys = msgspec.json.Decoder(list[_Key])
_numbers = msgspec.json.Decoder(list[int])
_audits = msgspec.json.Decoder(list[_Audit])
_dead_groups = msgspec.json.Decoder(list[tuple[str, str, str, int, Instant, Instant, RunId, str, tuple[int, ...]]])

accepted = msgspec.json.Decoder(list[tuple[int, RunState, int]])
accepted_more = msgspec.json.Decoder(list[tuple[RunId, RunState, int, int]])
answers = msgspec.json.Decoder(list[tuple[int, CompletionAnswer]])
run_states = msgspec.json.Decoder(list[tuple[RunId, RunState]])
job_states = msgspec.json.Decoder(list[tuple[JobId, JobState]])
#: (id, tenant, state), for the audit.
standing = msgspec.json.Decoder(list[tuple[str, str, str]])
#: (id, tenant, state, resume time, revision), for the audit.
standing_jobs = msgspec.json.Decoder(list[tuple[JobId, str, JobState, Instant | None, int]])
strings = msgspec.json.Decoder(list[str])
number = msgspec.json.Decoder(int | None)
heartbeat = msgspec.json.Decoder(tuple[Instant, int, tuple[RunId, ...], int, int])
tidied = msgspec.json.Decoder(tuple[int, list[tuple[str, RunState, int]]])
staged = msgspec.json.Decoder(tuple[Instant, int, list[str], int, int])
fired = msgspec.json.Decoder(list[tuple[int, int, list[str]]])
pairs = msgspec.json.Decoder(list[tuple[int, int]])
membership = msgspec.json.Decoder(tuple[Instant, tuple[SessionId, ...], list[tuple[int, int]], Instant | None] | None)
candidates = msgspec.json.Decoder(tuple[list[int], list[str], list[int], list[str]])


def held_runs(text: str) -> tuple[list[HeldRun], list[Completion]]:
    """Decode held runs. For each run that cannot be decoded, return the completion that ends it."""
    held, unreadable = read_rows(_held.decode(text), _held_run)
    return held, [complete_unreadable(row.id, row.fence, error) for row, error in unreadable]


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
        session=row.session,
        state=None if row.state is None else bytes_of(row.state),
        ready_at=max(row.ready_at or 0, row.resumed_at or 0),
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
            job_version=row.job_version,
            about=about_of(row.about),
            policy=DEFAULT_POLICY if row.policy is None else _policy_shown(row.policy),
            queued_at=row.queued_at,
            session=row.session,
            executor=row.executor,
            start_by=row.start_by,
            deadline=row.deadline,
            replay_of=row.replay_of,
            progress=None if row.progress is None else msgspec.json.decode(row.progress, type=Progress),
            fingerprint=row.fingerprint,
            target=row.target,
            parents=row.parents,
            rule=row.rule,
            gate=row.gate,
            kept_as=row.kept_as,
            payload=None if row.payload is None else bytes_of(row.payload),
        )
        for row in _views.decode(text)
    }


def _policy_shown(text: str) -> RunPolicy:
    """Decode the policy of a view. A policy that cannot be decoded must not hide its run."""
    try:
        return policy_of(text)
    except UNREADABLE:
        return DEFAULT_POLICY


def jobs(text: str) -> list[Job]:
    """Decode jobs. Those that cannot be decoded are logged and left out."""
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
        created_at=row.created_at,
        updated_at=row.updated_at,
        resume_at=row.resume_at,
        paused_until=row.paused_until,
        pause_why=row.pause_why,
        next_tick=row.next_tick,
        calendar_rev=row.calendar_rev,
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
            target=target,
        )
        for job, scheduled_at, decision, reason, run, version, epoch, ticks, last_at, target in _ledger.decode(text)
    ]


def depths(text: str) -> list[Depth]:
    return fold_depths(_depths.decode(text))


def hints(text: str) -> list[Hint]:
    return [
        Hint(RunId(run), queue, rank, priority, key, attempt, datacenter)
        for run, queue, rank, priority, key, attempt, datacenter in _hints.decode(text)
    ]


def run_facts(text: str) -> list[RunFacts]:
    return [
        RunFacts(
            id=run,
            task=task,
            queue=queue,
            job_id=job,
            scheduled_at=scheduled_at,
            ended=bool(ended),
            attempt=attempt,
            reason=reason,
            error=error,
            tags=(about_of(about) or _NO_ABOUT).tags,
        )
        for run, task, queue, job, scheduled_at, ended, attempt, reason, error, about in _facts.decode(text)
    ]


def worker_facts(text: str) -> list[WorkerFacts]:
    return [
        WorkerFacts(id=session, name=name, version=version, datacenter=datacenter, queues=queues)
        for session, name, version, datacenter, queues in _workers.decode(text)
    ]


def readers(text: str) -> list[ReaderView]:
    return [ReaderView(name, oldest) for name, oldest in _readers.decode(text)]


def event_batches(text: str) -> list[EventBatch]:
    return _batches(_events.decode(text))


def following(text: str) -> tuple[int, int, list[EventBatch]]:
    """Return the horizon, the newest position, and the batches."""
    horizon, newest, events = _following.decode(text)
    return horizon, newest, _batches(events)


def _batches(events: list[_Event]) -> list[EventBatch]:
    return [
        EventBatch(position=place(position), at=at, kind=kind, runs=runs, tenant=tenant)
        for position, at, kind, runs, tenant in events
    ]


def place(position: int) -> str:
    """Encode an event position as text that sorts like the number."""
    return f"{position:020d}"


def job_versions(text: str) -> list[JobVersion]:
    """Decode the versions that can be decoded."""
    found, _ = read_rows(_versions.decode(text), _version)
    return found


def _version(row: tuple[int, str, str, str, str, Instant]) -> JobVersion:
    version, spec, payload, made_by, why, made_at = row
    return JobVersion(
        version=version, spec=spec_of(spec), payload=bytes_of(payload), made_by=made_by, why=why, made_at=made_at
    )


def sessions(text: str) -> list[SessionView]:
    return [
        SessionView(
            **{
                **msgspec.structs.asdict(row),
                "draining": row.draining != 0,
                "clock": None if row.clock is None else ClockReading(*row.clock),
            }
        )
        for row in _sessions.decode(text)
    ]


def pauses(text: str) -> list[Pause]:
    return [
        Pause(tenant=tenant or None, queue=queue or None, since=since, author=author, why=why, until=until)
        for tenant, queue, since, author, why, until in _pauses.decode(text)
    ]


def minutes(text: str) -> list[Minute]:
    return [Minute(**msgspec.structs.asdict(row)) for row in _minutes.decode(text)]


def loads(text: str) -> list[Load]:
    return [Load(at=at, queued=queued, running=running, lag=lag) for at, queued, running, lag in _loads.decode(text)]


def timings(text: str) -> Timings:
    found = _timings.decode(text)
    return Timings(
        {bucket: late for bucket, late, _ in found if late}, {bucket: took for bucket, _, took in found if took}
    )


def log_lines(text: str) -> list[LogLine]:
    return [
        LogLine(position=position, at=at, attempt=attempt, text=printed)
        for position, at, attempt, printed in _log.decode(text)
    ]


def logs(text: str) -> dict[RunId, list[LogLine]]:
    return {
        RunId(run): [
            LogLine(position=position, at=at, attempt=attempt, text=printed) for position, at, attempt, printed in lines
        ]
        for run, lines in _logs.decode(text).items()
    }


def log_sizes(text: str) -> dict[RunId, tuple[int, int, int, str, int | None, int]]:
    """Return the size of each log: pieces, bytes, and whether it is cut.

    Then follow the tenant of the run, how many bytes it may log in a day, and how many it has logged today.
    """
    return _log_sizes.decode(text)


def tenants(text: str) -> list[Tenant]:
    return [tenant(*row) for row in _tenants.decode(text)]


def tenant(name: str, quotas: str, created_at: Instant) -> Tenant:
    return Tenant(name=name, quotas=msgspec.json.decode(quotas, type=Quotas), created_at=created_at)


def keys(text: str) -> list[ApiKey]:
    return [
        ApiKey(**{**msgspec.structs.asdict(row), "secret_hash": bytes.fromhex(row.secret_hash)})
        for row in _keys.decode(text)
    ]


def audit_entries(text: str) -> list[AuditEntry]:
    return [
        AuditEntry(
            **{
                **msgspec.structs.asdict(row),
                "before": None if row.before is None else row.before.encode(),
                "after": None if row.after is None else row.after.encode(),
            }
        )
        for row in _audits.decode(text)
    ]


def run_ids(text: str) -> list[RunId]:
    return _ids.decode(text)


def heard(text: str) -> list[bool]:
    return [answer != 0 for answer in _numbers.decode(text)]


def dead_groups(text: str) -> list[DeadGroup]:
    return [
        DeadGroup(
            fingerprint=fingerprint,
            task=task,
            reason=reason,
            count=count,
            first_at=first_at,
            last_at=last_at,
            sample=sample,
            error=error,
            trend=trend,
        )
        for fingerprint, task, reason, count, first_at, last_at, sample, error, trend in _dead_groups.decode(text)
    ]
