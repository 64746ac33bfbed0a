"""A run: its states, the only legal moves between them, and what an attempt's outcome does to it.

    submit ─▶ scheduled ─▶ queued ─▶ running ─▶ succeeded
                 ▲  │         ▲         │ │
                 │  ▼         │         │ ├──▶ failed      (error, timeout, deadline, poison, lost, unreadable)
                 │ blocked ───┘         │ ├──▶ cancelled
                 │                      │ └──▶ queued      (released, lost: again at once)
                 └──────────────────────┘                  (a retry waits for its back-off)

A blocked run waits for other runs, for its ordering key, or for a limit. A retry may be blocked by them too, and so is
a queued run when a breaker opens. An edit, or another submission of its unique key, may delay a queued run: it is
scheduled again. A running run that was asked to stop shows as ``cancelling``. A run that has not started can become
``cancelled``, ``skipped`` (expired) or ``failed`` (deadline).

``MOVES`` lists all of these. The contract tests check it in every store. Only ``finish`` goes beyond it: a run
whose end is known from before a restore gets that end from any state (``KnownEnd``).
"""

from enum import StrEnum

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.runs.policy import RunPolicy

#: From this many losses on it runs alone in a child process, so that the next loss has one suspect.
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
    # What waited for others may still have to wait for its time.
    RunState.BLOCKED: _NOT_STARTED | {RunState.SCHEDULED},
    # A breaker that opens blocks it. An edit, or another submission of its unique key, delays it.
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
    """How one attempt ended."""

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
    #: The number of this attempt, from 1. Losses count here too.
    attempt: int
    #: How many attempts before this one were lost with their worker.
    lost: int
    due: Instant
    started_at: Instant
    #: When this attempt is stopped: its timeout or the run's deadline, whichever is sooner.
    attempt_until: Instant
    deadline: Instant | None = None
    job_id: JobId | None = None
    scheduled_at: Instant | None = None
    #: Ending this run lets another one go (an ordering key, an overlap rule, a fixed delay).
    lets_go: bool = False
    cancel_requested: bool = False
    #: Who holds it. Only where others ask: whoever claims knows.
    session: SessionId | None = None
    #: What the last attempt left for this one, as JSON. Only where it was claimed.
    state: bytes | None = None
    #: Its queue lets only so many run at once: when it has ended another may start. Only where it was claimed.
    limited: bool = False
    #: Since when it could have started, where that is later than its due time: a limit, a key or a pause held it back,
    #: or it came back from an attempt. Only where it was claimed.
    ready_at: Instant = 0

    @property
    def alone(self) -> bool:
        return self.lost >= ALONE_AFTER


#: How long a run is left alone that a worker did not know how to do: another one, perhaps a newer, may take it.
UNKNOWN_TASK_DELAY: Micros = 5 * SECOND
