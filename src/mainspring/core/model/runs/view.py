"""Runs and attempts as shown to users."""

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.policy import DEFAULT_POLICY, RunPolicy
from mainspring.core.model.runs.retention import STANDARD
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.model.workflows.dependencies import DependencyRule


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress that a running attempt reported."""

    done: float
    total: float | None = None
    note: str = ""
    at: Instant = 0


class RunView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run in any state, with its current data."""

    id: RunId
    state: RunState
    task: str
    queue: str
    tenant: str
    priority: int
    attempt: int
    due: Instant
    created_at: Instant
    lost: int = 0
    fence: int = 0
    reason: str = ""
    job_id: JobId | None = None
    job_version: int | None = None
    scheduled_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    cancel_requested: bool = False
    result: bytes | None = None
    error: str | None = None
    about: About | None = None
    policy: RunPolicy = DEFAULT_POLICY
    #: When the run last became eligible. May be missing for a waiting or ended run.
    queued_at: Instant | None = None
    #: The worker that runs it or ran it last: session and name.
    session: SessionId | None = None
    executor: str = ""
    start_by: Instant | None = None
    deadline: Instant | None = None
    replay_of: RunId | None = None
    #: The newest report, also after its attempt has ended, until another attempt reports.
    progress: Progress | None = None
    #: The group of a failed run among dead letters.
    fingerprint: str = ""
    #: The only session that may run it.
    target: SessionId | None = None
    #: The number of its dependencies, also after they ended, and their rule; 0: none.
    parents: int = 0
    rule: DependencyRule | None = None
    #: The number of the limiter that blocks the run, if one does (``limits.words_of``).
    limiter: int | None = None
    #: The retention class of an ended run.
    kept_as: str = STANDARD
    #: Set only if requested.
    payload: bytes | None = None


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that did not succeed."""

    run_id: RunId
    fence: int
    number: int
    outcome: Outcome
    reason: str
    error: str | None
    started_at: Instant
    ended_at: Instant


#: How long a worker has to kill a hung attempt itself before the reaper reclaims the run.
OVERDUE_GRACE: Micros = 30 * SECOND
