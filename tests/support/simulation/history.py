"""What happened in a world, in the order it happened: written by the harness, read by the checker."""

import hashlib
from typing import Any, Literal

import msgspec

from mainspring.adapters.store.memory.rows import JobRow, RunRow
from mainspring.domain.calendar import Calendar
from mainspring.domain.ids import JobId, RunId
from mainspring.domain.instant import Instant, Micros
from mainspring.domain.job import LedgerEntry
from mainspring.domain.queues import QueuePolicy
from mainspring.domain.run import NewRun, Settlement, Verdict
from mainspring.ports.catalog import Pause
from mainspring.ports.store import EventBatch


class RunChange(msgspec.Struct):
    """One move of a run. ``before`` is none when it came into being."""

    before: RunRow | None
    after: RunRow
    #: Another one of its unique key put it off, or changed it.
    edited: bool = False


class JobChange(msgspec.Struct):
    before: JobRow | None
    after: JobRow


class Step(msgspec.Struct, kw_only=True):
    """One operation that the store applied, with everything that it changed."""

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
    #: Of a settle: what was asked and what was said to it.
    settlements: list[tuple[Settlement, Verdict]] = []
    #: Of a claim: what hints had named, by queue.
    named: dict[str, tuple[RunId, ...]] = {}
    #: Of a sweep: how much it found.
    found: int = 0
    #: What an operator said from here on: of a queue, of runs that are to wait, of a calendar.
    queue_policy: tuple[str, QueuePolicy] | None = None
    queue_pause: Pause | None = None
    calendar: Calendar | None = None
    #: Orders of preference that another data centre serves from here on.
    serving: dict[str, str] = {}


class HandlerCall(msgspec.Struct, kw_only=True):
    """A handler, from its first line to its last."""

    run: RunId
    fence: int
    attempt: int
    process: str
    queue: str
    started: Instant
    #: Its place among steps and other calls.
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
    #: What an engine has hinted at; None: the best there are.
    named: tuple[RunId, ...] | None = None
    #: The worker has heard what came of it.
    answered: bool = False


class Truth(msgspec.Struct, kw_only=True):
    """What the makers of the world know, and the checker needs."""

    slots: dict[str, int] = {}
    #: The data centre of each machine that is in one.
    places: dict[str, str] = {}
    #: Signs of life from a data centre: when, and from which.
    alive: list[tuple[Instant, str]] = []
    #: Everything a client has asked for, whether or not it was heard.
    submitted: dict[RunId, NewRun] = {}
    #: Runs that a client was told are accepted.
    accepted: list[RunId] = []
    #: Jobs that a client was told are there.
    declared: list[JobId] = []
    #: Stretches of time without faults, by the store's clock.
    calm: list[tuple[Instant, Instant]] = []
    #: In a calm stretch nothing is staged later than this.
    punctual: Micros = 0
    #: Who claims by hints looks at the store so often.
    look_every: Micros = 0
    #: When processes were frozen: name, from, to.
    freezes: list[tuple[str, Instant, Instant]] = []
    #: By how much the store's clock was set, in all: whoever estimates it may be off by that.
    clock_steps: Micros = 0
    #: What is in the store at the end.
    runs: dict[RunId, RunRow] = {}
    jobs: dict[JobId, JobRow] = {}
    ledgers: dict[JobId, list[LedgerEntry]] = {}
    #: What limits and families keep though all has ended.
    leftovers: list[str] = []
    #: What the outbox told its reader.
    events: list[EventBatch] = []
    ended_at: Instant = 0


class History(msgspec.Struct, kw_only=True):
    steps: list[Step] = []
    calls: list[HandlerCall] = []
    claims: list[Claim] = []
    #: Errors that services logged: there should be none that a store's absence does not explain.
    errors: list[str] = []
    #: What chaos did, for people to read.
    chaos: list[tuple[Instant, str]] = []
    truth: Truth = msgspec.field(default_factory=Truth)

    def fingerprint(self) -> str:
        """The same for the same trace, on every machine and in every process."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.steps, self.calls, self.claims, self.errors, self.chaos, self.truth):
            digest.update(msgspec.json.encode(part, enc_hook=_plain))
        return digest.hexdigest()


def _plain(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} has no place in a history")
