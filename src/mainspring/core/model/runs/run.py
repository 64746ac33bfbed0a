"""A run: its states, the legal transitions between them, and the run as its worker holds it.

    submit ─▶ scheduled ─▶ queued ─▶ running ─▶ succeeded
                 ▲  │         ▲         │ │
                 │  ▼         │         │ ├──▶ failed      (error, timeout, deadline, poison, lost, unreadable)
                 │ blocked ───┘         │ ├──▶ cancelled
                 │                      │ └──▶ queued      (released or lost: retried immediately)
                 └──────────────────────┘                  (a retry waits for its back-off)

A blocked run waits for its dependencies, for its ordering key, or for a limit. A retry may be blocked by them, too, and
so is a queued run when a circuit breaker opens. An edit, or another submission of its unique key, may delay a queued
run: it is scheduled again. A running run that was asked to stop is ``cancelling``. A run that has not started can
become ``cancelled``, ``skipped`` (expired) or ``failed`` (deadline).

``MOVES`` lists all of these. The contract tests check it in every store. Only ``finish`` goes beyond it: a run whose
outcome is known from before a restore gets that outcome from any state (``KnownEnd``).
"""

from enum import StrEnum

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.runs.policy import RunPolicy

#: After this many losses a run executes alone in a child process, so that the next loss has a single suspect.
ALONE_AFTER = 2


class RunState(StrEnum):
    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def ended(self) -> bool:
        return self in ENDED


ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED})

_NOT_STARTED = frozenset({RunState.QUEUED, RunState.CANCELLED, RunState.SKIPPED, RunState.FAILED})
MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.SCHEDULED: _NOT_STARTED | {RunState.BLOCKED},
    # A run whose dependencies ended may still be due later.
    RunState.BLOCKED: _NOT_STARTED | {RunState.SCHEDULED},
    # A circuit breaker that opens blocks it. An edit, or another submission of its unique key, delays it.
    RunState.QUEUED: (_NOT_STARTED - {RunState.QUEUED}) | {RunState.RUNNING, RunState.BLOCKED, RunState.SCHEDULED},
    RunState.RUNNING: frozenset({RunState.CANCELLING, RunState.SCHEDULED, RunState.QUEUED, RunState.BLOCKED})
    | (ENDED - {RunState.SKIPPED}),
    RunState.CANCELLING: ENDED - {RunState.SKIPPED},
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.CANCELLED: frozenset(),
    RunState.SKIPPED: frozenset(),
}


class Outcome(StrEnum):
    """The outcome of one attempt."""

    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"
    LOST = "lost"
    CANCELLED = "cancelled"
    RELEASED = "released"


class HeldRun(msgspec.Struct, kw_only=True):
    """A run as its worker holds it: one attempt under one fence."""

    id: RunId
    fence: int
    task: str
    payload: bytes
    policy: RunPolicy
    queue: str
    tenant: str
    priority: int
    #: The number of this attempt, from 1. Lost attempts count, too.
    attempt: int
    #: The number of earlier attempts that were lost with their worker.
    lost: int
    due: Instant
    started_at: Instant
    #: When this attempt is stopped: the earlier of its timeout and the run's deadline.
    attempt_until: Instant
    deadline: Instant | None = None
    job_id: JobId | None = None
    scheduled_at: Instant | None = None
    #: The end of this run may unblock another one (ordering key, overlap rule, fixed delay).
    unblocks_others: bool = False
    cancel_requested: bool = False
    #: The session that holds the run. Set only in queries by others, as the claiming session knows it.
    session: SessionId | None = None
    #: The checkpoint of the last attempt, as JSON. Set only by a claim.
    state: bytes | None = None
    #: The queue has a concurrency limit: the end of this run may let another one start. Set only by a claim.
    limited: bool = False
    #: When the run became ready, if later than its due time: a limit, a key or a pause blocked it, or an earlier
    #: attempt ended. Set only by a claim.
    ready_at: Instant = 0

    @property
    def alone(self) -> bool:
        return self.lost >= ALONE_AFTER


#: The delay of a run after a worker that did not know its task: another worker, perhaps a newer one, may take it.
UNKNOWN_TASK_DELAY: Micros = 5 * SECOND
