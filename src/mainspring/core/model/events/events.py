"""Outbox rows rendered as CloudEvents 1.0 in JSON.

An event holds only facts of its subject that never change, and for an ended run how it ended.
Rendering the same row again therefore gives the same event under the same id.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Literal

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant, isoformat
from mainspring.core.model.runs.names import external_name

#: Longer errors keep their last characters, where the cause stands.
MAX_EVENT_ERROR = 1_000


class Topic(StrEnum):
    JOBS = "job-events"
    WORKERS = "worker-events"
    DEPENDENCIES = "dependency-events"


#: Partitions to create per topic. Events with the same key go to the same partition.
PARTITIONS = {Topic.JOBS: 20, Topic.WORKERS: 10, Topic.DEPENDENCIES: 10}


class EventKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of change in the outbox, and the events published for it."""

    #: The event types of this change; some changes have several.
    types: tuple[str, ...]
    says: str
    topic: Topic = Topic.JOBS
    subject: Literal["run", "job", "worker", "budget"] = "run"
    #: The change ends a run unsuccessfully: the event includes the reason and the error.
    explained: bool = False


def _run(kind: str, says: str, *, explained: bool = False) -> EventKind:
    return EventKind(types=(kind,), says=says, explained=explained)


KINDS: Mapping[str, EventKind] = {
    "run.submitted": EventKind(
        types=("job.submitted",), says="a run was made: by a submit, by a tick of a schedule, or by another run"
    ),
    "run.queued": _run("run.queued", "it waited for its time or for others, and is queued now"),
    "run.started": _run("run.started", "a worker has claimed it: an attempt began"),
    "run.succeeded": _run("run.succeeded", "it has succeeded"),
    "run.failed": EventKind(
        types=("run.failed", "run.dead"),
        says="it has failed and is not retried: it is a dead letter. Both events are published for each",
        explained=True,
    ),
    "run.cancelled": _run("run.cancelled", "it was cancelled, and has stopped", explained=True),
    "run.skipped": _run("run.skipped", "it ended before it started", explained=True),
    "run.retried": _run("run.retried", "an attempt failed, and another follows"),
    "run.released": _run("run.released", "a worker gave it back; the attempt does not count"),
    "run.lost": _run("run.lost", "its worker was lost; another attempt follows"),
    "run.cancel_requested": _run("run.cancel_requested", "it runs, and was asked to stop"),
    "dead_letters.opened": _run("dead_letters.opened", "the first of a group of dead letters; the run is the newest"),
    "dead_letters.growing": _run("dead_letters.growing", "a group of dead letters grows; the run is the newest"),
    "job.slo_missed": EventKind(types=("job.slo_missed",), says="a recurring job misses its objective", subject="job"),
    "job.slo_recovered": EventKind(types=("job.slo_recovered",), says="it meets its objective again", subject="job"),
    "budget.warned": EventKind(types=("budget.warned",), says="a budget is nearly spent", subject="budget"),
    "budget.exceeded": EventKind(types=("budget.exceeded",), says="a budget is spent", subject="budget"),
    "worker.joined": EventKind(
        types=("worker.joined",), says="a worker has begun", topic=Topic.WORKERS, subject="worker"
    ),
    "worker.left": EventKind(
        types=("worker.left",), says="it has left in good order", topic=Topic.WORKERS, subject="worker"
    ),
    "worker.lost": EventKind(
        types=("worker.lost",),
        says="it was silent for a whole lease: its runs go to others",
        topic=Topic.WORKERS,
        subject="worker",
    ),
    "dependency.resolved": EventKind(
        types=("dependency.resolved",),
        says="all its parents have ended as it requires: it continues",
        topic=Topic.DEPENDENCIES,
    ),
}
#: A run changes no more after one of these events.
ENDS = frozenset({"run.succeeded", "run.failed", "run.dead", "run.cancelled", "run.skipped"})
#: The type of the event that replaces dropped events.
DROPPED = "events.dropped"


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a run that never change; for an ended run also how it ended."""

    id: RunId
    task: str
    queue: str
    job_id: JobId | None = None
    scheduled_at: Instant | None = None
    ended: bool = False
    attempt: int = 0
    reason: str = ""
    #: At most the last ``MAX_EVENT_ERROR`` characters.
    error: str | None = None
    #: The tags of the run; without those of its recurring job.
    tags: tuple[str, ...] = ()


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    id: SessionId
    name: str
    version: str
    datacenter: str
    queues: tuple[str, ...] = ()


class Event(msgspec.Struct, frozen=True, gc=False):
    """A rendered event: the values that select and order it, and the complete JSON body."""

    topic: Topic
    #: The partition key: a recurring job, a run without a job, or a worker. Events with the same key keep their order.
    key: str
    type: str
    id: str
    tenant: str
    task: str
    queue: str
    body: bytes


class Subject(msgspec.Struct, frozen=True):
    """Facts of a subject that all its events repeat, preencoded as JSON."""

    #: Empty: the subject's own id is the key.
    key: str = ""
    task: str = ""
    queue: str = ""
    data: bytes = b""
    #: How the run ended; None: not known.
    end: bytes | None = None


_UNKNOWN = Subject()


def subject_of_run(facts: RunFacts, job_name: str = "") -> Subject:
    """Build the subject of a run. ``job_name``: the external name of its recurring job."""
    said: dict[str, object] = {"task": facts.task, "queue": facts.queue}
    if facts.job_id is not None:
        said["jobId"] = facts.job_id
    if name := external_name(facts.tags) or job_name:
        said["externalName"] = name
    if facts.scheduled_at is not None:
        said["scheduledAt"] = isoformat(facts.scheduled_at)
    end = None
    if facts.ended:
        end = _inside({"attempt": facts.attempt, "reason": facts.reason, "error": facts.error})
    return Subject(facts.job_id or "", facts.task, facts.queue, _inside(said), end)


@lru_cache(10_000)
def subject_of_plain_run(task: str, queue: str) -> Subject:
    """Build the subject of a run without a recurring job. It is the same for all such runs of a task and queue."""
    return Subject("", task, queue, _inside({"task": task, "queue": queue}))


def subject_of_worker(facts: WorkerFacts) -> Subject:
    said = {
        "name": facts.name,
        "version": facts.version,
        "datacenter": facts.datacenter,
        "queues": facts.queues,
    }
    return Subject(str(facts.id), data=_inside(said))


def find_kind(name: str) -> EventKind:
    """Return the kind with this name. An unknown name, written by a newer version, is its own event type."""
    return KINDS.get(name) or EventKind(types=(name,), says="")


def id_of_worker(session: SessionId) -> str:
    """Format a session id as in the outbox, where ids have 32 hexadecimal digits."""
    return f"{session:032x}"


def worker_of_id(identifier: str) -> SessionId:
    return SessionId(int(identifier, 16))


_NAMES = {"run": b'"runId":"', "job": b'"jobId":"', "worker": b'"workerId":"', "budget": b'"budgetId":"'}


def compose(
    source: str,
    name: str,
    ids: Sequence[str],
    subjects: Mapping[str, Subject],
    *,
    position: str,
    at: Instant,
    tenant: str,
) -> Iterator[Event]:
    """Render one outbox row: changes of one kind and tenant that were made together, to the subjects in ``ids``.

    1. Events come in the order of ``ids``.
    2. A subject that no longer exists is rendered with its id alone.
    3. The JSON is concatenated by hand: this runs for every event of a busy system, and most of it repeats per batch.
    """
    kind = find_kind(name)
    # The hash includes the time: after a failover the new server may reuse a position that the old one had assigned.
    batch = hashlib.blake2b(f"{at} {position}".encode(), digest_size=12).hexdigest()
    owner = b'"tenant":' + msgspec.json.encode(tenant) + b"," if tenant else b""
    time = isoformat(at)
    heads = [
        (
            event_type,
            b'{"specversion":"1.0","source":"%b","type":"%b","time":"%b",%b"id":"%b-' % (*words, owner, batch.encode()),
        )
        for event_type in kind.types
        for words in [(source.encode(), event_type.encode(), time.encode())]
    ]
    named, of_worker, topic = _NAMES[kind.subject], kind.subject == "worker", kind.topic
    number = 0
    for identifier in ids:
        subject = subjects.get(identifier)
        known = str(worker_of_id(identifier)) if of_worker else identifier
        if subject is None:
            subject = _UNKNOWN
        end = subject.end if kind.explained and subject.end is not None else b""
        about = known.encode()
        for event_type, head in heads:
            said = (head, number, about, named, about, subject.data, end)
            body = b'%b%d","subject":"%b","data":{%b%b"%b%b}}' % said
            event = f"{batch}-{number}"
            number += 1
            yield Event(topic, subject.key or known, event_type, event, tenant, subject.task, subject.queue, body)


def dropped(
    source: str, position: str, now: Instant, count: int | None, since: Instant | None, until: Instant
) -> Event:
    """Build the event that replaces ``count`` events dropped because they outlived their retention; None: unknown."""
    name = hashlib.blake2b(position.encode(), digest_size=12).hexdigest() + "-dropped"
    body = msgspec.json.encode(
        {
            "specversion": "1.0",
            "source": source,
            "type": DROPPED,
            "time": isoformat(now),
            "id": name,
            "data": {"count": count, "since": None if since is None else isoformat(since), "until": isoformat(until)},
        }
    )
    return Event(Topic.JOBS, DROPPED, DROPPED, name, "", "", "", body)


def _inside(value: Mapping[str, object]) -> bytes:
    """Encode the fields of an object, preceded by a comma."""
    return b"," + msgspec.json.encode(value)[1:-1]
