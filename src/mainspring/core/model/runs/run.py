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

import hashlib
import re
from enum import StrEnum
from functools import cache
from random import Random
from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole, check_word, check_words
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.fingerprint import fingerprint_of
from mainspring.core.model.base.ids import JobId, RunId, SessionId, check_id
from mainspring.core.model.base.instant import DAY, HOUR, SECOND, Instant, Micros, check_instant
from mainspring.core.model.cluster.labels import check_labels_kept
from mainspring.core.model.limits.limits import Breaker, Gate, Limit, check_limits, gates_of
from mainspring.core.model.runs.cause import TIMED_OUT, UNKNOWN, Cause
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY, check_priority
from mainspring.core.model.runs.reserved import check_start_within
from mainspring.core.model.runs.retention import STANDARD, check_class
from mainspring.core.model.runs.retry import LONGEST_DELAY, RetryPolicy
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.runs.usage import Spent
from mainspring.core.model.workflows.dependencies import Dependencies, Rule

MAX_PAYLOAD = 256 * 1024
MAX_RESULT = 64 * 1024
MAX_STATE = 256 * 1024
MAX_ERROR = 16 * 1024
MAX_NAME = 200
MAX_TAGS = 20
MAX_WEIGHT = 1_000
#: Instead of a tenant's name.
ALL_TENANTS = "*"
_is_traceparent = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01").fullmatch
#: Words of people.
MAX_WHY = 1_000

#: Why a run ends that only one worker could have run.
WORKER_LEFT = "its worker left"
#: … and why one ends whose unique key another run took.
REPLACED = "replaced"

#: Why a run fails although retries are left: its handler said so, or the kind of its error is none to try again.
GAVE_UP = "gave up"
NOT_RETRIED = "not retried"

#: A run is parked when the loss of this many processes can be laid at its door …
POISON_AFTER = 3
#: … or when it was there at this many losses, whoever was to blame.
LOST_AFTER = 6
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


class RunPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What governs the attempts of a run. Written once, beside its payload."""

    retry: RetryPolicy = RetryPolicy()
    #: How long one attempt may take; never unlimited, so that a hung handler is always found.
    timeout: Micros = HOUR
    guarantee: Literal["at-least-once", "at-most-once"] = "at-least-once"
    #: Runs of one key happen one at a time, in the order they came due.
    ordering_key: str = ""
    #: Labels, as words in order: only a worker that has all of them may run it.
    requires: tuple[str, ...] = ()
    #: What it must pass before it is queued.
    limits: tuple[Limit, ...] = ()
    breaker: Breaker | None = None
    #: How many slots of its worker it takes.
    weight: int = 1
    #: The ``traceparent`` that its attempts stand under; empty: nobody records it. Here because this is what travels.
    trace: str = ""
    #: How long it is kept when it has ended: the name of a class; empty is the tenant's.
    retention: str = ""

    def check(self) -> None:
        check_kind("retry", self.retry, RetryPolicy)
        self.retry.check()
        check_whole("timeout", self.timeout, 1, 30 * DAY, "more than 0 and at most 30 days")
        check_word("guarantee", self.guarantee, ("at-least-once", "at-most-once"))
        check_kind("orderingKey", self.ordering_key, str)
        if len(self.ordering_key) > MAX_NAME or not self.ordering_key.isprintable():
            raise Invalid(
                "orderingKey", f"{self.ordering_key[:40]!r} is not a key", f"at most {MAX_NAME} printable characters"
            )
        check_labels_kept("requires", self.requires)
        check_limits(self.limits)
        if self.breaker is not None:
            check_kind("breaker", self.breaker, Breaker)
            self.breaker.check()
        check_whole("weight", self.weight, 1, MAX_WEIGHT, f"1 to {MAX_WEIGHT}")
        check_class("retention", self.retention)
        check_kind("trace", self.trace, str)
        if self.trace and not _is_traceparent(self.trace):
            raise Invalid("trace", f"{self.trace[:60]!r} is no traceparent", "00-(32 digits)-(16 digits)-01")

    def gates(self, tenant: str, task: str) -> tuple[Gate, ...]:
        """What a run of this task must pass, in the order in which they are locked."""
        if not self.limits and self.breaker is None:
            return ()
        return gates_of(tenant, task, self.limits, self.breaker)


DEFAULT_POLICY = RunPolicy()
#: Those found good, by identity: the same few come by the million, and what is equal may be wrong (1 == 1.0 == True).
#: They are kept here, so that no other can get their place in memory.
_checked: dict[int, RunPolicy] = {}


def check_policy(policy: RunPolicy) -> None:
    check_kind("policy", policy, RunPolicy)
    policy.check()
    if len(_checked) >= 1_000:
        _checked.clear()
    _checked[id(policy)] = policy


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What people call a one-off job. Kept beside its payload; nothing is kept where there is none."""

    name: str = ""
    owner: str = ""
    tags: tuple[str, ...] = ()
    #: The run that made it.
    parent: RunId | None = None
    #: The workflow it belongs to, by id and name, its own name there, and the names of those it waits for.
    workflow: RunId | None = None
    workflow_name: str = ""
    node: str = ""
    after: tuple[str, ...] = ()

    def check(self) -> None:
        if self.name:
            check_name("name", self.name)
        if self.parent is not None:
            check_id("parent", self.parent)
        if self.workflow is not None:
            check_id("workflow", self.workflow)
            check_name("name", self.workflow_name)
            check_name("nodes", self.node)
        check_labels(self.owner, self.tags)


class Idempotency(msgspec.Struct, frozen=True):
    """A caller's word for "the same request again". One tenant uses it once; the fingerprint tells whether it is."""

    key: str
    fingerprint: bytes

    def check(self) -> None:
        check_name("idempotencyKey", self.key)
        check_kind("fingerprint", self.fingerprint, bytes)


def fingerprint_of_request(*request: object) -> bytes:
    """Tells whether two requests under one idempotency key ask for the same, however they came here."""
    return hashlib.blake2b(msgspec.json.encode([_said(part) for part in request]), digest_size=16).digest()


def _said(part: object) -> object:
    """What is not as usual: a field that a later version adds must not make an old request another one."""
    if not isinstance(part, msgspec.Struct):
        return part
    kind = type(part)
    said = {name: _said(value) for name, default in _defaults(kind) if (value := getattr(part, name)) != default}
    return [kind.__name__, said]


@cache
def _defaults(kind: type[msgspec.Struct]) -> list[tuple[str, object]]:
    return [(field.name, field.default) for field in msgspec.structs.fields(kind)]


class JobRef(msgspec.Struct, frozen=True, kw_only=True):
    """The recurring job that a run outside its schedule belongs to."""

    id: JobId
    version: int
    kind: Literal["manual", "backfill"] = "manual"
    #: The tick that is made up for.
    scheduled_at: Instant | None = None


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is submitted. It is due at ``at``, or ``delay`` after the store has it."""

    id: RunId
    task: str
    payload: bytes = b"null"
    queue: str = "default"
    tenant: str = "default"
    priority: int = DEFAULT_PRIORITY
    policy: RunPolicy = DEFAULT_POLICY
    at: Instant | None = None
    delay: Micros = 0
    #: Not started this long after it was due, by the store's clock: ``skipped`` (expired).
    start_within: Micros | None = None
    #: Not ended this long after it was due: stopped, ``failed`` (deadline).
    deadline: Micros | None = None
    replay_of: RunId | None = None
    about: About | None = None
    #: Of a recurring job, beside its schedule: run now, or a tick made up for.
    job: JobRef | None = None
    idempotency: Idempotency | None = None
    #: Who asked for it, for the audit; nobody: the program itself.
    author: str = ""
    #: The one session that may run it. When that is gone before it has, the run is ``skipped`` (its worker left).
    target: SessionId | None = None
    #: The runs that it waits for.
    after: Dependencies | None = None
    unique: Unique | None = None
    #: In a store over several servers: runs of one key lie together, apart from the rest of their tenant. The id says
    #: where that is.
    placement: str = ""

    def check(self) -> None:
        check_id("id", self.id)
        check_name("task", self.task)
        check_queue("queue", self.queue)
        check_tenant("tenant", self.tenant)
        check_priority(self.priority)
        if id(self.policy) not in _checked:
            check_policy(self.policy)
        check_payload(self.payload)
        check_whole("delay", self.delay, 0, 100 * 366 * DAY, "0 to 100 years")
        if self.replay_of is not None:
            check_id("replayOf", self.replay_of)
        if self.at is not None:
            check_instant(self.at, "at")
        if self.start_within is not None:
            check_limit("startWithin", self.start_within)
            check_start_within(self.task, self.start_within)
        if self.deadline is not None:
            check_limit("deadline", self.deadline)
        if self.author != "":
            check_words("author", self.author, MAX_NAME)
        if self.target is not None:
            check_whole("target", self.target, 1, 2**31 - 1, "the number of a session")
        if self.after is not None:
            check_kind("dependsOn", self.after, Dependencies)
            self.after.check()
        if self.unique is not None:
            check_kind("unique", self.unique, Unique)
            self.unique.check()
        if self.about is not None:
            check_kind("about", self.about, About)
            self.about.check()
        if self.job is not None:
            check_kind("job", self.job, JobRef)
        if self.idempotency is not None:
            check_kind("idempotency", self.idempotency, Idempotency)
            self.idempotency.check()
        if self.placement != "":
            check_name("placement", self.placement)


def made_once(run: NewRun, key: str) -> NewRun:
    """The same run, to be made once under this key, whoever is asked: the store or an API."""
    asked = msgspec.structs.replace(run, id=RunId(""), author="", idempotency=None)
    return msgspec.structs.replace(run, idempotency=Idempotency(key, fingerprint_of_request(asked)))


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


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt's end does to its run. The store applies it only under the same fence.

    A run that was asked to stop and would go on (``scheduled`` or ``queued``) becomes ``cancelled`` instead: the store
    looks at the request in the very statement that moves the run.
    """

    run: RunId
    fence: int
    outcome: Outcome
    state: RunState
    reason: str = ""
    #: The pause before the next attempt, from the moment the store has this.
    delay: Micros = 0
    result: bytes | None = None
    error: str | None = None
    lets_go: bool = False
    #: Of a failed run: what groups it with others of its kind.
    fingerprint: str = ""
    #: What the attempt cost beyond its time, as far as anybody measured or told it.
    spent: Spent | None = None


class Verdict(StrEnum):
    """What the store says to a settlement."""

    APPLIED = "applied"
    #: The same outcome was applied under this fence before.
    ALREADY = "already applied"
    #: It does not count: the attempt ended otherwise, or was never this one.
    FENCED = "fenced"


def settle_success(held: HeldRun, result: bytes | None) -> Settlement:
    return Settlement(
        run=held.id,
        fence=held.fence,
        outcome=Outcome.SUCCESS,
        state=RunState.SUCCEEDED,
        result=result,
        lets_go=held.lets_go,
    )


def settle_failure(
    held: HeldRun,
    error: str,
    jitter: Random,
    *,
    now: Instant,
    timed_out: bool = False,
    reason: str = "",
    cause: Cause = UNKNOWN,
) -> Settlement:
    """The handler raised, or had to be stopped. Losses do not count against the retries."""
    outcome = Outcome.TIMEOUT if timed_out else Outcome.ERROR
    cause = TIMED_OUT if timed_out else cause
    reason = reason or outcome.value
    failures = held.attempt - held.lost
    if held.deadline is not None and now >= held.deadline:
        return _settle(held, outcome, RunState.FAILED, "deadline", error)
    if not tries_again(held, cause):
        return _settle(held, outcome, RunState.FAILED, _why_not_again(held, cause) or reason, error)
    if cause.after is not None:
        return _settle(held, outcome, RunState.SCHEDULED, reason, error, max(0, min(cause.after, LONGEST_DELAY)))
    delay = held.policy.retry.delay_after(failures, jitter)
    return _settle(held, outcome, RunState.SCHEDULED, reason, error, delay)


def tries_again(held: HeldRun, cause: Cause = UNKNOWN) -> bool:
    """Whether another attempt follows if this one fails, as far as its policy and its handler say."""
    if held.policy.guarantee == "at-most-once" or not held.policy.retry.allows(held.attempt - held.lost):
        return False
    return not _why_not_again(held, cause)


def _why_not_again(held: HeldRun, cause: Cause) -> str:
    """Of what kind a failure is that no number of retries would help; nothing: it is of none."""
    if cause.gives_up:
        return GAVE_UP
    # Who asks for another try means it, whatever the kind of the error they ask by.
    return "" if cause.after is not None or held.policy.retry.covers(cause.kinds) else NOT_RETRIED


def settle_loss(held: HeldRun, *, blamed: bool, how: str = "") -> Settlement:
    """The process that ran it is gone. ``blamed``: it ran alone there, so no other run can be the cause. ``how``: how
    the process ended, if that is known."""
    losses = held.lost + 1
    error = how or "its worker died"
    if held.cancel_requested:
        return _settle(held, Outcome.LOST, RunState.CANCELLED, "cancelled", f"{error} while it was cancelled")
    if held.policy.guarantee == "at-most-once":
        return _settle(held, Outcome.LOST, RunState.FAILED, "lost", f"{error}; at-most-once is never repeated")
    if (blamed and losses >= POISON_AFTER) or losses >= LOST_AFTER:
        if how:
            error = f"{losses} attempts lost their worker or their process; the last time {how}"
        else:
            error = f"{losses} workers died while they ran it"
        return _settle(held, Outcome.LOST, RunState.FAILED, "poison", error)
    return _settle(held, Outcome.LOST, RunState.QUEUED, "lost", error)


def settle_release(held: HeldRun, reason: str = "released", delay: Micros = 0) -> Settlement:
    """The worker gives it back unharmed; the attempt is not charged. With a delay it is left alone for that long."""
    state = RunState.SCHEDULED if delay else RunState.QUEUED
    return _settle(held, Outcome.RELEASED, state, reason, None, delay)


def settle_unreadable(run: RunId, fence: int, error: Exception) -> Settlement:
    """It was stored in a way that this program cannot read, so nobody can say how to run it."""
    return Settlement(
        run=run,
        fence=fence,
        outcome=Outcome.ERROR,
        state=RunState.FAILED,
        reason="unreadable",
        error=clean_error(f"its stored policy or payload cannot be read by this program: {error}"),
        lets_go=True,
    )


def settle_cancel(held: HeldRun) -> Settlement:
    """It was asked to stop and has stopped."""
    return _settle(held, Outcome.CANCELLED, RunState.CANCELLED, "cancelled", None)


def _settle(
    held: HeldRun, outcome: Outcome, state: RunState, reason: str, error: str | None, delay: Micros = 0
) -> Settlement:
    return Settlement(
        run=held.id,
        fence=held.fence,
        outcome=outcome,
        state=state,
        reason=reason,
        delay=delay,
        error=None if error is None else clean_error(error),
        lets_go=held.lets_go,
        fingerprint=fingerprint_of(reason, error or "") if state is RunState.FAILED else "",
    )


def clean_error(error: str) -> str:
    """Keep the end of a long error, where the cause stands, and nothing a database refuses."""
    cleaned = error.encode("utf-8", "replace").decode("utf-8").replace("\x00", "�")
    return cleaned if len(cleaned) <= MAX_ERROR else "… " + cleaned[-MAX_ERROR:]


def check_name(field: str, name: str) -> str:
    """A name is 1 to 200 printable characters without spaces at its ends."""
    good = isinstance(name, str) and name and len(name) <= MAX_NAME and name.isprintable() and name == name.strip()
    if not good:
        raise Invalid(field, f"{name!r:.40} is not a name", f"1 to {MAX_NAME} printable characters")
    return name


def check_queue(field: str, name: str) -> str:
    """A queue is a part of a path: one with a slash could not be paused."""
    check_name(field, name)
    if "/" in name or name in (".", ".."):
        raise Invalid(field, f"{name!r:.40} is not a name of a queue", "without a slash, and not just dots")
    return name


def check_tenant(field: str, name: str) -> str:
    """In tokens ``*`` is every tenant, so none has that name."""
    check_name(field, name)
    if name == ALL_TENANTS:
        raise Invalid(field, f"{ALL_TENANTS!r} means all tenants", "another name")
    return name


def check_limit(field: str, limit: Micros) -> None:
    check_whole(field, limit, 1, 100 * 366 * DAY, "more than 0 and at most 100 years")


def check_payload(payload: bytes) -> None:
    if not isinstance(payload, bytes):
        raise Invalid("payload", f"{payload!r:.40} is not bytes")
    if len(payload) > MAX_PAYLOAD:
        raise Invalid("payload", f"is {len(payload)} bytes", f"at most {MAX_PAYLOAD}")


def check_labels(owner: str, tags: tuple[str, ...]) -> None:
    if owner != "":
        check_name("owner", owner)
    if not isinstance(tags, tuple) or len(tags) > MAX_TAGS:
        raise Invalid("tags", "are too many, or no tuple", f"at most {MAX_TAGS}")
    for tag in tags:
        check_name("tags", tag)
    if len(set(tags)) < len(tags):
        raise Invalid("tags", "has one of them twice")


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

#: How long a run is left alone that a worker did not know how to do: another one, perhaps a newer, may take it.
UNKNOWN_TASK_DELAY: Micros = 5 * SECOND
