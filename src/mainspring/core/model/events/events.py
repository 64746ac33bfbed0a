"""What happened, as others are told of it: CloudEvents 1.0 in JSON, made of what stands in the outbox.

An event says what never changes of its subject, and of an end how it came about. So whoever tells it again says the
same, under the same id.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Literal

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant, isoformat

#: Of a long error the end is told, where the cause stands.
MAX_TOLD_ERROR = 1_000


class Topic(StrEnum):
    JOBS = "job-events"
    WORKERS = "worker-events"
    DEPENDENCIES = "dependency-events"


#: For whoever has to make them. What has one key is in one partition.
PARTITIONS = {Topic.JOBS: 20, Topic.WORKERS: 10, Topic.DEPENDENCIES: 10}


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of change in the outbox, and how it is told."""

    #: Several where one change has several names.
    types: tuple[str, ...]
    says: str
    topic: Topic = Topic.JOBS
    subject: Literal["run", "job", "worker", "budget"] = "run"
    #: It ends a run otherwise than well: why is told, too.
    explained: bool = False


def _run(kind: str, says: str, *, explained: bool = False) -> Kind:
    return Kind(types=(kind,), says=says, explained=explained)


KINDS: Mapping[str, Kind] = {
    "run.submitted": Kind(
        types=("job.submitted",), says="a run was made: by a submit, by a tick of a schedule, or by another run"
    ),
    "run.queued": _run("run.queued", "it waited for its time or for others, and is queued now"),
    "run.started": _run("run.started", "a worker has claimed it: an attempt began"),
    "run.succeeded": _run("run.succeeded", "it has succeeded"),
    "run.failed": Kind(
        types=("run.failed", "run.dead"),
        says="it has failed and is not tried again: it is a dead letter. Both are told of each",
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
    "job.slo_missed": Kind(types=("job.slo_missed",), says="a recurring job misses its objective", subject="job"),
    "job.slo_recovered": Kind(types=("job.slo_recovered",), says="it meets its objective again", subject="job"),
    "budget.warned": Kind(types=("budget.warned",), says="a budget is nearly spent", subject="budget"),
    "budget.exceeded": Kind(types=("budget.exceeded",), says="a budget is spent", subject="budget"),
    "worker.joined": Kind(types=("worker.joined",), says="a worker has begun", topic=Topic.WORKERS, subject="worker"),
    "worker.left": Kind(
        types=("worker.left",), says="it has left in good order", topic=Topic.WORKERS, subject="worker"
    ),
    "worker.lost": Kind(
        types=("worker.lost",),
        says="it was silent for a whole lease: its runs go to others",
        topic=Topic.WORKERS,
        subject="worker",
    ),
    "dependency.resolved": Kind(
        types=("dependency.resolved",),
        says="the runs that it waited for have ended as it wanted: it goes on",
        topic=Topic.DEPENDENCIES,
    ),
}
#: After these a run does nothing any more.
ENDS = frozenset({"run.succeeded", "run.failed", "run.dead", "run.cancelled", "run.skipped"})
#: What whoever was away for too long is told in place of what was given up.
DROPPED = "events.dropped"


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What never changes of a run; and of one that has ended, how."""

    id: RunId
    task: str
    queue: str
    job_id: JobId | None = None
    scheduled_at: Instant | None = None
    ended: bool = False
    attempt: int = 0
    reason: str = ""
    #: At most the last ``MAX_TOLD_ERROR`` characters.
    error: str | None = None


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    id: SessionId
    name: str
    version: str
    datacenter: str
    queues: tuple[str, ...] = ()


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event as it is told: what it is sorted by, and all of it as JSON."""

    topic: Topic
    #: What has one key stays in order: a recurring job, a run without one, a worker.
    key: str
    type: str
    id: str
    tenant: str
    task: str
    queue: str
    body: bytes


class Subject(msgspec.Struct, frozen=True):
    """What is told of a subject in each of its events, ready to be put into JSON."""

    #: Empty: its own id.
    key: str = ""
    task: str = ""
    queue: str = ""
    data: bytes = b""
    #: How it has ended; None: that is not known.
    end: bytes | None = None


_UNKNOWN = Subject()


def subject_of_run(facts: RunFacts) -> Subject:
    said: dict[str, object] = {"task": facts.task, "queue": facts.queue}
    if facts.job_id is not None:
        said["jobId"] = facts.job_id
    if facts.scheduled_at is not None:
        said["scheduledAt"] = isoformat(facts.scheduled_at)
    end = None
    if facts.ended:
        end = _inside({"attempt": facts.attempt, "reason": facts.reason, "error": facts.error})
    return Subject(facts.job_id or "", facts.task, facts.queue, _inside(said), end)


@lru_cache(10_000)
def subject_of_plain_run(task: str, queue: str) -> Subject:
    """All that is said of one that belongs to no job: the same for all of its task and queue."""
    return Subject("", task, queue, _inside({"task": task, "queue": queue}))


def subject_of_worker(facts: WorkerFacts) -> Subject:
    said = {
        "name": facts.name,
        "version": facts.version,
        "datacenter": facts.datacenter,
        "queues": facts.queues,
    }
    return Subject(str(facts.id), data=_inside(said))


def kind_of(name: str) -> Kind:
    """A newer program may know more kinds: they are told as they are called."""
    return KINDS.get(name) or Kind(types=(name,), says="")


def id_of_worker(session: SessionId) -> str:
    """As it stands in the outbox, where ids have 32 digits."""
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
    """A row of the outbox: changes of one kind and one tenant that were made together; ``ids``: of what they were made
    to. In their order. Of a subject that is gone nothing is told but its id.

    Put together by hand: it is done for every event of a busy system, and most of it is the same for all of a batch.
    """
    kind = kind_of(name)
    # Of the time, too: a server that takes over may give a place once more that its predecessor had given.
    batch = hashlib.blake2b(f"{at} {position}".encode(), digest_size=12).hexdigest()
    owner = b'"tenant":' + msgspec.json.encode(tenant) + b"," if tenant else b""
    time = isoformat(at)
    heads = [
        (
            told,
            b'{"specversion":"1.0","source":"%b","type":"%b","time":"%b",%b"id":"%b-' % (*words, owner, batch.encode()),
        )
        for told in kind.types
        for words in [(source.encode(), told.encode(), time.encode())]
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
        for told, head in heads:
            said = (head, number, about, named, about, subject.data, end)
            body = b'%b%d","subject":"%b","data":{%b%b"%b%b}}' % said
            event = f"{batch}-{number}"
            number += 1
            yield Event(topic, subject.key or known, told, event, tenant, subject.task, subject.queue, body)


def dropped(
    source: str, position: str, now: Instant, count: int | None, since: Instant | None, until: Instant
) -> Event:
    """So many events are not told: they were older than anything is kept for whoever is away. None: not known."""
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
    """The fields of an object, with a comma before them."""
    return b"," + msgspec.json.encode(value)[1:-1]
