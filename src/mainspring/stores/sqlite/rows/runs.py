"""Decodes the rows of runs. These are arrays, because claims and lists read many of them."""

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.runs.completion import Completion, complete_unreadable
from mainspring.core.model.runs.policy import DEFAULT_POLICY, RunPolicy
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import Progress, RunView
from mainspring.core.model.workflows.dependencies import DependencyRule
from mainspring.stores.sqlite.rows.encoding import decode_about, decode_bytes, decode_policy
from mainspring.stores.unreadable import UNREADABLE, read_rows


class _HeldRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
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
    unblocks_others: int
    cancel_requested: int
    #: Set for claimed runs only.
    state: str | None = None
    #: Set by the ``held`` query only.
    session: SessionId | None = None
    #: Set for claimed runs only: when a limit or key released it, and when the last pause that applied to it ended.
    ready_at: Instant | None = None
    resumed_at: Instant | None = None


class _ViewRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
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
    rule: DependencyRule | None
    limiter: int | None
    kept_as: str
    payload: str | None


class _HintRow(msgspec.Struct, array_like=True, frozen=True):
    run: RunId
    queue: str
    rank: int
    priority: int
    key: str
    attempt: int
    datacenter: str


_held_rows = msgspec.json.Decoder(list[_HeldRow])
_view_rows = msgspec.json.Decoder(list[_ViewRow])
_hint_rows = msgspec.json.Decoder(list[_HintRow])


def decode_held_runs(text: str) -> tuple[list[HeldRun], list[Completion]]:
    """Decode held runs. For each run that cannot be decoded, return the completion that ends it."""
    held, unreadable = read_rows(_held_rows.decode(text), _build_held_run)
    return held, [complete_unreadable(row.id, row.fence, error) for row, error in unreadable]


def _build_held_run(row: _HeldRow) -> HeldRun:
    return HeldRun(
        id=row.id,
        fence=row.fence,
        task=row.task,
        payload=decode_bytes(row.payload),
        policy=DEFAULT_POLICY if row.policy is None else decode_policy(row.policy),
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
        unblocks_others=row.unblocks_others != 0,
        cancel_requested=row.cancel_requested != 0,
        session=row.session,
        state=None if row.state is None else decode_bytes(row.state),
        ready_at=max(row.ready_at or 0, row.resumed_at or 0),
    )


def decode_run_views(text: str) -> dict[RunId, RunView]:
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
            result=None if row.result is None else decode_bytes(row.result),
            error=row.error,
            job_version=row.job_version,
            about=decode_about(row.about),
            policy=DEFAULT_POLICY if row.policy is None else _decode_shown_policy(row.policy),
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
            limiter=row.limiter,
            kept_as=row.kept_as,
            payload=None if row.payload is None else decode_bytes(row.payload),
        )
        for row in _view_rows.decode(text)
    }


def _decode_shown_policy(text: str) -> RunPolicy:
    """Decode the policy of a view. A policy that cannot be decoded must not hide its run."""
    try:
        return decode_policy(text)
    except UNREADABLE:
        return DEFAULT_POLICY


def decode_hints(text: str) -> list[Hint]:
    return [
        Hint(row.run, row.queue, row.rank, row.priority, row.key, row.attempt, row.datacenter)
        for row in _hint_rows.decode(text)
    ]
