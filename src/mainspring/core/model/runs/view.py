"""A run and its attempts as people read them."""

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.policy import DEFAULT_POLICY, RunPolicy
from mainspring.core.model.runs.retention import STANDARD
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.model.workflows.dependencies import Rule


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a running attempt says it is."""

    done: float
    total: float | None = None
    note: str = ""
    at: Instant = 0


class RunView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run as it stands now, in any state."""

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
    #: When it last became eligible. May be missing of one that waits or has ended.
    queued_at: Instant | None = None
    #: Who runs it, or ran it last: the worker's session and its name.
    session: SessionId | None = None
    executor: str = ""
    start_by: Instant | None = None
    deadline: Instant | None = None
    replay_of: RunId | None = None
    #: The newest report, also after its attempt has ended, until another attempt reports.
    progress: Progress | None = None
    #: Of a failed run.
    fingerprint: str = ""
    #: The one session that may run it.
    target: SessionId | None = None
    #: How many runs it waits for, or waited for; 0: none. And by which rule.
    parents: int = 0
    rule: Rule | None = None
    #: Of a blocked one: the number of the gate that it waits for, if it is that (``limits.words_of``).
    gate: int | None = None
    #: The retention class of an ended run.
    kept_as: str = STANDARD
    #: Only where it was asked for.
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


#: How long a worker is given to kill a hung attempt itself before the reaper takes the run away.
OVERDUE_GRACE: Micros = 30 * SECOND
