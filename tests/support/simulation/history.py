"""The history of a world in order: written by the harness, read by the checker."""

import hashlib
from typing import Any, Literal, NamedTuple

import msgspec

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.schedules.calendar import Calendar
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.stores.memory.rows import JobRow, RunRow


class RunChange(msgspec.Struct):
    """One move of a run. ``before`` is None when the run is created."""

    before: RunRow | None
    after: RunRow
    #: Another submit with its unique key delayed or changed it.
    edited: bool = False


class JobChange(msgspec.Struct):
    before: JobRow | None
    after: JobRow


class Step(msgspec.Struct, kw_only=True):
    """One operation that the store applied, with all of its changes."""

    order: int
    #: The store's clock.
    at: Instant
    process: str
    operation: str
    #: When the request left its process, by the store's clock.
    sent: Instant
    runs: list[RunChange] = []
    jobs: list[JobChange] = []
    ticks: list[LedgerEntry] = []
    #: Of a completion: the requests and the answers.
    completions: list[tuple[Completion, CompletionAnswer]] = []
    #: Of a claim: the runs that hints named, by queue.
    named: dict[str, tuple[RunId, ...]] = {}
    #: Of a sweep: the number of rows it fixed.
    found: int = 0
    #: Settings by an operator that apply from this step: of a queue, of pauses, of a calendar.
    queue_policy: tuple[str, QueuePolicy] | None = None
    queue_pause: Pause | None = None
    calendar: Calendar | None = None
    #: Preferences that another data center serves from this step.
    serving: dict[str, str] = {}


class HandlerCall(msgspec.Struct, kw_only=True):
    """A call of a handler, from its start to its end."""

    run: RunId
    fence: int
    attempt: int
    process: str
    queue: str
    started: Instant
    #: Its position among steps and other calls.
    order: int
    ended: Instant | None = None
    ended_order: int | None = None
    how: Literal["", "returned", "raised", "stopped", "died"] = ""


class Claim(msgspec.Struct, kw_only=True):
    """A worker asks for runs of one queue."""

    process: str
    queue: str
    #: When it was sent, in true time since the world began.
    sent: Micros
    #: The runs that hints named; None: the best of the queue.
    named: tuple[RunId, ...] | None = None
    #: The worker has received the answer.
    answered: bool = False


class Heartbeat(NamedTuple):
    """A worker of a data center opened or renewed its session."""

    #: Its position among steps. Several steps have the same time while the store's clock stands still.
    order: int
    at: Instant
    datacenter: str


class Truth(msgspec.Struct, kw_only=True):
    """Facts about the world that the checker needs."""

    slots: dict[str, int] = {}
    #: The data center of each machine that has one.
    datacenters: dict[str, str] = {}
    #: Heartbeats from data centers, in order.
    alive: list[Heartbeat] = []
    #: Everything that clients submitted, answered or not.
    submitted: dict[RunId, NewRun] = {}
    #: Runs whose submit was answered as accepted.
    accepted: list[RunId] = []
    #: Jobs whose declaration was answered.
    declared: list[JobId] = []
    #: Stretches of time without faults, by the store's clock.
    calm: list[tuple[Instant, Instant]] = []
    #: In a calm stretch nothing is staged later than this.
    punctual: Micros = 0
    #: The poll interval of workers that claim by hints.
    look_every: Micros = 0
    #: When processes were frozen: name, from, to.
    freezes: list[tuple[str, Instant, Instant]] = []
    #: The sum of all jumps of the store's clock. Estimates of it may be off by that.
    clock_steps: Micros = 0
    #: The content of the store at the end.
    runs: dict[RunId, RunRow] = {}
    jobs: dict[JobId, JobRow] = {}
    ledgers: dict[JobId, list[LedgerEntry]] = {}
    #: Rows of limiters and dependencies that are left after all runs ended.
    leftovers: list[str] = []
    #: The events that the outbox delivered.
    events: list[EventBatch] = []
    ended_at: Instant = 0


class History(msgspec.Struct, kw_only=True):
    steps: list[Step] = []
    calls: list[HandlerCall] = []
    claims: list[Claim] = []
    #: Errors that services logged, except those caused by an unavailable store.
    errors: list[str] = []
    #: Log of the injected faults.
    chaos: list[tuple[Instant, str]] = []
    truth: Truth = msgspec.field(default_factory=Truth)

    def fingerprint(self) -> str:
        """A digest of the trace that is equal on every machine and in every process."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.steps, self.calls, self.claims, self.errors, self.chaos, self.truth):
            digest.update(msgspec.json.encode(part, enc_hook=_plain))
        return digest.hexdigest()


def _plain(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} has no place in a history")
