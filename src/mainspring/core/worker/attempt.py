"""What a worker has in its hands: attempts, and the session they belong to."""

import asyncio
from enum import Enum
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.worker.reporting.telling import Telling
from mainspring.core.worker.slots import Lane

#: Later than anything: an attempt whose time is not counted yet.
NEVER: Micros = 1 << 62


class Stop(Enum):
    """Why an attempt was told to stop."""

    TIMEOUT = "timeout"
    #: It has not shown life for as long as its task allows.
    SILENT = "no heartbeat"
    CANCEL = "cancel"
    #: The worker leaves; the run goes on elsewhere.
    RELEASE = "release"
    #: The lease is gone. Whatever comes out is not ours to tell.
    FENCED = "fenced"


class Attempt(msgspec.Struct, eq=False):
    """One held run while this worker has anything to do with it. Compared by identity: a run can come twice."""

    held: HeldRun
    holding: "Holding"
    lane: Lane
    #: When it came, by the monotonic clock.
    came_at: Micros
    #: When it is out of time, by the monotonic clock.
    until: Micros
    #: When it had ended, by the monotonic clock; 0 before.
    ended_at: Micros = 0
    #: User code has been called.
    begun: bool = False
    #: Its end is nobody's business any more: the lease is gone, or the worker has left it behind.
    dropped: bool = False
    stop: Stop | None = None
    #: When it is stopped harder if it has not ended.
    kill_at: Micros = NEVER
    executor: "Executor | None" = None
    task: "asyncio.Task[None] | None" = None
    #: What it tells; there from when user code is called.
    telling: "Telling[Attempt] | None" = None

    @property
    def duration(self) -> Micros:
        """How long it may take."""
        return self.held.attempt_until - self.held.started_at


class Holding:
    """What one session of the worker holds, as every beat tells the store.

    A run is in ``held`` from its claim's answer until the verdict on its settlement. A fresh session starts with a
    fresh holding, so nothing of the old one can be mistaken for its own.
    """

    __slots__ = ("held", "last_claim", "lost", "pending", "renewed_at", "session")

    def __init__(self, session: SessionId, renewed_at: Micros) -> None:
        self.session = session
        #: The monotonic time at which the last good beat was *sent*; the lease is trusted from there.
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
    """A place where attempts run. Tells their end to ``Outcomes`` exactly once, when user code has really ended."""

    def stop(self, attempt: Attempt) -> None:
        """Ask it to stop, in a way that lets it clean up. What has not begun ends at once."""
        ...

    def kill(self, attempt: Attempt) -> None:
        """Make it stop, by whatever force there is."""
        ...
