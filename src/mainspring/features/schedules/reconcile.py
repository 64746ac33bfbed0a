"""What must be done so that the store holds the schedules that somebody declares, and only those of theirs.

A schedule carries its source: the application or the file that declares it. What has another source, or none because
somebody made it by hand, is left alone, unless it has the very name of a declared one: then it is the same schedule.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.schedules.job import Job, JobSpec, JobState

_TICKING = (JobState.SCHEDULED, JobState.PAUSED)


class Action(StrEnum):
    ADD = "add"
    CHANGE = "change"
    #: A change of one that another source declares. Of two sources that name the same schedule, neither would rest.
    TAKE_OVER = "take over"
    REMOVE = "remove"


class Declared(msgspec.Struct, frozen=True):
    """A schedule as it should be, and the payload of its runs."""

    spec: JobSpec
    payload: bytes


class Step(msgspec.Struct, frozen=True, kw_only=True):
    action: Action
    name: str
    #: As it should be; none of what is removed.
    declared: Declared | None = None
    #: As it is; none of what is new.
    job: Job | None = None


class Steps(msgspec.Struct, frozen=True):
    """Additions and changes in the order declared, then removals by name."""

    steps: tuple[Step, ...]
    #: The names of those that are as they should be.
    unchanged: tuple[str, ...]


def reconcile(declared: Sequence[Declared], stored: Iterable[Job], source: str) -> Steps:
    """``stored``: the jobs of one tenant; those of other sources and other names may be left out."""
    known = {job.spec.name: job for job in stored}
    wanted: set[str] = set()
    steps: list[Step] = []
    unchanged: list[str] = []
    for one in declared:
        name = one.spec.name
        if name in wanted:
            raise Conflict(f"schedule {name!r} is declared twice")
        wanted.add(name)
        one = Declared(msgspec.structs.replace(one.spec, source=source), one.payload)
        job = known.get(name)
        if job is None:
            steps.append(Step(action=Action.ADD, name=name, declared=one))
        elif _is_as_declared(job, one):
            unchanged.append(name)
        else:
            others = job.spec.source not in ("", source) and job.state in _TICKING
            action = Action.TAKE_OVER if others else Action.CHANGE
            steps.append(Step(action=action, name=name, declared=one, job=job))
    for name, job in sorted(known.items()):
        if is_left_over(job, source, wanted):
            steps.append(Step(action=Action.REMOVE, name=name, job=job))
    return Steps(tuple(steps), tuple(unchanged))


def is_left_over(job: Job, source: str, declared: set[str]) -> bool:
    """Whether it is this source's, goes on firing, and is declared no more."""
    return job.spec.source == source and job.state in _TICKING and job.spec.name not in declared


def _is_as_declared(job: Job, declared: Declared) -> bool:
    # One that was cancelled comes back. One that is finished has no tick left, and would be finished again.
    return job.spec == declared.spec and job.payload == declared.payload and job.state is not JobState.CANCELLED
