"""Compares declared schedules with stored ones and plans the steps that make them equal.

A schedule carries its source: the application or the file that declares it. Schedules of another source, or of none
(made by hand), are left alone. The exception is one with the name of a declared schedule: it counts as the same
schedule.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.schedules.job import Job, JobSpec, JobState

_ACTIVE_STATES = (JobState.SCHEDULED, JobState.PAUSED)


class Action(StrEnum):
    ADD = "add"
    CHANGE = "change"
    #: A change of a schedule of another source. Two sources with the same name would overwrite each other forever.
    TAKE_OVER = "take over"
    REMOVE = "remove"


class DeclaredSchedule(msgspec.Struct, frozen=True):
    """A schedule as declared, and the payload of its runs."""

    spec: JobSpec
    payload: bytes


class Step(msgspec.Struct, frozen=True, kw_only=True):
    action: Action
    name: str
    #: The declared schedule; ``None`` for a removal.
    declared: DeclaredSchedule | None = None
    #: The stored job; ``None`` for an addition.
    job: Job | None = None


class Reconciliation(msgspec.Struct, frozen=True):
    """The planned steps: additions and changes in the order declared, then removals by name."""

    steps: tuple[Step, ...]
    #: The names of schedules that need no change.
    unchanged: tuple[str, ...]


def reconcile(declared: Sequence[DeclaredSchedule], stored: Iterable[Job], source: str) -> Reconciliation:
    """Plan the steps that make ``stored`` equal to ``declared``.

    ``stored`` has the jobs of one tenant. Jobs of other sources whose names are not declared may be missing.
    """
    known = {job.spec.name: job for job in stored}
    wanted: set[str] = set()
    steps: list[Step] = []
    unchanged: list[str] = []
    for one in declared:
        name = one.spec.name
        if name in wanted:
            raise Conflict(f"schedule {name!r} is declared twice")
        wanted.add(name)
        one = DeclaredSchedule(msgspec.structs.replace(one.spec, source=source), one.payload)
        job = known.get(name)
        if job is None:
            steps.append(Step(action=Action.ADD, name=name, declared=one))
        elif _is_unchanged(job, one):
            unchanged.append(name)
        else:
            others = job.spec.source not in ("", source) and job.state in _ACTIVE_STATES
            action = Action.TAKE_OVER if others else Action.CHANGE
            steps.append(Step(action=action, name=name, declared=one, job=job))
    for name, job in sorted(known.items()):
        if is_removed(job, source, wanted):
            steps.append(Step(action=Action.REMOVE, name=name, job=job))
    return Reconciliation(tuple(steps), tuple(unchanged))


def is_removed(job: Job, source: str, declared: set[str]) -> bool:
    """Return whether the job belongs to this source, still fires, and is no longer declared."""
    return job.spec.source == source and job.state in _ACTIVE_STATES and job.spec.name not in declared


def _is_unchanged(job: Job, declared: DeclaredSchedule) -> bool:
    # A cancelled job is scheduled again. A finished one has no tick left, and would only finish again.
    return job.spec == declared.spec and job.payload == declared.payload and job.state is not JobState.CANCELLED
