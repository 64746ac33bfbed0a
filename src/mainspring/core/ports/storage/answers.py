"""What the store answers to submits, declarations of jobs, heartbeats, completions and the scheduler."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.completion import CompletionAnswer
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import Job, JobState, NewJob


class SubmitResult(msgspec.Struct, frozen=True):
    """The answer to a submitted run: its id and its current state."""

    id: RunId
    #: A new run is ``queued``, ``scheduled`` or ``blocked``; or ``skipped`` if its dependencies can no longer be met.
    state: RunState
    #: False: this id or its idempotency key was submitted before and nothing was done. Also False for an edited run.
    new: bool
    #: The idempotency key was used before for a different submission; ``id`` names that one, and nothing was done. For
    #: an edited run: a concurrent change came first.
    conflict: bool = False


class PutOutcome(StrEnum):
    CREATED = "created"
    #: The job has a new version, was reactivated, or both.
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    #: The caller required a new job, but one with this name exists.
    EXISTS = "exists"
    #: The job's version differs from the expected one.
    STALE = "stale"
    #: The idempotency key was used before for something else, and ``job`` is that job. If it was a run, ``job`` is the
    #: declared one with the id of that run and version 0.
    CONFLICT = "conflict"


class PutResult(msgspec.Struct, frozen=True):
    """A declared job in its current form, and what the declaration changed."""

    job: Job
    outcome: PutOutcome


def refuse_put(new: NewJob, job: JobId, version: int, state: JobState, same: bool) -> PutOutcome | None:
    """Return the reason to leave a known job unchanged, or None if it may be changed.

    ``same``: the job already has the new spec and payload. A client that repeats a call after losing the answer is not
    refused.
    """
    if new.must_be_new and state in (JobState.SCHEDULED, JobState.PAUSED) and not (same and job == new.id):
        return PutOutcome.EXISTS
    if new.expected_version in (None, version) or (same and version - 1 == new.expected_version):
        return None
    return PutOutcome.STALE


def build_conflict(new: NewJob, made: str) -> PutResult:
    """Build the answer for a job whose idempotency key already created something else, under the id ``made``."""
    job = Job(
        id=JobId(made),
        tenant=new.tenant,
        spec=new.spec,
        version=0,
        state=JobState.SCHEDULED,
        next_fire=None,
        rev=0,
        payload=new.payload,
    )
    return PutResult(job, PutOutcome.CONFLICT)


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat."""

    now: Instant
    #: False: the session was reaped. The worker must stop its runs, because they are being given to other workers.
    alive: bool
    #: Held runs that were asked to stop.
    cancels: tuple[RunId, ...] = ()
    #: How many runs of this session the worker did not know. They were requeued without charging the attempt.
    returned: int = 0
    #: The worker was asked to drain.
    draining: bool = False
    #: Held runs that other workers may have by now: a part of the store was silent for a whole lease, or has reassigned
    #: them. The worker must stop them and report nothing about them.
    lost: tuple[RunId, ...] = ()


class PartialCompletion(StoreUnavailable):
    """A part of the store did not answer.

    ``answers`` has the answers of the other parts, and None where one is missing.
    """

    def __init__(self, message: str, answers: Sequence[CompletionAnswer | None]) -> None:
        super().__init__(message)
        self.answers = answers


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of staging the owned shards."""

    now: Instant
    #: How many runs were queued, without those that joined the line of their ordering key.
    runs: int
    #: The queues that received work.
    queues: tuple[str, ...] = ()
    #: There was, or may have been, more than the limit: stage again at once.
    more: bool = False
    #: A recurring job of these shards is due.
    schedules_due: bool = False


class FireResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one ``Fire``."""

    #: False: the schedule was changed first, the shard is no longer owned, or it is too early. Nothing was done.
    applied: bool
    #: Ticks that became runs after the overlap rule was applied.
    runs: int = 0
    #: The queues that received work, or may have.
    queues: tuple[str, ...] = ()
