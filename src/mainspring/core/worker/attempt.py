"""The state of a worker's attempts, and of the session they belong to."""

import asyncio
from enum import Enum
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.worker.reporting.attempt_reporter import AttemptReporter
from mainspring.core.worker.slots import SlotGroup

#: Later than any time: an attempt whose time limit does not run yet.
NEVER: Micros = 1 << 62


class Stop(Enum):
    """Why an attempt was asked to stop."""

    TIMEOUT = "timeout"
    #: No sign of life for as long as its task allows.
    SILENT = "no heartbeat"
    CANCEL = "cancel"
    #: The worker drains; the run continues elsewhere.
    RELEASE = "release"
    #: The lease is lost. No outcome may be reported.
    FENCED = "fenced"


class Attempt(msgspec.Struct, eq=False):
    """One held run while this worker handles it. Compared by identity, because a run can be claimed twice."""

    held: HeldRun
    holding: "Holding"
    group: SlotGroup
    #: When it was claimed, by the monotonic clock.
    came_at: Micros
    #: When it times out, by the monotonic clock.
    until: Micros
    #: When it ended, by the monotonic clock; 0 before.
    ended_at: Micros = 0
    #: User code has been called.
    begun: bool = False
    #: Its outcome is ignored: the lease is lost, or the worker has left the attempt behind.
    dropped: bool = False
    stop: Stop | None = None
    #: When it is killed if it has not ended.
    kill_at: Micros = NEVER
    executor: "Executor | None" = None
    task: "asyncio.Task[None] | None" = None
    #: Its reports; set when user code is called.
    reporter: "AttemptReporter[Attempt] | None" = None

    @property
    def duration(self) -> Micros:
        """The time limit of the attempt."""
        return self.held.attempt_until - self.held.started_at


class Holding:
    """The runs that one session of the worker holds, as every heartbeat reports them to the store.

    A run is in ``held`` from its claim until the store's answer to its outcome. A new session starts with a new
    holding, so that runs of the old session cannot be mistaken for its own.
    """

    __slots__ = ("held", "last_claim", "lost", "pending", "renewed_at", "session")

    def __init__(self, session: SessionId, renewed_at: Micros) -> None:
        self.session = session
        #: The monotonic time at which the last answered heartbeat was *sent*; the lease is trusted from there.
        self.renewed_at = renewed_at
        self.held: dict[RunId, Attempt] = {}
        self.pending: set[int] = set()
        self.last_claim = 0
        self.lost = False

    def next_claim(self) -> int:
        # Pending first: a claim must never look answered before it was sent.
        number = self.last_claim + 1
        self.pending.add(number)
        self.last_claim = number
        return number


class Executor(Protocol):
    """Runs attempts. Reports each end to ``Outcomes`` exactly once, when user code has really ended."""

    def stop(self, attempt: Attempt) -> None:
        """Ask the attempt to stop in a way that allows cleanup. An attempt that has not begun ends at once."""
        ...

    def kill(self, attempt: Attempt) -> None:
        """Stop the attempt by force."""
        ...
