"""A run as submitted."""

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
    """Descriptive data of a one-off job, stored beside its payload; nothing is stored if all fields are empty."""

    name: str = ""
    owner: str = ""
    tags: tuple[str, ...] = ()
    #: The run that created this one.
    parent: RunId | None = None
    #: The workflow's id and name, this run's node name in it, and the names of the nodes it depends on.
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
    """The idempotency key of a request. A tenant uses each key once; the fingerprint detects a different request."""

    key: str
    fingerprint: bytes

    def check(self) -> None:
        check_name("idempotencyKey", self.key)
        check_kind("fingerprint", self.fingerprint, bytes)


def fingerprint_of_request(*request: object) -> bytes:
    """Hash a request. Two requests under one idempotency key are the same if their fingerprints are equal."""
    return hashlib.blake2b(msgspec.json.encode([_said(part) for part in request]), digest_size=16).digest()


def _said(part: object) -> object:
    """Encode only non-default fields, so that fingerprints stay stable when a later version adds a field."""
    if not isinstance(part, msgspec.Struct):
        return part
    kind = type(part)
    said = {name: _said(value) for name, default in _defaults(kind) if (value := getattr(part, name)) != default}
    return [kind.__name__, said]


@cache
def _defaults(kind: type[msgspec.Struct]) -> list[tuple[str, object]]:
    return [(field.name, field.default) for field in msgspec.structs.fields(kind)]


class JobRef(msgspec.Struct, frozen=True, kw_only=True):
    """The recurring job of a run that was created outside its schedule."""

    id: JobId
    version: int
    kind: Literal["manual", "backfill"] = "manual"
    #: The tick that the run makes up for.
    scheduled_at: Instant | None = None


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as submitted. It is due at ``at``, or ``delay`` after the store receives it."""

    id: RunId
    task: str
    payload: bytes = b"null"
    queue: str = "default"
    tenant: str = "default"
    priority: int = DEFAULT_PRIORITY
    policy: RunPolicy = DEFAULT_POLICY
    at: Instant | None = None
    delay: Micros = 0
    #: A run not started this long after it was due, by the store's clock, is ``skipped`` (expired).
    start_within: Micros | None = None
    #: A run not ended this long after it was due is stopped and ``failed`` (deadline).
    deadline: Micros | None = None
    replay_of: RunId | None = None
    about: About | None = None
    #: The recurring job that the run belongs to, if it was started manually or makes up for a tick.
    job: JobRef | None = None
    idempotency: Idempotency | None = None
    #: The user who submitted the run, for the audit log; empty: the program itself.
    author: str = ""
    #: The only session that may run it. If that session ends first, the run is ``skipped`` (its worker left).
    target: SessionId | None = None
    #: The runs that it depends on.
    after: Dependencies | None = None
    unique: Unique | None = None
    #: The placement key: a sharded store keeps runs with the same key together, apart from the tenant's others. The
    #: run's id encodes the placement group.
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
    """Return the run with an idempotency key. Its fingerprint is the same in the store and in the API."""
    asked = msgspec.structs.replace(run, id=RunId(""), author="", idempotency=None)
    return msgspec.structs.replace(run, idempotency=Idempotency(key, fingerprint_of_request(asked)))
