"""A run that is submitted."""

import hashlib
from functools import cache
from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole, check_words
from mainspring.core.model.base.ids import JobId, RunId, SessionId, check_id
from mainspring.core.model.base.instant import DAY, Instant, Micros, check_instant
from mainspring.core.model.runs.names import (
    MAX_NAME,
    check_labels,
    check_limit,
    check_name,
    check_payload,
    check_queue,
    check_tenant,
)
from mainspring.core.model.runs.policy import DEFAULT_POLICY, RunPolicy, _checked, check_policy
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY, check_priority
from mainspring.core.model.runs.reserved import check_start_within
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.workflows.dependencies import Dependencies


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
